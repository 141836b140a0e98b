"""Positions of what was handed out and of what has arrived, from which a restart goes on.

Batches arrive in any order, and are reported by any thread. A position is written down as soon as its batch has
arrived: what a kill doubles is what was under way, not what arrived since some last time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tracecore.signals.logs.tail import checkpoint
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.checkpoint import KeyValueStore
from tracecore.signals.logs.tail.counters import TailCounters
from tracecore.signals.logs.tail.known import KnownFiles
from tracecore.signals.logs.tail.watched import WatchedFile
from tracecore.signals.storage.journal import JournalError


class Receipt(Protocol):
    """The origin of a batch: the batch itself, or the rest of it when its records are no longer needed."""

    @property
    def notes(self) -> list[Any]: ...


class Arrivals:
    """Keeps account of batches.

    Args:
        store: keeps positions; None forgets them.
        known: the files that are worth a position.
        counters: told of what was written, or could not be.
        report: told in words.
    """

    def __init__(
        self, store: KeyValueStore | None, known: KnownFiles, counters: TailCounters, report: Callable[[str], Any]
    ) -> None:
        self._store = store
        self._known = known
        self._counters = counters
        self._report = report
        self._lock = threading.RLock()
        self._changed: dict[int, WatchedFile] = {}
        self._settled: dict[int, WatchedFile] = {}

    def load(self) -> list[WatchedFile]:
        """The files that an earlier run knew."""
        if self._store is None:
            return []
        files, wrong = checkpoint.load(self._store)
        self._counters.positions_lost = wrong
        if wrong:
            self._report(f"{wrong} stored positions made no sense and were left out")
        return files

    def give(self, file: WatchedFile, found: Sequence[LogBatch], safe: int | None) -> None:
        """Batches of a file are handed out; the last of them carries the position.

        Args:
            file: which.
            found: in order; without any, what was read has arrived as it is.
            safe: up to where everything was handed out, if that is not up to where it was read.
        """
        with self._lock:
            for batch in found[:-1]:
                batch.notes.append((file, file.hand_out(file.given)))
            file.given = file.offset if safe is None else safe
            note = file.hand_out(file.given, arrived=not found)
            if found:
                found[-1].notes.append((file, note))
            else:
                self._changed[file.ident] = file

    def skip(self, file: WatchedFile) -> None:
        """The next bytes of a file arrived before a restart: reading goes on behind them."""
        with self._lock:
            _, file.offset, file.record = file.ahead.popleft()
            file.given = file.offset
            file.hand_out(file.given, arrived=True)
            self._changed[file.ident] = file

    def restart(self, file: WatchedFile, offset: int) -> None:
        """A file is read from another place than where reading ended; what is under way does not count any more."""
        with self._lock:
            file.offset = file.delivered = file.given = offset
            file.outstanding.clear()
            file.ahead.clear()
            self._changed[file.ident] = file

    def touch(self, file: WatchedFile) -> None:
        """Something about a file is new and has to be written."""
        with self._lock:
            self._changed[file.ident] = file

    def arrived(self, batch: Receipt) -> None:
        """A batch has arrived; any thread may say so."""
        with self._lock:
            for file, note in batch.notes:
                note.arrived = True
                self._changed[file.ident] = file

    def commit(self) -> None:
        """Writes down how far everything has arrived; any thread may ask for it."""
        with self._lock:
            if not self._changed:
                return
            changed, self._changed = self._changed, {}
            for file in changed.values():
                file.settle()
            self._settled |= changed
            if self._store is not None:
                self._write(dict(checkpoint.changes(file for file in changed.values() if file.ident in self._known)))

    def settled(self) -> list[WatchedFile]:
        """Files of which something has arrived since this was asked last."""
        with self._lock:
            found, self._settled = self._settled, {}
            return list(found.values())

    def forget(self, files: Iterable[WatchedFile]) -> None:
        """Positions of files that are not known any more."""
        with self._lock:
            self._write({checkpoint.forgotten(file): None for file in files if file.stored})

    def _write(self, changes: dict[str, bytes | None]) -> None:
        if self._store is None or not changes:
            return
        try:
            self._store.update(changes)
            self._counters.checkpoints += 1
        except JournalError as error:
            self._counters.checkpoint_failures += 1
            if self._counters.checkpoint_failures == 1:
                self._report(f"positions are not written: {error}")
            for file in self._known:
                if checkpoint.forgotten(file) in changes:
                    # Written with the next change of any file.
                    file.stored = b""
                    self._changed[file.ident] = file
