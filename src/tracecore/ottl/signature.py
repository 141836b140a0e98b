"""Declaration of functions, and what the annotations of their parameters ask of an argument.

A function is called once for each place it is used in a statement, with its arguments already compiled, and gives the
closure that runs for each record:

    @converter("Substring")
    def substring(target: StringGetter, start: IntGetter, length: IntGetter) -> Getter:
        def run(ctx: Context) -> Value:
            return target(ctx)[start(ctx) : start(ctx) + length(ctx)]
        return run

A converter that only needs the values of its arguments is a plain function of them: see `value_converter`.

A parameter's name is the name of the OTTL argument; a default makes it optional. Its annotation decides how an argument
is bound: a `...Getter` accepts any value expression and checks its type on each call, when the expression is constant
already while compiling; `Setter`, `GetSetter`, `PMapGetSetter` and `PSliceGetSetter` want a path; `str`, `int`,
`float` and `bool` want a literal; `FunctionGetter` the name of a converter; `list[X]` a list literal of any of these.
"""

from __future__ import annotations

import functools
import inspect
import struct
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError, OttlTypeError
from tracecore.ottl.values import (
    Duration,
    Time,
    Value,
    float_to_int,
    go_type,
    parse_bool,
    parse_float,
    parse_int,
    to_json,
)

RawGetter: TypeAlias = Callable[[Context], Value]


@dataclass(frozen=True, slots=True)
class ArgumentKind:
    """The meaning of an annotation.

    Args:
        name: as it is called upstream.
        convert: gives the checked or converted value of a getter's result; None where the value is taken as it is.
        path: the argument must be a path.
    """

    name: str
    convert: Callable[[Value], Value] | None = None
    path: bool = False


class GetSetter:
    """A path: `get(ctx)` reads it and `set(ctx, value)` writes it.

    A map or list read from a path is the live one. `set` stores a copy, except of what the path already holds.
    """

    __slots__ = ("get", "set")

    def __init__(self, get: RawGetter, set: Callable[[Context, Value], None]) -> None:
        self.get = get
        self.set = set


def _exact(want: type, name: str) -> Callable[[Value], Value]:
    def check(value: Value) -> Value:
        if type(value) is want:
            return value
        raise OttlTypeError(f"expected {name} but got {go_type(value, 'nil')}")

    return check


_text = _exact(str, "string")


def _utf8(value: Value) -> bytes:
    data: bytes = _text(value).encode("utf-8", "surrogateescape")
    return data


def _string_like(value: Value) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if type(value) is bytes:
        return value.hex()
    return to_json(value)


def _int_like(value: Value) -> int | None:
    if isinstance(value, bool):
        return int(value)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return parse_int(value)
    if isinstance(value, float):
        return float_to_int(value)
    raise OttlTypeError(f"unsupported type: {go_type(value)}")


def _float_like(value: Value) -> float | None:
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, int):  # bool too
        return float(value)
    if isinstance(value, str):
        return parse_float(value)
    raise OttlTypeError(f"unsupported type: {go_type(value)}")


def _bool_like(value: Value) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value != 0
    if isinstance(value, str):
        return parse_bool(value)
    raise OttlTypeError(f"unsupported type: {go_type(value)}")


def _bytes_like(value: Value) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    if isinstance(value, int):
        return value.to_bytes(8, "big", signed=True)
    if isinstance(value, float):
        return struct.pack(">d", value)
    raise OttlTypeError(f"unsupported type: {go_type(value)}")


# The getters upstream has. Each is a plain callable; the annotation carries the check.
Getter: TypeAlias = Annotated[Callable[[Context], Value], ArgumentKind("Getter")]
StringGetter: TypeAlias = Annotated[Callable[[Context], str], ArgumentKind("StringGetter", _exact(str, "string"))]
IntGetter: TypeAlias = Annotated[Callable[[Context], int], ArgumentKind("IntGetter", _exact(int, "int64"))]
TimeGetter: TypeAlias = Annotated[Callable[[Context], Time], ArgumentKind("TimeGetter", _exact(Time, "time"))]
DurationGetter: TypeAlias = Annotated[
    Callable[[Context], Duration], ArgumentKind("DurationGetter", _exact(Duration, "duration"))
]
PMapGetter: TypeAlias = Annotated[
    Callable[[Context], dict[str, Any]], ArgumentKind("PMapGetter", _exact(dict, "pcommon.Map"))
]
# The `Like` getters convert what they can, and give None for nil.
StringLikeGetter: TypeAlias = Annotated[Callable[[Context], str | None], ArgumentKind("StringLikeGetter", _string_like)]
IntLikeGetter: TypeAlias = Annotated[Callable[[Context], int | None], ArgumentKind("IntLikeGetter", _int_like)]
FloatLikeGetter: TypeAlias = Annotated[Callable[[Context], float | None], ArgumentKind("FloatLikeGetter", _float_like)]
BoolLikeGetter: TypeAlias = Annotated[Callable[[Context], bool | None], ArgumentKind("BoolLikeGetter", _bool_like)]
ByteSliceLikeGetter: TypeAlias = Annotated[
    Callable[[Context], bytes | None], ArgumentKind("ByteSliceLikeGetter", _bytes_like)
]

