"""Constants: getters whose value is known before there is a record.

A constant is either written as a literal or computed from literals (folded). What is wrong with a written one is said
while compiling; what is wrong with a computed one is said when it is used, as it would be without folding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError
from tracecore.ottl.signature import MISSING, RawGetter, checked, constant, constant_value
from tracecore.ottl.values import Value

NO_RECORD: Final = Context({}, {}, {})


def is_constant(getter: Any) -> bool:
    """Written or computed."""
    return constant_value(getter) is not MISSING


def folded(value: Value) -> RawGetter:
    """A constant that was computed rather than written. Its type errors belong to run time, as without folding."""
    getter = constant(value)
    getter.ottl_folded = True  # type: ignore[attr-defined]
    return getter


def is_folded(getter: Any) -> bool:
    return getattr(getter, "ottl_folded", False) is True


def opaque(getter: Any) -> Any:
    """The same getter, not to be recognised as a constant."""
    if isinstance(getter, list):
        return [opaque(item) for item in getter]
    return (lambda ctx: getter(ctx)) if is_folded(getter) else getter


def fold(run: RawGetter) -> RawGetter:
    """The value of a constant expression; the expression itself where computing it fails, as it will each time."""
    try:
        return folded(run(NO_RECORD))
    except OttlError:
        return run


def typed(getter: RawGetter, convert: Callable[[Value], Value]) -> RawGetter:
    """A getter with a type check, done now for what was written as a constant."""
    if not is_folded(getter):
        return checked(getter, convert)
    value = constant_value(getter)
    try:
        return folded(convert(value))
    except OttlError:
        return lambda ctx: convert(value)
