"""Durations: reading them, and what they come to in each unit."""

from __future__ import annotations

import re

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.signature import DurationValue, String, value_converter, value_converters
from tracecore.ottl.values import INT64_MAX, Duration, quote

_UNITS = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "μs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_NUMBER = re.compile(r"([0-9]*)(?:(\.)([0-9]*))?")
_UNIT = re.compile(r"[^.0-9]+")


@value_converter("Duration")
def duration(duration: String) -> Duration:
    """The duration a text such as `1h2m3.5s` stands for."""
    return Duration(parse_duration(duration))


def parse_duration(text: str) -> int:
    """Nanoseconds, by the rules of Go's `time.ParseDuration`."""
    body = text[1:] if text[:1] in ("-", "+") else text
    negative = text.startswith("-")
    if body == "0":
        return 0
    if not body:
        raise _invalid(text)
    total, place = 0, 0
    while place < len(body):
        number = _NUMBER.match(body, place)
        if number is None or not (number[1] or number[3]):
            raise _invalid(text)
        unit = _UNIT.match(body, number.end())
        if unit is None:
            raise OttlRuntimeError(f"time: missing unit in duration {quote(text)}")
        scale = _UNITS.get(unit[0])
        if scale is None:
            raise OttlRuntimeError(f"time: unknown unit {quote(unit[0])} in duration {quote(text)}")
        if len(number[1].lstrip("0")) > 19:
            raise _invalid(text)
        total += int(number[1] or "0") * scale
        if number[3]:
            # As Go: digits past 63 bits are dropped, and the product is a float.
            zeros = len(number[3]) - len(number[3].lstrip("0"))
            size = zeros + (19 if int(number[3][zeros : zeros + 19] or "0") <= INT64_MAX + 1 else 18)
            digits = number[3][: min(size, 300)]
            total += int(float(int(digits)) * (scale / float(10 ** len(digits))))
        if total > INT64_MAX + negative:
            raise _invalid(text)
        place = unit.end()
    return -total if negative else total


def _invalid(text: str) -> OttlRuntimeError:
    return OttlRuntimeError(f"time: invalid duration {quote(text)}")


def _whole(duration: Duration, unit: int) -> int:
    nanos = duration.nanos
    return nanos // unit if nanos >= 0 else -(-nanos // unit)


def _fractional(duration: Duration, unit: int) -> float:
    size = abs(duration.nanos)
    # The whole and the rest apart, as Go does, so that no digit differs.
    number = float(size // unit) + float(size % unit) / float(unit)
    return -number if duration.nanos < 0 else number


IN_UNITS = value_converters(
    DurationValue,
    ("Nanoseconds", "Nanoseconds of a duration, an integer.", lambda duration: duration.nanos),
    ("Microseconds", "Microseconds of a duration, an integer.", lambda duration: _whole(duration, _UNITS["us"])),
    ("Milliseconds", "Milliseconds of a duration, an integer.", lambda duration: _whole(duration, _UNITS["ms"])),
    ("Seconds", "Seconds of a duration, a float.", lambda duration: _fractional(duration, _UNITS["s"])),
    ("Minutes", "Minutes of a duration, a float.", lambda duration: _fractional(duration, _UNITS["m"])),
    ("Hours", "Hours of a duration, a float.", lambda duration: _fractional(duration, _UNITS["h"])),
)