# The same as values, for `value_converter`.
AnyValue: TypeAlias = Annotated[Any, ArgumentKind("Getter")]
String: TypeAlias = Annotated[str, ArgumentKind("StringGetter", _exact(str, "string"))]
#: A string as its bytes.
Utf8: TypeAlias = Annotated[bytes, ArgumentKind("StringGetter", _utf8)]
Int: TypeAlias = Annotated[int, ArgumentKind("IntGetter", _exact(int, "int64"))]
TimeValue: TypeAlias = Annotated[Time, ArgumentKind("TimeGetter", _exact(Time, "time"))]
DurationValue: TypeAlias = Annotated[Duration, ArgumentKind("DurationGetter", _exact(Duration, "duration"))]
Map: TypeAlias = Annotated[dict[str, Any], ArgumentKind("PMapGetter", _exact(dict, "pcommon.Map"))]
Slice: TypeAlias = Annotated[list[Any], ArgumentKind("PSliceGetter", _exact(list, "pcommon.Slice"))]
StringLike: TypeAlias = Annotated[str | None, ArgumentKind("StringLikeGetter", _string_like)]
FloatLike: TypeAlias = Annotated[float | None, ArgumentKind("FloatLikeGetter", _float_like)]
BytesLike: TypeAlias = Annotated[bytes | None, ArgumentKind("ByteSliceLikeGetter", _bytes_like)]

# Paths. All four give the function a GetSetter; the last two check the type of what they read.
Setter: TypeAlias = Annotated[GetSetter, ArgumentKind("Setter", path=True)]
PathGetSetter: TypeAlias = Annotated[GetSetter, ArgumentKind("GetSetter", path=True)]
PMapGetSetter: TypeAlias = Annotated[GetSetter, ArgumentKind("PMapGetSetter", _exact(dict, "pcommon.Map"), path=True)]
PSliceGetSetter: TypeAlias = Annotated[
    GetSetter, ArgumentKind("PSliceGetSetter", _exact(list, "pcommon.Slice"), path=True)
]

#: A converter passed by name: give it the getter of its one argument, and it gives its own getter.
FunctionGetter: TypeAlias = Annotated[Callable[[RawGetter], RawGetter], ArgumentKind("FunctionGetter")]

_Made = TypeVar("_Made", bound=Callable[..., Any])
_Prepared = TypeVar("_Prepared")

