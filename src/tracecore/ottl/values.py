"""Runtime values. They are Python's own, plus what Python has no exact counterpart for: time, duration and ids.

None, bool, int (64 bits, signed), float, str, bytes, list and dict mean what they mean in OTLP. Conversions here give
the same text and the same numbers as Go's `strconv`, `time` and `encoding/json`, since statements compare them.
"""

from __future__ import annotations

import base64
import datetime
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tracecore.ottl.errors import OttlRuntimeError, OttlTypeError

Value: TypeAlias = Any

INT64_MIN = -(1 << 63)
INT64_MAX = (1 << 63) - 1
UTC = datetime.UTC
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
#: Go's zero time, the first of January of the year 1, which stands for "no time".
ZERO_TIME_NANO = -62_135_596_800 * 1_000_000_000


@dataclass(frozen=True, slots=True, order=True)
class Time:
    """An instant, to the nanosecond, and the zone its calendar fields are read in.

    Two times are equal when they are the same instant. `unix_nano` may lie outside 64 bits (Go's zero time does).
    """

    unix_nano: int
    zone: datetime.tzinfo = field(default=UTC, compare=False)

    def to_datetime(self) -> datetime.datetime:
        """The calendar fields, in the time's own zone, cut to microseconds."""
        micros = self.unix_nano // 1000
        try:
            return (_EPOCH + datetime.timedelta(microseconds=micros)).astimezone(self.zone)
        except OverflowError as error:
            raise OttlRuntimeError("time is outside the years 1 to 9999") from error

    @property
    def nanosecond(self) -> int:
        """Nanoseconds within the second."""
        return self.unix_nano % 1_000_000_000

    def rfc3339_nano(self) -> str:
        """As Go's `time.RFC3339Nano`: no trailing zeros in the fraction, `Z` for UTC."""
        moment = self.to_datetime()
        fraction = f"{self.nanosecond:09d}".rstrip("0")
        offset = moment.utcoffset() or datetime.timedelta()
        minutes = int(offset.total_seconds() // 60)
        zone = "Z" if minutes == 0 else f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
        return f"{moment:%Y-%m-%dT%H:%M:%S}".rjust(19, "0") + (f".{fraction}" if fraction else "") + zone

    def __str__(self) -> str:
        return self.rfc3339_nano()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time in nanoseconds (64 bits, signed)."""

    nanos: int

    def __str__(self) -> str:
        """As Go prints it: `1h2m3.5s`, `1.5ms`, `0s`."""
        return format_duration(self.nanos)


class TraceID(bytes):
    """16 bytes that name a trace. Never equal to plain bytes."""

    __slots__ = ()


class SpanID(bytes):
    """8 bytes that name a span. Never equal to plain bytes."""

    __slots__ = ()


class ProfileID(bytes):
    """16 bytes that name a profile. Never equal to plain bytes."""

    __slots__ = ()


_GO_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int64",
    float: "float64",
    str: "string",
    bytes: "[]uint8",
    list: "pcommon.Slice",
    dict: "pcommon.Map",
    Time: "time.Time",
    Duration: "time.Duration",
    TraceID: "pcommon.TraceID",
    SpanID: "pcommon.SpanID",
    ProfileID: "pprofile.ProfileID",
}


def go_type(value: Value, nil: str = "<nil>") -> str:
    """The name the Collector gives to a value's type, for error messages."""
    return nil if value is None else _GO_TYPES.get(type(value), type(value).__name__)


def wrap_int64(number: int) -> int:
    """Two's complement overflow, as Go's int64 arithmetic has it."""
    if INT64_MIN <= number <= INT64_MAX:
        return number
    return ((number + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63)


def float_to_int(number: float) -> int:
    """Go's `int64(f)`: towards zero; what does not fit gives the least int64, as on amd64."""
    if math.isfinite(number) and INT64_MIN <= number < 9223372036854775808.0:
        return int(number)
    return INT64_MIN


_DECIMAL = re.compile(r"[+-]?[0-9]+", re.ASCII)
_FLOAT = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf(?:inity)?|nan)", re.ASCII | re.IGNORECASE
)
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII)


def quote(text: str) -> str:
    """A string in double quotes, as Go's `%q`."""
    return json.dumps(text, ensure_ascii=False)


