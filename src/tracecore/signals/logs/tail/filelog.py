"""The `filelog` receiver: looks for files, reads on, hands out batches, and remembers how far it got.

    log = FileLog(config, store, time.time_ns)
    while running:
        batches = log.poll()
        ...
    log.close()

There are no threads: who does not call `poll` lets the files wait, and that is the backpressure.
"""

from __future__ import annotations

import collections
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from tracecore.signals.logs.operators.conversion import Converter, converter
from tracecore.signals.logs.selector import Selector
from tracecore.signals.logs.tail import checkpoint, fingerprint
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.checkpoint import Store
from tracecore.signals.logs.tail.config import SECOND, FileLogConfig
from tracecore.signals.logs.tail.globs import Finder
from tracecore.signals.logs.tail.known import Known, differ
from tracecore.signals.logs.tail.ordering import arranged
from tracecore.signals.logs.tail.splitting import splitter
from tracecore.signals.logs.tail.watched import Watched, file_attributes
from tracecore.signals.storage.journal import StorageError

#: Bytes read at once.
READ: Final = 1 << 20
#: Bytes read in one poll, so that one large file neither fills the memory nor keeps the others waiting.
BUDGET: Final = 8 << 20
#: A file without a path is held open until it has not grown for so long.
LOST: Final = 10 * SECOND
#: A file that did not change for so long is looked at in turns.
IDLE: Final = 10 * SECOND
#: Files that do not change are looked at in turns, one for each such time: 400 in a poll of 200 ms, 5,000 in 2.5 s.
TURN: Final = 500_000
#: Looking for new files may take this part of the time.
SHARE: Final = 200
#: A file this much larger than a kubelet lets it become, for so long, is not rotated any more.
STALLED_SIZE: Final = 10 << 20
STALLED_TIME: Final = 30 * SECOND


class Counters(msgspec.Struct):
    """What was read, and what went wrong."""

    bytes_read: int = 0
    records: int = 0
    lines_capped: int = 0
    bytes_dropped: int = 0
    entries_failed: int = 0
    entries_dropped: int = 0
    unreadable: int = 0
    damaged: int = 0
    checkpoints: int = 0
    checkpoint_failures: int = 0
    positions_lost: int = 0


class Place:
    """A path that matches, and which file was found there."""

    __slots__ = ("changed", "file", "gone", "path", "status", "unreadable")

    def __init__(self, path: str, now: int) -> None:
        self.path = path
        self.file: Watched | None = None
        self.status: tuple[int, int, int, int] | None = None
        self.changed = now
        self.unreadable = False
        self.gone = False


