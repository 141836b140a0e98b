"""Go's `time` layouts (`2006-01-02 15:04:05`): formatting and parsing, with the zones and the errors of Go."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions.zones import fixed, local_offset, offset_by_name, zone_at
from tracecore.ottl.values import UTC, Time, quote

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")

# The elements of a layout, longest first where one begins another.
_ELEMENT = re.compile(
    r"January|Jan(?![a-z])|Monday|Mon(?![a-z])|MST|002|0[1-6]|15|1|2006|2|_2006|_2|__2|3|4|5|PM|pm"
    r"|-070000|-07:00:00|-0700|-07:00|-07|Z070000|Z07:00:00|Z0700|Z07:00|Z07|[.,](?:0+|9+)(?![0-9])"
)

_EPOCH_DAYS = datetime.date(1970, 1, 1).toordinal()


class TimeParseError(OttlRuntimeError):
    """A text that does not fit its layout.

    Args:
        layout, value: the whole layout and text.
        layout_elem, value_elem: the element that did not fit, and the text it was tried on.
        detail: what else is to say, instead of the elements.
    """

    def __init__(self, layout: str, value: str, layout_elem: str, value_elem: str, detail: str = "") -> None:
        super().__init__("")
        self.layout, self.value = layout, value
        self.layout_elem, self.value_elem, self.detail = layout_elem, value_elem, detail
        self.describe()

    def describe(self) -> None:
        """Write the message anew, after a field changed."""
        if self.detail:
            self.message = f"parsing time {quote(self.value)}{self.detail}"
        else:
            self.message = (
                f"parsing time {quote(self.value)} as {quote(self.layout)}: cannot parse {quote(self.value_elem)} as "
                f"{quote(self.layout_elem)}"
            )
        self.args = (self.message,)


@lru_cache(maxsize=1024)
def chunks(layout: str) -> tuple[tuple[str, str], ...]:
    """A layout as (literal text, element) pairs; the last pair has no element."""
    pairs: list[tuple[str, str]] = []
    last = 0
    for found in _ELEMENT.finditer(layout):
        element, start = found.group(), found.start()
        if element == "_2006":  # a literal underscore, then the year
            element, start = "2006", start + 1
        pairs.append((layout[last:start], element))
        last = found.end()
    pairs.append((layout[last:], ""))
    return tuple(pairs)


def format_time(time: Time, layout: str) -> str:
    """The time in a Go layout."""
    moment = time.to_datetime()
    offset = int((moment.utcoffset() or datetime.timedelta()).total_seconds())
    pieces: list[str] = []
    for literal, element in chunks(layout):
        pieces.append(literal)
        if element:
            pieces.append(_format_element(element, moment, time.nanosecond, offset))
    return "".join(pieces)


def _format_element(element: str, moment: datetime.datetime, nanosecond: int, offset: int) -> str:
    if element[0] in ".,":
        digits = f"{nanosecond:09d}".ljust(len(element) - 1, "0")[: len(element) - 1]
        if element[1] == "9":
            digits = digits.rstrip("0")
        return element[0] + digits if digits else ""
    if element[0] in "-Z":
        return "Z" if element[0] == "Z" and offset == 0 else _format_offset(element[1:], offset)
    if element == "MST":
        return moment.tzname() or _format_offset("0700", offset)
    return _FORMATS[element](moment)


def _hour12(moment: datetime.datetime) -> int:
    return moment.hour % 12 or 12


_FORMATS: dict[str, Callable[[datetime.datetime], str]] = {
    "January": lambda moment: MONTHS[moment.month - 1],
    "Jan": lambda moment: MONTHS[moment.month - 1][:3],
    "Monday": lambda moment: DAYS[moment.isoweekday() % 7],
    "Mon": lambda moment: DAYS[moment.isoweekday() % 7][:3],
    "01": lambda moment: f"{moment.month:02d}",
    "1": lambda moment: str(moment.month),
    "02": lambda moment: f"{moment.day:02d}",
    "2": lambda moment: str(moment.day),
    "_2": lambda moment: f"{moment.day:2d}",
    "002": lambda moment: f"{moment.timetuple().tm_yday:03d}",
    "__2": lambda moment: f"{moment.timetuple().tm_yday:3d}",
    "15": lambda moment: f"{moment.hour:02d}",
    "3": lambda moment: str(_hour12(moment)),
    "03": lambda moment: f"{_hour12(moment):02d}",
    "4": lambda moment: str(moment.minute),
    "04": lambda moment: f"{moment.minute:02d}",
    "5": lambda moment: str(moment.second),
    "05": lambda moment: f"{moment.second:02d}",
    "2006": lambda moment: f"{moment.year:04d}",
    "06": lambda moment: f"{moment.year % 100:02d}",
    "PM": lambda moment: "PM" if moment.hour >= 12 else "AM",
    "pm": lambda moment: "pm" if moment.hour >= 12 else "am",
}


def _format_offset(form: str, offset: int) -> str:
    size = abs(offset)
    minutes = size // 60
    text = f"{'-' if offset < 0 else '+'}{minutes // 60:02d}"
    if len(form) > 2:
        text += (":" if ":" in form else "") + f"{minutes % 60:02d}"
    if len(form) > 5:
        text += (":" if ":" in form else "") + f"{size % 60:02d}"
    return text


@dataclass(slots=True)
class Parsed:
    """Calendar fields read from a text. `year` is 0 where the layout has none."""

    year: int = 0
    month: int = 1
    day: int = 1
    hour: int = 0
    minute: int = 0
    second: int = 0
    nanosecond: int = 0
    zone: datetime.tzinfo | None = None
    offset: int | None = None
    zone_name: str = ""


class _BadElement(Exception):
    def __init__(self, out_of_range: str = "") -> None:
        self.out_of_range = out_of_range


def parse(layout: str, text: str, location: datetime.tzinfo) -> tuple[Parsed, str, int, datetime.tzinfo]:
    """Go's `time.ParseInLocation`: the fields, and the name, offset and zone that they are in."""
    fields = _fields(layout, text)
    return (fields, *_zone(fields, location))


