"""A log entry on its way through operators, and the fields of it that configurations name."""

from __future__ import annotations

import copy
from typing import Any, cast

import msgspec

from tracecore.signals.record import Attributes, Log


class Entry(msgspec.Struct, eq=False, gc=False):
    """One entry.

    Args:
        body: text, bytes, or what a parser made of it.
        attributes: its own.
        resource: those of what it came from.
        observed: when it was read, in nanoseconds.
        source: the file it was read from; anything that is the same for entries of one file.
        start: where it begins in the file.
    """

    body: Any
    attributes: dict[str, Any] = {}
    resource: dict[str, Any] = {}
    observed: int = 0
    source: Any = None
    start: int = 0
    time: int | None = None
    severity: int = 0
    severity_text: str = ""
    scope: str = ""

    def copied(self) -> Entry:
        """The same for somebody else, who may change it."""
        body, attributes, resource = copy.deepcopy((self.body, self.attributes, self.resource))
        return msgspec.structs.replace(self, body=body, attributes=attributes, resource=resource)

    def record(self) -> tuple[Attributes, str, Log]:
        """Attributes of the resource, name of the scope, and the record."""
        log: Log = {"attributes": self.attributes, "observed_time_unix_nano": self.observed}
        if self.body is not None:
            log["body"] = self.body
        if self.time is not None:
            log["time_unix_nano"] = self.time & MAX_TIME
        if self.severity:
            log["severity_number"] = self.severity
        if text := self.severity_text or SEVERITIES[self.severity]:
            log["severity_text"] = text
        return self.resource, self.scope, log


#: The latest time that OTLP can tell.
MAX_TIME = (1 << 64) - 1
#: Texts of OTLP's severity numbers.
SEVERITIES = (
    "",
    *(
        f"{name}{number or ''}"
        for name in ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
        for number in ("", 2, 3, 4)
    ),
)

MISSING = object()


class OperatorError(Exception):
    """An entry cannot be treated as configured."""


class Field:
    """A place in an entry: `body`, `body.a.b`, `attributes["a.b"]`, `resource.x`.

    Args:
        text: as a configuration has it.
        root: `attributes` and `resource` alone are allowed.

    Raises:
        ValueError: it is none.
    """

    __slots__ = ("keys", "root", "text")

    def __init__(self, text: str, root: bool = False) -> None:
        self.text = text
        head, *self.keys = _split(text)
        if head not in ("body", "attributes", "resource"):
            raise ValueError(f'"{text}" does not begin with body, attributes or resource')
        if head != "body" and not self.keys and not root:
            raise ValueError(f'"{text}" has to name something in it, such as {head}.name')
        self.root = head

    def get(self, entry: Entry) -> Any:
        """Its value; `MISSING` where there is none."""
        value = getattr(entry, self.root)
        for key in self.keys:
            if type(value) is not dict or key not in value:
                return MISSING
            value = value[key]
        return value

    def set(self, entry: Entry, value: Any) -> None:
        """Puts a value there; a map is merged into a map of attributes."""
        if self.root == "body":
            if not self.keys:
                entry.body = value
                return
            if type(entry.body) is not dict:
                entry.body = {}
            held = entry.body
            for key in self.keys[:-1]:
                held = _nested(held, key)
            held[self.keys[-1]] = value
            return
        held = getattr(entry, self.root)
        if type(value) is dict:
            for key in self.keys:
                held = _nested(held, key)
            held.update(value)
            return
        if not self.keys:
            raise OperatorError(f"{self.root} can only be set to a map")
        for key in self.keys[:-1]:
            held = _nested(held, key)
        held[self.keys[-1]] = value

    def delete(self, entry: Entry) -> Any:
        """Takes a value away; `MISSING` where there was none."""
        if not self.keys:
            value = getattr(entry, self.root)
            setattr(entry, self.root, None if self.root == "body" else {})
            return MISSING if value is None else value
        held = getattr(entry, self.root)
        for key in self.keys[:-1]:
            if type(held) is not dict or key not in held:
                return MISSING
            held = held[key]
        if type(held) is not dict:
            return MISSING
        return held.pop(self.keys[-1], MISSING)


def _nested(held: dict[str, Any], key: str) -> dict[str, Any]:
    inner = held.get(key)
    if type(inner) is not dict:
        inner = held[key] = {}
    return cast("dict[str, Any]", inner)


def _split(text: str) -> list[str]:
    """`a.b["c.d"]` as a, b, c.d."""
    keys: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "[":
            quote = text[at + 1 : at + 2]
            if quote not in ("'", '"'):
                raise ValueError(f'"{text}": names in brackets need quotes')
            end = text.find(quote, at + 2)
            if end < 0 or text[end + 1 : end + 2] != "]":
                raise ValueError(f'"{text}": a bracket is not closed')
            keys.append(text[at + 2 : end])
            at = end + 2
            if at < len(text) and text[at] not in ".[":
                raise ValueError(f'"{text}": a dot or bracket has to follow a bracket')
            at += text[at : at + 1] == "."
        else:
            end = min((i for i in (text.find(".", at), text.find("[", at)) if i >= 0), default=len(text))
            keys.append(text[at:end])
            at = end + (text[end : end + 1] == ".")
    if not keys:
        raise ValueError("a field has to be named")
    return keys
