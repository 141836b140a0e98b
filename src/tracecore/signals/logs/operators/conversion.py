"""Lines of a file into batches of records: each line becomes an entry and passes the operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracecore.signals.logs.operators.base import Failures
from tracecore.signals.logs.operators.chain import Chain
from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.operators.line_selection import LineSelection
from tracecore.signals.logs.selector import Selector, Selectors
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.config import NOP, FileLogConfig, codec
from tracecore.signals.logs.tail.splitting import trimmer
from tracecore.signals.logs.tail.watched import WatchedFile

#: A file, a batch of it, and where in the file the first thing begins that is still held back.
Converted = tuple[WatchedFile, LogBatch, int | None]


class Converter:
    """The operators of a receiver, and what they hold back of its files.

    Args:
        config: the options of the receiver.
        failures: counts what went wrong.
        selector: picks lines; None for all of them.
    """

    def __init__(self, config: FileLogConfig, failures: Failures, selector: Selector | Selectors | None = None) -> None:
        self._config = config
        self._chain = Chain(config.operators, failures)
        self._select = LineSelection(selector)
        self._trim = trimmer(config)
        self._raw = config.encoding in NOP
        self._codec = codec(config.encoding)
        self._holding: dict[int, tuple[WatchedFile, int]] = {}
        self._released: list[tuple[WatchedFile, int | None]] = []

    def convert(
        self, file: WatchedFile, data: bytes, tokens: Sequence[bytes], starts: Sequence[int], start: int, now: int
    ) -> tuple[list[LogBatch], int | None]:
        """Batches of these lines, and where in the file the first thing held back begins."""
        chosen = self._select(file, data, tokens, starts)
        config = self._config
        numbers: Sequence[int] = range(len(tokens)) if chosen is None else chosen
        trim, raw, encoding, first = self._trim, self._raw, self._codec, file.record
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
            body: Any = token if raw else token.decode(encoding, "replace")
            entries.append(Entry(body, attributes, resource.copy(), now, file, start + starts[n]))
        found = self._chain.process(entries, now) if entries else []
        return [LogBatch(file.path, found)] if found else [], self._hold(file)

    def released(self) -> list[tuple[WatchedFile, int | None]]:
        """Other files of which something was held back that has gone out with the last lines.

        A line that began in a file and ended in the one that came in its place. With each where the next thing
        begins that is still held back.
        """
        found, self._released = self._released, []
        return found

    @property
    def holds(self) -> bool:
        """Return whether something is held back."""
        return bool(self._holding)

    def due(self, now: int) -> list[Converted]:
        """Return what has been held back for long enough."""
        return self._by_file(self._chain.due(now))

    def flush(self, file: WatchedFile, now: int) -> list[Converted]:
        """Return what is held back, where some of it is of this file: nothing that follows belongs to it."""
        return self.drain(now) if self._chain.held(file) is not None else []

    def drain(self, now: int) -> list[Converted]:
        """All that is held back."""
        return self._by_file(self._chain.drain(now))

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

    def _by_file(self, entries: list[Entry]) -> list[Converted]:
        files: dict[int, tuple[WatchedFile, list[Entry]]] = {}
        for entry in entries:
            files.setdefault(id(entry.source), (entry.source, []))[1].append(entry)
        return [(file, LogBatch(file.path, held), self._hold(file)) for file, held in files.values()]
