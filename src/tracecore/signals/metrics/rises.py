"""Counters of errors that rose: ECC errors of GPU memory, vendors' counters of silent corruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from tracecore.signals.metrics.bridge import BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stamps import SECOND

#: A rise lies between two samples. It is dated at the earlier one, as whatever confirms it (an Xid) may have come
#: right after, but never further back than this: a scrape that was missing for an hour says nothing of an hour ago.
REACH: Final = 300 * SECOND
#: How old a GPU's counter may be when it is scraped: dcgm-exporter asks the driver every 30 s unless told otherwise.
LAG: Final = 30 * SECOND
_ECC: Final = frozenset({"corrected", "uncorrected"})


class Count(NamedTuple):
    """A counter as last seen.

    Args:
        value: its value.
        time: when.
        before: its value before it fell, while it stands at zero since.
    """

    value: float
    time: int
    before: float | None = None


class Rise(NamedTuple):
    """A counter that rose: by how much, and since when it may have."""

    delta: int
    since: int


class CounterMemory:
    """Counters by name, and by how much each rose since it was last seen.

    The first sample of a counter shows no rise, whatever its value: it may be years old. A counter that fell was reset,
    and what it counts since then is its rise, unless it is back at exactly where it was: then an exporter that had just
    started said nothing for a moment.
    """

    def __init__(self, limits: BridgeLimits) -> None:
        self._counts: BridgeMemory[Count] = BridgeMemory(limits)

    @property
    def dropped(self) -> int:
        return self._counts.dropped

    def rise(self, sample: Sample) -> Rise | None:
        key, value, time = sample.series.key, sample.value, sample.time
        last = self._counts.get(key)
        if not 0 <= value < 2**63:
            return None
        if last is None:
            self._counts.put(key, Count(value, time), time)
            return None
        if time <= last.time:
            return None
        delta = value - last.value
        before = last.before if value == 0 else None
        if delta < 0:
            before = last.value if value == 0 else None
            delta = value
        elif last.before is not None and value == last.before:
            delta = 0
        self._counts.put(key, Count(value, time, before), time)
        return Rise(int(delta), max(last.time, time - REACH)) if delta >= 1 else None


class EccBridge:
    """Rises of ECC counters, one record for each kind of error of a GPU and instant.

    A total counts what its parts (L2, device memory) count again, and every MIG instance repeats its GPU's counter: the
    total decides where there is one, and of repeats the largest.
    """

    names: Final = frozenset({"hw.errors"})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        limits = limits or BridgeLimits()
        self._counters = CounterMemory(limits)
        self._totals: BridgeMemory[bool] = BridgeMemory(limits)
        self._rises: dict[tuple[str, ...], dict[str, tuple[Rise, Sample]]] = {}

    @property
    def dropped(self) -> int:
        return self._counters.dropped + self._totals.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        attributes = sample.series.attributes
        if attributes.get("error.type") not in _ECC or "hw.network.ib.device" in attributes:
            return ()
        kinds = (str(attributes.get(name, "")) for name in ("error.type", "error.subtype", "error.persistence"))
        group = (*sample.series.unit, *kinds)
        part = _part(attributes)
        if not part:
            self._totals.put(group, True, sample.time)
        if rise := self._counters.rise(sample):
            parts = self._rises.setdefault(group, {})
            if part not in parts or parts[part][0].delta < rise.delta:
                parts[part] = rise, sample
        return ()

    def settle(self, time: int) -> Sequence[LogSignal]:
        if not self._rises:
            return ()
        out = [made for group, parts in self._rises.items() if (made := self._record(group, parts)) is not None]
        self._rises = {}
        return out

    def _record(self, group: tuple[str, ...], parts: dict[str, tuple[Rise, Sample]]) -> LogSignal | None:
        if self._totals.get(group):
            if "" not in parts:
                return None
            parts = {"": parts[""]}
        rises = [rise for rise, _ in parts.values()]
        sample = next(iter(parts.values()))[1]
        stamped: Attributes = {
            name: value
            for name in ("error.type", "error.subtype", "error.persistence")
            if (value := sample.series.attributes.get(name)) is not None
        }
        stamped["hw.errors.delta"] = sum(rise.delta for rise in rises)
        since = min(rise.since for rise in rises) - LAG
        return record(sample, "hw.errors.rise", stamped, max(since, sample.time - REACH))


def _part(attributes: Attributes) -> str:
    """Return which part of the GPU a counter is for; empty for all of it."""
    if (location := attributes.get("error.location")) is not None:
        return str(location)
    kind = str(attributes.get("hw.gpu.memory.kind", ""))
    return "" if kind in ("", "total") else f"{kind}/{attributes.get('detail', '')!s}"


class SdcBridge:
    """Rises of a vendor's counter of silent data corruption (`hw.gpu.sdc`)."""

    names: Final = frozenset({"hw.gpu.sdc"})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        self._counters = CounterMemory(limits or BridgeLimits())

    @property
    def dropped(self) -> int:
        return self._counters.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        rise = self._counters.rise(sample)
        if rise is None:
            return ()
        stamped: Attributes = {"hw.gpu.sdc.delta": rise.delta}
        if (kind := sample.series.attributes.get("hw.gpu.sdc.kind")) is not None:
            stamped["hw.gpu.sdc.kind"] = kind
        return (record(sample, "hw.gpu.sdc.rise", stamped),)

    def settle(self, time: int) -> Sequence[LogSignal]:
        return ()
