"""`+`, `-`, `*` and `/`, as Go does them: int64 wraps around, division truncates, times and durations add up."""

from __future__ import annotations

import math
from collections.abc import Callable

from tracecore.ottl.errors import OttlRuntimeError, OttlTypeError
from tracecore.ottl.values import INT64_MAX, INT64_MIN, Duration, Time, Value, as_string, go_type, wrap_int64

Operator = Callable[[Value, Value], Value]


def _shown(value: Value) -> str:
    return "<nil>" if value is None else str(value) if isinstance(value, (Time, Duration)) else as_string(value)


def _not_a_number(left: Value, right: Value) -> OttlTypeError:
    if type(left) in (int, float):
        return OttlTypeError(f"{_shown(right)} must be int64 or float64")
    return OttlTypeError(f"{_shown(left)} must be int64, float64, time.Time or time.Duration")


def add(left: Value, right: Value) -> Value:
    """`+`"""
    kind, other = type(left), type(right)
    if kind is int and other is int:
        return wrap_int64(left + right)
    if kind in (int, float) and other in (int, float):
        return float(left) + float(right)
    if kind is Time:
        if other is Duration:
            return Time(left.unix_nano + right.nanos, left.zone)
        raise OttlTypeError(f"time.Time must be added to time.Duration; found {_shown(right)} instead")
    if kind is Duration:
        if other is Duration:
            return Duration(wrap_int64(left.nanos + right.nanos))
        if other is Time:
            return Time(right.unix_nano + left.nanos, right.zone)
        raise OttlTypeError(f"time.Duration must be added to time.Duration or time.Time; found {_shown(right)} instead")
    raise _not_a_number(left, right)


def subtract(left: Value, right: Value) -> Value:
    """`-`"""
    kind, other = type(left), type(right)
    if kind is int and other is int:
        return wrap_int64(left - right)
    if kind in (int, float) and other in (int, float):
        return float(left) - float(right)
    if kind is Time:
        if other is Time:
            return Duration(min(max(left.unix_nano - right.unix_nano, INT64_MIN), INT64_MAX))
        if other is Duration:
            return Time(left.unix_nano - right.nanos, left.zone)
        raise OttlTypeError(
            f"time.Time or time.Duration must be subtracted from time.Time; found {_shown(right)} instead"
        )
    if kind is Duration:
        if other is Duration:
            return Duration(wrap_int64(left.nanos - right.nanos))
        raise OttlTypeError(f"time.Duration must be subtracted from time.Duration; found {_shown(right)} instead")
    raise _not_a_number(left, right)


def multiply(left: Value, right: Value) -> Value:
    """`*`"""
    kind, other = type(left), type(right)
    if kind is int and other is int:
        return wrap_int64(left * right)
    if kind in (int, float) and other in (int, float):
        return float(left) * float(right)
    raise _unsupported(left, right)


def divide(left: Value, right: Value) -> Value:
    """`/`; of two integers an integer, cut towards zero."""
    kind, other = type(left), type(right)
    if kind not in (int, float) or other not in (int, float):
        raise _unsupported(left, right)
    if right == 0:
        raise OttlRuntimeError("attempted to divide by 0")
    if kind is int and other is int:
        quotient = abs(left) // abs(right)
        return wrap_int64(quotient if (left < 0) == (right < 0) else -quotient)
    try:
        return float(left) / float(right)
    except OverflowError:
        return math.copysign(math.inf, left) * math.copysign(1.0, right)


def _unsupported(left: Value, right: Value) -> OttlTypeError:
    if type(left) in (Time, Duration):
        return OttlTypeError("only addition and subtraction supported for time.Time and time.Duration")
    return _not_a_number(left, right)


def negate(value: Value) -> Value:
    """Unary `-`"""
    if type(value) is int:
        return wrap_int64(-value)
    if type(value) is float:
        return -value
    raise OttlTypeError(f"unsupported unary minus operation on type {go_type(value)}")


OPERATORS: dict[str, Operator] = {"+": add, "-": subtract, "*": multiply, "/": divide}
