"""Grok: regular expressions put together from named patterns, with types for what they capture."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib import resources

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions import regex
from tracecore.ottl.values import Value, parse_bool, parse_float, parse_int

# %{PATTERN}, %{PATTERN:name} or %{PATTERN:name:type}
_USE = re.compile(r"%\{(\w+)(?::([\w+.]+)(?::(\w+))?)?\}", re.ASCII)
_DOT = "___"  # a group name cannot have a dot; this stands for it inside the expression
_CONVERT: dict[str, Callable[[str], Value]] = {
    "string": str,
    "double": parse_float,
    "float": parse_float,
    "int": parse_int,
    "long": parse_int,
    "bool": parse_bool,
    "boolean": parse_bool,
}


@lru_cache(maxsize=1)
def _library() -> dict[str, str]:
    text = resources.files("tracecore.ottl.functions").joinpath("data/grok.patterns").read_text(encoding="utf-8")
    entries = (line.partition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: expression for name, _, expression in entries}


class Grok:
    """A compiled grok pattern."""

    __slots__ = ("pattern", "types")

    def __init__(self, pattern: regex.CompiledRegex, types: dict[str, str]) -> None:
        self.pattern = pattern
        self.types = types

    def captures(self, text: str) -> dict[str, Value]:
        """Return the captures that are not empty, each in its type; an empty map if nothing matches."""
        found: dict[str, Value] = {}
        spans = self.pattern.search(text)
        for name, (start, end) in zip(self.pattern.names, spans or (), strict=False):
            if name and start < end:
                convert = _CONVERT.get(self.types.get(name, "string"))
                if convert is None:
                    raise OttlRuntimeError(f"invalid type for {name}: type not specified")
                found[name.replace(_DOT, ".")] = convert(text[start:end])
        return found


@lru_cache(maxsize=256)
def compiled(text: str, own: tuple[tuple[str, str], ...], named_only: bool) -> Grok:
    """A grok pattern as one expression. ValueError where it uses an unknown pattern or is no expression."""
    definitions = _library() | dict(own)
    types: dict[str, str] = {}

    def use(found: re.Match[str]) -> str:
        name, target, kind = found.groups()
        if name not in definitions:
            raise ValueError(f'pattern definition "{name}" unknown: parsing failed')
        group = (target or name).replace(".", _DOT)
        if kind:
            types[group] = kind
        return f"({definitions[name]})" if named_only and not target else f"(?P<{group}>{definitions[name]})"

    # Patterns use patterns; one that uses itself would grow without end.
    while _USE.search(text):
        text = _USE.sub(use, text)
        if len(text) > regex.MAX_PATTERN:
            raise ValueError(f"the pattern grows past {regex.MAX_PATTERN} characters")
    return Grok(regex.compiled(text), types)
