"""Expressions and conditions to closures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tracecore.ottl import tree
from tracecore.ottl.arithmetic import OPERATORS, negate
from tracecore.ottl.calls import Calls
from tracecore.ottl.compare import COMPARATORS
from tracecore.ottl.constants import NO_RECORD, fold, folded, is_constant, is_folded
from tracecore.ottl.context import Context
from tracecore.ottl.contexts import ContextType
from tracecore.ottl.errors import OttlCompileError, OttlError, OttlTypeError, nearest
from tracecore.ottl.keys import Keys
from tracecore.ottl.signature import MISSING, Function, GetSetter, RawGetter, constant, constant_value
from tracecore.ottl.values import Value, go_type


class Compiler:
    """Compiles the expressions of one text for one context."""

    def __init__(self, source: str, context: ContextType, qualified: bool, functions: Mapping[str, Function]) -> None:
        self.source = source
        self.context = context
        self.qualified = qualified
        self.calls = Calls(self, functions)

    def located(self, offset: int, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except OttlError as error:
            raise error.locate(self.source, offset)  # noqa: B904

    def error(self, message: str, offset: int, hint: str = "") -> OttlCompileError:
        return OttlCompileError(message, self.source, offset, hint)

    # Values.

    def value(self, node: tree.Expression | tree.FunctionName) -> RawGetter:
        match node:
            case tree.Literal(value):
                return constant(value)
            case tree.Symbol(name, offset):
                return constant(self.symbol(name, offset))
            case tree.Path():
                return self.path(node).get
            case tree.Call():
                return self.calls.call(node)
            case tree.Unary(op, operand):
                return self.unary(op, operand)
            case tree.Binary(op, left, right):
                return self.binary(op, left, right)
            case tree.ListLiteral(items):
                return self.list_value(items)
            case tree.MapLiteral(entries):
                return self.map_value(entries)
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
        if type(value) in (int, float):
            return (constant if isinstance(operand, tree.Literal) else folded)(negate(value))
        return lambda ctx: negate(getter(ctx))

    def binary(self, op: str, left: tree.Expression, right: tree.Expression) -> RawGetter:
        first, second, operate = self.value(left), self.value(right), OPERATORS[op]

        def run(ctx: Context) -> Value:
            return operate(first(ctx), second(ctx))

        if is_constant(first) and is_constant(second):
            return fold(run)
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
        if not all(map(is_constant, getters)):
            return run
        if any(map(is_folded, getters)):
            return fold(run)
        return constant(run(NO_RECORD))

    # Paths.

    def path(self, node: tree.Path) -> GetSetter:
        first = node.segments[0]
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
                return inverted(self.condition(operand))
            case tree.And(operands):
                return joined([self.condition(operand) for operand in operands], until=False)
            case tree.Or(operands):
                return joined([self.condition(operand) for operand in operands], until=True)

    def predicate(self, node: tree.Call) -> Callable[[Context], bool]:
        getter = self.calls.call(node)

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
        if a is not MISSING and b is not MISSING and not is_folded(first) and not is_folded(second):
            return constant(compare(a, b))
        if b is None and op in ("==", "!="):
            return _nil(first, wanted=op == "==")
        return lambda ctx: compare(first(ctx), second(ctx))


def _map_value(value: Value) -> Value:
    if isinstance(value, (str, int, float, list, dict, type(None))) or type(value) is bytes:
        return value
    raise OttlTypeError(f"<Invalid value type {go_type(value)}>")


def _nil(getter: RawGetter, *, wanted: bool) -> Callable[[Context], bool]:
    """Comparison with nil, which most conditions are; empty bytes are nil."""

    def compared(ctx: Context) -> bool:
        value = getter(ctx)
        return (value is None or (type(value) is bytes and not value)) is wanted

    return compared


def inverted(condition: Callable[[Context], bool]) -> Callable[[Context], bool]:
    """`not`"""
    value = constant_value(condition)
    return constant(not value) if value is not MISSING else lambda ctx: not condition(ctx)


def joined(conditions: list[Callable[[Context], bool]], *, until: bool) -> Callable[[Context], bool]:
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

    def joint(ctx: Context) -> bool:
        # As `any` and `all` of a generator, in half the time.
        for one in open_ended:
            if one(ctx) is until:
                return until
        return not until

    return joint
