"""A syntax tree to closures.

Everything that can be known before there is a record is found out here: which function, which path, which types, the
values of constant expressions. What is left for each record is calling closures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from tracecore.ottl import tree
from tracecore.ottl.arithmetic import OPERATORS, negate
from tracecore.ottl.compare import COMPARATORS
from tracecore.ottl.context import Context
from tracecore.ottl.contexts import ContextType, context_type
from tracecore.ottl.errors import OttlCompileError, OttlError, OttlTypeError, nearest
from tracecore.ottl.keys import Keys, index_result
from tracecore.ottl.parser import parse, parse_condition, parse_value_expression
from tracecore.ottl.signature import (
    MISSING,
    Function,
    GetSetter,
    Kind,
    Parameter,
    RawGetter,
    checked,
    constant,
    constant_value,
    declared,
)
from tracecore.ottl.values import Value, go_type

_NO_RECORD: Final = Context({}, {}, {})
_LITERAL_KINDS: Final[dict[type, str]] = {
    str: "a string",
    int: "an int",
    float: "a float",
    bool: "a bool",
    bytes: "a byte slice literal",
}


@cache
def functions_of(context: str) -> Mapping[str, Function]:
    """The functions that exist in a context, by name."""
    from tracecore.ottl import functions  # 110 functions are only read once a statement is compiled

    return {
        name: function
        for name, function in declared(functions.MODULES).items()
        if not function.contexts or context in function.contexts
    }


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
        if self.where is not None:
            try:
                if not self.where(ctx):
                    return False
            except OttlError as error:
                where = self.tree.where
                raise error.locate(self.tree.source, where.offset if where else 0)  # noqa: B904
        try:
            self.editor(ctx)
        except OttlError as error:
            raise error.locate(self.tree.source, self.tree.editor.offset)  # noqa: B904
        return True


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
    compiler = _Compiler(node.source, context, qualified, functions)
    editor = compiler.located(node.editor.offset, lambda: compiler.editor(node.editor))
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
    return _Compiler(source, context, qualified, functions).condition(node)


def compile_value_expression(
    expression: str,
    context: str = "log",
    *,
    qualified: bool = False,
    functions: Mapping[str, Function] | None = None,
) -> RawGetter:
    """Compile a value expression to a closure that gives its value."""
    return _Compiler(expression, context, qualified, functions).value(parse_value_expression(expression))


def _folded(value: Value) -> RawGetter:
    """A constant that was computed rather than written. Its type errors belong to run time, as without folding."""
    getter = constant(value)
    getter.ottl_folded = True  # type: ignore[attr-defined]
    return getter


def _is_folded(getter: Any) -> bool:
    return getattr(getter, "ottl_folded", False) is True


def _opaque(getter: Any) -> Any:
    """The same getter, not to be recognised as a constant."""
    if isinstance(getter, list):
        return [_opaque(item) for item in getter]
    return (lambda ctx: getter(ctx)) if _is_folded(getter) else getter


@dataclass
class _Binding:
    """The arguments of one call, compiled."""

    arguments: dict[str, Any] = field(default_factory=dict)
    constant: bool = True


class _Compiler:
    def __init__(self, source: str, context: str, qualified: bool, functions: Mapping[str, Function] | None) -> None:
        self.source = source
        self.context: ContextType = context_type(context)
        self.qualified = qualified
        known = functions_of(self.context.name)
        self.functions = {**known, **functions} if functions else known
        self.scopes: list[frozenset[str]] = []

    def located(self, offset: int, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except OttlError as error:
            raise error.locate(self.source, offset)  # noqa: B904

    def error(self, message: str, offset: int, hint: str = "") -> OttlCompileError:
        return OttlCompileError(message, self.source, offset, hint)

    # Values.

    def value(self, node: tree.Expression | tree.Lambda | tree.FunctionName) -> RawGetter:
        match node:
            case tree.Literal(value):
                return constant(value)
            case tree.Symbol(name, offset):
                return constant(self.symbol(name, offset))
            case tree.Path():
                return self.path(node).get
            case tree.Call():
                return self.call(node)
            case tree.Unary(op, operand):
                return self.unary(op, operand)
            case tree.Binary(op, left, right):
                return self.binary(op, left, right)
            case tree.ListLiteral(items):
                return self.list_value(items)
            case tree.MapLiteral(entries):
                return self.map_value(entries)
            case tree.Lambda(_, _, offset):
                raise self.error("lambda expressions can only be passed to function arguments that accept them", offset)
            case tree.FunctionName(name, offset):
                raise self.error(f"a value is wanted here, not the function {name}", offset)

    def symbol(self, name: str, offset: int) -> int:
        number = self.context.symbols.get(name)
        if number is None:
            raise self.error(f'enum symbol, "{name}", not found', offset, nearest(name, self.context.symbols))
        return number

    def unary(self, op: str, operand: tree.Expression) -> RawGetter:
        getter = self.value(operand)
        if op == "+":
            return getter
        value = constant_value(getter)
        if value is not MISSING and type(value) in (int, float):
            return (constant if isinstance(operand, tree.Literal) else _folded)(negate(value))
        return lambda ctx: negate(getter(ctx))

    def binary(self, op: str, left: tree.Expression, right: tree.Expression) -> RawGetter:
        first, second, operate = self.value(left), self.value(right), OPERATORS[op]

        def run(ctx: Context) -> Value:
            return operate(first(ctx), second(ctx))

        if constant_value(first) is not MISSING and constant_value(second) is not MISSING:
            return self.fold(run)
        return run

    def fold(self, run: RawGetter) -> RawGetter:
        """The value of a constant expression; the expression itself where computing it fails, as it will each time."""
        try:
            return _folded(run(_NO_RECORD))
        except OttlError:
            return run

    def list_value(self, items: tuple[tree.Expression, ...]) -> RawGetter:
        getters = [self.value(item) for item in items]

        def run(ctx: Context) -> Value:
            return [getter(ctx) for getter in getters]

        return self.collection(run, getters)

    def map_value(self, entries: tuple[tuple[str, tree.Expression], ...]) -> RawGetter:
        getters = {key: self.value(value) for key, value in entries}

        def run(ctx: Context) -> Value:
            return {key: _map_value(getter(ctx)) for key, getter in getters.items()}

        return self.collection(run, list(getters.values()))

    def collection(self, run: RawGetter, getters: list[RawGetter]) -> RawGetter:
        if any(constant_value(getter) is MISSING for getter in getters):
            return run
        if any(map(_is_folded, getters)):
            return self.fold(run)
        return constant(run(_NO_RECORD))

    # Paths.

    def path(self, node: tree.Path) -> GetSetter:
        first = node.segments[0]
        if any(first.name in names for names in self.scopes):
            return self.local(node)
        names = tuple(segment.name for segment in node.segments)
        prefix = self.context.name
        has_prefix = len(names) > 1 and not first.keys and first.name in self.context.owners
        if has_prefix:
            prefix, names = names[0], names[1:]
        elif self.qualified:
            raise self.unqualified(node)
        for segment, following in zip(node.segments, node.segments[1:], strict=False):
            if segment.keys:
                raise self.error(
                    f'the path section "{following.name}" was not used by the context - this likely means you are '
                    "using extra path sections",
                    following.offset,
                )
        keys = self.keys(node.segments[-1].keys)
        at = node.segments[1].offset if has_prefix else node.offset
        accessor: GetSetter = self.located(at, lambda: self.context.accessor(prefix, names, keys, tree.unparse(node)))
        return accessor

    def unqualified(self, node: tree.Path) -> OttlCompileError:
        text = tree.unparse(node)
        names = list(self.context.owners)
        first = node.segments[0]
        if len(node.segments) > 1 and not first.keys:
            options = ", ".join(f'"{name}"' for name in names)
            return self.error(
                f'context "{first.name}" from path "{text}" is not valid, it must be replaced by one of: {options}',
                node.offset,
                nearest(first.name, names),
            )
        options = ", ".join(f'"{name}.{text}"' for name in names)
        return self.error(f'missing context name for path "{text}", possibly valid options are: {options}', node.offset)

    def keys(self, keys: tuple[tree.Expression, ...]) -> Keys:
        return tuple(self.value(key) for key in keys)

    def local(self, node: tree.Path) -> GetSetter:
        """A parameter of a lambda around this path."""
        name, text = node.segments[0].name, tree.unparse(node)
        if len(node.segments) > 1:
            raise self.error(f'local identifier "{text}" cannot use "." to access nested fields', node.offset)
        keys = self.keys(node.segments[0].keys)

        def get(ctx: Context) -> Value:
            value = ctx.locals[name]
            return index_result(ctx, value, keys) if keys else value

        def set(ctx: Context, value: Value) -> None:
            raise OttlTypeError(f'local identifier "{text}" cannot be set')

        return GetSetter(get, set)

    def function(self, node: tree.Lambda) -> Callable[..., Value]:
        for position, name in enumerate(node.parameters):
            if name != "_" and name in node.parameters[:position]:
                raise self.error(f'duplicate local identifier "{name}"', node.offset)
        self.scopes.append(frozenset(node.parameters) - {"_"})
        body = (
            self.condition(node.body)
            if isinstance(node.body, (tree.Comparison, tree.Not, tree.And, tree.Or))
            else self.value(node.body)
        )
        self.scopes.pop()
        parameters = node.parameters

        def call(ctx: Context, *values: Value) -> Value:
            outer = ctx.locals
            ctx.locals = {**outer, **dict(zip(parameters, values, strict=False))}
            try:
                return body(ctx)
            finally:
                ctx.locals = outer

        call.ottl_arity = len(parameters)  # type: ignore[attr-defined]
        return call

    # Calls.

    def find(self, name: str, offset: int) -> Function:
        function = self.functions.get(name)
        if function is None:
            alike = [known for known in self.functions if known[0].isupper() == name[0].isupper()]
            raise self.error(f'undefined function "{name}"', offset, nearest(name, alike))
        return function

    def editor(self, node: tree.Call) -> RawGetter:
        function = self.find(node.name, node.offset)
        return self.make(function, self.bind(function, node), node)

    def call(self, node: tree.Call) -> RawGetter:
        function = self.find(node.name, node.offset)
        binding = self.bind(function, node)
        run = self.make(function, binding, node)
        if function.pure and binding.constant:
            run = self.fold(run)
        if not node.keys:
            return run
        keys = self.keys(node.keys)
        indexed = run

        def index(ctx: Context) -> Value:
            return index_result(ctx, indexed(ctx), keys)

        if all(constant_value(part) is not MISSING for part in (run, *keys)):
            return self.fold(index)
        return index

    def make(self, function: Function, binding: _Binding, node: tree.Call) -> RawGetter:
        try:
            return function.make(**binding.arguments)
        except OttlError as error:
            # What is wrong with a computed argument is said when it is used, not here.
            opaque = {name: _opaque(argument) for name, argument in binding.arguments.items()}
            if any(
                opaque[name] is not binding.arguments[name] for name in opaque if not isinstance(opaque[name], list)
            ):
                try:
                    return function.make(**opaque)
                except OttlError:
                    pass
            raise self.error(f"couldn't create function {node.name}: {error.message}", node.offset) from error

    def bind(self, function: Function, node: tree.Call) -> _Binding:
        parameters = function.parameters
        named = False
        for argument in node.arguments:
            if named and not argument.name:
                raise self.error("unnamed argument used after named argument", argument.offset)
            named = named or bool(argument.name)
        required = sum(parameter.required for parameter in parameters)
        if not required <= len(node.arguments) <= len(parameters):
            raise self.error(
                f"incorrect number of arguments for {node.name}. "
                f"Expected: {len(parameters)} Received: {len(node.arguments)}",
                node.offset,
            )
        binding = _Binding()
        known = {parameter.name: parameter for parameter in parameters}
        for position, argument in enumerate(node.arguments):
            parameter = known.get(argument.name) if argument.name else parameters[position]
            if parameter is None:
                raise self.error(f"no such parameter: {argument.name}", argument.offset, nearest(argument.name, known))
            binding.arguments[parameter.name] = self.argument(parameter, argument, binding, node.name, position)
        for parameter in parameters:
            if parameter.required and parameter.name not in binding.arguments:
                raise self.error(f"{node.name} needs the argument {parameter.name}", node.offset)
        return binding

    def argument(
        self, parameter: Parameter, argument: tree.Argument, binding: _Binding, function: str, position: int
    ) -> Any:
        node = argument.value
        try:
            if not parameter.many:
                return self.single(parameter.kind, node, binding)
            if not isinstance(node, tree.ListLiteral):
                raise OttlCompileError(f"must be a list of type {_kind_name(parameter.kind)}")
            return [self.single(parameter.kind, item, binding) for item in node.items]
        except OttlError as error:
            if error.offset >= 0:
                raise
            raise self.error(
                f'error while parsing arguments for call to "{function}": invalid argument at position {position}: '
                f"{error.message}",
                argument.value.offset,
                error.hint,
            ) from error

    def single(
        self, kind: Kind | type, node: tree.Expression | tree.Lambda | tree.FunctionName, binding: _Binding
    ) -> Any:
        if not isinstance(kind, Kind):
            if isinstance(node, tree.Literal) and type(node.value) is kind:
                return node.value
            raise OttlCompileError(f"must be {_LITERAL_KINDS[kind]}")
        if kind.name == "FunctionGetter":
            binding.constant = False
            return self.by_name(node)
        if kind.name == "LambdaExpression":
            binding.constant = False
            if not isinstance(node, tree.Lambda):
                raise OttlCompileError("must be a lambda expression")
            return self.function(node)
        if kind.name == "Enum":
            if not isinstance(node, tree.Symbol):
                raise OttlCompileError("must be an Enum")
            return self.symbol(node.name, node.offset)
        if kind.path:
            binding.constant = False
            if not isinstance(node, tree.Path):
                raise OttlCompileError("must be a path")
            access = self.path(node)
            return access if kind.convert is None else GetSetter(checked(access.get, kind.convert), access.set)
        getter = self.value(node)
        if constant_value(getter) is MISSING:
            binding.constant = False
        return getter if kind.convert is None else _typed(getter, kind.convert)

    def by_name(self, node: tree.Expression | tree.Lambda | tree.FunctionName) -> Callable[[RawGetter], RawGetter]:
        """A converter passed by name: what makes its closure from the getter of its argument."""
        if not isinstance(node, (tree.Symbol, tree.FunctionName)):
            raise OttlCompileError("invalid function name given")
        function = self.find(node.name, node.offset)

        def make(getter: RawGetter) -> RawGetter:
            parameters = function.parameters
            if len(parameters) == 0 or any(parameter.required for parameter in parameters[1:]):
                raise OttlCompileError(
                    f"incorrect number of arguments for {function.name}. Expected: {len(parameters)} Received: 1"
                )
            first = parameters[0]
            if not isinstance(first.kind, Kind) or first.kind.path or first.many:
                raise OttlCompileError(f"{function.name} cannot be passed by name")
            bound = getter if first.kind.convert is None else _typed(getter, first.kind.convert)
            return function.make(**{first.name: bound})

        return make

    # Conditions.

    def condition(self, node: tree.Condition) -> Callable[[Context], bool]:
        match node:
            case tree.Literal(value):
                return constant(bool(value))
            case tree.Call():
                return self.located(node.offset, lambda: self.predicate(node))  # type: ignore[no-any-return]
            case tree.Comparison(op, left, right):
                return self.comparison(op, left, right)
            case tree.Not(operand):
                return _inverted(self.condition(operand))
            case tree.And(operands):
                return _joined([self.condition(operand) for operand in operands], until=False)
            case tree.Or(operands):
                return _joined([self.condition(operand) for operand in operands], until=True)

    def predicate(self, node: tree.Call) -> Callable[[Context], bool]:
        getter = self.call(node)

        def run(ctx: Context) -> bool:
            result = getter(ctx)
            if result is True or result is False:
                return result
            raise OttlTypeError(
                f"value returned from Converter in constant expression must be bool but got {go_type(result)}"
            )

        return run

    def comparison(self, op: str, left: tree.Expression, right: tree.Expression) -> Callable[[Context], bool]:
        first, second, compare = self.value(left), self.value(right), COMPARATORS[op]
        a, b = constant_value(first), constant_value(second)
        if a is not MISSING and b is not MISSING and not _is_folded(first) and not _is_folded(second):
            return constant(compare(a, b))
        # A string is equal to no value of another type in Python either, so the commonest guards need no dispatch.
        if type(b) is str and op == "==":
            return lambda ctx: bool(first(ctx) == b)
        if type(b) is str and op == "!=":
            return lambda ctx: bool(first(ctx) != b)
        if b is not MISSING:
            return lambda ctx: compare(first(ctx), b)
        return lambda ctx: compare(first(ctx), second(ctx))


def _kind_name(kind: Kind | type) -> str:
    return kind.name if isinstance(kind, Kind) else kind.__name__


def _map_value(value: Value) -> Value:
    if isinstance(value, (str, int, float, list, dict, type(None))) or type(value) is bytes:
        return value
    raise OttlTypeError(f"<Invalid value type {go_type(value)}>")


def _typed(getter: RawGetter, convert: Callable[[Value], Value]) -> RawGetter:
    """A getter with a type check, done now for what was written as a constant."""
    if not _is_folded(getter):
        return checked(getter, convert)
    value = constant_value(getter)
    try:
        return _folded(convert(value))
    except OttlError:
        return lambda ctx: convert(value)


def _inverted(condition: Callable[[Context], bool]) -> Callable[[Context], bool]:
    value = constant_value(condition)
    return constant(not value) if value is not MISSING else lambda ctx: not condition(ctx)


def _joined(conditions: list[Callable[[Context], bool]], *, until: bool) -> Callable[[Context], bool]:
    """`and` (until one is false) and `or` (until one is true), written constants left out."""
    open_ended: list[Callable[[Context], bool]] = []
    for condition in conditions:
        value = constant_value(condition)
        if value is until:
            return constant(until)
        if value is MISSING:
            open_ended.append(condition)
    if not open_ended:
        return constant(not until)
    if len(open_ended) == 1:
        return open_ended[0]
    if len(open_ended) == 2:
        first, second = open_ended
        if until:
            return lambda ctx: first(ctx) or second(ctx)
        return lambda ctx: first(ctx) and second(ctx)

    def run(ctx: Context) -> bool:
        return any(one(ctx) for one in open_ended) if until else all(one(ctx) for one in open_ended)

    return run
