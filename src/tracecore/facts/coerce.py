"""Strict readings of attribute values: the value that was meant, or None, never an exception.

Anything may arrive in an attribute. Integers come as integers, digits, or doubles with no fraction; what cannot be
stored (beyond 64 bits, not finite, half a surrogate pair) is not a value.
"""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime

import re2

#: Longest string a fact keeps; the rest is in the source.
TEXT_LIMIT = 2048
NAME_LIMIT = 512
_I64 = 1 << 63

_INTEGER = re2.compile(r"^[+-]?[0-9]{1,19}$")
_NUMBER = re2.compile(r"^[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,4})?$")
_RFC3339 = re2.compile(
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,18}))?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)


def text(value: object, limit: int = TEXT_LIMIT) -> str | None:
    """A string that says something, at most `limit` characters of it."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if not value:
        return None
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def name(value: object) -> str | None:
    """A name: a short string."""
    if value is None:
        return None
    # Names come again and again; long strings are not worth remembering.
    if type(value) is str and len(value) <= 128:
        return _short(value)
    return text(value, NAME_LIMIT)


@functools.lru_cache(maxsize=16_384)
def _short(value: str) -> str | None:
    return text(value, NAME_LIMIT)


def word(value: object) -> str | None:
    """A word of a closed vocabulary: lower case, spaces and dashes as underscores."""
    if value is None or (found := name(value)) is None:
        return None
    return found.lower().replace(" ", "_").replace("-", "_")


def integer(value: object) -> int | None:
    """A whole number of at most 64 bits."""
    if value is None or isinstance(value, bool):
        return None
    if type(value) is int:
        return value if -_I64 <= value < _I64 else None
    if isinstance(value, str):
        value = value.strip()
        if not value.isascii() or not _INTEGER.match(value):
            return None
        value = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return None
        value = int(value)
    elif not isinstance(value, int):
        return None
    return value if -_I64 <= value < _I64 else None


def natural(value: object) -> int | None:
    """A whole number that is not negative."""
    if value is None:
        return None
    if type(value) is int and 0 <= value < _I64:
        return value
    found = integer(value)
    return found if found is not None and found >= 0 else None


def positive(value: object) -> int | None:
    """A whole number of at least one."""
    if value is None:
        return None
    if type(value) is int and 0 < value < _I64:
        return value
    found = integer(value)
    return found if found is not None and found > 0 else None


def number(value: object) -> float | None:
    """A finite number."""
    if value is None or isinstance(value, bool):
        return None
    if type(value) is float:
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        value = value.strip()
        if not value.isascii() or not _NUMBER.match(value):
            return None
        value = float(value)
    if isinstance(value, int):
        return float(value) if -_I64 <= value < _I64 else None
    return value if isinstance(value, float) and math.isfinite(value) else None


def magnitude(value: object) -> float | None:
    """A finite number that is not negative."""
    if value is None:
        return None
    if type(value) is float and 0 <= value < math.inf:
        return value
    found = number(value)
    return found if found is not None and found >= 0 else None


def flag(value: object) -> bool | None:
    """True or False, also as the words."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return None


def moment(value: object) -> int | None:
    """RFC 3339, or nanoseconds since the epoch, as nanoseconds since the epoch."""
    if not isinstance(value, str):
        return positive(value)
    match = _RFC3339.match(value.strip()) if value.isascii() else None
    if match is None:
        return positive(value)
    day, clock, fraction, zone = match.groups()
    try:
        when = datetime.fromisoformat(f"{day}T{clock}{'+00:00' if zone in 'Zz' else zone}")
        since = when - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    nanos = int(f"{fraction or '0':0<9.9}")
    found = (since.days * 86400 + since.seconds) * 1_000_000_000 + nanos
    return found if 0 < found < _I64 else None
