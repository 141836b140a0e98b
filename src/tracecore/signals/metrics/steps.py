"""Per-rank steps that a training program reports as metrics and not in its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tracecore.signals.metrics.bridge import BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.record import Attributes, LogSignal

_STEP: Final = "gen_ai.training.step"


class StepBridge:
    """One record for each step that a rank has made between two scrapes.

    A gauge repeats its last value for as long as nothing happens; only a step that is larger than the one before is one
    that was made. A smaller one is a restart.
    """

    names: Final = frozenset(
        {
            _STEP, "tracecore.training.iter_time_s", "tracecore.training.data_time_s", "tracecore.training.loss",
            "tracecore.training.grad_norm",
        }
    )  # fmt: skip

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        self._steps: BridgeMemory[float] = BridgeMemory(limits or BridgeLimits())
        self._looks: dict[tuple[str, ...], dict[str, Sample]] = {}

    @property
    def dropped(self) -> int:
        return self._steps.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        get = sample.series.identity.get
        if (rank := get("gen_ai.training.rank")) is not None:
            who = (str(get("gen_ai.training.job_id", "")), str(get("k8s.namespace.name", "")), str(rank))
            self._looks.setdefault(who, {}).setdefault(sample.series.name, sample)
        return ()

    def settle(self, time: int) -> Sequence[LogSignal]:
        if not self._looks:
            return ()
        out: list[LogSignal] = []
        for who, look in self._looks.items():
            step = look.get(_STEP)
            if step is None or step.value < 0:
                continue
            last = self._steps.get(who)
            self._steps.put(who, step.value, time)
            if last is not None and step.value != last:
                stamped: Attributes = {name: sample.value for name, sample in look.items() if name != _STEP}
                stamped[_STEP] = int(step.value)
                out.append(record(step, "training.step", stamped))
        self._looks = {}
        return out
