"""Batches of entries for configured operators: one entry for each line of a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracecore.signals.logs.operators.chain import Chain
from tracecore.signals.logs.operators.entry import MAX_TIME, SEVERITIES, Entry
from tracecore.signals.logs.operators.line_selection import LineSelection
from tracecore.signals.logs.selector import Selector, Selectors
from tracecore.signals.logs.tail.batch import LogBatch, grouped
from tracecore.signals.logs.tail.config import NOP, FileLogConfig, codec
from tracecore.signals.logs.tail.splitting import trimmer
from tracecore.signals.logs.tail.watched import WatchedFile
from tracecore.signals.otlp import encoding
from tracecore.signals.record import Attributes, Log

#: What `convert` and `due` give: a file, a batch, and where in the file the first thing held back begins.
Converted = tuple[WatchedFile, LogBatch, int | None]


class Entries:
    """Records that share nothing."""

    __slots__ = ("_entries", "count", "notes", "path", "selected")
    compact = False

    def __init__(self, path: str, entries: Sequence[Entry]) -> None:
        self.path = path
        self._entries = entries
        self.count = len(entries)
        self.notes: list[Any] = []
        self.selected = False

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        for entry in self._entries:
            resource, _, log = entry.record()
            yield resource, log

    def payload(self) -> dict[str, Any]:
        return grouped(entry.record() for entry in self._entries)

    def encoded(self) -> bytes:
        groups: list[tuple[dict[str, Any], dict[str, list[bytes]]]] = []
        resource: dict[str, Any] | None = None
        scope, seen, observed = "", -1, b""
        records: list[bytes] = []
        for entry in self._entries:
            if entry.observed != seen:
                seen, observed = entry.observed, encoding.observed_time(entry.observed)
            if entry.resource != resource or entry.scope != scope:
                resource, scope = entry.resource, entry.scope
                scopes = next((held for known, held in groups if known == resource), None)
                if scopes is None:
                    scopes = {}
                    groups.append((resource, scopes))
                records = scopes.setdefault(scope, [])
            time = entry.time & MAX_TIME if entry.time is not None else None
            text = entry.severity_text or SEVERITIES[entry.severity]
            records.append(encoding.parsed_record(entry.body, entry.attributes, time, entry.severity, text, observed))
        return b"".join(encoding.resource_logs(*group) for group in groups)


class JoinedBatches:
    """Batches of one file as one, in order."""

    __slots__ = ("_parts", "compact", "count", "notes", "path", "selected")

    def __init__(self, parts: Sequence[LogBatch]) -> None:
        self._parts = parts
        self.compact = all(part.compact for part in parts)
        self.path = parts[0].path
        self.count = sum(part.count for part in parts)
        self.notes: list[Any] = []
        self.selected = False

    def records(self) -> Iterator[tuple[Attributes, Log]]:
        for part in self._parts:
            yield from part.records()

    def payload(self) -> dict[str, Any]:
        return {"resource_logs": [entry for part in self._parts for entry in part.payload()["resource_logs"]]}

    def encoded(self) -> bytes:
        # Requests that stand one after another are one request.
        return b"".join(part.encoded() for part in self._parts)


def joined(parts: Sequence[LogBatch]) -> LogBatch:
    """Return one batch of some."""
    return parts[0] if len(parts) == 1 else JoinedBatches(parts)


class Every:
    """A conversion for any configuration: each line becomes an entry and passes all operators."""

    def __init__(self, config: FileLogConfig, chain: Chain, selector: Selector | Selectors | None) -> None:
        self._config = config
        self._chain = chain
        self._select = LineSelection(selector)
        self._trim = trimmer(config)
        self._raw = config.encoding in NOP
        self._codec = codec(config.encoding)
        self._holding: dict[int, tuple[WatchedFile, int]] = {}
        self._released: list[tuple[WatchedFile, int | None]] = []

    def convert(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        chosen = self._select(file, data, tokens, starts)
        config = self._config
        numbers: Sequence[int] = range(len(tokens)) if chosen is None else chosen
        trim, raw, encoding_, first = self._trim, self._raw, self._codec, file.record
        shared = {**file.attributes, **config.attributes}
        resource = config.resource
        numbered, placed = config.include_file_record_number, config.include_file_record_offset
        entries: list[Entry] = []
        for n in numbers:
            token = trim(tokens[n])
            if not token:
                continue
            attributes: dict[str, Any] = shared.copy()
            if numbered:
                attributes["log.file.record_number"] = first + n + 1
            if placed:
                attributes["log.file.record_offset"] = start + starts[n]
            body: Any = token if raw else token.decode(encoding_, "replace")
            entries.append(Entry(body, attributes, resource.copy(), now, file, start + starts[n]))
        found = self.entries(file, entries, now)
        return found, self._hold(file)

    def _hold(self, file: WatchedFile) -> int | None:
        """Return where the first thing begins that is held back of a file; notes what was let go of others."""
        self._holding.pop(file.ident, None)
        for other, before in list(self._holding.values()):
            start = self._chain.held(other)
            if start != before:
                self._released.append((other, start))
                del self._holding[other.ident]
                if start is not None:
                    self._holding[other.ident] = (other, start)
        held = self._chain.held(file)
        if held is not None:
            self._holding[file.ident] = (file, held)
        return held

    def released(self) -> list[tuple[WatchedFile, int | None]]:
        found, self._released = self._released, []
        return found

    def entries(self, file: WatchedFile, entries: list[Entry], now: int) -> list[LogBatch]:
        """Return what becomes of entries of a file."""
        found = self._chain.process(entries, now) if entries else []
        return [Entries(file.path, found)] if found else []

    @property
    def holds(self) -> bool:
        return bool(self._holding)

    def due(self, now: int) -> list[Converted]:
        return self._by_file(self._chain.due(now))

    def flush(self, file: WatchedFile, now: int) -> list[Converted]:
        return self.drain(now) if self._chain.held(file) is not None else []

    def drain(self, now: int) -> list[Converted]:
        return self._by_file(self._chain.drain(now))

    def _by_file(self, entries: list[Entry]) -> list[Converted]:
        files: dict[int, tuple[WatchedFile, list[Entry]]] = {}
        for entry in entries:
            files.setdefault(id(entry.source), (entry.source, []))[1].append(entry)
        return [(file, Entries(file.path, held), self._hold(file)) for file, held in files.values()]
