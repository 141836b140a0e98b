"""Sending over a network: a bounded queue, workers, retries with back-off."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from tracecore.agent.batch import SIGNALS, Batch
from tracecore.agent.component import Exporter, Setting
from tracecore.agent.exporters.queue_options import QueueBatch, RetryOnFailure, SendingQueue
from tracecore.agent.exporters.stored_batches import Shelf, StoredBatch
from tracecore.agent.options import SECOND
from tracecore.agent.printing import discreet, visible
from tracecore.signals.storage.journal import JournalError

log = logging.getLogger("tracecore.agent.sending")

#: Why a batch may be given up.
_DROPS: Final = (
    "damaged", "error", "partial_success", "queue_full", "rejected", "retries_exhausted", "send_failed", "shutdown",
)  # fmt: skip
#: Bytes that may wait in memory where the queue is measured in something else. A queue of 1,000 requests can be large.
MEMORY: Final = 64 << 20


#: Seconds at the end of a stop in which nothing new is sent.
LAST_ANSWERS: Final = 2.0


#: Seconds after the end of a stop in which workers may say that they have ended.
LAST_WORDS: Final = 0.2


class RetryLater(Exception):
    """It did not work, and may work later.

    Args:
        after: how many seconds the other side asks to wait; 0 where it does not say.
    """

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


class Rejected(Exception):
    """It did not work, and never will."""


class Batching:
    """Collects what an exporter is given, each signal by itself, for any thread."""

    def __init__(self, options: QueueBatch, setting: Setting) -> None:
        from tracecore.agent.processors.batch import BatchProcessor
        from tracecore.agent.processors.batch import Options as BatchOptions

        self._clock = setting.clock
        #: Seconds between two looks at what has waited long enough.
        self.interval = max(options.flush_timeout / SECOND / 4, 0.01)
        made = BatchOptions(
            timeout=options.flush_timeout, send_batch_size=options.min_size, send_batch_max_size=options.max_size
        )
        self._collecting = {signal: BatchProcessor(made, setting) for signal in SIGNALS}
        self._lock = threading.Lock()

    def take(self, batch: Batch) -> list[Batch]:
        with self._lock:
            return list(self._collecting[batch.signal].process(batch))

    def due(self) -> list[Batch]:
        now = self._clock()
        with self._lock:
            return [made for one in self._collecting.values() for made in one.tick(now)]

    def rest(self) -> list[Batch]:
        with self._lock:
            return [made for one in self._collecting.values() for made in one.drain(self._clock())]


class Sender(Exporter):
    """Keeps batches until they are sent.

    Args:
        send: sends one; raises `RetryLater` or `Rejected`.
        close: called by each worker at its end, to give up its connection.
        headers: what is sent along, and never logged, also where the other side says it back.
    """

    def __init__(
        self,
        send: Callable[[Batch], None],
        setting: Setting,
        queueing: SendingQueue,
        retry: RetryOnFailure,
        close: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._send = send
        self._secrets = tuple((headers or {}).values())
        self._close = close
        self._setting = setting
        self._queueing = queueing
        self._retry = retry
        self._run = secrets.token_hex(8)
        self._numbers = itertools.count(1)
        #: Each with its size in the unit of `sizer`, and the bytes of it that are in memory.
        self._queue: queue.SimpleQueue[tuple[Batch | StoredBatch, int, int] | None] = queue.SimpleQueue()
        self._shelf: Shelf | None = None
        self._inside = 0
        #: What waits, in the unit of `sizer`; and bytes of it that are in memory.
        self._waiting = 0
        self._memory = 0
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._stop = threading.Event()
        self._last_attempt = float("inf")
        self._unstored = False
        self._threads: list[threading.Thread] = []
        self._batching = Batching(queueing.batch, setting) if queueing.batch is not None else None
        setting.meter.queue_capacity = queueing.queue_size
        setting.meter.declare(dropped=_DROPS)
        setting.meter.queue_depth = lambda: self._waiting
        setting.meter.gauges["queue_bytes"] = lambda: self._memory

    def start(self) -> None:
        if (store := self._setting.store(self._queueing.storage)) is not None:
            self._shelf = Shelf(store)
            left = self._shelf.waiting()
            if left:
                log.info("%s: %d batches of an earlier run are sent first", self._setting.id, len(left))
            for entry in left:
                self._enter(entry.count, entry.size)
                self._queue.put((entry, self._units(entry.count, entry.size), 0))
        if self._batching is not None:
            threading.Thread(target=self._flush, name=f"{self._setting.id}-batch", daemon=True).start()
        if self._queueing.enabled:
            for number in range(self._queueing.num_consumers):
                name = f"{self._setting.id}-{number}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                thread.start()
                self._threads.append(thread)

    def ready(self) -> bool:
        if not self._queueing.enabled or not self._queueing.block_on_overflow:
            return True
        return not self._full()

    def _full(self) -> bool:
        if self._waiting >= self._queueing.queue_size:
            return True
        return self._queueing.sizer != "bytes" and self._memory >= MEMORY

    def _units(self, count: int, size: int) -> int:
        """The size of a batch in the unit of `sizer`."""
        sizer = self._queueing.sizer
        return 1 if sizer == "requests" else count if sizer == "items" else size

    def _enter(self, count: int, size: int) -> None:
        self._inside += 1
        self._waiting += self._units(count, size)

    def export(self, batch: Batch) -> None:
        if self._batching is not None:
            for made in self._batching.take(batch):
                self._enqueue(made)
        else:
            self._enqueue(batch)

    def _flush(self) -> None:
        """Hand on what has been collected for long enough; in a thread of its own."""
        assert self._batching is not None
        while not self._stop.wait(self._batching.interval):
            for made in self._batching.due():
                self._enqueue(made)

    def _enqueue(self, batch: Batch) -> None:
        if not self._queueing.enabled:
            self._deliver(batch)
            return
        size = batch.pack()
        with self._lock:
            full = self._full() and not self._queueing.block_on_overflow
            if not full:
                self._enter(batch.count, size)
        if full:
            self._setting.meter.drop("queue_full", batch.count)
            batch.done()
            return
        entry = self._stored(batch)
        held = size if isinstance(entry, Batch) else 0
        with self._lock:
            self._memory += held
        self._queue.put((entry, self._units(batch.count, size), held))

    def _stored(self, batch: Batch) -> Batch | StoredBatch:
        """Return where a storage keeps it, the batch has arrived as far as its source is concerned."""
        if self._shelf is None:
            return batch
        try:
            with self._lock:
                entry = self._shelf.put(batch)
        except JournalError as error:
            self._setting.meter.degrade(f"cannot store: {error}")
            if not self._unstored:
                self._unstored = True
                log.error("%s: batches cannot be stored and wait in memory: %s", self._setting.id, error)
            return batch
        if self._unstored:
            self._unstored = False
            log.info("%s: batches are stored again", self._setting.id)
        with contextlib.suppress(JournalError):
            self._shelf.catch_up()
        batch.done()
        return entry

    def _taken(self, entry: Batch | StoredBatch) -> Batch | None:
        if isinstance(entry, Batch):
            return entry
        assert self._shelf is not None
        batch = self._shelf.get(entry)
        if batch is None:
            self._setting.meter.drop("damaged", entry.count)
        return batch

    def _work(self) -> None:
        while (waiting := self._queue.get()) is not None:
            entry, units, held = waiting
            finished = True
            try:
                batch = self._taken(entry)
                if batch is not None:
                    finished = self._deliver(batch, kept=isinstance(entry, StoredBatch))
                if finished and isinstance(entry, StoredBatch) and self._shelf is not None:
                    self._shelf.remove(entry)
            except JournalError as error:
                log.error("%s: %s", self._setting.id, error)
            except Exception:
                # A mistake of ours: the batch is lost and counted, the worker goes on.
                log.exception("%s failed on a batch", self._setting.id)
                self._setting.meter.drop("error", entry.count)
                if isinstance(entry, Batch):
                    entry.done()
            with self._lock:
                self._inside -= 1
                self._waiting -= units
                self._memory -= held
                self._idle.notify_all()
        self._close()

    def _deliver(self, batch: Batch, *, kept: bool = False) -> bool:
        """Send it until it is sent or given up; false when there was no time for either.

        Args:
            kept: it is in a storage, and sent after a restart.
        """
        meter, retry = self._setting.meter, self._retry
        # Whatever is sent again is called the same, so that a server can tell.
        batch.identity = batch.identity or f"{self._run}-{next(self._numbers):x}"
        began = time.monotonic()
        interval = retry.initial_interval / SECOND
        while True:
            start = time.monotonic()
            if start > self._last_attempt:
                # What is begun now may not be answered any more, and then it would be sent again after a restart.
                if not kept:
                    meter.drop("shutdown", batch.count)
                return False
            try:
                self._send(batch)
            except Rejected as error:
                meter.failures += 1
                meter.drop("rejected", batch.count)
                said = self._said(error)
                if meter.degrade(f"batches are rejected: {said}"):
                    log.error("%s: a batch of %d was rejected: %s", self._setting.id, batch.count, said)
                batch.done()
                return True
            except RetryLater as error:
                meter.failures += 1
                said = self._said(error)
                if meter.degrade(f"cannot send: {said}"):
                    log.warning("%s: cannot send, trying again: %s", self._setting.id, said)
                wait = max(
                    interval * random.uniform(1 - retry.randomization_factor, 1 + retry.randomization_factor),
                    error.after,
                )
                interval = min(interval * retry.multiplier, retry.max_interval / SECOND)
            else:
                meter.took(time.monotonic() - start)
                meter.emit(batch.count)
                if meter.recover():
                    log.info("%s: sending again", self._setting.id)
                batch.done()
                return True
            if not retry.enabled:
                self._drop(batch, "send_failed")
                return True
            limit = retry.max_elapsed_time / SECOND
            if limit and time.monotonic() + wait - began > limit:
                self._drop(batch, "retries_exhausted")
                return True
            if self._stop.wait(wait) and not self._last_wait(wait):
                # Not acknowledged: a source that remembers gives it again.
                if not kept:
                    meter.drop("shutdown", batch.count)
                return False
            meter.retries += 1

    def _said(self, error: Exception) -> str:
        return visible(discreet(str(error), self._secrets))

    def _last_wait(self, wait: float) -> bool:
        """While stopping, wait no longer than there is time; false when there is none."""
        left = self._last_attempt - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(wait, left, 1.0))
        return time.monotonic() < self._last_attempt

    def _drop(self, batch: Batch, reason: str) -> None:
        self._setting.meter.drop(reason, batch.count)
        log.error("%s: %d records dropped: %s", self._setting.id, batch.count, reason.replace("_", " "))
        batch.done()

    def stop(self, deadline: float) -> None:
        """Send what waits until the deadline; what is left then is dropped, counted and not acknowledged."""
        # Requests that are under way get some of the time to be answered in.
        self._last_attempt = deadline - min(LAST_ANSWERS, max(deadline - time.monotonic(), 0.0) / 4)
        self._stop.set()
        if self._batching is not None:
            for made in self._batching.rest():
                self._enqueue(made)
        with self._lock:
            while self._inside and (left := deadline - time.monotonic()) > 0:
                self._idle.wait(left)
        while True:
            try:
                waiting = self._queue.get_nowait()
            except queue.Empty:
                break
            if waiting is not None and isinstance(waiting[0], Batch):
                self._setting.meter.drop("shutdown", waiting[0].count)
        for _ in self._threads:
            self._queue.put(None)
        last = max(deadline, time.monotonic() + LAST_WORDS)
        for thread in self._threads:
            thread.join(max(last - time.monotonic(), 0.0))
        if self._shelf is not None:
            try:
                self._shelf.catch_up()
            except JournalError as error:
                log.error("%s: what was sent cannot be noted and is sent again: %s", self._setting.id, error)
        if not self._queueing.enabled:
            self._close()
