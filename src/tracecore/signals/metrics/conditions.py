"""Conditions of a GPU, or of a rank, that a gauge shows: worth saying, and no event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracecore.signals.metrics.bridge import BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal

#: Series, and the value of the label `kind` where they have one, that mean a condition when they are not nought.
CONDITIONS: Final = {
    ("hw.gpu.remapped_rows", "pending"): "row_remap_pending",
    ("hw.gpu.remapped_rows", "failure"): "row_remap_failed",
    ("hw.gpu.memory.remap_failure", ""): "row_remap_failed",
    ("hw.gpu.retired_pages", "pending"): "page_retirement_pending",
    ("hw.gpu.ecc.uncorrected", ""): "uncorrected_errors",
    ("hw.gpu.nvlink.inactive", ""): "nvlinks_inactive",
    ("hw.gpu.fabric.unready", ""): "fabric_not_ready",
    ("hw.gpu.unreadable", ""): "unreadable",
    ("hw.gpu.lost", ""): "lost",
    ("tracecore.training.hang", ""): "hang",
}


class ConditionBridge:
    """Says each condition once for as long as it lasts."""

    names: Final = frozenset(name for name, _ in CONDITIONS)

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        self._shown: BridgeMemory[bool] = BridgeMemory(limits or BridgeLimits())

    @property
    def dropped(self) -> int:
        return self._shown.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        kind = str(sample.series.attributes.get("kind", ""))
        condition = CONDITIONS.get((sample.series.name, kind))
        if condition is None:
            return ()
        key = (*sample.series.key, kind)
        before = self._shown.get(key)
        holds = sample.value >= 1
        self._shown.put(key, holds, sample.time)
        if not holds or before:
            return ()
        stamped: Attributes = {"hw.gpu.condition": condition}
        attributes = sample.series.attributes
        if (detail := attributes.get("hw.gpu.condition.detail")) is not None:
            stamped["hw.gpu.condition.detail"] = detail
            if (index := attributes.get("hw.gpu.index")) is not None:
                stamped["hw.gpu.index"] = index
        return (record(sample, "hw.gpu.condition", stamped),)

    def settle(self, time: int) -> Sequence[LogSignal]:
        return ()
