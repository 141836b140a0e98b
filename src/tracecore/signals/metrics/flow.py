"""Bytes in each second, of series that are counters on one machine and rates on another.

`DCGM_FI_PROF_PCIE_TX_BYTES` is a rate whose type older exporters call `counter`; `DCGM_FI_DEV_NVLINK_BANDWIDTH_L0` is a
counter that some declare a gauge. What the values do decides: a counter never falls, but for a reset to nearly nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from tracecore.signals.metrics.bridge import STALE, BridgeLimits, BridgeMemory
from tracecore.signals.metrics.point import Sample, Series
from tracecore.signals.stamps import SECOND

#: A counter that fell to more than this share of what it was has not been reset: it is no counter.
_RESET: Final = 0.1
#: Bytes per second that no link of a GPU can carry: such a value is a count.
_IMPOSSIBLE: Final = 1e14


class Flow(NamedTuple):
    """The change of a series between two of its samples.

    Args:
        since: time of the sample before.
        time: time of this sample.
        counted: bytes per second, if the series counts bytes; None across a reset.
        told: bytes per second, if the series tells them.
    """

    since: int
    time: int
    counted: float | None
    told: float


class Manner(msgspec.Struct):
    """The behaviour so far of the series of one name on one node."""

    documented: bool
    declared: str
    series: int = 0
    falls: int = 0
    rises: int = 0
    still: int = 0
    impossible: bool = False

    @property
    def counts(self) -> bool:
        """Return whether they count bytes, and do not tell bytes per second."""
        if self.impossible:
            return True
        if self.falls * 4 > self.rises:
            return False
        if self.declared == "gauge":
            return self._only_rises(8)
        # DCGM's profiling fields are rates.
        return self._only_rises(3) if self.documented else True

    def _only_rises(self, times: int) -> bool:
        """Whether every series has done nothing but rise, so many times: what is called a rate is a count then."""
        return not self.falls and self.rises >= times * self.series and self.rises > 2 * self.still

    def since(self, flow: Flow) -> int:
        """From when on the rate holds. A count knows what happened while nobody looked, a rate does not."""
        return flow.since if self.counts or flow.time - flow.since <= STALE else flow.time

    def rate(self, flow: Flow) -> float | None:
        """Bytes per second."""
        return flow.counted if self.counts else flow.told


class FlowMemory:
    """The flows of many series, and how each name behaves on each node."""

    def __init__(self, limits: BridgeLimits) -> None:
        self._last: BridgeMemory[tuple[float, int]] = BridgeMemory(limits)
        self._manners: BridgeMemory[Manner] = BridgeMemory(limits)

    @property
    def dropped(self) -> int:
        return self._last.dropped + self._manners.dropped

    def manner(self, series: Series, time: int) -> Manner:
        key = (series.origin, series.node)
        found = self._manners.get(key)
        if found is None:
            found = Manner(series.origin.startswith("DCGM_FI_PROF_"), series.declared)
        self._manners.put(key, found, time)
        return found

    def flow(self, sample: Sample) -> Flow | None:
        """Return what happened since the sample before; None for a repetition of it.

        The first one has none before it: it tells a rate, or nothing.
        """
        key, value, time = sample.series.key, sample.value, sample.time
        last = self._last.get(key)
        if value < 0 or (last is not None and time <= last[1]):
            return None
        self._last.put(key, (value, time), time)
        manner = self.manner(sample.series, time)
        manner.impossible = manner.impossible or value > _IMPOSSIBLE
        if last is None:
            manner.series += 1
            return Flow(time, time, None, value)
        before, since = last
        counted: float | None = None
        if value >= before:
            counted = (value - before) * SECOND / (time - since)
        if value > before:
            manner.rises += 1
        elif value == before:
            manner.still += value > 0
        elif value > _RESET * before:
            manner.falls += 1
        return Flow(since, time, counted, value)