def _fields(layout: str, text: str) -> Parsed:
    parsed = Parsed()
    month = day = yday = -1
    afternoon: bool | None = None
    value = text
    pairs = chunks(layout)
    for index, (literal, element) in enumerate(pairs):
        rest = _skip(value, literal)
        if rest is None:
            raise TimeParseError(layout, text, literal, _skipped(value, literal))
        value = rest
        if not element:
            if value:
                raise TimeParseError(layout, text, "", value, f": extra text: {quote(value)}")
            break
        hold = value
        try:
            if element in ("01", "1"):
                month, value = _number(value, element == "01")
                _check(1 <= month <= 12, "month")
            elif element in ("January", "Jan"):
                names = MONTHS if element == "January" else tuple(name[:3] for name in MONTHS)
                month, value = _lookup(names, value)
                month += 1
            elif element in ("02", "2", "_2"):
                if element == "_2":
                    value = value.removeprefix(" ")
                day, value = _number(value, element == "02")
            elif element in ("002", "__2"):
                if element == "__2":
                    value = value.removeprefix(" ").removeprefix(" ")
                yday, value = _day_of_year(value, element == "002")
            elif element in ("PM", "pm"):
                word = value[:2]
                if word not in (("AM", "PM") if element == "PM" else ("am", "pm")):
                    raise _BadElement
                afternoon = word in ("PM", "pm")
                value = value[2:]
            else:
                value = _element(parsed, element, value, pairs[index + 1][1] if not pairs[index + 1][0] else "")
        except _BadElement as bad:
            if bad.out_of_range:
                raise TimeParseError(layout, text, element, value, f": {bad.out_of_range} out of range") from None
            raise TimeParseError(layout, text, element, hold) from None
    if afternoon and parsed.hour < 12:
        parsed.hour += 12
    elif afternoon is False and parsed.hour == 12:
        parsed.hour = 0
    parsed.month, parsed.day = _date(layout, text, value, parsed.year, month, day, yday)
    return parsed


def _date(layout: str, text: str, value: str, year: int, month: int, day: int, yday: int) -> tuple[int, int]:
    if yday >= 0:
        leap = _days_in(2, year) == 29
        if yday < 1 or yday > 365 + leap:
            raise TimeParseError(layout, text, "", value, ": day-of-year out of range")
        month_of, left = 1, yday
        while left > _days_in(month_of, year):
            left -= _days_in(month_of, year)
            month_of += 1
        if month >= 0 and month != month_of:
            raise TimeParseError(layout, text, "", value, ": day-of-year does not match month")
        if day >= 0 and day != left:
            raise TimeParseError(layout, text, "", value, ": day-of-year does not match day")
        return month_of, left
    month, day = max(month, 1), 1 if day < 0 else day
    if not 1 <= day <= _days_in(month, year):
        raise TimeParseError(layout, text, "", value, ": day out of range")
    return month, day


