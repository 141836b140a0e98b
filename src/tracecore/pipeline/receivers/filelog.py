"""The `filelog` receiver: follows files and loses nothing; see `tracecore.signals.logs.tail`."""

from __future__ import annotations

import logging
import threading
from functools import partial
from itertools import chain
from typing import Final

from tracecore.pipeline.agent.batch import Ack, Batch
from tracecore.pipeline.agent.component import Consumer, Factory, Setting
from tracecore.pipeline.receivers.delivery import deliver
from tracecore.signals.logs.tail.batch import LogBatch
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog

log = logging.getLogger("tracecore.agent.filelog")

#: Seconds for which the last lines of deleted files look for somebody who takes them.
LAST_CALL: Final = 3.0


class FileLogReceiver:
    """Reads on as long as somebody takes what it reads, and remembers what has arrived.

    A position is written as soon as exporters have acknowledged what is before it, or have it in a storage of theirs;
    the last ones in `close`, when they have drained.
    """

    def __init__(self, options: FileLogConfig, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._tail: FileLog | None = None
        self._failed = 0

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        self.close()
        store = None
        if self._options.storage is not None:
            store = self._setting.extension(self._options.storage).client(f"receiver_{self._setting.id}")
        tail = self._tail = FileLog(self._options, store, self._setting.clock, self._report, confirmed=True)
        while not stop.is_set():
            for found in tail.poll():
                if not deliver(consume, _batch(tail, found), stop, tail.watch):
                    return
            self._look(tail)
            if not tail.more:
                stop.wait(tail.interval)
        for found in chain(tail.rest(), tail.drain()):
            if not deliver(consume, _batch(tail, found), stop, patience=LAST_CALL):
                return

    def _report(self, text: str) -> None:
        log.warning("%s: %s", self._setting.id, text)
        self._setting.meter.failures += 1

    def _look(self, tail: FileLog) -> None:
        counters = tail.counters
        lost = counters.lines_capped + counters.entries_dropped
        if lost > self._failed:
            self._setting.meter.drop("capped_or_dropped", lost - self._failed)
            self._failed = lost
        stalled = tail.stalled()
        if stalled:
            if self._setting.meter.degrade(f"rotation_stalled: nobody rotates {stalled[0]}"):
                log.warning("%s: nobody rotates %s (%d files in all)", self._setting.id, stalled[0], len(stalled))
        elif self._setting.meter.degraded_reason.startswith("rotation_stalled"):
            self._setting.meter.recover()

    def close(self) -> None:
        """Write down how far everything has arrived."""
        if self._tail is not None:
            self._tail.close()
            self._tail = None


def _batch(tail: FileLog, found: LogBatch) -> Batch:
    return Batch("logs", source=found, count=found.count, acks=(Ack(partial(tail.delivered, found), then=tail.commit),))


FACTORY = Factory(
    kind="receiver",
    type="filelog",
    summary="Follows log files through every kind of rotation.",
    options=FileLogConfig,
    create=FileLogReceiver,
    signals=("logs",),
)
