"""NVLinks (and xGMI links) that carry far less than their peers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from statistics import median
from typing import Final, NamedTuple, TypeAlias

from tracecore.signals.metrics.bridge import BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.flow import Flow, FlowMemory
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stamps import SECOND

#: A rate at or under this share of its peers' median is low.
SHARE: Final = 0.5
#: Peers without traffic are no measure; the unit is the exporter's, so this is little.
LEAST: Final = 1000.0
#: Links of a GPU that are measured against each other; with fewer, against all of the node.
SIBLINGS: Final = 3
#: A GPU all of whose links are low is named only where it is one of so many: else the jobs differ, not the links.
COHORT: Final = 4

_Unit: TypeAlias = "tuple[str, str]"


class _Rate(NamedTuple):
    """A link's bytes per second, and from when to when they are known."""

    sample: Sample
    value: float
    since: int
    time: int

    @property
    def unit(self) -> _Unit:
        return self.sample.series.unit


class NvlinkBridge:
    """For every scrape in which a link is low, a record with its rate, its peers' median and how long it has been so.

    Synchronous training loads all links of a node alike. A link is measured against the other links of its GPU, or of
    the node where its GPU has few; a GPU all of whose links are low against the other GPUs of its node, and only while
    it is measured to be busy.
    """

    names: Final = frozenset({"hw.gpu.nvlink.io", "hw.gpu.utilization"})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        limits = limits or BridgeLimits()
        self._flows = FlowMemory(limits)
        self._low: BridgeMemory[tuple[int, int]] = BridgeMemory(limits)
        self._new: list[tuple[Sample, Flow]] = []
        self._busy: set[_Unit] = set()

    @property
    def dropped(self) -> int:
        return self._flows.dropped + self._low.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        if sample.series.mig:
            return ()
        if sample.series.name == "hw.gpu.utilization":
            if sample.value > 0:
                self._busy.add(sample.series.unit)
        elif flow := self._flows.flow(sample):
            self._new.append((sample, flow))
        return ()

    def settle(self, time: int) -> Sequence[LogSignal]:
        out: list[LogSignal] = []
        for rates in self._groups():
            low = _low_links(rates)
            low.update(_low_gpus(rates, self._busy))
            for rate in rates:
                key = rate.sample.series.key
                peers = low.get(key)
                if peers is None:
                    # Remembered as not low: an interval that ended here.
                    self._low.put(key, (0, 0), time)
                else:
                    out.append(self._record(rate, peers))
        self._new = []
        self._busy.clear()
        return out

    def _groups(self) -> Iterable[list[_Rate]]:
        """Rates that can be compared: of one node, one name of the exporter's kind and one direction."""
        groups: dict[tuple[str, str, bool], list[_Rate]] = {}
        for sample, flow in self._new:
            series = sample.series
            manner = self._flows.manner(series, flow.time)
            value = manner.rate(flow)
            if value is not None:
                direction = str(series.attributes.get("network.io.direction", ""))
                total = "hw.gpu.nvlink.link" not in series.attributes
                groups.setdefault((series.node, direction, total), []).append(
                    _Rate(sample, value, manner.since(flow), flow.time)
                )
        for (node, direction, total), rates in groups.items():
            if not total or (node, direction, False) not in groups:
                yield rates

    def _record(self, rate: _Rate, peers: float) -> LogSignal:
        key, since = rate.sample.series.key, rate.since
        last = self._low.get(key)
        if last is not None and last[0] and rate.since == last[1]:
            since = last[0]
        self._low.put(key, (since, rate.time), rate.time)
        stamped: Attributes = {
            "hw.gpu.nvlink.rate": rate.value,
            "hw.gpu.nvlink.peer_median": peers,
            "hw.gpu.nvlink.low_seconds": (rate.time - since) / SECOND,
        }
        for name in ("hw.gpu.nvlink.link", "network.io.direction"):
            if (value := rate.sample.series.attributes.get(name)) is not None:
                stamped[name] = value
        return record(rate.sample, "hw.gpu.nvlink.low", stamped)


_value = attrgetter("value")


def _by_unit(rates: Sequence[_Rate]) -> dict[_Unit, list[_Rate]]:
    units: dict[_Unit, list[_Rate]] = {}
    for rate in rates:
        units.setdefault(rate.unit, []).append(rate)
    return units


def _low_links(rates: Sequence[_Rate]) -> dict[tuple[str, ...], float]:
    """Links that are low among their peers, with the median of those; not where all links of a GPU are."""
    low: dict[tuple[str, ...], float] = {}
    everywhere = sorted(rates, key=_value)
    for links in _by_unit(rates).values():
        own = sorted(links, key=_value)
        peers = own if len(own) > SIBLINGS else everywhere
        if len(own) < 2 or len(peers) <= SIBLINGS:
            continue
        found: dict[tuple[str, ...], float] = {}
        for rate in own:
            usual = median(other.value for other in peers if other is not rate)
            if usual < LEAST or rate.value > SHARE * usual:
                break  # the rest carries more
            found[rate.sample.series.key] = usual
        if len(found) < len(own):
            low.update(found)
    return low


def _low_gpus(rates: Sequence[_Rate], busy: set[_Unit]) -> dict[tuple[str, ...], float]:
    """All links of busy GPUs that are low among the GPUs of their node, with the median of those."""
    units = _by_unit(rates)
    if len(units) < COHORT:
        return {}
    usual = {unit: median(link.value for link in links) for unit, links in units.items()}
    middle = median(usual.values())
    slow = [unit for unit, value in usual.items() if value <= SHARE * middle]
    if middle < LEAST or not slow or len(slow) * 4 > len(units):
        return {}
    return {
        link.sample.series.key: middle
        for unit in slow
        if unit in busy
        for link in units[unit]
        if link.value <= SHARE * middle
    }
