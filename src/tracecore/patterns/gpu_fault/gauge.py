"""What the exporter's gauge of the last Xid adds to a kernel log: that somebody else saw it, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracecore.patterns.gpu_fault.action import LINK
from tracecore.patterns.scope import gpu_keys

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.facts.gpu import XidGauge
    from tracecore.patterns.contract import Key

#: The window of a node in which the two ends of a link meet.
PEERS = "nvlink"


def gauge_keys(gauge: XidGauge) -> tuple[Key, ...]:
    """Where the Xid it shows is judged: its GPU's windows, for an error of a link the node's."""
    if gauge.code == LINK:
        return ((gauge.node or "", PEERS),) if gauge.gpu else ()
    return gpu_keys(gauge)


def corroboration(gauges: Sequence[XidGauge], fact: Fact, codes: Collection[int], window: int) -> XidGauge | None:
    """The first gauge that shows one of these Xids, on the GPU of this fact and near it in time.

    A gauge that stood there long before tells of another time. Where the kernel log does not say which machine it is
    of, exporters of two machines are none.
    """
    near = [
        gauge
        for gauge in gauges
        if gauge.code in codes and gauge.gpu == fact.gpu and abs(gauge.time - fact.time) <= window
    ]
    return near[0] if near and len({gauge.node for gauge in near}) == 1 else None
