"""The `filelog` receiver: looks for files, reads on, hands out batches, and remembers how far it got.

    log = FileLog(config, store, time.time_ns)
    while not stop.is_set():
        for batch in log.poll():
            ...
            log.delivered(batch)
        log.wait(stop)
    log.close()

There are no threads: who does not call `poll` lets the files wait, and that is the backpressure. Only `delivered` and
`commit` may be called by others.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from tracecore.signals.logs.operators.conversion import Converter
from tracecore.signals.logs.selector import Selector, Selectors
from tracecore.signals.logs.tail.arrivals import Arrivals, Receipt
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.checkpoint import KeyValueStore
from tracecore.signals.logs.tail.config import MILLISECOND, SECOND, FileLogConfig
from tracecore.signals.logs.tail.counters import TailCounters
from tracecore.signals.logs.tail.known import KnownFiles
from tracecore.signals.logs.tail.places import Places
from tracecore.signals.logs.tail.reading import READ, SCANNED, Reading
from tracecore.signals.logs.tail.watched import WatchedFile, delete
from tracecore.signals.logs.tail.watches import Watches

#: Bytes read in one poll, so that one large file neither fills the memory nor keeps the others waiting.
BUDGET: Final = 8 << 20
#: What a piece costs of that where a record is made of every line: records take about fifteen times the memory of
#: their lines, and time.
RECORDS_COST: Final = 8
#: Nanoseconds for which one poll reads; at least one piece of a file is.
LONGEST: Final = 100 * MILLISECOND
#: Nanoseconds to the next look at files that grow: as long as all of that takes less than one of so many nanoseconds of
#: a processor, and else. What was not taken is put by, up to so much. Neither is longer than `poll_interval`.
SOON: Final = 25 * MILLISECOND
LATER: Final = 200 * MILLISECOND
SHARE: Final = 40
CREDIT: Final = 50 * MILLISECOND
#: Seconds to the next look where all that can happen is announced, and nothing waits for its time. Not shorter than
#: `poll_interval`.
QUIET: Final = 1.0
#: Seconds for which whoever writes may finish what was just begun.
FINISH: Final = 0.01
#: Seconds in which who waits hears that it is time to stop.
HEARING: Final = 0.2


class FileLog:
    """Follows files.

    Args:
        config: the options.
        store: keeps how far files were read; None forgets it.
        clock: nanoseconds since the epoch.
        report: told in words what went wrong and was survived.
        selector: picks the lines that can matter; the others are never parsed.
    """

    def __init__(
        self,
        config: FileLogConfig,
        store: KeyValueStore | None,
        clock: Callable[[], int],
        report: Callable[[str], Any] = lambda text: None,
        selector: Selector | Selectors | None = None,
    ) -> None:
        self.counters = TailCounters()
        self._config = config
        self._clock = clock
        self._report = report
        self._keeps = store is not None
        self._known = KnownFiles(config.fingerprint_size)
        self._arrivals = Arrivals(store, self._known, self.counters, report)
        loaded = self._arrivals.load()
        self._watches = Watches() if config.inotify else None
        self._places = Places(config, self._known, self._arrivals, self.counters, clock, report, loaded, self._watches)
        self._selects = selector is not None
        made = Converter(config, self.counters, selector)
        piece = READ if selector is None else SCANNED
        self._reading = Reading(config, made, self._arrivals, self.counters, report, piece)
        self._queue: collections.deque[WatchedFile] = collections.deque()
        self._next_look = 0
        self._again = False
        self._pause = min(SOON, config.poll_interval)
        self._grew = False
        self._credit = CREDIT
        self._account = time.monotonic_ns(), time.thread_time_ns()

    @property
    def more(self) -> bool:
        """Return whether there is more to read at once: call `poll` again without waiting."""
        return bool(self._queue) or self._places.crowded

    @property
    def pause(self) -> int:
        """Nanoseconds within which files that grow are looked at again, as long as somebody takes what is read."""
        return self._pause

    @property
    def polled(self) -> tuple[str, ...]:
        """Return why some files are looked at every `poll_interval` only, and not when they change."""
        return ("inotify: false",) if self._watches is None else tuple(self._watches.reasons)

    @property
    def watched_directories(self) -> int:
        """Directories of which the kernel tells what happens there."""
        return 0 if self._watches is None else len(self._watches)

    def wait(self, stop: threading.Event) -> None:
        """Waits until something has changed, or may have; or until `stop` is set."""
        # How long to wait was said with what was given; what it took decides about the next time.
        pause, grew, self._grew = self._pause, self._grew, False
        self._pause = self._paced()
        if self._watches is None or not self._watches.alive:
            self._again = grew and pause < self._config.poll_interval
            stop.wait((pause if self._again else self._config.poll_interval) / SECOND)
            return
        began = time.monotonic()
        deadline = began + self._longest()
        while not stop.is_set() and (left := deadline - time.monotonic()) > 0:
            if self._watches.wait(min(left, HEARING)):
                stop.wait(max(FINISH, began + pause / SECOND - time.monotonic()))
                break
        self._next_look = 0

    def _longest(self) -> float:
        """Seconds to the next look where nothing is announced."""
        interval = self._config.poll_interval / SECOND
        if self._places.restless:
            return min(interval, LATER / SECOND)
        return max(interval, QUIET) if self._places.quiet and not self._reading.holds else interval

    def _paced(self) -> int:
        """Return how soon to look again: at once where it costs little, seldom where there is always much to read."""
        before, self._account = self._account, (time.monotonic_ns(), time.thread_time_ns())
        passed, spent = self._account[0] - before[0], self._account[1] - before[1]
        self._credit = max(min(self._credit + passed // SHARE - spent, CREDIT), -CREDIT)
        return min(SOON if self._credit > 0 else LATER, self._config.poll_interval)

    @property
    def open_files(self) -> int:
        """Files that are held open."""
        return self._places.open_files

    def poll(self) -> list[LogBatch]:
        """Return what came since the last time, at most a few megabytes of it."""
        now = self._clock()
        # Also while there is much to read: what comes and goes meanwhile has to be opened before it is gone.
        if not self._queue or now >= self._next_look:
            self._look(now)
        batches: list[LogBatch] = []
        budget = BUDGET
        latest = now + LONGEST
        while self._queue and budget > 0:
            file = self._queue.popleft()
            read, more = self._reading.read(file, now, batches)
            budget -= max(read, 1) * (1 if self._selects else RECORDS_COST)
            if more:
                # A file that is gone is read to its end first: what is in its place is newer.
                (self._queue.appendleft if file.lost_since else self._queue.append)(file)
            if self._clock() >= latest:
                break
        if not self._queue:
            self._places.close_some()
        self._reading.due(now, batches)
        for batch in batches:
            batch.selected = self._selects
        self._grew = self._grew or bool(batches)
        self._checkpoint()
        return batches

    def watch(self) -> None:
        """Looks around without reading, for as long as nobody takes what was read.

        Files that come and go meanwhile are held open, and so are read later.
        """
        self._look(self._clock())
        self._checkpoint()

    def delivered(self, batch: Receipt) -> None:
        """A batch has arrived: its lines need not be read again after a restart. Any thread may say so.

        It is written down with the next `commit`, or `poll`.
        """
        self._arrivals.arrived(batch)

    def commit(self) -> None:
        """Writes down what has arrived. Any thread may ask for it."""
        self._arrivals.commit()

    def only_here(self, batches: Iterable[LogBatch]) -> list[LogBatch]:
        """Return the batches that cannot be read again after this process, because their file is gone."""
        self._next_look = 0
        self._look(self._clock())
        return [batch for batch in batches if not self._keeps or any(not file.placed for file, _ in batch.notes)]

    def rest(self) -> Iterator[LogBatch]:
        """Yield what is left in files that no path leads to, when this is the end: nobody can read it later."""
        while True:
            now = self._clock()
            files = self._places.lost(now)
            batches: list[LogBatch] = []
            progress = False
            for file in files:
                more = True
                while more:
                    before = file.offset
                    _, more = self._reading.read(file, now, batches)
                    progress = progress or file.offset != before
                    yield from batches
                    batches.clear()
            if not progress:
                return

    def drain(self) -> list[LogBatch]:
        """Return what is held back because it may not be whole yet.

        With a store there is nothing: it is read again after a restart, and then whole.
        """
        batches: list[LogBatch] = []
        if not self._keeps:
            self._reading.drain(self._clock(), batches)
        return batches

    def close(self) -> None:
        """Writes down how far everything was delivered, and lets go of the files."""
        self._checkpoint()
        left = self._places.out_of_reach()
        if left:
            self.counters.bytes_out_of_reach += sum(left.values())
            path = next(iter(left))
            self._report(f"{sum(left.values())} bytes of {len(left)} deleted files did not arrive, {path} among them")
        for file in self._known:
            file.close()
        if self._watches is not None:
            self._watches.close()

    def stalled(self) -> list[str]:
        """Files that nobody rotates although they are larger than a kubelet lets them become."""
        return self._places.stalled(self._clock())

    @property
    def matching(self) -> int:
        """Files that match."""
        return self._places.count

    @property
    def polled_files(self) -> int:
        """Those of them that are looked at every `poll_interval`, or in turns, and not when they change."""
        return self._places.polled

    def unreadable(self) -> list[str]:
        """Files that match and cannot be read."""
        return self._places.unreadable()

    def _look(self, now: int) -> None:
        """Looks around when it is time to, or only at what has just grown when that is to be looked at again."""
        due = now >= self._next_look or self._places.crowded
        if not due and not self._again:
            return
        waiting = set(self._queue)
        if due:
            self._places.crowded = False
            self._next_look = now + self._config.poll_interval
        found = self._places.look(now, again=not due)
        self._queue.extend(file for file in found if file not in waiting)
        self._again = False

    def _checkpoint(self) -> None:
        self._arrivals.commit()
        if self._config.delete_after_read:
            for file in self._arrivals.settled():
                if file.delivered >= file.size and not file.outstanding:
                    delete(file, self._report)
