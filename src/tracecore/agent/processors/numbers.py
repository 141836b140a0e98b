"""Counters of the engine as metrics of the processor it runs in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tracecore.agent.processors.blocks import Blocks
from tracecore.agent.processors.hints import NAMELESS, UNPROJECTED, WRAPPED
from tracecore.agent.tally import Growth, Tally
from tracecore.agent.telemetry import Meter
from tracecore.engine.engine import EngineStats

#: Events, and the counters of the engine that make them.
EVENTS: Final = {
    "facts_late": ("late",),
    "facts_expired": ("expired",),
    "facts_evicted": ("evicted_window", "evicted_total", "future"),
}
#: Bounds whose being reached is also logged, under the engine's own names.
BOUNDS: Final = {
    "evicted_windows": "{} jobs, nodes or GPUs were forgotten, because there are too many",
    "beyond_horizon": "{} conclusions were not drawn: their evidence lies too far apart in time",
}
ERRORS: Final = "evaluation_failed"
#: Of blocks of lines: closed because there were too many, and bytes of one that was too long.
CLOSED: Final = "block_closed_early"
LEFT_OUT: Final = "block_bytes_left_out"


class EngineNumbers:
    """Carries the engine's counters over, and counts verdicts.

    Args:
        meter: of the processor.
        stats: of its engine.
        patterns: the names of what may be told.
    """

    def __init__(self, meter: Meter, stats: EngineStats, patterns: Iterable[str]) -> None:
        self._meter = meter
        self._stats = stats
        self._growth = Growth()
        self._bounds = Tally(meter.component, meter, BOUNDS)
        meter.declare(events=(*EVENTS, ERRORS, CLOSED, LEFT_OUT, WRAPPED, UNPROJECTED, NAMELESS))
        for name in patterns:
            meter.verdicts.setdefault(name, 0)
        meter.gauges |= {"engine_facts": lambda: stats.held, "engine_windows": lambda: stats.windows}

    def update(self, blocks: Blocks | None = None) -> None:
        """Count what came since the last time."""
        if blocks is not None:
            self._note(CLOSED, blocks.evicted)
            self._note(LEFT_OUT, blocks.left_out)
        for event, names in EVENTS.items():
            self._note(event, sum(getattr(self._stats, name) for name in names))
        self._bounds.look({name: getattr(self._stats, name) for name in BOUNDS})
        if self._stats.errors:
            self._note(ERRORS, sum(self._stats.errors.values()))

    def _note(self, event: str, total: int) -> None:
        self._meter.note(event, self._growth.of(event, total))

    def verdict(self, pattern: str) -> None:
        """A verdict that was not told before."""
        self._meter.verdicts[pattern] = self._meter.verdicts.get(pattern, 0) + 1
