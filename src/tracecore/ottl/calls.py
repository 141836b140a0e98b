"""Calls of functions: which one, with which arguments, checked against its parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tracecore.ottl import tree
from tracecore.ottl.constants import fold, is_constant, is_folded, opaque, typed
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlError, OttlTypeError, nearest
from tracecore.ottl.keys import index_result
from tracecore.ottl.signature import ArgumentKind, Function, GetSetter, Parameter, RawGetter, checked, constant
from tracecore.ottl.values import Value, go_type

if TYPE_CHECKING:
    from tracecore.ottl.expressions import Compiler

_ArgumentNode: TypeAlias = tree.Expression | tree.FunctionName

_LITERAL_KINDS: Final[dict[type, str]] = {
    str: "a string",
    int: "an int",
    float: "a float",
    bool: "a bool",
    bytes: "a byte slice literal",
}


@dataclass
class _Binding:
    """The arguments of one call, compiled."""

    arguments: dict[str, Any] = field(default_factory=dict)
    constant: bool = True
    folded: bool = False


@dataclass(frozen=True, slots=True)
class _DynamicList:
    """A list argument whose items come from the record."""

    getter: RawGetter
    kind: ArgumentKind

    def items(self, ctx: Context) -> list[RawGetter]:
        values = self.getter(ctx)
        if not isinstance(values, list):
            raise OttlTypeError(f"expected a slice, got {go_type(values)}")
        convert = self.kind.convert
        return [constant(value if convert is None else convert(value)) for value in values]


def _made_for_each_record(
    function: Function, arguments: Mapping[str, Any], dynamic: Mapping[str, _DynamicList]
) -> RawGetter:
    """A function whose arguments are not known before there is a record, made anew for each."""
    function.make(**{**arguments, **{name: [] for name in dynamic}})  # what is wrong with the others is wrong now

    def run(ctx: Context) -> Value:
        return function.make(**{**arguments, **{name: held.items(ctx) for name, held in dynamic.items()}})(ctx)

    return run


class Calls:
    """Compiles the calls of one text, with the help of the compiler of its expressions."""

    def __init__(self, compiler: Compiler, functions: Mapping[str, Function]) -> None:
        self.compiler = compiler
        self.functions = functions

    def find(self, name: str, offset: int) -> Function:
        function = self.functions.get(name)
        if function is None:
            alike = [known for known in self.functions if known[0].isupper() == name[0].isupper()]
            raise self.compiler.error(f'undefined function "{name}"', offset, nearest(name, alike))
        return function

    def editor(self, node: tree.Call) -> RawGetter:
        function = self.find(node.name, node.offset)
        return self.make(function, self.bind(function, node), node)

    def call(self, node: tree.Call) -> RawGetter:
        function = self.find(node.name, node.offset)
        binding = self.bind(function, node)
        run = self.make(function, binding, node)
        if function.pure and binding.constant:
            run = fold(run)
        if not node.keys:
            return run
        keys = self.compiler.keys(node.keys)
        indexed = run

        def index(ctx: Context) -> Value:
            return index_result(ctx, indexed(ctx), keys)

        if all(map(is_constant, (run, *keys))):
            return fold(index)
        return index

    def make(self, function: Function, binding: _Binding, node: tree.Call) -> RawGetter:
        try:
            if dynamic := {k: v for k, v in binding.arguments.items() if isinstance(v, _DynamicList)}:
                return _made_for_each_record(function, binding.arguments, dynamic)
            return function.make(**binding.arguments)
        except OttlError as error:
            # What is wrong with a computed argument is said when it is used, not here.
            unknown = {name: opaque(argument) for name, argument in binding.arguments.items()}
            if binding.folded:
                with contextlib.suppress(OttlError):
                    return function.make(**unknown)
            raise self.compiler.error(f"couldn't create function {node.name}: {error.message}", node.offset) from error

    def bind(self, function: Function, node: tree.Call) -> _Binding:
        parameters = function.parameters
        named = False
        for argument in node.arguments:
            if named and not argument.name:
                raise self.compiler.error("unnamed argument used after named argument", argument.offset)
            named = named or bool(argument.name)
        required = sum(parameter.required for parameter in parameters)
        if not required <= len(node.arguments) <= len(parameters):
            raise self.compiler.error(
                f"incorrect number of arguments for {node.name}. "
                f"Expected: {len(parameters)} Received: {len(node.arguments)}",
                node.offset,
            )
        binding = _Binding()
        known = {parameter.name: parameter for parameter in parameters}
        spelled = {_camel(name): parameter for name, parameter in known.items()}
        for position, argument in enumerate(node.arguments):
            parameter = spelled.get(_camel(argument.name)) if argument.name else parameters[position]
            if parameter is None:
                raise self.compiler.error(
                    f"no such parameter: {argument.name}", argument.offset, nearest(argument.name, known)
                )
            binding.arguments[parameter.name] = self.argument(parameter, argument, binding, node.name, position)
        for parameter in parameters:
            if parameter.required and parameter.name not in binding.arguments:
                raise self.compiler.error(f"{node.name} needs the argument {parameter.name}", node.offset)
        return binding

    def argument(
        self, parameter: Parameter, argument: tree.Argument, binding: _Binding, function: str, position: int
    ) -> Any:
        node = argument.value
        try:
            if not parameter.many:
                return self.single(parameter.kind, node, binding)
            if isinstance(node, tree.ListLiteral):
                return [self.single(parameter.kind, item, binding) for item in node.items]
            return self.dynamic_list(parameter, node, binding)
        except OttlError as error:
            if error.offset >= 0:
                raise
            raise self.compiler.error(
                f'error while parsing arguments for call to "{function}": invalid argument at position {position}: '
                f"{error.message}",
                argument.value.offset,
                error.hint,
            ) from error

    def dynamic_list(self, parameter: Parameter, node: _ArgumentNode, binding: _Binding) -> _DynamicList:
        """A path or converter where a list literal may stand: its items are known for each record only."""
        kind = parameter.kind
        if not isinstance(kind, ArgumentKind) or kind.path or not isinstance(node, (tree.Path, tree.Call)):
            raise OttlCompileError(f"must be a list of type {_kind_name(kind)}")
        binding.constant = False
        return _DynamicList(self.compiler.value(node), kind)

    def single(self, kind: ArgumentKind | type, node: _ArgumentNode, binding: _Binding) -> Any:
        if not isinstance(kind, ArgumentKind):
            if isinstance(node, tree.Literal) and type(node.value) is kind:
                return node.value
            raise OttlCompileError(f"must be {_LITERAL_KINDS[kind]}")
        if kind.name == "FunctionGetter":
            binding.constant = False
            return self.by_name(node)
        if kind.path:
            binding.constant = False
            if not isinstance(node, tree.Path):
                raise OttlCompileError("must be a path")
            access = self.compiler.path(node)
            return access if kind.convert is None else GetSetter(checked(access.get, kind.convert), access.set)
        getter = self.compiler.value(node)
        binding.constant = binding.constant and is_constant(getter)
        binding.folded = binding.folded or is_folded(getter)
        return getter if kind.convert is None else typed(getter, kind.convert)

    def by_name(self, node: _ArgumentNode) -> Callable[[RawGetter], RawGetter]:
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
            if not isinstance(first.kind, ArgumentKind) or first.kind.path or first.many:
                raise OttlCompileError(f"{function.name} cannot be passed by name")
            bound = getter if first.kind.convert is None else typed(getter, first.kind.convert)
            return function.make(**{first.name: bound})

        return make


def _camel(name: str) -> str:
    """A name in camel case, as arguments are told apart by: `max_size` and `maxSize` are the same."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def _kind_name(kind: ArgumentKind | type) -> str:
    return kind.name if isinstance(kind, ArgumentKind) else kind.__name__
