"""Events of Kubernetes whose fields somebody chose: tables of `kubectl -o custom-columns`, lines of JSON made by `jq`.

Such a table or line has the fields of an event without their nesting, under names of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import re2

#: Names in use for each field of an event, in lower case without signs between words.
_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "LAST SEEN": (
        "lastseen", "last", "lasttimestamp", "lasttime", "time", "timestamp", "ts", "when", "date", "seen", "eventtime",
        "age",
    ),
    "NAMESPACE": ("namespace", "ns", "involvedobjectnamespace", "objectnamespace", "podnamespace"),
    "TYPE": ("type", "severity", "eventtype"),
    "REASON": ("reason", "eventreason"),
    "OBJECT": ("object", "involvedobject", "regarding", "obj", "resource"),
    "KIND": ("kind", "involvedobjectkind", "objectkind", "regardingkind"),
    "NAME": ("name", "involvedobjectname", "objectname", "regardingname"),
    "POD": ("pod", "podname"),
    "NODE": ("node", "nodename"),
    "COUNT": ("count",),
    "MESSAGE": ("message", "note", "msg", "eventmessage"),
}  # fmt: skip
_FIELDS: Final = {name: field for field, names in _NAMES.items() for name in names}
_SIGNS: Final = re2.compile(r"[^a-z0-9]+")
_REASON: Final = re2.compile(r"^[A-Z][A-Za-z0-9]{2,60}$")
_TITLES: Final = re2.compile(r"^[A-Z][A-Z_. -]*(?: {2,}[A-Z][A-Z_. -]*)+\s*$")
#: What the API server adds to the name of an object to call an event.
_OF_EVENT: Final = re2.compile(r"\.[0-9a-f]{14,16}$")
#: Characters of a first line that are read to recognise a file.
LONGEST: Final = 64 << 10
_NONE: Final = ("<none>", "<unset>", "null")


def field(name: str) -> str:
    """Return which field of an event a column or key is called after; the name itself if it is none."""
    return _FIELDS.get(_SIGNS.sub("", name.lower()), name)


def is_header(line: str) -> bool:
    """Return whether this is the heading of a table of events: reason, message, and what they are about."""
    if "REASON" not in line or _TITLES.match(line) is None:
        return False
    columns = {field(name) for name in re2.split(r" {2,}", line.strip())}
    about = "OBJECT" in columns or {"KIND", "NAME"} <= columns
    return about and {"REASON", "MESSAGE"} <= columns


def completed(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row whose object is `Kind/name`, without fields that say nothing."""
    found = {name: value for name, value in row.items() if value and value not in _NONE}
    if "OBJECT" not in found:
        kind, name = found.get("KIND", ""), found.get("NAME", "")
        if not kind and "POD" in found:
            kind, name = "Pod", found["POD"]
        if kind and name:
            found["OBJECT"] = f"{kind}/{_OF_EVENT.sub('', name)}"
    return found


def of_entry(entry: Any) -> dict[str, str] | None:
    """Return the fields of an event in a line of JSON; None if it is no event.

    A program's own line may have a reason and a message, too. Only an event also has the type that Kubernetes gives.
    """
    if not isinstance(entry, dict) or len(entry) > 64 or "apiVersion" in entry or "metadata" in entry:
        return None
    row: dict[str, str] = {}
    for key, value in entry.items():
        if isinstance(value, str | int) and (name := field(key)) in _NAMES:
            row.setdefault(name, str(value))
    row = completed(row)
    typed = row.get("TYPE") in ("Normal", "Warning") and _REASON.match(row.get("REASON", "")) is not None
    return row if typed and "OBJECT" in row and "MESSAGE" in row else None


def of_line(line: str | bytes) -> dict[str, str] | None:
    """Return the fields of an event in a line of JSON, which may be an element of a list; None if it is no event."""
    bare = line.strip().lstrip("[").rstrip(",]") if isinstance(line, str) else line.strip().lstrip(b"[").rstrip(b",]")
    try:
        return of_entry(msgspec.json.decode(bare))
    except (msgspec.DecodeError, RecursionError):
        return None


def begins_with_events(start: bytes) -> bool:
    """Return whether the first line of a file is an event in JSON."""
    return of_line(start[:LONGEST].lstrip(b"[ \r\n").split(b"\n", 1)[0]) is not None
