"""The `patterndetector` processor: says by name what breaks, while it happens.

Processors of one id share one engine, in whatever pipelines they stand: logs, metrics and dumps meet in it. Verdicts
and incidents leave as log records, in the first logs pipeline that names it. With `forward: facts` there is no engine:
facts leave, and a detector that receives those of many nodes joins them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Setting
from tracecore.agent.processors.patterndetector import verdicts
from tracecore.agent.processors.patterndetector.detection import TOLD_REFUSED, Detection
from tracecore.agent.processors.patterndetector.options import Options
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.signals.redaction import redacted

__all__ = ["Options", "PatternDetector"]


class PatternDetector:
    """A detection's place in one pipeline."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._redact = redacted if options.redact else None
        self._forwards = options.forward == "all"
        self._sends_facts = options.forward == "facts"
        self._clock = setting.clock
        self._meter = setting.meter
        self.detection: Detection = setting.share(partial(Detection, options, setting))
        #: Only one of those that share it tells what it finds.
        self._tells = not setting.meter.pipeline.startswith(("metrics", "traces")) and self.detection.claim()

    def process(self, batch: Batch) -> Iterable[Batch]:
        now = self._clock()
        with self.detection.lock:
            if batch.signal == "metrics":
                self.detection.metrics(batch.view(), now)
            else:
                self.detection.logs(batch.view(), now, batch.pause, batch.peer, selected=batch.selected)
            passed = batch if self._forwards else self._told(batch)
            # What came has arrived when it was judged, and what it led to has arrived.
            if passed is not None:
                batch.hold(1)
            self.detection.await_judgement(batch.acks, now)
        if passed is not None:
            yield passed
        if self._tells and now >= self.detection.next:
            yield from self._evaluate(now)

    def _told(self, batch: Batch) -> Batch | None:
        """Return the verdicts and incidents of other detectors, which are passed on; None where there are none."""
        if batch.signal != "logs":
            return None
        found = verdicts.told_elsewhere(batch.view())
        if not found["resource_logs"]:
            return None
        passed = Batch("logs", found, acks=batch.acks, peer=batch.peer)
        if self.detection.accepts:
            return passed
        self._meter.note(TOLD_REFUSED, passed.count)
        return None

    def start(self) -> None:
        if self._tells:
            with self.detection.lock:
                self.detection.restore(self._clock())

    def due(self) -> int | None:
        # Also where another one tells: what came here may make it due sooner.
        return self.detection.due(self._clock())

    def tick(self, now: int) -> Iterable[Batch]:
        return self._evaluate(now) if self._tells and now >= self.detection.next else ()

    def drain(self, now: int) -> Iterable[Batch]:
        with self.detection.lock:
            self.detection.finish()
        return self._evaluate(now, last=True) if self._tells else ()

    def _evaluate(self, now: int, *, last: bool = False) -> list[Batch]:
        with self.detection.lock:
            if self._sends_facts:
                facts, acks = self.detection.collected(now, last=last)
                made = Batch("logs", self._payload(facts, now), count=len(facts), acks=acks)
            else:
                said, updates, acks = self.detection.evaluate(now, last=last)
                made = verdicts.batch(said, updates, now, self.detection.held_back)
                made.acks = (Ack(partial(self.detection.delivered, said, updates)), *acks)
        if made.count:
            return [made]
        made.done()
        return []

    def _payload(self, facts: Sequence[Fact], now: int) -> dict[str, Any]:
        return wire.payload(facts, now, lines=lambda fact: self.detection.quoted(fact.uid), redact=self._redact)
