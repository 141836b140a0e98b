"""Detection of a GPU that throttles because of heat. If all GPUs of a node do, its cooling failed."""

from __future__ import annotations

from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

from tracecore.facts.gpu import THERMAL, ThrottleSample
from tracecore.patterns.config import MINUTE, SECOND, Duration, Fraction, Settings
from tracecore.patterns.contract import NEVER, Confidence, Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.thermal_throttle.heat import GpuHeat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

#: Maximum number of GPUs of one node to compare. Samples without a node may be of the GPUs of many nodes.
MOST = 64

_thermal = attrgetter("thermal")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the throttling must add up within this time.
        active: required duration of throttling within the window.
        ratio: the SM clock is at most this share of the median of the others.
        gap: the time between two samples counts only if they are at most this far apart.
        alone: if all samples of a GPU show throttling, they suffice for any duration. For text that was copied from a
            terminal, which has few samples.
    """

    window: Duration = 5 * MINUTE
    active: Duration = 30 * SECOND
    ratio: Fraction = 0.8
    gap: Duration = MINUTE
    alone: bool = False


def unit(sample: ThrottleSample) -> str:
    """Return the GPU of a sample: its bus id, else its index on the node."""
    return sample.gpu or f"{sample.index}"


class ThermalThrottleVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the sample at the begin of the decisive throttling.
        last: the sample that decides.
        seconds: throttled time between them.
        reference: the SM clock to compare with, in MHz: the median of the other GPUs of the node, or its own before.
        peer: a sample of another GPU at that time; None if it is compared with itself.
        clock: its own SM clock in MHz; None if it is not known.
        gpus: all GPUs of the node, if all of them throttle; else empty.
    """

    pattern_id: ClassVar[str] = "4"
    pattern_name: ClassVar[str] = "thermal_throttle"
    role: ClassVar[Role] = "cause"
    ends: ClassVar[bool] = False

    first: ThrottleSample
    last: ThrottleSample
    seconds: float
    clock: float | None = None
    reference: float | None = None
    peer: ThrottleSample | None = None
    gpus: tuple[str, ...] = ()

    @property
    def _node(self) -> str | None:
        return self.last.node

    @property
    def _gpu(self) -> str:
        return unit(self.last)

    @property
    def _where(self) -> str:
        return f" on {self._node}" if self._node else ""

    def headline(self) -> str:
        hot = f" at {self.last.temperature_c:g} °C" if self.last.temperature_c is not None else ""
        clocks = ""
        if self.reference is not None:
            whose = "the median of its peers is" if self.peer is not None else "unthrottled it ran at"
            clocks = f": SM clock {self.clock:g} MHz, {whose} {self.reference:g} MHz"
        if self.gpus:
            return (
                f"All {len(self.gpus)} GPUs{self._where or ' of the node'} throttle because of heat: its cooling fails"
            )
        return f"GPU {self._gpu}{self._where} throttles because of heat{hot}{clocks}"

    def remediation(self) -> str:
        node = self._node or "NODE"
        look = "`nvidia-smi -q -d TEMPERATURE,PERFORMANCE,CLOCK"
        if self.gpus:
            return (
                f"Cooling of {node}, not one GPU: look at its fans, inlet temperature and coolant "
                f"(`ipmitool -H {node}-bmc sdr type Fan`, `ipmitool -H {node}-bmc sdr type Temperature`), then "
                f"{look}` on it. Keep new work off it until inlet temperature is normal: `kubectl cordon {node}`."
            )
        gpu = self._gpu
        return (
            f"On {node}: {look} -i {gpu}`. Only this GPU is hot, so look at its own heat sink, fan or cold plate and "
            f"at what blocks the air before it. Move the job off it (`kubectl cordon {node}`, then restart the job "
            f"elsewhere) and have GPU {gpu} reseated; `dcgmi diag -r 3` tells whether it holds its clock again."
        )

    def evidence(self) -> Sequence[Fact]:
        facts = {sample.source: sample for sample in (self.first, self.last, self.peer) if sample is not None}
        return sorted(facts.values(), key=lambda sample: (sample.time, sample.uid))

    def missing_layers(self) -> tuple[str, ...]:
        if self.confidence == "full":
            return ()
        return ("unthrottled_clock",) if self.gpus else ("time_throttled",)

    def fields(self) -> dict[str, Any]:
        compared = "own" if self.peer is None else "peers"
        fields = {
            "scope": "node" if self.gpus else "gpu",
            "throttled_seconds": round(self.seconds, 3),
            "gpus": list(self.gpus) or None,
            "gpu.id": None if self.gpus else self.last.gpu,
            "hw.gpu.index": None if self.gpus else self.last.index,
            "k8s.node.name": self._node,
            "temperature_c": self.last.temperature_c,
            "sm_clock_mhz": self.clock,
            "reference_mhz": self.reference,
            "reference": None if self.reference is None else compared,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "gpu.id": None if self.gpus else self.last.gpu,
            "k8s.node.name": self._node,
            "hw.gpu.temperature": self.last.temperature_c,
            "hw.gpu.throttle.reason": self.last.reason,
            "tracecore.alert.thermal_throttle.scope": "node" if self.gpus else "gpu",
            "tracecore.alert.thermal_throttle.seconds": round(self.seconds, 3),
        }

    def suspects(self) -> Suspects:
        nodes = (self._node,) if self._node else ()
        return Suspects(nodes=nodes, gpus=() if self.gpus or self.last.gpu is None else (self.last.gpu,))