def _days_in(month: int, year: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _element(parsed: Parsed, element: str, value: str, following: str) -> str:
    """Read one element that is neither a date nor AM/PM into the fields; the text after it."""
    if element == "2006":
        if len(value) < 4 or not _digit(value, 0):
            raise _BadElement
        parsed.year = _integer(value[:4])
        return value[4:]
    if element == "06":
        if len(value) < 2:
            raise _BadElement
        year = _integer(value[:2])
        parsed.year = year + (1900 if year >= 69 else 2000)
        return value[2:]
    if element in ("Monday", "Mon"):
        return _lookup(DAYS if element == "Monday" else tuple(name[:3] for name in DAYS), value)[1]
    if element in ("15", "03", "3"):
        parsed.hour, value = _number(value, element == "03")
        _check(parsed.hour < 24 if element == "15" else parsed.hour <= 12, "hour")
        return value
    if element in ("04", "4"):
        parsed.minute, value = _number(value, element == "04")
        _check(parsed.minute < 60, "minute")
        return value
    if element in ("05", "5"):
        parsed.second, value = _number(value, element == "05")
        _check(parsed.second < 60, "second")
        # A fraction may follow the seconds even where the layout has none.
        if value[:1] in (".", ",") and _digit(value, 1) and not following.startswith((".", ",")):
            return _fraction(parsed, value)
        return value
    if element == "MST":
        return _named_zone(parsed, value)
    if element[0] in ".,":
        if element[1] == "0":
            if len(value) < len(element):
                raise _BadElement
            return _exact_fraction(parsed, value, len(element))
        return _fraction(parsed, value) if value[:1] in (".", ",") and _digit(value, 1) else value
    if element[0] == "Z" and value.startswith("Z"):
        parsed.zone = UTC
        return value[1:]
    return _numeric_zone(parsed, element[1:], value)


def _integer(text: str) -> int:
    body = text[1:] if text[:1] in ("+", "-") else text
    if not body.isascii() or not body.isdigit():
        raise _BadElement
    return int(text)


def _check(good: bool, name: str) -> None:
    if not good:
        raise _BadElement(name)


def _digit(text: str, index: int) -> bool:
    return index < len(text) and "0" <= text[index] <= "9"


def _number(value: str, fixed: bool) -> tuple[int, str]:
    """One or two digits; just two where `fixed`."""
    if not _digit(value, 0):
        raise _BadElement
    if not _digit(value, 1):
        if fixed:
            raise _BadElement
        return int(value[0]), value[1:]
    return int(value[:2]), value[2:]


def _day_of_year(value: str, fixed: bool) -> tuple[int, str]:
    size = 0
    while size < 3 and _digit(value, size):
        size += 1
    if size == 0 or (fixed and size != 3):
        raise _BadElement
    return int(value[:size]), value[size:]


def _lookup(names: tuple[str, ...], value: str) -> tuple[int, str]:
    for index, name in enumerate(names):
        head = value[: len(name)]
        if head.isascii() and head.lower() == name.lower():
            return index, value[len(name) :]
    raise _BadElement


def _skip(value: str, literal: str) -> str | None:
    """The text after a literal of the layout. A space matches any number of spaces."""
    if " " not in literal:
        return value[len(literal) :] if value.startswith(literal) else None
    while literal:
        if literal[0] == " ":
            if value and value[0] != " ":
                return None
            literal, value = literal.lstrip(" "), value.lstrip(" ")
            continue
        if not value or value[0] != literal[0]:
            return None
        literal, value = literal[1:], value[1:]
    return value


def _skipped(value: str, literal: str) -> str:
    """Return the rest of the text where the literal stopped matching, for the error."""
    while literal and value and literal[0] == value[0]:
        if literal[0] == " ":
            literal, value = literal.lstrip(" "), value.lstrip(" ")
        else:
            literal, value = literal[1:], value[1:]
    return value


def _fraction(parsed: Parsed, value: str) -> str:
    size = 1
    while _digit(value, size):
        size += 1
    return _exact_fraction(parsed, value, size)


def _exact_fraction(parsed: Parsed, value: str, size: int) -> str:
    digits = value[1:size]
    if value[0] not in ".," or not digits.isascii() or not digits.isdigit():
        raise _BadElement
    parsed.nanosecond = int(digits[:9].ljust(9, "0"))
    return value[size:]


def _numeric_zone(parsed: Parsed, form: str, value: str) -> str:
    # The form is one of 07, 0700, 07:00, 070000, 07:00:00; its colons must be in the text too.
    size = len(form) + 1
    if len(value) < size or any(value[index + 1] != ":" for index, char in enumerate(form) if char == ":"):
        raise _BadElement
    digits = value[1:size].replace(":", "") if ":" in form else value[1:size]
    parts = [digits[index : index + 2] for index in range(0, len(digits), 2)]
    numbers = [_number(part, True)[0] for part in parts] + [0, 0]
    for number, limit, name in zip(numbers, (24, 60, 60), ("hour", "minute", "second"), strict=False):
        _check(number <= limit, f"time zone offset {name}")
    offset = (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
    if value[0] not in "+-":
        raise _BadElement
    parsed.offset = -offset if value[0] == "-" else offset
    return value[size:]


_SIGNED = re.compile(r"[+-]([0-9]{1,18})")


def _named_zone(parsed: Parsed, value: str) -> str:
    if value.startswith("UTC"):
        parsed.zone = UTC
        return value[3:]
    size = _zone_name_length(value)
    if not size:
        raise _BadElement
    parsed.zone_name = value[:size]
    return value[size:]


def _zone_name_length(value: str) -> int:
    if len(value) < 3:
        return 0
    if value[:4] in ("ChST", "MeST"):
        return 4
    if value.startswith("GMT"):
        return 3 + _signed_length(value[3:])
    if value[0] in "+-":
        return _signed_length(value)
    upper = 0
    while upper < 6 and upper < len(value) and "A" <= value[upper] <= "Z":
        upper += 1
    if upper == 5 and value[4] == "T":
        return 5
    if upper == 4 and (value[3] == "T" or value[:4] == "WITA"):
        return 4
    return 3 if upper == 3 else 0


def _signed_length(value: str) -> int:
    found = _SIGNED.match(value)
    return found.end() if found and int(found[1]) <= 23 else 0


def _zone(fields: Parsed, location: datetime.tzinfo) -> tuple[str, int, datetime.tzinfo]:
    """The zone a parsed time is in, as Go decides it: what the text says, in the terms of the default location."""
    seconds = civil_seconds(fields)
    if fields.zone is not None:
        return "UTC", 0, fields.zone
    if fields.offset is not None:
        name, offset = zone_at(location, seconds - fields.offset)
        if offset == fields.offset and fields.zone_name in ("", name):
            return name, offset, location
        return fields.zone_name, fields.offset, fixed(fields.offset, fields.zone_name)
    if fields.zone_name:
        known = offset_by_name(location, fields.zone_name, seconds)
        if known is not None:
            return fields.zone_name, known, location
        offset = 0
        if fields.zone_name.startswith("GMT") and len(fields.zone_name) > 3:
            hours = int(fields.zone_name[3:])
            offset = 3600 * hours
            fields.hour += hours  # Go reads the fields as UTC here, and shows them in the zone
        return fields.zone_name, offset, fixed(offset, fields.zone_name)
    offset = local_offset(location, seconds)
    return zone_at(location, seconds - offset)[0], offset, location


def civil_seconds(fields: Parsed) -> int:
    """Seconds since 1970 of calendar fields, read as UTC. Year 0 is the year before year 1."""
    year, month = fields.year, fields.month
    shift = 0
    while year < 1:  # the calendar repeats every 400 years, which are 146,097 days
        year, shift = year + 400, shift + 146_097
    # A 29 February that the year does not have is 1 March, as Go's time.Date has it.
    days = datetime.date(year, month, 1).toordinal() + fields.day - 1 - shift - _EPOCH_DAYS
    return days * 86400 + fields.hour * 3600 + fields.minute * 60 + fields.second
