"""`%Y-%m-%d` formats, as the Collector reads and writes them: by translation into Go layouts."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions import clock, gotime, locales, zones
from tracecore.ottl.values import Time

_DIRECTIVE = re.compile(r"%.")

_LAYOUTS = {
    "%Y": "2006",
    "%y": "06",
    "%m": "01",
    "%o": "_1",
    "%q": "1",
    "%b": "Jan",
    "%h": "Jan",
    "%B": "January",
    "%d": "02",
    "%e": "_2",
    "%g": "2",
    "%a": "Mon",
    "%A": "Monday",
    "%H": "15",
    "%l": "3",
    "%I": "03",
    "%p": "PM",
    "%P": "pm",
    "%M": "04",
    "%S": "05",
    "%L": "999",
    "%f": "999999",
    "%s": "999999999",
    "%Z": "MST",
    "%z": "Z0700",
    "%w": "-070000",
    "%i": "-07",
    "%j": "-07:00",
    "%k": "-07:00:00",
    "%D": "01/02/2006",
    "%x": "01/02/2006",
    "%F": "2006-01-02",
    "%T": "15:04:05",
    "%X": "15:04:05",
    "%r": "03:04:05 pm",
    "%R": "15:04",
    "%n": "\n",
    "%t": "\t",
    "%%": "%",
    "%c": "Mon Jan 02 15:04:05 2006",
}

_SHORT_DATE = (("1", "/", "2", "/", "2006"), ("1", "/", "2", "/", "06"))
_CLOCK = (("15", ":", "4", ":", "5"),)

# Reading is more lenient than writing: numbers need no leading zero, some directives have several forms.
_READ: dict[str, tuple[tuple[str, ...], ...]] = {
    "%m": (("1",),),
    "%o": (("1",),),
    "%q": (("1",),),
    "%d": (("2",),),
    "%e": (("2",),),
    "%g": (("2",),),
    "%I": (("3",),),
    "%M": (("4",),),
    "%S": (("5",),),
    "%D": _SHORT_DATE,
    "%x": _SHORT_DATE,
    "%F": (("2006", "-", "1", "-", "2"),),
    "%T": _CLOCK,
    "%X": _CLOCK,
    "%r": (("3", ":", "4", ":", "5", " ", "pm"),),
    "%R": (("15", ":", "4"),),
    "%c": (("Mon", " ", "Jan", " ", "2", " ", "15", ":", "4", ":", "5", " ", "2006"),),
    "%z": (("Z0700",), ("Z07:00",), ("Z07",)),
}

_SPACE = re.compile(r"\s+")


def check(form: str) -> None:
    """ValueError when the format cannot be used."""
    if re.search(r"\d", form, re.ASCII):
        raise ValueError("format string should not contain decimals")
    if (found := re.search(r"[^.,]%[Lfs]", form, re.DOTALL)) is not None:
        raise ValueError(f"invalid fractional seconds directive: '{found[0]}'. must be preceded with '.' or ','")
    unknown = [
        f"unsupported ctimefmt.toNative() directive: {name}"
        for name in _DIRECTIVE.findall(form)
        if name not in _LAYOUTS
    ]
    if unknown:
        raise ValueError(f"invalid strptime format: [{' '.join(unknown)}]")


def format_time(form: str, time: Time) -> str:
    """The time in a checked format."""
    return gotime.format_time(time, _DIRECTIVE.sub(lambda found: _LAYOUTS[found[0]], form))


def default_location(name: str | None, form: str) -> datetime.tzinfo:
    """The zone of texts that name none: the given one, UTC for a format that ends in Z, else this machine's."""
    if name:
        try:
            return zones.load_location(name)
        except ValueError as error:
            raise ValueError(f"failed to load location {name}: {error}") from error
    return datetime.UTC if form.endswith("Z") and not form.endswith("%Z") else zones.local_zone()