class ThermalThrottle(Pattern[Config]):
    """A GPU throttles because of heat for long enough, and its clock is well below that of its peers.

    A GPU alone on its node is compared with its own clock before. A power cap lowers clocks too, but does not count.
    """

    id = "4"
    name = "thermal_throttle"
    role = "cause"
    maturity = "experimental"
    needs = (ThrottleSample,)
    triggers = (ThrottleSample,)
    Config = Config

    @property
    def horizon(self) -> int:
        # The GPUs of a node heat up one after the other, and each is compared with its clock of a window before.
        return 3 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is ThrottleSample and fact.gpu is None and fact.index is None:
            return ()
        return ((fact.node or "",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        if True not in window.distinct(ThrottleSample, _thermal):
            return []
        gpus: dict[str, GpuHeat] = {}
        found: dict[str, ThermalThrottleVerdict] = {}
        hot: list[ThrottleSample] | None = None
        time = NEVER
        # Samples are many and nearly all show nothing, so this loop calls no functions and creates no objects for them.
        for sample in window.of(ThrottleSample):
            if sample.time != time:
                if hot is not None:
                    self._judge(window, gpus, hot, found)
                    hot = None
                time = sample.time
            name = sample.gpu or f"{sample.index}"
            if name in gpus:
                gpu = gpus[name]
            else:
                gpu = gpus[name] = GpuHeat()
            gpu.last = sample
            reason, throttled_s = sample.reason, sample.throttled_s
            if reason in THERMAL and (throttled_s is None or throttled_s > 0):
                if hot is None:
                    hot = [sample]
                else:
                    hot.append(sample)
            elif reason in THERMAL or (reason is not None and throttled_s is None):
                if gpu.ended is not None and gpu.ended.time < time:
                    gpu.ended_before = gpu.ended
                gpu.ended = sample
            if sample.sm_clock_mhz is not None:
                gpu.clock = sample
                throttled, ended = gpu.throttled, gpu.ended
                cool = throttled is None or (ended is not None and ended.time > throttled.time)
                if cool and (reason is None or reason == "none"):
                    if gpu.free is not None and gpu.free.time < time:
                        gpu.free_before = gpu.free
                    gpu.free = sample
        if hot is not None:
            self._judge(window, gpus, hot, found)
        if self.config.alone and not found:
            found = {
                name: self._verdict(window, gpus, name, gpu.throttled, confidence="partial")
                for name, gpu in islice(gpus.items(), MOST)
                if gpu.throttled is not None and gpu.ended is None and gpu.free is None and self._is_slow(gpus, name)
            }
        node = found.get("")
        return [
            verdict
            for verdict in sorted(found.values(), key=lambda verdict: (verdict.time, verdict.episode))
            if node is None or verdict is node or abs(verdict.time - node.time) > self.config.window
        ]

    def _judge(
        self,
        window: Window,
        gpus: dict[str, GpuHeat],
        hot: Sequence[ThrottleSample],
        found: dict[str, ThermalThrottleVerdict],
    ) -> None:
        """Judge the samples of one instant that show throttling for heat; add verdicts to `found`."""
        oldest = hot[0].time - self.config.window
        for sample in hot:
            name = sample.gpu or f"{sample.index}"
            gpu = gpus[name]
            known = gpu.hot.parts[-1] if gpu.hot.parts else None
            part = gpu.heated(sample, self.config.gap)
            if part is None:
                continue
            if known is not None and known[0].time == part[0].time:
                part = (part[0], max(0, part[1] - known[1]))  # two counters run at once: the longer one counts
            gpu.hot.parts.append(part)
            gpu.hot.total += part[1]
            if name not in found and self._is_slow(gpus, name):
                gpu.slow.parts.append(part)
                gpu.slow.total += part[1]
                if gpu.slow.since(oldest) >= self.config.active:
                    found[name] = self._verdict(window, gpus, name, sample)
        if "" not in found and len(gpus) <= MOST:
            for name in gpus:
                gpu = gpus[name]
                if gpu.hot.total < self.config.active and gpu.last.time >= oldest:
                    return
            node = self._whole_node(window, gpus, hot[-1])
            if node is not None:
                found[""] = node

    def _is_slow(self, gpus: Mapping[str, GpuHeat], name: str) -> bool:
        clock, reference = gpus[name].clock, self._reference(gpus, name)
        return clock is not None and reference is not None and _clock(clock) <= self.config.ratio * reference

    def _others(self, gpus: Mapping[str, GpuHeat], name: str) -> list[ThrottleSample]:
        """Return the latest clocks of the other GPUs of the node at about this time, lowest first."""
        oldest = gpus[name].last.time - self.config.gap
        clocks = [
            gpu.clock
            for other, gpu in islice(gpus.items(), MOST)
            if other != name and gpu.clock and gpu.clock.time >= oldest
        ]
        clocks.sort(key=_clock)
        return clocks

    def _reference(self, gpus: Mapping[str, GpuHeat], name: str) -> float | None:
        """Return the median clock of the others, or for a GPU alone on its node its own clock before it throttled."""
        if clocks := self._others(gpus, name):
            return ((_clock(clocks[(len(clocks) - 1) // 2])) + _clock(clocks[len(clocks) // 2])) / 2
        own = gpus[name]
        if own.free is None or own.last.time - own.free.time > 2 * self.config.window:
            return None
        return own.free.sm_clock_mhz

    def _verdict(
        self,
        window: Window,
        gpus: Mapping[str, GpuHeat],
        name: str,
        last: ThrottleSample,
        confidence: Confidence = "full",
    ) -> ThermalThrottleVerdict:
        gpu = gpus[name]
        others = self._others(gpus, name)
        return ThermalThrottleVerdict(
            key=window.key,
            episode=name,
            time=last.time,
            confidence=confidence,
            first=gpu.slow.parts[0][0] if gpu.slow.parts else last,
            last=last,
            seconds=gpu.slow.total / SECOND,
            clock=gpu.clock.sm_clock_mhz if gpu.clock is not None else None,
            reference=self._reference(gpus, name),
            peer=others[(len(others) - 1) // 2] if others else None,
        )

    def _whole_node(
        self, window: Window, gpus: Mapping[str, GpuHeat], sample: ThrottleSample
    ) -> ThermalThrottleVerdict | None:
        """Return a verdict on the node if all sampled GPUs throttle and none is known to keep its clock."""
        oldest = sample.time - self.config.window
        present = {name: gpu for name, gpu in gpus.items() if gpu.last.time >= oldest}
        if len(present) < 2 or any(gpu.hot.since(oldest) < self.config.active for gpu in present.values()):
            return None
        kept = [
            _clock(gpu.clock) / gpu.free.sm_clock_mhz
            for gpu in present.values()
            if gpu.clock is not None
            and gpu.free is not None
            and gpu.free.sm_clock_mhz
            and sample.time - gpu.free.time <= 2 * self.config.window
        ]
        if kept and min(kept) > self.config.ratio:
            return None
        hot = gpus[unit(sample)].hot
        return ThermalThrottleVerdict(
            key=window.key,
            episode="node",
            time=sample.time,
            confidence="full" if kept else "partial",
            first=hot.parts[0][0],
            last=sample,
            seconds=hot.total / SECOND,
            gpus=tuple(sorted(present)),
        )


def _clock(sample: ThrottleSample) -> float:
    return sample.sm_clock_mhz or 0.0
