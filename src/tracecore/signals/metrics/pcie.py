"""PCIe traffic of a GPU that falls far below what it used to be, and links that lost lanes."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import msgspec

from tracecore.signals.metrics.bridge import STALE, BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.flow import Flow, FlowMemory
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stamps import SECOND

#: How far back a GPU's own traffic is its baseline, and how many flows make one.
BASELINE: Final = 600 * SECOND
FEWEST: Final = 3
MOST: Final = 128
#: A rate at or under this share of the baseline is low.
SHARE: Final = 0.5
#: For how long it must be low: shorter than that it is the rhythm of the program's steps.
HOLD: Final = 10 * SECOND
#: Bytes per second below which a baseline means nothing.
LEAST: Final = 1_000_000.0


class _PcieFlow(msgspec.Struct):
    """
    Args:
        usual: flows that were not low, oldest first.
        low_since: since when it is low.
        told: that it is low has been said.
        last: time of the last flow.
    """

    usual: deque[Flow]
    low_since: int | None = None
    told: bool = False
    last: int = 0


class PcieBridge:
    """Says once when a GPU's PCIe rate collapses against its own baseline, for each direction.

    Whether the link or the workload is the reason is not known here. A GPU that is measured to be idle has no traffic
    to lose.
    """

    names: Final = frozenset({"hw.gpu.io", "hw.gpu.utilization"})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        limits = limits or BridgeLimits()
        self._flows = FlowMemory(limits)
        self._ports: BridgeMemory[_PcieFlow] = BridgeMemory(limits)
        self._new: list[tuple[Sample, Flow]] = []
        self._idle: set[tuple[str, str]] = set()

    @property
    def dropped(self) -> int:
        return self._flows.dropped + self._ports.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        if sample.series.mig:
            return ()
        if sample.series.name == "hw.gpu.utilization":
            if sample.value == 0:
                self._idle.add(sample.series.unit)
        elif flow := self._flows.flow(sample):
            self._new.append((sample, flow))
        return ()

    def settle(self, time: int) -> Sequence[LogSignal]:
        out: list[LogSignal] = []
        for sample, flow in self._new:
            if made := self._judge(sample, flow, idle=sample.series.unit in self._idle):
                out.append(made)
        self._new = []
        self._idle.clear()
        return out

    def _judge(self, sample: Sample, flow: Flow, *, idle: bool) -> LogSignal | None:
        port = self._ports.get(sample.series.key)
        if port is None:
            port = _PcieFlow(deque(maxlen=MOST))
        self._ports.put(sample.series.key, port, flow.time)
        if flow.time - port.last > STALE:
            port.low_since, port.told = None, False
        port.last = flow.time
        if idle:
            return None
        # A baseline is kept while the rate is low, and it ages with it: what is low for long is the new usual.
        while port.usual and flow.time - port.usual[0].time > BASELINE:
            port.usual.popleft()
        manner = self._flows.manner(sample.series, flow.time)
        rate = manner.rate(flow)
        if rate is None:
            return None
        usual = [known for one in port.usual if (known := manner.rate(one)) is not None]
        baseline = median(usual) if len(usual) >= FEWEST else 0.0
        if baseline < LEAST or rate > SHARE * baseline:
            port.usual.append(flow)
            port.low_since, port.told = None, False
            return None
        if port.low_since is None:
            port.low_since = manner.since(flow)
        if port.told or flow.time - port.low_since < HOLD:
            return None
        port.told = True
        prefix = "tracecore.alert.pcie_rate_collapse."
        stamped = {
            prefix + "bytes_per_second": rate,
            prefix + "baseline_bytes_per_second": baseline,
            prefix + "drop_ratio": 1 - rate / baseline,
        }
        direction = sample.series.attributes.get("network.io.direction")
        if isinstance(direction, str):
            return record(sample, "hw.gpu.io.collapse", {**stamped, prefix + "direction": direction})
        return record(sample, "hw.gpu.io.collapse", {**stamped})


#: Bytes per second of one lane, by generation.
LANE: Final = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
_LINK: Final = "hw.gpu.pcie.link."


class PcieLinkBridge:
    """Says once that the link of a GPU has fewer lanes than it could have.

    An idle GPU lowers the speed of its link, and keeps its lanes. Half of them may be all that its slot has, unless
    other GPUs of its machine have them all.
    """

    names: Final = frozenset({_LINK + name for name in ("width", "width.max", "generation", "generation.max")})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        self._told: BridgeMemory[bool] = BridgeMemory(limits or BridgeLimits())
        self._links: dict[tuple[str, str], dict[str, Sample]] = {}

    @property
    def dropped(self) -> int:
        return self._told.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        if not sample.series.mig:
            self._links.setdefault(sample.series.unit, {})[sample.series.name.removeprefix(_LINK)] = sample
        return ()

    def settle(self, time: int) -> Sequence[LogSignal]:
        out: list[LogSignal] = []
        shares = {unit: _lanes(link) for unit, link in self._links.items()}
        whole = {node for (node, _), share in shares.items() if share == 1}
        for unit, link in self._links.items():
            share = shares[unit]
            if share is None:
                continue
            narrow = share <= (0.5 if unit[0] in whole else 0.25)
            if narrow and not self._told.get(unit):
                out.append(_degraded(link))
            self._told.put(unit, narrow, time)
        self._links = {}
        return out


def _lanes(link: dict[str, Sample]) -> float | None:
    """Return the share of its lanes that a link has; None if it was not measured."""
    if "width" not in link or "width.max" not in link or link["width.max"].value <= 0:
        return None
    return link["width"].value / link["width.max"].value


def _degraded(link: dict[str, Sample]) -> LogSignal:
    rate, most = (
        link["width" + end].value * LANE.get(int(known.value) if (known := link.get("generation" + end)) else 4, 2e9)
        for end in ("", ".max")
    )
    prefix = "tracecore.alert.pcie_rate_collapse."
    stamped: Attributes = {
        prefix + "bytes_per_second": rate,
        prefix + "baseline_bytes_per_second": most,
        prefix + "drop_ratio": 1 - rate / most,
    }
    return record(link["width"], "hw.gpu.io.collapse", stamped)
