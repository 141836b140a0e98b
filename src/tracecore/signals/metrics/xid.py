"""The gauge in which an exporter keeps the last Xid of a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracecore.signals.metrics.bridge import BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import LogSignal

#: More than any Xid there is; a blank of DCGM's is larger still.
MOST: Final = 9_999


class XidGaugeBridge:
    """Report each value of the gauge once.

    It keeps the last Xid until the driver is loaded again, for weeks if need be, so that it tells of no event and there
    is nothing to count. It can only agree with a kernel log that tells of one.
    """

    names: Final = frozenset({"hw.gpu.xid.last"})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        self._shown: BridgeMemory[int] = BridgeMemory(limits or BridgeLimits())

    @property
    def dropped(self) -> int:
        return self._shown.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        # Every MIG instance repeats its GPU's gauge: what is shown is remembered by GPU.
        unit, value = sample.series.unit, sample.value
        if not 0 <= value <= MOST or value != int(value):
            return ()
        before = self._shown.get(unit)
        self._shown.put(unit, int(value), sample.time)
        if value == 0 or before == value:
            return ()
        return (record(sample, "hw.gpu.xid.last", {"hw.gpu.xid.last": int(value)}),)

    def settle(self, time: int) -> Sequence[LogSignal]:
        return ()