def parse_int(text: str) -> int:
    """Go's `strconv.ParseInt(text, 10, 64)`."""
    if len(text) <= 18 and text.isdecimal() and text.isascii():
        return int(text)
    if not _DECIMAL.fullmatch(text):
        raise OttlRuntimeError(f"strconv.ParseInt: parsing {quote(text)}: invalid syntax")
    # Longer than 64 bits can be, leading zeros aside; also keeps int() away from megabytes of digits.
    if len(text.lstrip("+-").lstrip("0")) > 19 or not INT64_MIN <= (number := int(text)) <= INT64_MAX:
        raise OttlRuntimeError(f"strconv.ParseInt: parsing {quote(text)}: value out of range")
    return number


def parse_float(text: str) -> float:
    """Go's `strconv.ParseFloat(text, 64)`."""
    if _FLOAT.fullmatch(text):
        number = float(text)
    elif _HEX_FLOAT.fullmatch(text):
        try:
            number = float.fromhex(text)
        except OverflowError:
            number = math.inf
    else:
        raise OttlRuntimeError(f"strconv.ParseFloat: parsing {quote(text)}: invalid syntax")
    if math.isinf(number) and "n" not in text.lower():
        raise OttlRuntimeError(f"strconv.ParseFloat: parsing {quote(text)}: value out of range")
    return number


_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))


def parse_bool(text: str) -> bool:
    """Go's `strconv.ParseBool`."""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise OttlRuntimeError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")


def format_float(number: float) -> str:
    """The shortest text of a float as Go's `encoding/json` writes it: `1`, `0.1`, `1e+21`, `1e-7`."""
    if number != number:
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    if number == 0:
        return "-0" if math.copysign(1.0, number) < 0 else "0"
    mantissa, _, exponent = f"{number!r}".partition("e")
    size = abs(number)
    if 1e-6 <= size < 1e21:
        if exponent:
            return _expand(mantissa, int(exponent))
        return mantissa.removesuffix(".0")
    if not exponent:  # repr writes 1e-05 with an exponent, and never needs none below 1e-4 or above 1e16
        return mantissa.removesuffix(".0")
    power = int(exponent)
    return f"{mantissa.removesuffix('.0')}e{'-' if power < 0 else '+'}{abs(power)}"


def _expand(mantissa: str, power: int) -> str:
    sign = "-" if mantissa.startswith("-") else ""
    digits = mantissa.lstrip("-").replace(".", "")
    if power < 0:
        return f"{sign}0.{'0' * (-power - 1)}{digits}"
    return sign + digits.ljust(power + 1, "0")


_UNITS = ((3_600_000_000_000, "h"), (60_000_000_000, "m"))


def format_duration(nanos: int) -> str:
    """A duration as Go's `Duration.String`."""
    if nanos == 0:
        return "0s"
    sign, rest = ("-", -nanos) if nanos < 0 else ("", nanos)
    if rest < 1_000_000_000:
        for unit, name in ((1_000_000, "ms"), (1_000, "µs"), (1, "ns")):
            if rest >= unit:
                return sign + _fraction(rest, unit) + name
    text = ""
    for unit, name in _UNITS:
        if rest >= unit or text:
            text += f"{rest // unit}{name}"
            rest %= unit
    return f"{sign}{text}{_fraction(rest, 1_000_000_000)}s"


def _fraction(number: int, unit: int) -> str:
    whole, part = divmod(number, unit)
    digits = f"{part:0{len(str(unit)) - 1}d}".rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)


def to_json(value: Value) -> str:
    """JSON text as Go writes it: keys sorted, no spaces, `<`, `>` and `&` escaped, bytes as base64."""
    if isinstance(value, str):
        return _json_string(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise OttlTypeError(f"json: unsupported value: {format_float(value)}")
        return format_float(value)
    if isinstance(value, (TraceID, SpanID, ProfileID)):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, dict):
        return "{" + ",".join(f"{_json_string(key)}:{to_json(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if isinstance(value, Time):
        return f'"{value.rfc3339_nano()}"'
    if isinstance(value, Duration):
        return str(value.nanos)
    raise OttlTypeError(f"unsupported type: {go_type(value)}")


_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def _json_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).translate(_HTML)


def as_string(value: Value) -> str:
    """The text of an OTLP value as the Collector's `Value.AsString` gives it (bytes as base64, maps as JSON)."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "json: unsupported value: " + format_float(value)
    return to_json(value)


def copy_value(value: Value) -> Value:
    """A value that shares no list and no dictionary with the given one."""
    if isinstance(value, dict):
        return {key: copy_value(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copy_value(item) for item in value]
    return value
