"""Durations as people write them, in nanoseconds: configurations, patterns, policies and commands."""

from __future__ import annotations

import re
from typing import Final

MICROSECOND: Final = 1_000
MILLISECOND: Final = 1_000_000
SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR

UNITS: Final = {"ns": 1, "us": MICROSECOND, "ms": MILLISECOND, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_NAMES: Final = {**UNITS, "µs": MICROSECOND, "μs": MICROSECOND}
#: For JSON schemas.
DURATION_PATTERN: Final = r"^(?:\d{1,15}(?:\.\d{1,9})?(?:ns|us|µs|μs|ms|s|m|h|d))+$"
_PART = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?(ns|us|µs|μs|ms|s|m|h|d)")


def parse_duration(text: str) -> int:
    """Return the nanoseconds of `1h30m`, `5m1ns`, `250ms`.

    Raises:
        ValueError: it is no duration. A bare number is none, because its unit would be a guess.
    """
    total, place = 0, 0
    while (part := _PART.match(text, place)) is not None:
        whole, fraction, unit = part.groups()
        scale = _NAMES[unit]
        total += int(whole) * scale + (int(fraction) * scale // 10 ** len(fraction) if fraction else 0)
        place = part.end()
    if not place or place < len(text):
        raise ValueError(f'"{text}" is no duration; write it like 250ms, 90s or 1h30m')
    return total


def format_duration(nanos: int) -> str:
    """Return the shortest text that `parse_duration` reads back: `5m`, `1h30m`, `1s500ms`."""
    if nanos == 0:
        return "0s"
    parts = []
    for unit, scale in sorted(UNITS.items(), key=lambda item: -item[1]):
        amount, nanos = divmod(nanos, scale)
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts)
