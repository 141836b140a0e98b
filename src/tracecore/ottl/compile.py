"""Statements, conditions and value expressions to closures.

Everything that can be known before there is a record is found out here: which function, which path, which types, the
values of constant expressions. What is left for each record is calling closures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from tracecore.ottl import tree
from tracecore.ottl.context import Context
from tracecore.ottl.contexts import context_type
from tracecore.ottl.errors import OttlError, OttlRuntimeError
from tracecore.ottl.expressions import Compiler
from tracecore.ottl.parser import parse, parse_condition, parse_value_expression
from tracecore.ottl.signature import Function, RawGetter, constant_value, declared

#: What is said of a value that Python cannot follow to its end.
NESTED: Final = "a value is nested too deep"


@cache
def functions_of(context: str) -> Mapping[str, Function]:
    """The functions that exist in a context, by name."""
    from tracecore.ottl import functions  # 110 functions are only read once a statement is compiled

    return {
        name: function
        for name, function in declared(functions.MODULES).items()
        if not function.contexts or context in function.contexts
    }


def _compiler(source: str, context: str, qualified: bool, functions: Mapping[str, Function] | None) -> Compiler:
    kind = context_type(context)
    known = functions_of(kind.name)
    return Compiler(source, kind, qualified, {**known, **functions} if functions else known)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled statement.

    Args:
        tree: what it was compiled from.
        context: the context its paths belong to.
        where: gives whether the editor is to run; None when it always is.
        editor: changes the record.
    """

    tree: tree.Statement
    context: str
    where: Callable[[Context], bool] | None
    editor: RawGetter

    def run(self, ctx: Context) -> bool:
        """Run on one record; True when the condition held.

        Raises:
            OttlError: the statement failed on this record.
        """
        guarding = True
        try:
            if self.where is not None and not self.where(ctx):
                return False
            guarding = False
            self.editor(ctx)
        except OttlError as error:
            raise error.locate(self.tree.source, self._offset(guarding))  # noqa: B904
        except RecursionError as error:
            raise OttlRuntimeError(NESTED, self.tree.source, self._offset(guarding)) from error
        return True

    def _offset(self, guarding: bool) -> int:
        where = self.tree.where
        return where.offset if guarding and where is not None else self.tree.editor.offset


def compile_statement(
    statement: str | tree.Statement,
    context: str = "log",
    *,
    qualified: bool = False,
    functions: Mapping[str, Function] | None = None,
) -> Program:
    """Compile a statement for a context.

    Args:
        statement: text, or a tree of `parse`.
        context: `resource`, `scope`, `log`, `span`, `spanevent`, `metric` or `datapoint`.
        qualified: paths must start with the name of a context, as in statements whose context is inferred.
        functions: more functions than the language has, by name.

    Raises:
        OttlError: with line and column.
    """
    node = parse(statement) if isinstance(statement, str) else statement
    compiler = _compiler(node.source, context, qualified, functions)
    editor = compiler.located(node.editor.offset, lambda: compiler.calls.editor(node.editor))
    where = None if node.where is None else compiler.condition(node.where)
    return Program(node, context, None if where is not None and constant_value(where) is True else where, editor)


def compile_condition(
    condition: str | tree.Condition,
    context: str = "log",
    *,
    qualified: bool = False,
    functions: Mapping[str, Function] | None = None,
) -> Callable[[Context], bool]:
    """Compile a condition to a closure that gives a boolean."""
    node = parse_condition(condition) if isinstance(condition, str) else condition
    source = condition if isinstance(condition, str) else tree.unparse(node)
    return _compiler(source, context, qualified, functions).condition(node)


def compile_value_expression(
    expression: str,
    context: str = "log",
    *,
    qualified: bool = False,
    functions: Mapping[str, Function] | None = None,
) -> RawGetter:
    """Compile a value expression to a closure that gives its value."""
    return _compiler(expression, context, qualified, functions).value(parse_value_expression(expression))
