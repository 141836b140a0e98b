"""Free memory of GPUs, one record for each GPU and scrape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracecore.signals.metrics.bridge import BridgeLimits, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal


class FramebufferBridge:
    """Merges free, used and total memory of a GPU.

    An instance of a GPU that is cut in several (MIG) has memory of its own, which says nothing about what another
    process could have had: such samples are left out.
    """

    names: Final = frozenset(
        {"hw.gpu.memory.free", "hw.gpu.memory.used", "hw.gpu.memory.total", "hw.gpu.memory.reserved"}
    )
    dropped: Final = 0

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        self._looks: dict[tuple[str, str], dict[str, Sample]] = {}

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        if not sample.series.mig and sample.value >= 0:
            look = self._looks.setdefault(sample.series.unit, {})
            look.setdefault(sample.series.name.rpartition(".")[2], sample)
        return ()

    def settle(self, time: int) -> Sequence[LogSignal]:
        looks, self._looks = self._looks, {}
        return [made for look in looks.values() if (made := _record(look)) is not None]


def _record(look: dict[str, Sample]) -> LogSignal | None:
    free, used, total = look.get("free"), look.get("used"), look.get("total")
    stamped: Attributes = {}
    if free is not None:
        stamped["hw.gpu.memory.free"] = int(free.value)
    if total is not None:
        stamped["hw.gpu.memory.total"] = int(total.value)
    elif free is not None and used is not None:
        reserved = look["reserved"].value if "reserved" in look else 0.0
        stamped["hw.gpu.memory.total"] = int(free.value + used.value + reserved)
    said = free or total
    return None if said is None else record(said, "hw.gpu.memory", stamped)
