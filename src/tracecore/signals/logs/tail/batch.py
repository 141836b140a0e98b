"""Records of a file that were read together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from tracecore.signals.logs.operators.entry import MAX_TIME, SEVERITIES, Entry
from tracecore.signals.otlp import encoding
from tracecore.signals.record import Attributes, Log

T = TypeVar("T")


class LogBatch:
    """Records of one file, in order.

    Args:
        path: the file they were read from.
        entries: the records, as operators left them.
    """

    __slots__ = ("_entries", "count", "notes", "path", "selected")

    def __init__(self, path: str, entries: Sequence[Entry]) -> None:
        self.path = path
        self.count = len(entries)
        #: Marks of what was handed out, for the one who keeps positions.
        self.notes: list[Any] = []
        #: A selector has picked its lines.
        self.selected = False
        self._entries = entries

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        """Each record with the attributes of its resource."""
        for entry in self._entries:
            resource, _, log = entry.record()
            yield resource, log

    def payload(self) -> dict[str, Any]:
        """`{"resource_logs": […]}`, for those who change records: nothing in it is shared between records."""
        groups: list[tuple[Attributes, dict[str, list[Log]]]] = []
        for entry in self._entries:
            resource, scope, record = entry.record()
            _scopes_of(groups, resource).setdefault(scope, []).append(record)
        return {
            "resource_logs": [
                {
                    "resource": {"attributes": dict(resource)},
                    "scope_logs": [
                        {"scope": {"name": scope} if scope else {}, "log_records": records}
                        for scope, records in scopes.items()
                    ],
                }
                for resource, scopes in groups
            ]
        }

    def encoded(self) -> bytes:
        """An OTLP export request."""
        groups: list[tuple[Attributes, dict[str, list[bytes]]]] = []
        resource: Attributes | None = None
        scope, seen, observed = "", -1, b""
        records: list[bytes] = []
        attributes: Attributes = {}
        encoded, texts = b"", True
        for entry in self._entries:
            if entry.observed != seen:
                seen, observed = entry.observed, encoding.observed_time(entry.observed)
            if entry.resource != resource or entry.scope != scope:
                resource, scope = entry.resource, entry.scope
                records = _scopes_of(groups, resource).setdefault(scope, [])
            time = entry.time & MAX_TIME if entry.time is not None else None
            text = entry.severity_text or SEVERITIES[entry.severity]
            # Most records of a file have the attributes of the one before. Of numbers, 1 is equal to true.
            if entry.attributes != attributes or not (texts := texts or _are_texts(attributes)):
                attributes, texts = entry.attributes, False
                encoded = encoding.record_attributes(attributes)
            records.append(encoding.parsed_record(entry.body, time, entry.severity, text, encoded, observed))
        return b"".join(encoding.resource_logs(*group) for group in groups)


def _are_texts(attributes: Attributes) -> bool:
    return all(type(value) is str for value in attributes.values())


def _scopes_of(groups: list[tuple[Attributes, dict[str, list[T]]]], resource: Attributes) -> dict[str, list[T]]:
    """The scopes of a resource among groups; the last resource is most often the one."""
    found = next((scopes for known, scopes in reversed(groups) if known == resource), None)
    if found is None:
        found = {}
        groups.append((resource, found))
    return found