def parser(form: str, location: datetime.tzinfo, locale: str | None) -> Callable[[str], Time]:
    """A function that reads texts in a checked format."""
    translate = locales.translator(locale) if locale is not None else None
    # Logs keep to one spelling of a format, so the layout that read the last text is tried first.
    last: list[str] = []

    def read(layout: str, text: str) -> Time:
        return _read(layout, text if translate is None else translate(layout, text), location)

    def parse(text: str) -> Time:
        if last:
            try:
                return read(last[0], text)
            except OttlRuntimeError:
                last.clear()
        directives = [(found.start(), found.end()) for found in _DIRECTIVE.finditer(form)]
        search = _LayoutSearch(form, directives, lambda layout: read(layout, text))
        try:
            time, layout = search.from_directive(0, "", 0)
        except gotime.TimeParseError as error:
            error.layout = form
            error.describe()
            raise
        last.append(layout)
        return time

    return parse


class _LayoutSearch:
    """Tries the layouts a format stands for until one reads the text."""

    def __init__(self, form: str, directives: list[tuple[int, int]], read: Callable[[str], Time]) -> None:
        self.form, self.directives, self.read = form, directives, read

    def from_directive(self, index: int, layout: str, position: int) -> tuple[Time, str]:
        if index == len(self.directives):
            layout += self.form[position:]
            return self.read(layout), layout
        start, end = self.directives[index]
        layout += self.form[position:start]
        directive = self.form[start:end]
        forms = _READ.get(directive) or ((_LAYOUTS[directive],),)
        for number, elements in enumerate(forms):
            try:
                return self._with_spaces(index, layout, end, directive, list(elements))
            except _Blamed as blamed:
                if number == len(forms) - 1:
                    raise blamed.error from None
        raise AssertionError("a directive has at least one form")

    def _with_spaces(self, index: int, layout: str, end: int, directive: str, elements: list[str]) -> tuple[Time, str]:
        """Try one form of a directive; spaces that stand before its numbers are let through."""
        while True:
            try:
                return self.from_directive(index + 1, layout + "".join(elements), end)
            except (gotime.TimeParseError, locales.LayoutMismatch) as error:
                if not error.layout_elem or error.layout_elem not in elements:
                    raise
                place = elements.index(error.layout_elem)
                rest = error.value_elem if isinstance(error, gotime.TimeParseError) else ""
                error.layout_elem = directive
                space = _SPACE.match(rest)
                if space is None or elements[place][0] not in "0123456789Z":
                    raise _Blamed(error) from None
                elements.insert(place, space[0])


class _Blamed(Exception):
    """The text does not fit this very directive, so another form of it may."""

    def __init__(self, error: gotime.TimeParseError | locales.LayoutMismatch) -> None:
        self.error = error


def _read(layout: str, text: str, location: datetime.tzinfo) -> Time:
    fields, name, offset, zone = gotime.parse(layout, text, location)
    seconds = gotime.civil_seconds(fields)
    if offset == 0 and name != "UTC" and name != zones.zone_at(location, seconds)[0]:
        # An abbreviation Go knows nothing about has offset 0; the database may have a zone of that name.
        try:
            other = zones.load_location(name)
        except ValueError as error:
            raise OttlRuntimeError(f"failed to load location {name}: {error}") from error
        fields, name, offset, zone = gotime.parse(layout, text, other)
    if fields.year == 0:
        fields.year = _likely_year(fields, zone, offset)
        offset = offset if fields.offset is not None else zones.local_offset(zone, gotime.civil_seconds(fields))
    return Time((gotime.civil_seconds(fields) - offset) * 1_000_000_000 + fields.nanosecond, zone)


def _likely_year(fields: gotime.Parsed, zone: datetime.tzinfo, offset: int) -> int:
    """This year, or the last one for a date more than a week ahead: formats such as syslog's have no year."""
    now = clock.now()
    local = datetime.datetime.fromtimestamp(now // 1_000_000_000, zones.local_zone())
    fields.year = local.year
    then = gotime.civil_seconds(fields) - zones.local_offset(zone, gotime.civil_seconds(fields))
    return local.year - 1 if then > now // 1_000_000_000 + 7 * 86400 else local.year
