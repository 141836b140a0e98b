"""Comparison of any two values.

Values of different types are unequal, and neither is less; except that numbers of both kinds compare as float64, and
that empty bytes and nil are one. Maps and lists are equal when their contents are, type for type.
"""

from __future__ import annotations

from collections.abc import Callable

from tracecore.ottl.values import Duration, Time, Value

Comparator = Callable[[Value, Value], bool]

_ORDERED = (str, int, float, bool, bytes, Time, Duration)


def deep_equal(a: Value, b: Value) -> bool:
    """Equality of contents that never takes one type for another: 1, 1.0 and true are three values."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(key in b and deep_equal(item, b[key]) for key, item in a.items())
    if isinstance(a, list):
        return len(a) == len(b) and all(map(deep_equal, a, b))
    return bool(a == b)


def equal(a: Value, b: Value) -> bool:
    """`==`"""
    kind = type(a)
    if kind is type(b):
        return deep_equal(a, b) if kind is dict or kind is list else bool(a == b)
    if kind is int and type(b) is float:
        return bool(float(a) == b)
    if kind is float and type(b) is int:
        return bool(a == float(b))
    # What is left can only be equal as empty bytes and nil.
    return (a is None or a == b"") and (b is None or b == b"") and kind in _NIL_LIKE and type(b) in _NIL_LIKE


_NIL_LIKE = (bytes, type(None))


def not_equal(a: Value, b: Value) -> bool:
    """`!=`"""
    return not equal(a, b)


def _ordered(compare: Callable[[Value, Value], bool], *, reflexive: bool) -> Comparator:
    def ordered(a: Value, b: Value) -> bool:
        kind = type(a)
        if kind is type(b):
            if kind in _ORDERED:
                return compare(a, b)
            return reflexive and a is None
        if kind is int and type(b) is float:
            return compare(float(a), b)
        if kind is float and type(b) is int:
            return compare(a, float(b))
        return reflexive and equal(a, b)

    return ordered


less = _ordered(lambda a, b: bool(a < b), reflexive=False)
less_equal = _ordered(lambda a, b: bool(a <= b), reflexive=True)
greater = _ordered(lambda a, b: bool(a > b), reflexive=False)
greater_equal = _ordered(lambda a, b: bool(a >= b), reflexive=True)

COMPARATORS: dict[str, Comparator] = {
    "==": equal,
    "!=": not_equal,
    "<": less,
    "<=": less_equal,
    ">": greater,
    ">=": greater_equal,
}
