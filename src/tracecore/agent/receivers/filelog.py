"""The `filelog` receiver: follows files and loses nothing; see `tracecore.signals.logs.tail`."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Any, Final

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Consumer, Setting
from tracecore.agent.receivers.delivery import deliver
from tracecore.agent.receivers.reach import unreachable
from tracecore.agent.tally import Growth, Tally
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog

log = logging.getLogger("tracecore.agent.filelog")

#: Seconds for which the last lines of deleted files look for somebody who takes them.
LAST_CALL: Final = 5.0
#: Seconds between two looks at what keeps lines from being read.
LOOK: Final = 1.0
#: Counters that are shown, and what they mean.
COUNTED: Final = {
    "announcements_lost": "the kernel could not note all changes of files {} times: everything was looked at again",
    "bytes_dropped": "{} bytes of lines longer than max_log_size were left out",
    "bytes_out_of_reach": "{} bytes were deleted before they were read or delivered",
    "checkpoint_failures": "positions could not be written {} times",
    "damaged": "{} compressed files are damaged and were read up to the damage",
    "entries_failed": "operators could not treat {} entries",
    "files_deleted_unread": "{} files were deleted before they could be opened",
    "lines_capped": "{} lines are longer than max_log_size and were cut",
    "positions_lost": "{} stored positions made no sense: those files are read from start_at",
    "truncated_while_read": "files were cut and written anew {} times while they were read",
}
#: A container's log is larger than the kubelet lets it become.
STALLED: Final = "rotation_stalled"
_OUTLOOK: Final = ("unreachable", "unreadable")


class FileLogReceiver:
    """Reads on as long as somebody takes what it reads, and remembers what has arrived.

    A position is written as soon as exporters have acknowledged what is before it, or have it in a storage of theirs;
    the last ones in `close`, when they have drained.
    """

    def __init__(self, options: FileLogConfig, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._tail: FileLog | None = None
        self._growth = Growth()
        self._next_look = 0.0
        self._told = ""
        self._polled: tuple[str, ...] = ()
        self._stalled: frozenset[str] = frozenset()
        gauges = ("polled_files", "stalled_files", "unreadable_files", "watched_directories", "watched_files")
        self._numbers = dict.fromkeys(gauges, 0)
        for name in self._numbers:
            setting.meter.gauges[name] = partial(self._numbers.__getitem__, name)
        setting.meter.declare(dropped=("capped_or_dropped",), events=(STALLED,))
        self._tally = Tally(setting.id, setting.meter, COUNTED)

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        self.close()
        store = self._setting.store(self._options.storage)
        wanted = self._setting.wanted
        if wanted is not None:
            log.info("%s: lines that no detector can use are not read any further", self._setting.id)
        self._growth.restart()
        self._tally.restart()
        self._polled = ()
        # Not before it counts as running: what is said earlier is taken back then.
        self._next_look = time.monotonic() + 1.5 * LOOK
        tail = self._tail = FileLog(self._options, store, self._setting.clock, self._report, selector=wanted)
        while not stop.is_set():
            batches = collections.deque(tail.poll())
            while batches and not stop.is_set() and deliver(consume, _batch(tail, batches[0]), stop, tail.watch):
                batches.popleft()
            if batches:
                self._last_call(tail, batches, consume, stop)
                return
            self._look(tail)
            if not tail.more:
                tail.wait(stop)
        self._last_call(tail, (), consume, stop)

    def _last_call(self, tail: FileLog, left: Iterable[LogBatch], consume: Consumer, stop: threading.Event) -> None:
        """Hands on what nobody can read later; what is still there is read after a restart."""
        deadline = time.monotonic() + LAST_CALL
        for found in chain(tail.only_here(left), tail.rest(), tail.drain()):
            left_over = deadline - time.monotonic()
            if left_over <= 0 or not deliver(consume, _batch(tail, found), stop, patience=left_over):
                return

    def _report(self, text: str) -> None:
        log.warning("%s: %s", self._setting.id, text)
        self._setting.meter.failures += 1

    def _look(self, tail: FileLog) -> None:
        counters = tail.counters
        lost = counters.lines_capped + counters.entries_dropped
        self._setting.meter.drop("capped_or_dropped", self._growth.of("lost", lost))
        self._show(tail)
        if tail.polled != self._polled:
            for reason in tail.polled[len(self._polled) :]:
                log.info("%s: some files are looked at every poll_interval only: %s", self._setting.id, reason)
            self._polled = tail.polled
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK
            self._outlook(tail)

    def _show(self, tail: FileLog, *, last: bool = False) -> None:
        self._tally.look({name: getattr(tail.counters, name) for name in COUNTED}, last=last)
        self._tally.failures(tail.counters.reasons, last=last)

    def _outlook(self, tail: FileLog) -> None:
        """Return what keeps lines from being read, or will."""
        stalled, unreadable, matching = tail.stalled(), tail.unreadable(), tail.matching
        self._numbers |= {
            "polled_files": tail.polled_files,
            "stalled_files": len(stalled),
            "unreadable_files": len(unreadable),
            "watched_directories": tail.watched_directories,
            "watched_files": matching,
        }
        self._rotation(stalled)
        wrong = "" if matching > len(unreadable) else unreachable(self._options.include)
        if wrong:
            wrong = f"unreachable: {wrong}"
        elif unreadable:
            wrong = f"unreadable: {len(unreadable)} of {matching} files, {unreadable[0]} among them"
        meter = self._setting.meter
        if wrong:
            if meter.degrade(wrong) and self._told != wrong:
                log.warning("%s: %s", self._setting.id, wrong)
        elif meter.degraded_reason.partition(":")[0] in _OUTLOOK and meter.recover():
            log.info("%s: files can be read again", self._setting.id)
        self._told = wrong

    def _rotation(self, stalled: list[str]) -> None:
        """Warn once of every log that is not rotated any more. It is read all the same, so nothing is degraded."""
        news = [path for path in stalled if path not in self._stalled]
        if news:
            limit = self._options.rotation_stalled / (1 << 20)
            more = f" and {len(news) - 1} more" if len(news) > 1 else ""
            self._report(f"{STALLED}: nobody rotates {news[0]}{more}: above {limit:.4g} MiB for 30 s")
            self._setting.meter.note(STALLED, len(news))
        elif self._stalled and not stalled:
            log.info("%s: logs are rotated again", self._setting.id)
        self._stalled = frozenset(stalled)

    def close(self) -> None:
        """Write down how far everything has arrived."""
        if self._tail is not None:
            self._tail.close()
            self._show(self._tail, last=True)
            self._tail = None


class _Notes:
    """The positions of a batch, without its records."""

    __slots__ = ("notes",)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes


def _batch(tail: FileLog, found: LogBatch) -> Batch:
    # Not the batch: its records may be gone long before it is delivered.
    ack = Ack(partial(tail.delivered, _Notes(found.notes)), then=tail.commit)
    return Batch("logs", source=found, count=found.count, acks=(ack,), pause=tail.pause)
