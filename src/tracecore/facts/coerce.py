"""Convert attribute values to the expected type. Return None for values that do not fit; never raise.

An attribute may have any value. Integers arrive as integers, digits, or doubles without a fraction. Values that cannot
be stored (more than 64 bits, not finite) give None.
"""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime

import re2

#: Maximum length of a string in a fact. The whole text is in the source.
TEXT_LIMIT = 2048
NAME_LIMIT = 512
_I64 = 1 << 63

_INTEGER = re2.compile(r"^[+-]?[0-9]{1,19}$")
_NUMBER = re2.compile(r"^[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,4})?$")
_RFC3339 = re2.compile(
    r"^([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,18}))?([Zz]|[+-][0-9]{2}:[0-9]{2})$"
)


def text(value: object, limit: int = TEXT_LIMIT) -> str | None:
    """Return a string that is not empty, cut to `limit` characters."""
    if not isinstance(value, str):
        return None
    value = value.strip()
    if not value:
        return None
    if len(value) > limit:
        value = value[: limit - 1] + "…"
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def name(value: object) -> str | None:
    """Return a name, which is a short string."""
    if value is None:
        return None
    # Names repeat often, so short ones are cached.
    if type(value) is str and len(value) <= 128:
        return _short(value)
    return text(value, NAME_LIMIT)


@functools.lru_cache(maxsize=16_384)
def _short(value: str) -> str | None:
    return text(value, NAME_LIMIT)


def word(value: object) -> str | None:
    """Return a word of a closed vocabulary: in lower case, with underscores for spaces and dashes."""
    if value is None or (found := name(value)) is None:
        return None
    return found.lower().replace(" ", "_").replace("-", "_")


def integer(value: object) -> int | None:
    """Return a whole number of at most 64 bits."""
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
    """Return a whole number that is not negative."""
    if value is None:
        return None
    if type(value) is int and 0 <= value < _I64:
        return value
    found = integer(value)
    return found if found is not None and found >= 0 else None


def positive(value: object) -> int | None:
    """Return a whole number of at least 1."""
    if value is None:
        return None
    if type(value) is int and 0 < value < _I64:
        return value
    found = integer(value)
    return found if found is not None and found > 0 else None


def number(value: object) -> float | None:
    """Return a finite number."""
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
    """Return a finite number that is not negative."""
    if value is None:
        return None
    if type(value) is float and 0 <= value < math.inf:
        return value
    found = number(value)
    return found if found is not None and found >= 0 else None


def flag(value: object) -> bool | None:
    """Return True or False, also from the words `true` and `false`."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower())
    return None


def moment(value: object) -> int | None:
    """Return nanoseconds since the epoch, from RFC 3339 or from such nanoseconds."""
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
