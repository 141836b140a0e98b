"""Components wired into pipelines: how a batch goes from a receiver through processors to exporters.

A batch is worked on by the thread of its receiver, one batch at a time in each pipeline. Before it enters, every
exporter and limiter is asked whether there is room: a batch is taken by all or by none, and a source that is refused
keeps it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from tracecore.agent.batch import Batch, Refused, Signal
from tracecore.agent.telemetry import Meter

log = logging.getLogger("tracecore.agent")

#: Seconds before something that failed to start is started again: at first, and at most.
BACK_OFF: Final = (1.0, 60.0)


class Stage:
    """A processor in its place."""

    def __init__(self, id: str, processor: Any, meter: Meter) -> None:
        self.id = id
        self.processor = processor
        self.meter = meter
        #: Its last batch failed; what else degrades it, it says and takes back itself.
        self.failed = False
        self.admit: Callable[[], None] | None = getattr(processor, "admit", None)
        self.due: Callable[[], int | None] | None = getattr(processor, "due", None)


class Outlet:
    """An exporter that may not be able to start yet. It is shared by all pipelines that name it."""

    def __init__(self, id: str, exporter: Any, meter: Meter) -> None:
        self.id = id
        self.exporter = exporter
        self.meter = meter
        self._started = False
        self._wait = BACK_OFF[0]
        self._next = 0.0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start it, or remember to try again."""
        with self._lock:
            if self._started or time.monotonic() < self._next:
                return
            try:
                self.exporter.start()
            except Exception as error:
                # Whatever it is, the other exporters go on.
                self._next = time.monotonic() + self._wait
                self._wait = min(self._wait * 2, BACK_OFF[1])
                if self.meter.degrade(f"cannot start: {error}"):
                    log.error("exporter %s cannot start, trying again: %s", self.id, error)
                return
            self._started = True
            self._wait = BACK_OFF[0]
            if self.meter.recover():
                log.info("exporter %s has started", self.id)

    def ready(self) -> bool:
        if not self._started:
            self.start()
        return self._started and bool(self.exporter.ready())

    def export(self, batch: Batch) -> None:
        self.meter.receive(batch.count)
        try:
            self.exporter.export(batch)
        except Exception as error:
            self.meter.failures += 1
            self.meter.drop("error", batch.count)
            if self.meter.degrade(f"{type(error).__name__}: {error}"):
                log.exception("exporter %s failed on a batch", self.id)
            batch.done()

    def stop(self, deadline: float) -> None:
        if self._started:
            self.exporter.stop(deadline)
            self._started = False


class Pipeline:
    """Processors in order, then every exporter.

    Args:
        id: `logs/container`.
        signal: what flows.
        clock: nanoseconds since the epoch.
        awaits: told after every batch when to come again.
    """

    def __init__(
        self,
        id: str,
        signal: Signal,
        stages: Sequence[Stage],
        outlets: Sequence[Outlet],
        clock: Callable[[], int],
        awaits: Callable[[int], None] = lambda due: None,
    ) -> None:
        self.id = id
        self.signal = signal
        self._stages = tuple(stages)
        self._outlets = tuple(outlets)
        self._clock = clock
        self._awaits = awaits
        self._lock = threading.Lock()
        self._waiting = tuple((n, stage) for n, stage in enumerate(stages) if stage.due is not None)
        self._seen = False

    def admit(self) -> None:
        """Ask whether a batch could be taken now.

        Raises:
            Refused: somebody cannot.
        """
        for stage in self._stages:
            if stage.admit is not None:
                stage.admit()
        for outlet in self._outlets:
            if not outlet.ready():
                raise Refused(f"the exporter {outlet.id} is not ready for more")

    def consume(self, batch: Batch) -> None:
        """Take a batch that was admitted."""
        if not self._seen:
            self._seen = True
            log.info("pipeline %s: first data, %d of %s", self.id, batch.count, self.signal)
        with self._lock:
            self._run((batch,), 0)
            due = self._due()
        if due is not None:
            self._awaits(due)

    def _run(self, batches: Iterable[Batch], number: int) -> None:
        if number == len(self._stages):
            for batch in batches:
                self._deliver(batch)
            return
        stage = self._stages[number]
        for batch in batches:
            count = batch.count
            stage.meter.receive(count)
            start = time.perf_counter()
            try:
                made = list(stage.processor.process(batch))
            except Exception as error:
                # A batch that a processor cannot take is lost and counted; the next one may be fine.
                self._failed(stage, error)
                stage.meter.drop("error", count)
                batch.done()
                continue
            self._passed(stage, made, start)
            self._run(made, number + 1)

    def _passed(self, stage: Stage, made: Sequence[Batch], start: float) -> None:
        stage.meter.took(time.perf_counter() - start)
        stage.meter.emit(sum(batch.count for batch in made))
        if stage.failed and stage.meter.recover():
            stage.failed = False
            log.info("processor %s of %s works again", stage.id, self.id)

    def _failed(self, stage: Stage, error: Exception) -> None:
        stage.meter.failures += 1
        stage.failed = True
        if stage.meter.degrade(f"{type(error).__name__}: {error}"):
            log.error("processor %s of %s failed: %s", stage.id, self.id, error, exc_info=not _expected(error))

    def _deliver(self, batch: Batch) -> None:
        if len(self._outlets) > 1:
            batch.hold(len(self._outlets) - 1)
        for outlet in self._outlets:
            outlet.export(batch)

    def tick(self, now: int) -> None:
        """Let processors do what is due."""
        if not self._waiting:
            return
        with self._lock:
            for number, stage in self._waiting:
                due = stage.due() if stage.due is not None else None
                if due is not None and due <= now and self._room():
                    self._ticked(number, stage, stage.processor.tick, now)

    def due(self) -> int | None:
        """Return when to come again."""
        with self._lock:
            return self._due()

    def _due(self) -> int | None:
        dues = [due for _, stage in self._waiting if stage.due is not None and (due := stage.due()) is not None]
        return min(dues, default=None)

    def _room(self) -> bool:
        return all(outlet.ready() for outlet in self._outlets)

    def _ticked(self, number: int, stage: Stage, call: Callable[[int], Iterable[Batch]], now: int) -> None:
        start = time.perf_counter()
        try:
            made = list(call(now))
        except Exception as error:
            self._failed(stage, error)
            return
        if made:
            self._passed(stage, made, start)
            self._run(made, number + 1)

    def start(self) -> None:
        """Start what processors do beside."""
        for stage in self._stages:
            if (start := getattr(stage.processor, "start", None)) is not None:
                start()

    def stop(self) -> None:
        for stage in self._stages:
            if (stop := getattr(stage.processor, "stop", None)) is not None:
                stop()

    def drain(self, deadline: float) -> None:
        """Take what processors still hold, first to last."""
        if not self._lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            log.warning("pipeline %s: a batch is still being worked on; what processors hold is left", self.id)
            return
        try:
            for number, stage in self._waiting:
                self._ticked(number, stage, stage.processor.drain, self._clock())
        finally:
            self._lock.release()


