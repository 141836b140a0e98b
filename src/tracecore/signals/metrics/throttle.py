"""One look at each GPU for each scrape: how hot, how fast, and why not faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tracecore.signals.metrics.bridge import STALE, BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stamps import SECOND

#: NVML's bits. 0x8 is set for heat and for power alike, so alone it names neither.
_BITS: Final = {
    0x4: "power", 0x8: "slowdown_hardware", 0x10: "sync_boost", 0x20: "thermal_software", 0x40: "thermal_hardware",
    0x80: "power_brake",
}  # fmt: skip
#: Which reason a look is given when several hold: what heats before what saves.
_FIRST: Final = ("thermal_hardware", "thermal_software", "power", "power_brake", "slowdown_hardware")
_THERMAL: Final = frozenset({"thermal_hardware", "thermal_software"})
#: Not reasons to be slow, or not the GPU's: an idle GPU, a clock somebody has set.
_NOT_THROTTLED: Final = frozenset({"none", "idle", "applications_clocks", "low_utilization"})


#: Older versions of DCGM count violations in microseconds, newer ones in nanoseconds, as which recipes take them. What
#: is at least this share of the time that passed, taken as microseconds, was counted in those: throttling for less than
#: a thousandth of the time does not last from one sample to the next.
_MICROSECONDS: Final = 1000
_SHARE: Final = 0.25
#: Exporters read a counter somewhat before or after the time that they write beside it.
_JITTER: Final = 1.1


class _Look(msgspec.Struct):
    """The samples of one instant about one GPU.

    Args:
        sample: any of them.
        by: the sample that tells the clock, and those that tell reasons, by which.
        active: reasons that hold at this instant.
        asked: reasons that were asked for, active or not.
        lasted: seconds that a reason held since the sample before.
    """

    sample: Sample
    by: dict[str, Sample] = msgspec.field(default_factory=dict)
    clock: float | None = None
    temperature: float | None = None
    active: set[str] = msgspec.field(default_factory=set)
    asked: set[str] = msgspec.field(default_factory=set)
    lasted: dict[str, float] = msgspec.field(default_factory=dict)


class ThrottleBridge:
    """Merges temperature, SM clock and the reasons for throttling of a GPU into one record for each instant."""

    names: Final = frozenset(
        {
            "hw.gpu.temperature", "hw.gpu.clock.sm", "hw.gpu.clock", "hw.gpu.throttle.mask", "hw.gpu.throttle.active",
            "hw.gpu.throttle.events", "hw.gpu.throttle.duration", "hw.gpu.throttle.counter",
        }
    )  # fmt: skip

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        #: Value and time; and what it was before it fell to nothing, while it stands there.
        self._counters: BridgeMemory[tuple[float, int, float]] = BridgeMemory(limits or BridgeLimits())
        self._looks: dict[tuple[str, str], _Look] = {}

    @property
    def dropped(self) -> int:
        return self._counters.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        name, value = sample.series.name, sample.value
        look = self._looks.get(sample.series.unit)
        if look is None:
            look = self._looks[sample.series.unit] = _Look(sample)
        if name == "hw.gpu.temperature":
            look.temperature = value if look.temperature is None else max(value, look.temperature)
        elif name == "hw.gpu.clock.sm" or (
            name == "hw.gpu.clock" and sample.series.attributes.get("hw.gpu.clock.kind") == "sm"
        ):
            look.clock = value if look.clock is None else min(value, look.clock)
            look.by["clock"] = sample
        elif name == "hw.gpu.throttle.mask":
            self._mask(look, sample)
        elif name.startswith("hw.gpu.throttle."):
            self._reason(look, sample)
        return ()

    def _mask(self, look: _Look, sample: Sample) -> None:
        mask = int(sample.value) if 0 <= sample.value < 2**53 else 0
        look.asked.update(_BITS.values())
        active = {reason for bit, reason in _BITS.items() if mask & bit}
        look.active |= active
        look.by.update(dict.fromkeys(active, sample))

    def _reason(self, look: _Look, sample: Sample) -> None:
        reason = sample.series.attributes.get("hw.gpu.throttle.reason")
        if not isinstance(reason, str):
            return
        if sample.series.name == "hw.gpu.throttle.active":
            look.asked.add(reason)
            if sample.value > 0:
                look.active.add(reason)
                look.by[reason] = sample
            return
        last = self._counters.get(sample.series.key)
        if last is not None and sample.time <= last[1]:
            return
        before = 0.0
        if last is not None and sample.value == 0:
            before = last[0] or last[2]
        self._counters.put(sample.series.key, (sample.value, sample.time, before), sample.time)
        if last is None or sample.time - last[1] > STALE or sample.value < last[0]:
            return  # first seen, unseen for long, or counted anew: what happened in between is not known
        if last[2] and sample.value >= last[2]:
            return  # an exporter that had just started said nothing for a moment
        look.asked.add(reason)
        delta = sample.value - last[0]
        if delta <= 0:
            return
        if sample.series.name == "hw.gpu.throttle.duration":
            # No reason can hold for longer than the time that passed.
            elapsed = (sample.time - last[1]) / SECOND
            if sample.series.origin.upper().endswith("_VIOLATION") and _SHARE * elapsed <= delta * _MICROSECONDS:
                delta = delta * _MICROSECONDS if delta * _MICROSECONDS <= elapsed * _JITTER else delta
            look.lasted[reason] = max(look.lasted.get(reason, 0.0), min(delta, elapsed))
        else:
            look.active.add(reason)
        look.by.setdefault(reason, sample)

    def settle(self, time: int) -> Sequence[LogSignal]:
        looks, self._looks = self._looks, {}
        return [made for look in looks.values() if (made := _record(look)) is not None]


def _record(look: _Look) -> LogSignal | None:
    stamped: Attributes = {}
    if look.temperature is not None:
        stamped["hw.gpu.temperature"] = look.temperature
    if look.clock is not None:
        stamped["hw.gpu.clock.sm"] = look.clock
    held = (look.active | look.lasted.keys()) - _NOT_THROTTLED
    reason = ""
    if held:
        reason = next((first for first in _FIRST if first in held), min(held))
        stamped["hw.gpu.throttle.reason"] = reason
        # One counter of DCGM's is for heat of both kinds.
        alike = _THERMAL if reason in _THERMAL else {reason}
        if lasted := [look.lasted[other] for other in sorted(alike) if other in look.lasted]:
            stamped["hw.gpu.throttle.duration"] = max(lasted)
    elif look.asked & _THERMAL:
        # Asked about power alone, silence would say nothing about heat.
        stamped["hw.gpu.throttle.reason"] = "none"
    if not stamped:
        return None
    # Heat is cited by what tells of it, all else by the clock.
    cited = look.by.get(reason) if reason in _THERMAL else look.by.get("clock")
    return record(cited or look.by.get(reason) or look.sample, "hw.gpu.throttle", stamped)
