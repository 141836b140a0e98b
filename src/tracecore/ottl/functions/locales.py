"""Month and day names of other languages (Unicode CLDR 48), put into English so that a layout can read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from importlib import resources

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions.gotime import DAYS, MONTHS

_SHORT_DAYS = tuple(name[:3] for name in DAYS)
_SHORT_MONTHS = tuple(name[:3] for name in MONTHS)


class LayoutMismatch(OttlRuntimeError):
    """A text whose words are not those of the language at the place the layout has them."""

    def __init__(self, layout_elem: str, value: str) -> None:
        super().__init__(f'value "{value}" does not match the layout element "{layout_elem}"')
        self.layout_elem = layout_elem


class _Names:
    """The names of one language: short and long days from Sunday, short and long months, AM and PM."""

    __slots__ = ("by_element", "tag")

    def __init__(self, tag: str, tables: list[list[str]]) -> None:
        self.tag = tag
        short_days, long_days, short_months, long_months, periods = tables
        self.by_element = {
            "January": (long_months, MONTHS),
            "Jan": (short_months, _SHORT_MONTHS),
            "Monday": (long_days, DAYS),
            "Mon": (short_days, _SHORT_DAYS),
            "PM": (periods, ("AM", "PM")),
            "pm": (periods, ("am", "pm")),
        }


@lru_cache(maxsize=1)
def _tables() -> dict[str, list[list[str]]]:
    text = resources.files("tracecore.ottl.functions").joinpath("data/locales.json").read_text(encoding="utf-8")
    return {tag: tables for tags, tables in json.loads(text) for tag in tags}


def translator(tag: str) -> Callable[[str, str], str]:
    """Return a translator of texts of a language (a BCP 47 tag) into English. ValueError for an unknown tag."""
    tables = _tables().get(tag)
    if tables is None:
        raise ValueError(f"unsupported locale '{tag}', value must be a supported BCP 47 language tag")
    names = _Names(tag, tables)
    return lambda layout, text: _translate(names, layout, text)


def _translate(names: _Names, layout: str, text: str) -> str:
    """Walk layout and text side by side, a byte for a byte except where an element's width varies."""
    value = text.encode("utf-8", "surrogateescape")
    out = bytearray()
    at = place = 0
    while at < len(layout):
        element = _named_element(layout, at)
        if element:
            out_text, place = _translated(names, element, value, place)
            out += out_text
            at += len(element)
        elif (width := _padded_element(layout, at, len(value) - place)) > 0:
            piece, place = _non_space(value, place, width, layout[at : at + width])
            out += piece
            at += width
        elif layout[at] in "345" and (at == 0 or layout[at - 1] != "0"):
            piece, place = _clock_digits(value, place, layout[at])
            out += piece
            at += 1
        else:
            if place < len(value):
                # Upstream writes the byte as a character of that number and moves on by its width.
                char = chr(value[place]).encode()
                out += char
                place += len(char)
            at += 1
    return (bytes(out) + value[place:]).decode("utf-8", "surrogateescape")


def _named_element(layout: str, at: int) -> str:
    for long, short in (("January", "Jan"), ("Monday", "Mon")):
        if layout.startswith(short, at):
            if layout.startswith(long, at):
                return long
            return short if not "a" <= layout[at + 3 : at + 4] <= "z" else ""
    if layout[at] in "Pp" and layout[at + 1 : at + 2] in ("M", "m"):
        return "pm" if layout[at] == "p" else "PM"
    return ""


def _translated(names: _Names, element: str, value: bytes, place: int) -> tuple[bytes, int]:
    foreign, english = names.by_element[element]
    if not foreign:
        raise OttlRuntimeError(f'layout element "{element}" is not supported by the language "{names.tag}"')
    start = _after_space(value, place)
    best, size = "", -1
    for name, standard in zip(foreign, english, strict=False):
        raw = name.encode()
        if len(raw) > size and raw and _folded(value[start : start + len(raw)]) == _folded(raw):
            best, size = standard, len(raw)
    if not best:
        raise LayoutMismatch(element, value.decode("utf-8", "surrogateescape"))
    return b" " * (start - place) + best.encode(), start + size


def _folded(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape").casefold()


def _after_space(value: bytes, place: int) -> int:
    while place < len(value) and value[place] in b"\t\n\v\f\r \x85\xa0":
        place += 1
    return place


def _padded_element(layout: str, at: int, left: int) -> int:
    for element, width in (("_2006", 5), ("_2", 2), ("__2", 3)):
        if layout.startswith(element, at):
            return width if left >= width else 0
    return 0


def _non_space(value: bytes, place: int, width: int, element: str) -> tuple[bytes, int]:
    start = _after_space(value, place)
    if start >= len(value):
        raise LayoutMismatch(element, value.decode("utf-8", "surrogateescape"))
    end = start
    while end < len(value) and end - start < width and _after_space(value, end) == end:
        end += 1
    return b" " * (start - place) + value[start:end], end


def _clock_digits(value: bytes, place: int, element: str) -> tuple[bytes, int]:
    start = _after_space(value, place)
    if not value[start : start + 1].isdigit():
        raise LayoutMismatch(element, value.decode("utf-8", "surrogateescape"))
    end = start + 2 if value[start + 1 : start + 2].isdigit() else start + 1
    return b" " * (start - place) + value[start:end], end
