"""Converters that ask for or change the type of a value."""

from __future__ import annotations

import math

from tracecore.ottl.errors import OttlTypeError
from tracecore.ottl.signature import (
    AnyValue,
    BoolLikeGetter,
    FloatLikeGetter,
    Getter,
    IntLikeGetter,
    StringLikeGetter,
    converter,
    value_converter,
    value_converters,
)
from tracecore.ottl.values import ZERO_TIME_NANO, Duration, ProfileID, SpanID, Time, TraceID, go_type

OF_TYPE = value_converters(
    AnyValue,
    ("IsString", "Whether a value is a string.", lambda target: type(target) is str),
    ("IsBool", "Whether a value is a boolean.", lambda target: type(target) is bool),
    ("IsInt", "Whether a value is an integer.", lambda target: type(target) is int),
    ("IsDouble", "Whether a value is a floating point number.", lambda target: type(target) is float),
    ("IsMap", "Whether a value is a map.", lambda target: type(target) is dict),
    ("IsList", "Whether a value is a list.", lambda target: type(target) is list),
)


@value_converter("IsEmpty")
def is_empty(target: AnyValue) -> bool:
    """Whether a value is nil, has nothing in it, or is the zero of its type."""
    if isinstance(target, float):
        return target == 0 and math.copysign(1.0, target) > 0
    if isinstance(target, (TraceID, SpanID, ProfileID)):
        return not any(target)
    if isinstance(target, Time):
        return target.unix_nano == ZERO_TIME_NANO
    return target.nanos == 0 if isinstance(target, Duration) else not target


@value_converter("Len")
def length(target: AnyValue) -> int:
    """The bytes of a string, the items of a list or the entries of a map."""
    if isinstance(target, str):
        return len(target) if target.isascii() else len(target.encode("utf-8", "surrogateescape"))
    if isinstance(target, (list, dict)) or type(target) is bytes:
        return len(target)
    raise OttlTypeError(f"Len: unsupported target type {go_type(target)}")


@converter("Bool")
def boolean(target: BoolLikeGetter) -> Getter:
    """A value as a boolean; nil stays nil."""
    return target


@converter("Int")
def integer(target: IntLikeGetter) -> Getter:
    """A value as an integer; nil stays nil."""
    return target


@converter("Double")
def double(target: FloatLikeGetter) -> Getter:
    """A value as a floating point number; nil stays nil."""
    return target


@converter("String")
def string(target: StringLikeGetter) -> Getter:
    """A value as a string; nil stays nil."""
    return target