class FileLog:
    """Follows files.

    Args:
        config: the options.
        store: keeps how far files were read; None forgets it.
        clock: nanoseconds since the epoch.
        report: told in words what went wrong and was survived.
        confirmed: the caller says with `delivered` that a batch has arrived; else it has when `poll` is called next.
        selector: picks the lines that can matter; the others are never parsed.
    """

    def __init__(
        self,
        config: FileLogConfig,
        store: Store | None,
        clock: Callable[[], int],
        report: Callable[[str], Any] = lambda text: None,
        confirmed: bool = False,
        selector: Selector | None = None,
    ) -> None:
        self.counters = Counters()
        self._config = config
        self._store = store
        self._clock = clock
        self._report = report
        self._confirmed = confirmed
        self._finder = Finder(config.include, config.exclude)
        unlimited = config.max_log_size_behavior == "truncate"
        self._most = 1 << 62 if unlimited else config.max_log_size
        self._split = splitter(config)
        self._converter: Converter = converter(config, self.counters, selector)
        self._known = Known(config.fingerprint_size)
        self._places: dict[str, Place] = {}
        self._queue: collections.deque[Watched] = collections.deque()
        self._given: list[LogBatch] = []
        # Files of which something has arrived; may be added to by other threads.
        self._marks: collections.deque[Watched] = collections.deque()
        # Places that are new or changed lately, and the others, which are looked at in turns.
        self._busy: dict[str, Place] = {}
        self._idle: collections.deque[Place] = collections.deque()
        self._adrift: dict[int, Watched] = {}
        self._opened = self._crowded = False
        self._next_look = 0
        self._next_find = 0
        self._next_ident = 1
        self._from_beginning = config.start_at == "beginning"
        self._load()

    @property
    def more(self) -> bool:
        """Whether there is more to read at once: call `poll` again without waiting."""
        return bool(self._queue) or self._crowded

    @property
    def interval(self) -> float:
        """Seconds to wait between polls when there is no more."""
        return self._config.poll_interval / SECOND

    def poll(self) -> list[LogBatch]:
        """What came since the last time, at most a few megabytes of it."""
        now = self._clock()
        if not self._confirmed:
            for batch in self._given:
                self._mark(batch)
        self._given = []
        if not self._queue and (now >= self._next_look or self._crowded):
            self._crowded = False
            self._look_around(now)
            self._next_look = now + self._config.poll_interval
        batches: list[LogBatch] = []
        budget = BUDGET
        while self._queue and budget > 0:
            file = self._queue.popleft()
            read, more = self._read(file, now, batches)
            budget -= max(read, 1)
            if more:
                # A file that is gone is read to its end first: what is in its place is newer.
                (self._queue.appendleft if file.lost_since else self._queue.append)(file)
        if self._opened and not self._queue:
            self._close_some()
        self._collect(self._converter.due(now), batches)
        self._given = batches
        self._checkpoint()
        return batches

    def delivered(self, batch: LogBatch) -> None:
        """A batch has arrived: its lines need not be read again after a restart."""
        self._mark(batch)

    def drain(self) -> list[LogBatch]:
        """What is held back because it may not be whole yet.

        With a store there is nothing: it is read again after a restart, and then whole.
        """
        batches: list[LogBatch] = []
        if self._store is None:
            self._collect(self._converter.drain(self._clock()), batches)
        return batches

    def close(self) -> None:
        """Writes down how far everything was delivered, and lets go of the files."""
        if not self._confirmed:
            for batch in self._given:
                self._mark(batch)
        self._given = []
        self._checkpoint()
        for file in self._known:
            file.close()

    def stalled(self) -> list[str]:
        """Files that nobody rotates although they are larger than a kubelet lets them become."""
        now = self._clock()
        return [
            place.path
            for place in self._places.values()
            if place.file is not None and place.file.large_since and now - place.file.large_since >= STALLED_TIME
        ]

    @property
    def open_files(self) -> int:
        return sum(file.fd is not None for file in self._known)

    # What is there

    def _look_around(self, now: int) -> None:
        searched = now >= self._next_find
        if searched:
            self._find(now)
        unclear: list[Place] = []
        reads: list[Watched] = []
        for place in self._due(now):
            self._visit(place, now, unclear, reads)
        most = max(self._config.max_concurrent_files // 2, 1)
        held = self.open_files if unclear else 0
        for number, place in enumerate(unclear):
            if number and held >= most and self._from_beginning:
                # The others have their turn when these were read and are closed again.
                self._crowded = True
                break
            self._identify(place, now, reads)
            if place.file is not None and held >= most and self._shorter(place.file):
                place.file.close()
            else:
                held += 1
        self._queue.extend(self._lost(now))
        self._queue.extend(reads)
        self._from_beginning = True
        # A file may be at a place that nobody has looked at yet.
        if searched and not self._crowded:
            self._forget()

    def _find(self, now: int) -> None:
        paths = arranged(self._finder.find(now), self._config, now)
        if self._config.max_batches:
            paths = paths[: self._config.max_batches * max(self._config.max_concurrent_files // 2, 1)]
        known, self._places = self._places, {}
        for path in paths:
            place = known.pop(path, None)
            if place is None:
                self._busy[path] = place = Place(path, now)
            self._places[path] = place
        for place in known.values():
            self._leave(place)
            place.gone = True
            self._busy.pop(place.path, None)
        # Looking through many directories takes its time; it is done the less often the longer it takes.
        self._next_find = now + min((self._clock() - now) * SHARE, 10 * SECOND)

    def _due(self, now: int) -> list[Place]:
        """The places to look at: all that are new or busy, in their order, and some of the others."""
        for path in [path for path, place in self._busy.items() if place.status and now - place.changed > IDLE]:
            self._idle.append(self._busy.pop(path))
        share = min(len(self._idle), max(1, self._config.poll_interval // TURN))
        for _ in range(share):
            place = self._idle.popleft()
            if not place.gone:
                self._busy[place.path] = place
        due = list(self._busy.values())
        if len(due) > 1 and share:
            due = (
                [place for place in self._places.values() if place.path in self._busy] if self._unordered(due) else due
            )
        return due

    def _unordered(self, due: list[Place]) -> bool:
        """Whether files have to be looked at in the order of their paths: more than one is at an unknown place."""
        return sum(place.file is None for place in due) > 1

    def _leave(self, place: Place) -> None:
        """What was at a place is not there any more."""
        if place.file is not None:
            place.file.placed = False
            self._adrift[place.file.ident] = place.file
            place.file = None

    def _visit(self, place: Place, now: int, unclear: list[Place], reads: list[Watched]) -> None:
        try:
            status = os.stat(place.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._unreadable(place, error)
            self._leave(place)
            place.status = None
            return
        if not stat.S_ISREG(status.st_mode):
            return
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        file = place.file
        if seen == place.status:
            if file is not None:
                if file.rest and not self._shorter(file):
                    reads.append(file)
                return
            if not status.st_size:
                return
        else:
            place.changed = now
            place.status = seen
        if file is None or (file.device, file.inode) != seen[:2] or not self._same(file, place):
            self._leave(place)
            unclear.append(place)
            return
        self._claim(file, place, status, now, reads)

    def _same(self, file: Watched, place: Place) -> bool:
        """Whether a file that changed still begins as it did."""
        if file.fd is None:
            fd = self._open(place)
            if fd is None:
                return False
            file.fd = fd
            self._opened = True
        data, compressed = fingerprint.first_bytes(
            file.fd, self._config.fingerprint_size, bool(self._config.compression)
        )
        if compressed != file.compressed or not file.fingerprint.begins(data):
            return False
        if len(data) > file.fingerprint.length:
            self._known.grow(file, fingerprint.of(data))
        return True

    def _identify(self, place: Place, now: int, reads: list[Watched]) -> None:
        """Which file is at a place where another one was, or none."""
        fd = self._open(place)
        if fd is None:
            return
        status = os.fstat(fd)
        size = self._config.fingerprint_size
        data, compressed = fingerprint.first_bytes(fd, size, bool(self._config.compression))
        if not data:
            os.close(fd)
            return
        twin = self._known.equal(fingerprint.of(data))
        if twin is not None and not self._differs(twin, fd, len(data)):
            # A copy, made to truncate the original. Once that happens, the copy takes its place.
            os.close(fd)
            return
        file = self._known.match(data, status.st_dev, status.st_ino) if twin is None else None
        if file is None:
            file = Watched(self._next_ident, place.path, fingerprint.of(data))
            self._next_ident += 1
            file.compressed = compressed
            file.flush_since = now
            self._known.add(file)
            if not self._from_beginning:
                self._start_at_end(file, status.st_size)
        else:
            self._adopt(file, data, compressed)
        file.close()
        file.fd = fd
        file.device, file.inode = status.st_dev, status.st_ino
        file.placed = self._opened = True
        self._adrift.pop(file.ident, None)
        place.file = file
        self._marks.append(file)
        self._claim(file, place, status, now, reads)

    def _start_at_end(self, file: Watched, size: int) -> None:
        if file.compressed:
            file.base = size
        else:
            file.offset = file.delivered = file.given = size

    def _adopt(self, file: Watched, data: bytes, compressed: bool) -> None:
        """A known file was found again, perhaps in another place, perhaps compressed since."""
        if len(data) > file.fingerprint.length:
            self._known.grow(file, fingerprint.of(data))
        if compressed != file.compressed:
            if not compressed:
                file.offset = file.delivered = file.given = 0
                file.outstanding.clear()
            file.base = 0
            file.compressed = compressed

    def _claim(self, file: Watched, place: Place, status: os.stat_result, now: int, reads: list[Watched]) -> None:
        file.unclaimed = file.lost_since = 0
        if file.path != place.path or not file.attributes:
            file.templates.clear()
            file.path = place.path
            if file.fd is not None:
                file.attributes = file_attributes(self._config, place.path, file.fd)
        self._grown(file, status, now)
        if not file.compressed and status.st_size < file.offset and self._config.on_truncate != "ignore":
            file.offset = 0 if self._config.on_truncate == "read_whole_file" else status.st_size
            file.delivered = file.given = file.offset
            file.outstanding.clear()
            file.flush_length = file.rest = 0
        if file.compressed or status.st_size > file.offset:
            reads.append(file)
        elif self._config.delete_after_read and status.st_size == file.offset == file.delivered:
            self._delete(file)

    def _grown(self, file: Watched, status: os.stat_result, now: int) -> None:
        file.size = file.target = status.st_size
        file.mtime = status.st_mtime_ns
        file.changed = now
        if status.st_size <= STALLED_SIZE:
            file.large_since = 0
        elif not file.large_since:
            file.large_since = now

    def _lost(self, now: int) -> list[Watched]:
        """Files that are open and have no path any more, moved or deleted: what is left in them is read."""
        found = []
        for file in self._adrift.values():
            if file.fd is None:
                continue
            file.lost_since = file.lost_since or now
            data, compressed = fingerprint.first_bytes(
                file.fd, self._config.fingerprint_size, bool(self._config.compression)
            )
            if compressed != file.compressed or not file.fingerprint.begins(data):
                file.close()  # truncated: what is in it now is read by the path
                continue
            status = os.fstat(file.fd)
            if status.st_size != file.size:
                file.changed = now
            file.size = file.target = status.st_size
            if not file.compressed and status.st_size > file.offset:
                found.append(file)
            if now - max(file.lost_since, file.changed) > LOST and self._shorter(file):
                file.close()
        return found

    def _close_some(self) -> None:
        """Keeps the number of open files within bounds: those that have been quiet for longest are closed first."""
        self._opened = False
        held = [file for file in self._known if file.fd is not None]
        most = max(self._config.max_concurrent_files // 2, 1)
        if self._crowded:
            most //= 2
        if len(held) > most:
            held.sort(key=lambda file: (file.placed, file.changed))
            for file in held[: len(held) - most]:
                if self._shorter(file):
                    file.close()

    def _forget(self) -> None:
        gone = self._known.gone(self._adrift.values()) if self._adrift else []
        for file in gone:
            self._known.remove(file)
            del self._adrift[file.ident]
        if gone and self._store is not None:
            self._write({checkpoint.forgotten(file): None for file in gone if file.stored})

    def _open(self, place: Place) -> int | None:
        """Opens the file at a place; None where that is impossible."""
        try:
            fd = os.open(place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:
            place.status = None
            return None
        except OSError as error:
            place.status = None
            self._unreadable(place, error)
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        if place.unreadable:
            place.unreadable = False
            self._report(f"{place.path} can be read now")
        return fd

    def _unreadable(self, place: Place, error: OSError) -> None:
        if not place.unreadable:
            place.unreadable = True
            self.counters.unreadable += 1
            self._report(f"{place.path} cannot be read: {error.strerror}")

    def _differs(self, twin: Watched, fd: int, length: int) -> bool:
        """Whether two files with the same fingerprint are different all the same, because they go on differently."""
        if length < self._config.fingerprint_size or twin.compressed:
            return False
        if twin.fd is not None:
            return differ(twin.fd, fd)
        try:
            other = os.open(twin.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return differ(other, fd)
        finally:
            os.close(other)

    # Reading

    def _shorter(self, file: Watched) -> bool:
        """Whether there is nothing to read in it now."""
        return not file.compressed and file.size <= file.offset

    def _read(self, file: Watched, now: int, batches: list[LogBatch]) -> tuple[int, bool]:
        """Reads a piece of a file; gives how many bytes, and whether there is more to read at once."""
        config = self._config
        if file.fd is None:
            return 0, False
        want = max(READ, config.max_log_size + 1) if file.compressed or file.rest > READ // 2 else READ
        if not file.compressed:
            want = min(want, file.target - file.offset)
        try:
            data = file.read(want) if want > 0 else b""
        except OSError as error:
            self.counters.unreadable += 1
            self._report(f"{file.path} cannot be read: {error.strerror}")
            return 0, False
        if file.inflation is not None and file.inflation.damaged:
            self.counters.damaged += 1
            self._report(f"{file.path} is damaged; what came before the damage was read")
        if not data:
            file.rest = 0
            return 0, False
        at_end = len(data) < want if file.compressed else file.offset + len(data) >= file.target
        tokens, starts = self._split(data, self._most)
        if not starts[-1] and not at_end and len(data) < config.max_log_size:
            file.rest = READ  # an entry longer than what was read: read more next time
            if file.inflation is not None:
                file.inflation.give_back(data)
            return 0, True
        tokens, starts, consumed = self._bounded(file, data, tokens, starts)
        rest = len(data) - consumed
        if tokens or consumed:
            file.flush_length = 0
            file.flush_since = now
        if at_end and rest and rest < config.max_log_size and self._flushed(file, rest, now):
            tokens = [*tokens, data[consumed:]]
            consumed = len(data)
            starts = [*starts, consumed]
            rest = 0
        start = file.offset
        file.offset += consumed
        if file.inflation is not None and rest:
            file.inflation.give_back(data[consumed:])
        file.rest = rest
        file.record += len(tokens)
        self.counters.bytes_read += consumed
        if consumed:
            found, safe = self._converter.convert(file, data[:consumed], tokens, starts, start, now)
            self._give(file, found, safe, batches)
        more = bool(consumed) and (not at_end or rest >= config.max_log_size)
        return len(data), more

    def _bounded(
        self, file: Watched, data: bytes, tokens: list[bytes], starts: list[int]
    ) -> tuple[list[bytes], list[int], int]:
        """Entries no longer than allowed, and up to where they go."""
        most = self._config.max_log_size
        consumed = starts[-1]
        if file.skipping:
            if tokens:
                self.counters.bytes_dropped += starts[1]
                tokens, starts = tokens[1:], starts[1:]
                file.skipping = False
            else:
                self.counters.bytes_dropped += len(data)
                return [], [len(data)], len(data)
        if self._most > most and any(len(token) > most for token in tokens):
            long = [len(token) - most for token in tokens if len(token) > most]
            self.counters.lines_capped += len(long)
            self.counters.bytes_dropped += sum(long)
            tokens = [token[:most] for token in tokens]
        if not tokens and consumed == 0 and len(data) >= most:
            self.counters.lines_capped += 1
            file.skipping = self._most > most
            return [data[:most]], [0, most], most
        return tokens, starts, consumed

    def _flushed(self, file: Watched, rest: int, now: int) -> bool:
        """Whether what stands after the last line end is to be given out."""
        if file.compressed or self._config.delete_after_read:
            return True
        if not self._config.force_flush_period:
            return False
        if rest > file.flush_length:
            file.flush_length = rest
            file.flush_since = now
            return False
        if now - file.flush_since > self._config.force_flush_period:
            file.flush_length = 0
            return True
        return False

    def _give(self, file: Watched, found: Sequence[LogBatch], safe: int | None, batches: list[LogBatch]) -> None:
        """Hands out batches; the last of them carries the position."""
        for batch in found:
            self.counters.records += batch.count
            batches.append(batch)
        for batch in found[:-1]:
            batch.notes.append((file, file.hand_out(file.given)))
        file.given = file.offset if safe is None else safe
        note = file.hand_out(file.given, arrived=not found)
        if found:
            found[-1].notes.append((file, note))
        else:
            self._marks.append(file)

    def _collect(self, found: Sequence[tuple[Watched, LogBatch, int | None]], batches: list[LogBatch]) -> None:
        for file, batch, safe in found:
            self._give(file, [batch], safe, batches)

    # What has arrived

    def _mark(self, batch: LogBatch) -> None:
        for file, note in batch.notes:
            note[1] = 1
            self._marks.append(file)

    def _checkpoint(self) -> None:
        changed: dict[int, Watched] = {}
        while self._marks:
            file = self._marks.popleft()
            changed[file.ident] = file
        for file in changed.values():
            file.settle()
            if self._config.delete_after_read and file.delivered >= file.size and not file.outstanding:
                self._delete(file)
        if self._store is not None:
            self._write(dict(checkpoint.changes(file for file in changed.values() if file.ident in self._known)))

    def _write(self, changes: dict[str, bytes | None]) -> None:
        if self._store is None or not changes:
            return
        try:
            self._store.update(changes)
            self.counters.checkpoints += 1
        except StorageError as error:
            self.counters.checkpoint_failures += 1
            if self.counters.checkpoint_failures == 1:
                self._report(f"positions are not written: {error}")
            for file in self._known:
                if checkpoint.forgotten(file) in changes:
                    file.stored = b""

    def _delete(self, file: Watched) -> None:
        try:
            os.unlink(file.path)
        except OSError as error:
            self._report(f"{file.path} cannot be deleted: {error.strerror}")
        file.close()

    def _load(self) -> None:
        if self._store is None:
            return
        files, wrong = checkpoint.load(self._store)
        for file in files:
            self._known.add(file)
            self._adrift[file.ident] = file
            self._next_ident = max(self._next_ident, file.ident + 1)
        self.counters.positions_lost = wrong
        if wrong:
            self._report(f"{wrong} stored positions made no sense and were left out")
        if files:
            self._from_beginning = True
