"""Entries that belong together, joined into one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tracecore.signals.logs.operators.base import FAILURES, Failures, Operator
from tracecore.signals.logs.operators.entry import Entry, Field
from tracecore.signals.logs.operators.options import Options

FLUSH: Final = 5_000_000_000
#: What a source is called by.
LOG_PATH: Final = 'attributes["log.file.path"]'


class _Held:
    """Entries of one source that wait for those that belong to them."""

    __slots__ = ("base", "count", "matched", "parts", "since", "size", "source", "start")

    def __init__(self, entry: Entry) -> None:
        self.base = entry
        self.parts: list[str] = []
        self.size = 0
        self.count = 0
        self.matched = False
        self.since = entry.observed
        self.source = entry.source
        self.start = entry.start


class Joiner:
    """Joins a field of entries of the same source until one of them is the last, or the next the first.

    Args:
        field: what is joined.
        separator: what stands between.
        is_edge: whether an entry is the last, or the first.
        first: `is_edge` tells the first.
        write: takes entries that are whole.
        identify: what the source of an entry is called.
    """

    def __init__(
        self,
        *,
        field: Field,
        separator: str,
        is_edge: Callable[[Entry], bool],
        first: bool,
        write: Callable[[list[Entry], int], None],
        identify: Callable[[Entry], Any],
        most: int = 0,
        most_unmatched: int = 0,
        most_sources: int = 1000,
        most_bytes: int = 0,
        newest: bool = False,
        flush: int = FLUSH,
    ) -> None:
        self._field, self._separator, self._is_edge, self._first = field, separator, is_edge, first
        self._write, self._identify = write, identify
        self._most, self._most_unmatched, self._most_sources = most, most_unmatched, most_sources
        self._most_bytes, self._newest, self._flush = most_bytes, newest, flush
        self._held: dict[Any, _Held] = {}

    @property
    def waiting(self) -> bool:
        """Return whether entries wait for others."""
        return bool(self._held)

    def add(self, entry: Entry, done: list[Entry]) -> None:
        """Takes an entry; gives those that are whole."""
        edge = self._is_edge(entry)
        source = self._identify(entry)
        if edge and self._first:
            self._finish(source, done)
        held = self._held.get(source)
        if held is None:
            if len(self._held) >= self._most_sources:
                for other in list(self._held):
                    self._finish(other, done)
            held = self._held[source] = _Held(entry)
        elif self._newest:
            held.base = entry
        held.count += 1
        held.matched = held.matched or edge
        text = self._field.get(entry)
        if isinstance(text, str):
            held.parts.append(text)
            held.size += len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
            held.size += len(self._separator) if len(held.parts) > 1 else 0
        if (
            (self._most_bytes and held.size > self._most_bytes)
            or (self._most and held.count >= self._most)
            or (not held.matched and self._most_unmatched and held.count >= self._most_unmatched)
            or (edge and not self._first)
        ):
            self._finish(source, done)

    def due(self, now: int) -> None:
        """Writes what has waited for long."""
        done: list[Entry] = []
        for source in [source for source, held in self._held.items() if now - held.since >= self._flush]:
            self._finish(source, done)
        if done:
            self._write(done, now)

    def drain(self, now: int) -> None:
        done: list[Entry] = []
        for source in list(self._held):
            self._finish(source, done)
        if done:
            self._write(done, now)

    def held(self, source: object) -> int | None:
        return min((held.start for held in self._held.values() if held.source is source), default=None)

    def _finish(self, source: Any, done: list[Entry]) -> None:
        held = self._held.pop(source, None)
        if held is None:
            return
        # A first part that is empty has no separator behind it.
        parts = held.parts
        while len(parts) > 1 and not parts[0]:
            parts.pop(0)
        self._field.set(held.base, self._separator.join(parts))
        done.append(held.base)


class Joining(Operator):
    """An operator whose joiner holds entries back."""

    _joiner: Joiner

    def process(self, entries: list[Entry], now: int) -> None:
        done: list[Entry] = []
        for entry in entries:
            try:
                if self.condition is not None and not self.condition(entry):
                    done.append(entry)
                else:
                    self.join(entry, done, now)
            except FAILURES as error:
                self.failed(entry, done, error)
        self.write(done, now)

    def join(self, entry: Entry, done: list[Entry], now: int) -> None:
        """Takes an entry; gives those that are whole."""
        self._joiner.add(entry, done)

    def due(self, now: int) -> None:
        self._joiner.due(now)

    def drain(self, now: int) -> None:
        self._joiner.drain(now)

    def held(self, source: object) -> int | None:
        return self._joiner.held(source)


class Recombine(Joining):
    """`recombine`: joins entries by an expression that is true for the first, or the last, of them."""

    def __init__(self, options: Options, failures: Failures) -> None:
        super().__init__(options, failures)
        first, last = options.condition("is_first_entry"), options.condition("is_last_entry")
        if options.has("is_first_entry") == options.has("is_last_entry"):
            options.wrong("is_first_entry", "one of is_first_entry and is_last_entry has to be set, and only one")
        edge = first or last
        self._joiner = Joiner(
            field=options.needed_field("combine_field"),
            separator=options.text("combine_with", "\n"),
            is_edge=(lambda entry: bool(edge(entry))) if edge is not None else (lambda entry: False),
            first=first is not None,
            write=self.write,
            identify=identified(options.field("source_identifier", LOG_PATH)),
            most=options.count("max_batch_size", 1000),
            most_unmatched=options.count("max_unmatched_batch_size", 100),
            most_sources=max(options.count("max_sources", 1000), 1),
            most_bytes=options.size("max_log_size", 0),
            newest=options.one_of("overwrite_with", ("", "oldest", "newest"), "oldest") == "newest",
            flush=options.duration("force_flush_period", FLUSH),
        )


def identified(field: Field | None) -> Callable[[Entry], Any]:
    """Return what the source of an entry is called: by the field, or, where it has none, the file it was read from."""

    def identify(entry: Entry) -> Any:
        value = None if field is None else field.get(entry)
        return value if isinstance(value, str) and value else id(entry.source)

    return identify
