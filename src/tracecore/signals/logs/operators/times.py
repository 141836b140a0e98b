"""Times in log entries, by layouts: strptime's directives, Go's reference time, or numbers since the epoch."""

from __future__ import annotations

import calendar
import datetime
import zoneinfo
from typing import Any, Final

import re2

_NANOS: Final = 1_000_000_000
_MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NAMES: Final = "|".join(name[:3] for name in _MONTHS)
_FULL: Final = "|".join(_MONTHS)
_WEEK: Final = "|".join(name[:3] for name in _DAYS)
_FULL_WEEK: Final = "|".join(_DAYS)

#: What a part of a layout stands for: a name, and how it is written.
_PARTS: Final[dict[str, tuple[str, str]]] = {
    "year": ("year", r"\d{4}"),
    "year2": ("year2", r"\d{2}"),
    "month": ("month", r"\d{2}"),
    "month1": ("month", r" ?\d{1,2}"),
    "name": ("name", f"(?i:{_NAMES})"),
    "full": ("name", f"(?i:{_FULL})"),
    "day": ("day", r"\d{2}"),
    "day1": ("day", r" ?\d{1,2}"),
    "week": ("", f"(?i:{_WEEK})"),
    "fullweek": ("", f"(?i:{_FULL_WEEK})"),
    "yearday": ("yearday", r"\d{3}"),
    "hour": ("hour", r"\d{2}"),
    "hour1": ("hour", r" ?\d{1,2}"),
    "hour12": ("hour12", r"\d{2}"),
    "hour12_1": ("hour12", r" ?\d{1,2}"),
    "minute": ("minute", r"\d{2}"),
    "minute1": ("minute", r"\d{1,2}"),
    "second": ("second", r"\d{2}(?:[.,]\d+)?"),
    "second1": ("second", r"\d{1,2}(?:[.,]\d+)?"),
    "plain_second": ("second", r"\d{2}"),
    "milli": ("fraction", r"\d{3}"),
    "micro": ("fraction", r"\d{6}"),
    "nano": ("fraction", r"\d{9}"),
    "half": ("half", r"(?i:am|pm)"),
    "zone": ("zone", r"[A-Z]{1,5}(?:[+-]\d{1,2})?"),
    "offset": ("offset", r"[+-]\d{4}"),
    "offset_colon": ("offset", r"[+-]\d{2}:\d{2}"),
    "offset_short": ("offset", r"[+-]\d{2}"),
    "z_offset": ("offset", r"Z|[+-]\d{4}"),
    "z_offset_colon": ("offset", r"Z|[+-]\d{2}:\d{2}"),
    "z_offset_short": ("offset", r"Z|[+-]\d{2}"),
}
_DIRECTIVES: Final = {
    "Y": ["year"], "y": ["year2"], "m": ["month"], "o": ["month1"], "q": ["month1"], "b": ["name"], "h": ["name"],
    "B": ["full"], "d": ["day"], "e": ["day1"], "g": ["day1"], "a": ["week"], "A": ["fullweek"], "j": ["yearday"],
    "H": ["hour"], "k": ["hour1"], "I": ["hour12"], "l": ["hour12_1"], "p": ["half"], "P": ["half"], "M": ["minute"],
    "S": ["second"], "L": ["milli"], "f": ["micro"], "s": ["nano"], "Z": ["zone"], "z": ["z_offset"],
    "w": ["offset"], "i": ["z_offset_colon"], "F": ["year", "-", "month", "-", "day"], "n": ["\n"], "t": ["\t"],
    "D": ["month", "/", "day", "/", "year2"], "x": ["month", "/", "day", "/", "year2"],
    "T": ["hour", ":", "minute", ":", "second"], "X": ["hour", ":", "minute", ":", "second"],
    "R": ["hour", ":", "minute"], "r": ["hour12", ":", "minute", ":", "second", " ", "half"],
    "c": ["week", " ", "name", " ", "day", " ", "hour", ":", "minute", ":", "second", " ", "year"],
    "v": ["day1", "-", "name", "-", "year"], "%": ["%"],
}  # fmt: skip
_GO: Final = (
    ("2006", "year"), ("Z07:00", "z_offset_colon"), ("Z0700", "z_offset"), ("Z07", "z_offset_short"),
    ("-07:00", "offset_colon"), ("-0700", "offset"), ("-07", "offset_short"), ("January", "full"), ("Jan", "name"),
    ("Monday", "fullweek"), ("Mon", "week"), ("MST", "zone"), ("002", "yearday"), ("01", "month"), ("02", "day"),
    ("03", "hour12"), ("04", "minute"), ("05", "second"), ("06", "year2"), ("15", "hour"), ("PM", "half"),
    ("pm", "half"), ("_2", "day1"), ("1", "month1"), ("2", "day1"), ("3", "hour12_1"), ("4", "minute1"),
    ("5", "second1"),
)  # fmt: skip
#: Abbreviations of zones that mean UTC everywhere they are used in logs; others need a location.
_ZONES: Final = ("UTC", "GMT", "Z")


