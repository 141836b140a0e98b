"""From series to events: samples in any order in, stamped records in the order of their times out.

    bridges.observe(sample)  …  bridges.advance(now) -> records

Samples wait until they are older than the lateness bound, so whatever order they come in within it, the bridges see
them in one order: by time, then by series. What comes later than that is dropped and counted, and so is what finds no
room. The clock is the caller's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from tracecore.signals.metrics.names import GpuNames
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stamps import SECOND

LATENESS: Final = 5 * SECOND
#: A gauge that was not seen for so long is not known any more; Prometheus has the same rule.
STALE: Final = 300 * SECOND
#: How far ahead of the clock a sample may be.
AHEAD: Final = 300 * SECOND


class BridgeLimits(msgspec.Struct, frozen=True):
    """
    Args:
        waiting: samples that wait for their turn.
        series: things one bridge remembers: series, GPUs, ports.
    """

    waiting: int = 1 << 20
    series: int = 1 << 16


class Bridge(Protocol):
    """Turns series of some names into records.

    `observe` is given the samples of those names in the order of their times; `settle` is called when all samples of
    one time have been given.
    """

    @property
    def names(self) -> frozenset[str]: ...

    @property
    def dropped(self) -> int:
        """Samples that found no room."""

    def observe(self, sample: Sample) -> Sequence[LogSignal]: ...

    def settle(self, time: int) -> Sequence[LogSignal]: ...


def record(sample: Sample, event: str, attributes: Attributes, time: int | None = None) -> LogSignal:
    """The record of something that a sample shows.

    Args:
        event: its event name.
        time: when it happened, where that is not the time of the sample.
    """
    if sample.inferred:
        attributes["tracecore.time.inferred"] = True
    return {
        "resource": {"attributes": sample.series.identity},
        "log": {
            "event_name": event,
            "attributes": attributes,
            "time_unix_nano": sample.time if time is None else time,
            "observed_time_unix_nano": sample.time,
        },
        "source": sample.source,
    }


S = TypeVar("S")


class BridgeMemory(Generic[S]):
    """State of a bridge for each of its series. When it is full, long silent series make room."""

    def __init__(self, limits: BridgeLimits) -> None:
        self._states: dict[Hashable, tuple[int, S]] = {}
        self._most = limits.series
        self.dropped = 0

    def get(self, key: Hashable) -> S | None:
        found = self._states.get(key)
        return None if found is None else found[1]

    def put(self, key: Hashable, state: S, time: int) -> None:
        if key not in self._states and len(self._states) >= self._most:
            for old in [k for k, (seen, _) in self._states.items() if time - seen > STALE]:
                del self._states[old]
            if len(self._states) >= self._most:
                self.dropped += 1
                return
        self._states[key] = (time, state)


class Bridges:
    """All bridges behind one door.

    Args:
        bridges: which; `tracecore.signals.metrics.bridges.all_bridges()` makes the usual ones.
        names: what is known about GPUs' names; the samples add to it.
        lateness: how long after its time a sample may come.
        limits: how much may be held.
    """

    def __init__(
        self,
        bridges: Sequence[Bridge],
        names: GpuNames | None = None,
        *,
        lateness: int = LATENESS,
        limits: BridgeLimits | None = None,
    ) -> None:
        self.bridges = tuple(bridges)
        self.names = GpuNames() if names is None else names
        self.lateness = lateness
        self._limits = limits or BridgeLimits()
        self._by_name: dict[str, list[Bridge]] = {}
        for bridge in bridges:
            for name in bridge.names:
                self._by_name.setdefault(name, []).append(bridge)
        self._waiting: list[Sample] = []
        self._done = 0
        self._left_out: Counter[str] = Counter()

    @property
    def dropped(self) -> dict[str, int]:
        """Return how many samples were left out, by reason."""
        left = self._left_out + Counter({"series": sum(bridge.dropped for bridge in self.bridges)})
        return {reason: left[reason] for reason in sorted(left)}

    def observe(self, sample: Sample) -> None:
        """Take a sample. Nothing is concluded before `advance`."""
        if sample.series.name not in self._by_name:
            return
        if not math.isfinite(sample.value):
            self._left_out["not a number"] += 1
        elif sample.time <= self._done:
            self._left_out["late"] += 1
        elif len(self._waiting) >= self._limits.waiting:
            self._left_out["waiting"] += 1
        else:
            self._waiting.append(sample)

    def advance(self, now: int) -> list[LogSignal]:
        """Return what the samples show that are old enough at `now`."""
        ahead = now + AHEAD
        ready: list[Sample] = []
        rest: list[Sample] = []
        for sample in self._waiting:
            if sample.time <= now - self.lateness:
                ready.append(sample)
            elif sample.time <= ahead:
                rest.append(sample)
            else:
                self._left_out["ahead"] += 1
        self._waiting = rest
        self._done = max(self._done, now - self.lateness)
        return self._release(ready)

    def finish(self) -> list[LogSignal]:
        """Return what all samples show that still wait: nothing more will come."""
        ready, self._waiting = self._waiting, []
        self._done = max([self._done, *(sample.time for sample in ready)])
        return self._release(ready)

    def _release(self, ready: list[Sample]) -> list[LogSignal]:
        out: list[LogSignal] = []
        ready.sort(key=_order)
        # Names first: a GPU may be named by a sample that stands behind the one that needs the name.
        for sample in ready:
            if not sample.series.told:
                self.names.learn_from(sample.series)
        for place, sample in enumerate(ready):
            if sample.series.gpu is None and "hw.network.ib.device" not in sample.series.attributes:
                self.names.name(sample.series)
            for bridge in self._by_name[sample.series.name]:
                out += bridge.observe(sample)
            if place + 1 == len(ready) or ready[place + 1].time != sample.time:
                for bridge in self.bridges:
                    out += bridge.settle(sample.time)
        return out


def _order(sample: Sample) -> tuple[int, tuple[str, ...], str, int]:
    return sample.time, sample.series.key, sample.source.path, sample.source.offset