def _expected(error: Exception) -> bool:
    from tracecore.ottl.errors import OttlError

    return isinstance(error, OttlError)


class Inlet:
    """Hands what a receiver got to every pipeline that wants it."""

    def __init__(self, id: str, pipelines: Sequence[Pipeline], meter: Meter) -> None:
        self.id = id
        self._pipelines: dict[str, list[Pipeline]] = {}
        for pipeline in pipelines:
            self._pipelines.setdefault(pipeline.signal, []).append(pipeline)
        self.meter = meter

    def __call__(self, batch: Batch) -> None:
        """Take a batch.

        Raises:
            Refused: not now; no pipeline has taken it.
        """
        count = batch.count
        targets = self._pipelines.get(batch.signal)
        if not targets:
            self.meter.receive(count)
            self.meter.drop(f"no_pipeline_for_{batch.signal}", count)
            batch.done()
            return
        try:
            for pipeline in targets:
                pipeline.admit()
        except Refused:
            self.meter.refuse(count)
            raise
        start = time.perf_counter()
        self.meter.receive(count)
        # Copies first: the last one may change the batch itself.
        copies = [batch.copy() for _ in targets[1:]]
        for pipeline, one in zip(targets, (*copies, batch), strict=True):
            pipeline.consume(one)
        self.meter.emit(count)
        self.meter.took(time.perf_counter() - start)


class Intake:
    """A receiver in its thread, started again with back-off when it fails."""

    def __init__(self, id: str, receiver: Any, inlet: Inlet) -> None:
        self.id = id
        self.receiver = receiver
        self.meter = inlet.meter
        self._inlet = inlet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=id, daemon=True)

    @property
    def listening(self) -> bool:
        """Return whether it takes what comes; a receiver that nobody connects to does as soon as it runs."""
        return bool(getattr(self.receiver, "listening", True))

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        wait = BACK_OFF[0]
        #: Seconds after which it works: longer than it took to fail, such as waiting for a lock that another agent has.
        works_after = BACK_OFF[0]
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                timer = threading.Timer(works_after, self._up)
                timer.daemon = True
                timer.start()
                try:
                    self.receiver.run(self._inlet, self._stop)
                finally:
                    timer.cancel()
                if self._stop.is_set():
                    return
                reason = "it ended by itself"
            except Exception as error:
                # It is the receiver's own failure: the others go on, and it gets another chance.
                reason = f"{type(error).__name__}: {error}"
                log.debug("receiver %s", self.id, exc_info=True)
            ran = time.monotonic() - began
            works_after = min(max(BACK_OFF[0], 2 * ran), BACK_OFF[1])
            if ran > BACK_OFF[1]:
                wait = BACK_OFF[0]
            self.meter.failures += 1
            self.meter.degrade(reason)
            log.error("receiver %s failed and is started again in %.0f s: %s", self.id, wait, reason)
            if self._stop.wait(wait):
                return
            wait = min(wait * 2, BACK_OFF[1])
            self.meter.restarts += 1

    def _up(self) -> None:
        """It has run for a while."""
        if self.meter.recover():
            log.info("receiver %s works again", self.id)

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        """Close after the last batch has left; the receiver may note how far it got."""
        close = getattr(self.receiver, "close", None)
        if close is not None and not self._thread.is_alive():
            close()

    def join(self, deadline: float) -> None:
        if self._thread.ident is not None:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
            if self._thread.is_alive():
                log.warning("receiver %s did not stop in time", self.id)