class TimeError(Exception):
    """A value is no time of this layout."""


class Layout:
    """A compiled layout.

    Args:
        layout: directives (`%Y-%m-%d`), Go's reference time (`2006-01-02`), or a unit (`s`, `ms`, `ns`, `s.ms` …).
        kind: `strptime`, `gotime` or `epoch`.
        location: the time zone of times that do not say theirs; UTC when empty.

    Raises:
        ValueError: no such layout or zone.
    """

    def __init__(self, layout: str, kind: str = "strptime", location: str = "") -> None:
        self._kind = kind
        self._layout = layout
        try:
            self._zone: datetime.tzinfo = zoneinfo.ZoneInfo(location) if location else datetime.UTC
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f'no time zone is called "{location}"') from None
        if kind == "epoch":
            if layout not in _EPOCH:
                raise ValueError(f'"{layout}" is none of {", ".join(_EPOCH)}')
            return
        if kind not in ("strptime", "gotime"):
            raise ValueError(f'no layout type is called "{kind}"')
        parts = _strptime(layout) if kind == "strptime" else _gotime(layout)
        self._names: list[str] = []
        pattern = ""
        for part in parts:
            base, _, digits = part.partition(".") if part.startswith("second") else (part, "", "")
            if base in _PARTS:
                name, expression = _PARTS[base]
                if digits:
                    expression = expression.replace(r"(?:[.,]\d+)?", rf"[.,]\d{{{digits}}}")
                if name:
                    self._names.append(name)
                    pattern += f"({expression})"
                else:
                    pattern += f"(?:{expression})"
            else:
                pattern += re2.escape(part)
        self._expression = re2.compile(f"^{pattern}$")

    def parse(self, value: Any, now: int) -> int:
        """Nanoseconds since the epoch.

        Args:
            value: text; for epochs also a number.
            now: the year of times without one is that of this, or the one before.

        Raises:
            TimeError: it is no such time.
        """
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        if self._kind == "epoch":
            return _epoch(self._layout, value)
        if not isinstance(value, str):
            raise TimeError(f"{type(value).__name__} cannot be parsed as a time")
        match = self._expression.match(value)
        if match is None:
            raise TimeError(f'"{value[:60]}" does not have the layout {self._layout}')
        found = dict(zip(self._names, match.groups(), strict=True))
        try:
            return self._assembled(found, now)
        except ValueError as error:
            raise TimeError(f'"{value[:60]}": {error}') from None

    def _assembled(self, found: dict[str, str], now: int) -> int:
        year = 0
        if "year" in found:
            year = int(found["year"])
        elif "year2" in found:
            two = int(found["year2"])
            year = two + (1900 if two >= 69 else 2000)
        month = int(found.get("month", "1"))
        if "name" in found:
            month = next(n for n, name in enumerate(_MONTHS, 1) if name[:3] == found["name"][:3].lower())
        day = int(found.get("day", "1"))
        hour = int(found.get("hour", "0"))
        if "hour12" in found:
            hour = int(found["hour12"]) % 12
        if "half" in found and "hour" not in found:
            hour += 12 if found["half"].lower() == "pm" else 0
        whole, _, part = found.get("second", "0").replace(",", ".").partition(".")
        fraction = found.get("fraction", part)
        nanos = int((fraction + "000000000")[:9]) if fraction else 0
        zone = self._zone_of(found)
        guessed = not year
        if guessed:
            year = datetime.datetime.fromtimestamp(now // _NANOS, zone).year
        if "yearday" in found:
            start = datetime.date(year, 1, 1) + datetime.timedelta(days=int(found["yearday"]) - 1)
            month, day = start.month, start.day
        moment = datetime.datetime(year, month, day, hour, int(found.get("minute", "0")), int(whole), tzinfo=zone)
        seconds = calendar.timegm(moment.utctimetuple())
        if guessed and seconds * _NANOS > now + 7 * 86_400 * _NANOS:
            # December's lines are read in January.
            seconds = calendar.timegm(moment.replace(year=year - 1).utctimetuple())
        return seconds * _NANOS + nanos

    def _zone_of(self, found: dict[str, str]) -> datetime.tzinfo:
        if offset := found.get("offset"):
            if offset == "Z":
                return datetime.UTC
            digits = offset[1:].replace(":", "") + "00"
            minutes = int(digits[:2]) * 60 + int(digits[2:4])
            return datetime.timezone(datetime.timedelta(minutes=-minutes if offset[0] == "-" else minutes))
        return datetime.UTC if found.get("zone") in _ZONES else self._zone


def _strptime(layout: str) -> list[str]:
    parts: list[str] = []
    at = 0
    while at < len(layout):
        if layout[at] != "%":
            parts.append(layout[at])
            at += 1
            continue
        directive = layout[at + 1 : at + 2]
        if directive not in _DIRECTIVES:
            raise ValueError(f'"%{directive}" is no directive')
        parts += _DIRECTIVES[directive]
        at += 2
    # Seconds take their fraction with them, of any length or none.
    made: list[str] = []
    for part in parts:
        if part in ("milli", "micro", "nano") and made[-1:] in (["."], [","]) and made[-2:-1] == ["second"]:
            made.pop()
        else:
            made.append(part)
    if any(part in ("milli", "micro", "nano") for part in made):
        made = ["plain_second" if part == "second" else part for part in made]
    return made


def _gotime(layout: str) -> list[str]:
    parts: list[str] = []
    at = 0
    while at < len(layout):
        rest = layout[at:]
        if rest[0] in ".," and rest[1:2] in ("0", "9") and parts and parts[-1] in ("second", "second1"):
            length = len(rest[1:]) - len(rest[1:].lstrip(rest[1]))
            if not rest[1 + length : 2 + length].isdigit():
                at += 1 + length
                # Nines mean any number of digits, which seconds have anyway; noughts mean as many as there are.
                if rest[1] == "0" and length <= 9:
                    parts[-1] = f"{parts[-1]}.{length}"
                continue
        for text, part in _GO:
            if rest.startswith(text):
                parts.append(part)
                at += len(text)
                break
        else:
            parts.append(rest[0])
            at += 1
    return parts


_EPOCH: Final = ("s", "ms", "us", "ns", "s.ms", "s.us", "s.ns")
_SCALE: Final = {"s": _NANOS, "ms": 1_000_000, "us": 1_000, "ns": 1}


def _epoch(layout: str, value: Any) -> int:
    unit, _, part = layout.partition(".")
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TimeError(f"{type(value).__name__} cannot be parsed as a time")
    try:
        if not part:
            return int(value) * _SCALE[unit]
        if isinstance(value, float):
            text = f"{value:.{ {'ms': 3, 'us': 6, 'ns': 9}[part] }f}"
        else:
            text = f"{value}.0" if isinstance(value, int) else value
        seconds, dot, fraction = text.partition(".")
        if not dot:
            raise ValueError
        return int(seconds) * _NANOS + int(fraction) * _SCALE[part]
    except (ValueError, OverflowError):
        raise TimeError(f'"{value}" is no time in {layout}') from None
