"""Records that were read together, in columns: what they share is held once, and records are made on demand."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec

from tracecore.signals.otlp.encoding import value, varint
from tracecore.signals.record import Attributes, Log

_fixed64 = struct.Struct("<Q").pack
#: Lengths for which the beginning of a record is remembered.
_COMMON: Final = 4096


class Template(msgspec.Struct, frozen=True):
    """Values that the records of a batch share.

    Args:
        resource: attributes of the resource.
        attributes: attributes of the records.
        severity_number: OTLP's number; 0 for none.
        severity_text: as the source has it.
        scope: name of the instrumentation scope.
    """

    resource: Attributes
    attributes: Attributes
    severity_number: int = 0
    severity_text: str = ""
    scope: str = ""


class LogBatch(Protocol):
    """Records of one file, in order.

    Args:
        path: the file they were read from.
        count: how many.
    """

    path: str
    count: int
    #: Whether it takes about as much memory as its lines.
    compact: bool
    #: Marks of what was handed out, for the one who keeps positions.
    notes: list[Any]
    #: A selector has picked its lines.
    selected: bool

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        """Each record with the attributes of its resource. What they share is shared: copy before you change it."""

    def payload(self) -> dict[str, Any]:
        """`{"resource_logs": […]}`, for those who change records: nothing in it is shared between records."""

    def encoded(self) -> bytes:
        """An OTLP export request."""


class RecordColumns:
    """Records that differ in their text and time only, and in which of a few templates they follow.

    Args:
        path: the file.
        templates: what they share.
        kinds: which template, for each record; None when all follow the first.
        bodies: valid UTF-8, for each record.
        times: nanoseconds, for each record; None when there are none.
        observed: when they were read.
        skipped: lines that nobody wanted.
    """

    __slots__ = ("bodies", "count", "kinds", "notes", "observed", "path", "selected", "skipped", "templates", "times")
    compact = True

    def __init__(
        self,
        path: str,
        templates: Sequence[Template],
        kinds: Sequence[int] | None,
        bodies: Sequence[bytes],
        times: Sequence[int] | None,
        observed: int,
        skipped: int = 0,
    ) -> None:
        self.path = path
        self.templates = templates
        self.kinds = kinds
        self.bodies = bodies
        self.times = times
        self.observed = observed
        self.skipped = skipped
        self.count = len(bodies)
        self.notes: list[Any] = []
        self.selected = False

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        for number, body in enumerate(self.bodies):
            template = self.templates[self.kinds[number] if self.kinds is not None else 0]
            record: Log = {
                "body": body.decode(),
                "attributes": template.attributes,
                "observed_time_unix_nano": self.observed,
            }
            if self.times is not None:
                record["time_unix_nano"] = self.times[number]
            if template.severity_number:
                record["severity_number"] = template.severity_number
            if template.severity_text:
                record["severity_text"] = template.severity_text
            yield template.resource, record

    def payload(self) -> dict[str, Any]:
        scopes = [template.scope for template in self.templates]
        groups = _Groups()
        for number, (resource, record) in enumerate(self.records()):
            record["attributes"] = dict(record["attributes"])
            groups.add(resource, scopes[self.kinds[number] if self.kinds is not None else 0], record)
        return groups.payload()

    def encoded(self) -> bytes:
        kinds = self.kinds
        out: list[bytes] = []
        groups: dict[int, list[int]] = {}
        if kinds is None:
            groups[0] = [0]
        else:
            for kind, template in enumerate(self.templates):
                for first, held in groups.items():
                    other = self.templates[first]
                    if other.resource == template.resource and other.scope == template.scope:
                        held.append(kind)
                        break
                else:
                    groups[kind] = [kind]
        for first, held in groups.items():
            chosen = set(held)
            of_group = None if kinds is None or len(groups) == 1 else [n for n, k in enumerate(kinds) if k in chosen]
            records = self._records(of_group)
            if not records:
                continue
            template = self.templates[first]
            scope = _part(b"\x0a", _part(b"\x0a", template.scope.encode()) if template.scope else b"")
            scope_logs = scope + records
            resource = _part(b"\x0a", _entries(b"\x0a", template.resource))
            out.append(_part(b"\x0a", resource + _part(b"\x12", scope_logs)))
        return b"".join(out)

    def _records(self, chosen: list[int] | None) -> bytes:
        forms = [_Form(template, self.observed, self.times is not None) for template in self.templates]
        bodies, kinds, times = self.bodies, self.kinds, self.times
        out: list[bytes] = []
        extend = out.extend
        numbers = range(len(bodies)) if chosen is None else chosen
        packed = struct.pack(f"<{len(times)}Q", *times) if times is not None else b""
        for n in numbers:
            body = bodies[n]
            form = forms[kinds[n]] if kinds is not None else forms[0]
            size = len(body)
            heads = form.heads.get(size) or form.head(size)
            if times is None:
                extend((heads[0], heads[1], body, form.tail))
            else:
                extend((heads[0], packed[8 * n : 8 * n + 8], heads[1], body, form.tail))
        return b"".join(out)


class _Form:
    """The bytes around the time and the text of an encoded record."""

    __slots__ = ("_severity", "_timed", "heads", "tail")

    def __init__(self, template: Template, observed: int, timed: bool) -> None:
        severity = b"\x10" + varint(template.severity_number) if template.severity_number else b""
        if template.severity_text:
            severity += _part(b"\x1a", template.severity_text.encode())
        self._severity = severity
        self._timed = timed
        self.tail = _entries(b"\x32", template.attributes) + b"\x59" + _fixed64(observed)
        self.heads: dict[int, tuple[bytes, bytes]] = {}

    def head(self, size: int) -> tuple[bytes, bytes]:
        """Return what stands before the time, and between time and text."""
        length = varint(size)
        middle = self._severity + b"\x2a" + varint(size + len(length) + 1) + b"\x0a" + length
        total = (9 if self._timed else 0) + len(middle) + size + len(self.tail)
        found = (b"\x12" + varint(total) + (b"\x09" if self._timed else b""), middle)
        if size < _COMMON:
            self.heads[size] = found
        return found


class _Groups:
    """Records by resource and scope, as a payload has them."""

    def __init__(self) -> None:
        self._entries: list[dict[str, Any]] = []
        self._known: dict[tuple[int, str], list[Log]] = {}
        self._resources: list[Attributes] = []

    def add(self, resource: Attributes, scope: str, record: Log) -> None:
        try:
            number = self._resources.index(resource)
        except ValueError:
            number = len(self._resources)
            self._resources.append(resource)
            self._entries.append({"resource": {"attributes": dict(resource)}, "scope_logs": []})
        records = self._known.get((number, scope))
        if records is None:
            records = self._known[(number, scope)] = []
            self._entries[number]["scope_logs"].append(
                {"scope": {"name": scope} if scope else {}, "log_records": records}
            )
        records.append(record)

    def payload(self) -> dict[str, Any]:
        return {"resource_logs": self._entries}


def grouped(records: Iterator[tuple[Attributes, str, Log]]) -> dict[str, Any]:
    """A payload of records, each with the attributes of its resource and the name of its scope."""
    groups = _Groups()
    for resource, scope, record in records:
        groups.add(resource, scope, record)
    return groups.payload()


def _part(tag: bytes, encoded: bytes) -> bytes:
    return tag + varint(len(encoded)) + encoded


def _entries(tag: bytes, attributes: Attributes) -> bytes:
    return b"".join(
        _part(tag, _part(b"\x0a", name.encode("utf-8", "replace")) + _part(b"\x12", value(held)))
        for name, held in attributes.items()
    )
