"""The bridges there are, as one visible, ordered tuple."""

from __future__ import annotations

from typing import Final

from tracecore.signals.metrics.bridge import LATENESS, Bridge, BridgeLimits, Bridges
from tracecore.signals.metrics.conditions import ConditionBridge
from tracecore.signals.metrics.memory import FramebufferBridge
from tracecore.signals.metrics.names import GpuNames
from tracecore.signals.metrics.nvlink import NvlinkBridge
from tracecore.signals.metrics.pcie import PcieBridge, PcieLinkBridge
from tracecore.signals.metrics.ports import PortBridge
from tracecore.signals.metrics.rises import EccBridge, SdcBridge
from tracecore.signals.metrics.steps import StepBridge
from tracecore.signals.metrics.throttle import ThrottleBridge
from tracecore.signals.metrics.xid import XidGaugeBridge

BRIDGES: Final = (
    EccBridge,
    ThrottleBridge,
    PcieBridge,
    PcieLinkBridge,
    NvlinkBridge,
    PortBridge,
    FramebufferBridge,
    StepBridge,
    SdcBridge,
    XidGaugeBridge,
    ConditionBridge,
)


def all_bridges(
    names: GpuNames | None = None, *, lateness: int = LATENESS, limits: BridgeLimits | None = None
) -> Bridges:
    """Every bridge, behind one door."""
    made: list[Bridge] = [bridge(limits) for bridge in BRIDGES]
    return Bridges(made, names, lateness=lateness, limits=limits)