MISSING: Any = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function, as the compiler sees it.

    Args:
        name: the argument's name.
        kind: what a single argument must be; a literal type (`str`, `int`, `float`, `bool`, `bytes`) or a kind.
        many: the argument is a list literal of `kind`.
        default: the value when it is not given; MISSING where it must be.
    """

    name: str
    kind: ArgumentKind | type
    many: bool
    default: Any

    @property
    def required(self) -> bool:
        return self.default is MISSING


@dataclass(frozen=True)
class Function:
    """A declared editor or converter.

    Args:
        name: as written in statements.
        make: called once for each use; gives the closure.
        pure: gives the same value for the same arguments, so a call with constant arguments is done while compiling.
        contexts: the contexts it exists in; empty for all.
    """

    name: str
    make: Callable[..., RawGetter]
    pure: bool
    contexts: tuple[str, ...]

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """In the order of positional arguments."""
        hints = typing.get_type_hints(self.make, include_extras=True)
        return tuple(
            _parameter(name, hints[name], parameter.default)
            for name, parameter in inspect.signature(self.make).parameters.items()
        )


def _parameter(name: str, hint: Any, default: Any) -> Parameter:
    if typing.get_origin(hint) in (typing.Union, UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not NoneType)
    many = typing.get_origin(hint) is list
    if many:
        (hint,) = typing.get_args(hint)
    kind: ArgumentKind | type
    if typing.get_origin(hint) is Annotated:
        kind = next(extra for extra in hint.__metadata__ if isinstance(extra, ArgumentKind))
    elif hint is GetSetter:
        kind = ArgumentKind("GetSetter", path=True)
    else:
        kind = hint
    return Parameter(name, kind, many, default)


def editor(name: str, *, contexts: tuple[str, ...] = ()) -> Callable[[_Made], _Made]:
    """Declare an editor. Its name starts with a lowercase letter."""
    return _declare(name, pure=False, contexts=contexts)


def converter(name: str, *, pure: bool = True, contexts: tuple[str, ...] = ()) -> Callable[[_Made], _Made]:
    """Declare a converter. Its name starts with an uppercase letter.

    `pure=False` for one whose value depends on more than its arguments (the clock, chance, the record).
    """
    return _declare(name, pure=pure, contexts=contexts)


def value_converter(name: str, *, contexts: tuple[str, ...] = ()) -> Callable[[_Made], _Made]:
    """Declare a converter as a plain function of its arguments' values:

    @value_converter("HasPrefix")
    def has_prefix(target: String, prefix: String) -> bool:
        return target.startswith(prefix)
    """

    def mark(compute: _Made) -> _Made:
        @functools.wraps(compute)
        def make(**arguments: Any) -> RawGetter:
            getters = {name: held for name, held in arguments.items() if callable(held)}
            literals = {name: held for name, held in arguments.items() if name not in getters}
            if len(arguments) == len(getters) == 1:
                (only,) = getters.values()
                return lambda ctx: compute(only(ctx))

            def run(ctx: Context) -> Value:
                return compute(**literals, **{name: get(ctx) for name, get in getters.items()})

            return run

        return typing.cast("_Made", _declare(name, pure=True, contexts=contexts)(make))

    return mark


def value_converters(kind: Any, *rows: tuple[str, str, Callable[..., Value]]) -> list[Callable[..., Any]]:
    """Declare converters of one argument: the name of each, what it does, and the function of the argument's value."""
    made = []
    for name, help, compute in rows:
        (argument,) = inspect.signature(compute).parameters
        compute.__annotations__ = {argument: kind}
        compute.__doc__ = help
        made.append(value_converter(name)(compute))
    return made


def _declare(name: str, *, pure: bool, contexts: tuple[str, ...]) -> Callable[[_Made], _Made]:
    def mark(make: _Made) -> _Made:
        make.ottl_function = Function(name, make, pure, contexts)  # type: ignore[attr-defined]
        return make

    return mark


def declared(modules: Iterable[ModuleType]) -> dict[str, Function]:
    """The functions that modules declare, by name. Two of the same name are a mistake in the modules.

    The modules the language has are listed, in order, in `tracecore.ottl.functions.MODULES`.
    """
    functions: dict[str, Function] = {}
    for module in modules:
        held = [one for value in vars(module).values() for one in (value if isinstance(value, list) else [value])]
        for made in held:
            function = getattr(made, "ottl_function", None)
            if not isinstance(function, Function) or function.make.__module__ != module.__name__:
                continue
            if functions.setdefault(function.name, function) is not function:
                raise ValueError(f"function {function.name} is declared twice")
    return functions


def constant(value: Value) -> RawGetter:
    """A getter that always gives this value, and can be recognised by `constant_value`."""

    def get(ctx: Context) -> Value:
        return value

    get.ottl_constant = (value,)  # type: ignore[attr-defined]
    return get


def constant_value(getter: Callable[..., Any], default: Any = MISSING) -> Any:
    """The value of a constant getter; `default` (MISSING) for one that must be called for each record."""
    held = getattr(getter, "ottl_constant", None)
    return default if held is None else held[0]


def checked(getter: RawGetter, convert: Callable[[Value], Value]) -> RawGetter:
    """A getter whose values pass through a check or conversion. A constant is converted now."""
    value = constant_value(getter)
    if value is not MISSING:
        return constant(convert(value))

    def get(ctx: Context) -> Value:
        return convert(getter(ctx))

    return get


def prepared(getter: RawGetter, make: Callable[[Any], _Prepared]) -> Callable[[Context], _Prepared]:
    """Return a function that gives what is made of an argument: made now if it is constant, else for each record."""
    value = constant_value(getter)
    if value is MISSING:
        return lambda ctx: make(getter(ctx))
    try:
        made = make(value)
    except OttlRuntimeError as error:
        raise OttlCompileError(error.message) from error
    return lambda ctx: made
