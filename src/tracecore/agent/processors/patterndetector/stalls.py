"""Stalls of live runs: what takes long in an evaluation, a checkpoint or a warm-up need not be one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracecore.agent.options import SECOND
from tracecore.agent.processors.patterndetector import options
from tracecore.facts.fact import Fact
from tracecore.facts.progress import ProgressBridge
from tracecore.facts.training import Progress, StepStalled
from tracecore.recent import Recent

#: Streams whose reports are counted; of one that is forgotten, the warm-up begins anew.
STREAMS: Final = 65_536

Stream = tuple[str | None, str | None, int | None, int]


class StallBridge:
    """The progress bridge with a patience for each phase.

    Args:
        settings: how long is too long.
    """

    def __init__(self, settings: options.ProgressOptions) -> None:
        self._settings = settings
        self._bridge = ProgressBridge(settings.stall_after)
        self._patience = {
            phase: after
            for phase, after in (("eval", settings.eval_after), ("checkpoint", settings.checkpoint_after))
            if after is not None
        }
        self._reports: Recent[Stream, int] = Recent(STREAMS)

    def tick(self, facts: Sequence[Fact], now: int) -> list[StepStalled]:
        """Take these facts in and advance the clock; the stalls that began or grew."""
        for fact in facts:
            self._bridge.observe(fact)
            if self._settings.warmup_steps and type(fact) is Progress:
                self._count(fact)
        return [stall for stall in self._bridge.tick(now) if stall.no_progress_s * SECOND >= self._enough(stall)]

    def _count(self, fact: Progress) -> None:
        stream = _stream(fact)
        self._reports[stream] = self._reports.get(stream, 0) + fact.count

    def _enough(self, stall: StepStalled) -> int:
        """Return how long this phase may last, in nanoseconds."""
        patience = self._patience.get(stall.phase or "", 0)
        if self._reports.get(_stream(stall), STREAMS) <= self._settings.warmup_steps:
            patience = max(patience, self._settings.warmup_after)
        return patience


def _stream(fact: Fact) -> Stream:
    return fact.job, fact.pod or fact.node, fact.rank, fact.attempt
