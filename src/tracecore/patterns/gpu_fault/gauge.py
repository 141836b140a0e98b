"""Gauges of exporters that show the last Xid of a GPU, which confirm a kernel log."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from tracecore.facts.fact import order
from tracecore.patterns.gpu_fault.action import LINK
from tracecore.patterns.scope import gpu_keys
from tracecore.patterns.timeline import ValueChanges, grouped

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.facts.gpu import XidGauge
    from tracecore.patterns.contract import Key

#: Key of the window of a node in which facts about several GPUs, such as both ends of a link, are joined.
PEERS = "nvlink"
_time = attrgetter("time")
_node = attrgetter("node")
_of_gpu = attrgetter("gpu", "code")
_of_node = attrgetter("node", "gpu", "code")


def gauge_keys(gauge: XidGauge) -> tuple[Key, ...]:
    """Return the windows in which the Xid is judged: that of the GPU, or that of the node for an error of a link."""
    if gauge.code == LINK:
        return ((gauge.node or "", PEERS),) if gauge.gpu else ()
    return gpu_keys(gauge)


class Gauges:
    """The exporters' gauges of a window, to find those that show an Xid.

    Args:
        gauges: in order of time.
    """

    __slots__ = ("_all", "_changes", "_gpus", "_nodes")

    def __init__(self, gauges: Sequence[XidGauge]) -> None:
        self._all = gauges
        self._gpus = grouped(gauges, _of_gpu)
        self._changes = {name: ValueChanges(map(_node, group)) for name, group in self._gpus.items()}
        self._nodes: dict[tuple[str | None, str | None, int], list[XidGauge]] | None = None

    def __bool__(self) -> bool:
        return bool(self._all)

    def near(self, fact: Fact, codes: Collection[int], within: int) -> XidGauge | None:
        """Return the first gauge that shows one of these Xids, on the GPU of this fact and near it in time.

        Return None if the gauges are of two machines, because the kernel log may not name its machine.
        """
        found: list[XidGauge] = []
        for code in codes:
            name = (fact.gpu, code)
            group = self._gpus.get(name, [])
            begin, end = _range(group, fact.time - within, fact.time + within)
            if self._changes[name].between(begin, end) if begin < end else False:
                return None
            found += group[begin : min(end, begin + 1)]
        return _only(found)

    def near_on(self, fact: Fact, code: int, within: int) -> XidGauge | None:
        """Do the same with the gauges of the fact's node, and those that do not name their node."""
        if fact.node is None:
            return self.near(fact, (code,), within)
        if self._nodes is None:
            self._nodes = grouped(self._all, _of_node)
        found: list[XidGauge] = []
        for node in (fact.node, None):
            group = self._nodes.get((node, fact.gpu, code), [])
            begin, end = _range(group, fact.time - within, fact.time + within)
            found += group[begin : min(end, begin + 1)]
        return _only(found)


def _range(gauges: list[XidGauge], oldest: int, newest: int) -> tuple[int, int]:
    return bisect_left(gauges, oldest, key=_time), bisect_right(gauges, newest, key=_time)


def _only(gauges: list[XidGauge]) -> XidGauge | None:
    """Return the first gauge, if all are of one node."""
    return min(gauges, key=order) if len({gauge.node for gauge in gauges}) == 1 else None
