"""Detection of results that are wrong although nothing reported an error."""

from __future__ import annotations

from bisect import bisect_right
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.gpu import SdcCounter, WrongResult
from tracecore.facts.training import EvalAccuracy, ReplicaMismatch, ResultRecomputed
from tracecore.patterns.config import DAY, Duration, Settings
from tracecore.patterns.contract import NEVER, Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.scope import job_keys
from tracecore.patterns.silent_data_corruption.counters import CorruptionCounters
from tracecore.patterns.silent_data_corruption.recomputed import recomputed
from tracecore.patterns.silent_data_corruption.replicas import differing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Discriminator: TypeAlias = Literal["vendor_signaled", "accuracy_only"]
_time = attrgetter("time")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        drop: accuracy must have fallen by this fraction of 1 if a counter rose, and by twice that if none did.
        memory: a rise of a counter counts if it is this close to an evaluation.
    """

    drop: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.005
    memory: Duration = 7 * DAY


class SilentDataCorruptionVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        evaluation: the evaluation with the lower accuracy.
        drop: fall of the accuracy, as a fraction of 1.
        counter: the first counter of the vendor that rose while the job ran; None if none did.
        rises: sum of the rises of all counters.
    """

    pattern_id: ClassVar[str] = "13"
    pattern_name: ClassVar[str] = "silent_data_corruption"
    role: ClassVar[Role] = "cause"

    evaluation: EvalAccuracy
    drop: float
    counter: SdcCounter | None = None
    rises: int = 0

    @property
    def discriminator(self) -> Discriminator:
        return "accuracy_only" if self.counter is None else "vendor_signaled"

    def headline(self) -> str:
        job = f" of job {self.evaluation.job}" if self.evaluation.job else ""
        before, after = self.evaluation.baseline, self.evaluation.observed
        fell = f"Accuracy{job} fell to {after:g} from its baseline of {before:g} with no error"
        if self.counter is None and self.evaluation.compared:
            on = f" on {self.evaluation.node}" if self.evaluation.node else ""
            return f"Accuracy{job} is {after:g}{on}, not {before:g} as on other machines, and nothing reports an error"
        if self.counter is None:
            return f"{fell}; silent data corruption is possible"
        where = f" on GPU {self.counter.gpu}" if self.counter.gpu else ""
        node = f" of {self.counter.node}" if self.counter.node else ""
        return f"{fell}, and a corruption counter{where}{node} rose by {self.rises} while it ran"

    def remediation(self) -> str:
        step = self.evaluation.checkpoint_step
        which = f"the checkpoint of step {step}" if step is not None else "the same checkpoint"
        again = (
            f"Advisory. Evaluate {which} again on other hardware, same data and seed: if the accuracy comes back, the "
            f"first hardware computed it wrong; if it does not, train from the last good checkpoint on other hardware "
            f"and compare."
        )
        if self.counter is None and self.evaluation.compared and self.evaluation.node:
            node = self.evaluation.node
            return f"{again} Keep work off {node}: `kubectl cordon {node}`, then `dcgmi diag -r 4` on it."
        if self.counter is None:
            job = f"job {self.evaluation.job}" if self.evaluation.job else "the job"
            return f"{again} Test the nodes of {job} with `dcgmi diag -r 4` before they take other work."
        node = self.counter.node or "NODE"
        gpu = f" (GPU {self.counter.gpu})" if self.counter.gpu else ""
        return f"{again} Keep work off {node}{gpu}: `kubectl cordon {node}`, then `dcgmi diag -r 4` on it."

    def evidence(self) -> Sequence[Fact]:
        facts: list[Fact] = [self.evaluation] if self.counter is None else [self.counter, self.evaluation]
        return sorted(facts, key=lambda fact: fact.time)

    def missing_layers(self) -> tuple[str, ...]:
        return ("corruption_counter",) if self.counter is None else ()

    def fields(self) -> dict[str, Any]:
        counter = self.counter
        fields: dict[str, Any] = {
            "discriminator": self.discriminator,
            "observed": self.evaluation.observed,
            "baseline": self.evaluation.baseline,
            "drop": self.drop,
            "gen_ai.training.job_id": self.evaluation.job,
            "gen_ai.training.checkpoint.step": self.evaluation.checkpoint_step,
        }
        if counter is not None:
            fields |= {"gpu.id": counter.gpu, "k8s.node.name": counter.node, "counter": counter.counter}
            fields["rises"] = self.rises
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "gen_ai.training.job_id": self.evaluation.job,
            "gpu.id": self.counter.gpu if self.counter is not None else None,
            "k8s.node.name": self.counter.node if self.counter is not None else None,
            "tracecore.alert.silent_data_corruption.discriminator": self.discriminator,
            "tracecore.alert.silent_data_corruption.drop": self.drop,
        }

    def suspects(self) -> Suspects:
        """Return the GPU of a counter that rose, else the machine that alone evaluates wrongly, else nothing.

        The rank that evaluated need not be the one that computed wrongly.
        """
        if self.counter is None and self.evaluation.compared and self.evaluation.node:
            return Suspects(nodes=(self.evaluation.node,))
        return Suspects() if self.counter is None else Suspects.of((self.counter,))


class WrongResultVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        check: the first check of this GPU that got wrong results.
    """

    pattern_id: ClassVar[str] = "13"
    pattern_name: ClassVar[str] = "silent_data_corruption"
    role: ClassVar[Role] = "cause"

    check: WrongResult

    def headline(self) -> str:
        who = self.check.who
        on = f" on {self.check.node}" if self.check.node else ""
        return (
            f"{who[0].upper()}{who[1:]}{on} computes wrong results without an error: a check got {self.check.results}"
        )

    def remediation(self) -> str:
        node = self.check.node or "its node"
        return (
            f"Keep work off {node} (`kubectl cordon {self.check.node or 'NODE'}`) and run `dcgmi diag -r 4` there; "
            f"{self.check.who} is to be replaced when the check fails again. What was trained on it since the last "
            f"check may be wrong: evaluate its checkpoints on other hardware, and go back to the last good one."
        )

    def evidence(self) -> Sequence[Fact]:
        return (self.check,)

    def fields(self) -> dict[str, Any]:
        check = self.check
        fields = {
            "discriminator": "self_check",
            "gpu.id": check.gpu,
            "hw.gpu.index": check.index,
            "gen_ai.training.rank": check.rank,
            "wrong": check.wrong,
            "k8s.node.name": check.node,
            "gen_ai.training.job_id": check.job,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "gpu.id": self.check.gpu,
            "k8s.node.name": self.check.node,
            "gen_ai.training.job_id": self.check.job,
            "tracecore.alert.silent_data_corruption.discriminator": "self_check",
        }


class SilentDataCorruption(Pattern[Config]):
    """Wrong results without an error, told in one of four ways.

    - Accuracy below its baseline and a corruption counter that rose while the job ran, or accuracy far below it.
    - A result that came out differently when the program computed it again.
    - A check that knows its results and got wrong ones on a GPU.
    - A rank whose parameters differ from those of its replicas.

    Accuracies on different data or of different checkpoints are not compared. Consecutive low evaluations of one
    attempt are one episode. One window holds all jobs, because exporters know the node of a counter but seldom the job.
    """

    id = "13"
    name = "silent_data_corruption"
    role = "cause"
    maturity = "experimental"
    needs = (EvalAccuracy, SdcCounter, ResultRecomputed, WrongResult, ReplicaMismatch)
    triggers = (EvalAccuracy, ResultRecomputed, WrongResult, ReplicaMismatch)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return () if isinstance(fact, SdcCounter) and fact.delta < 1 else (("",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        counters = CorruptionCounters(window.of(SdcCounter), window.skew)
        jobs = window.grouped(EvalAccuracy, _job)
        observed = window.grouped(EvalAccuracy, _job_and_observed)
        found = [verdict for job in jobs for verdict in self._low(counters, job, jobs[job], observed)]
        found += recomputed(window.of(ResultRecomputed), self.config.memory)
        found += self._checked(window.of(WrongResult))
        found += differing(window.of(ReplicaMismatch))
        return sorted(found, key=lambda verdict: (verdict.time, verdict.key))

    def _checked(self, checks: Sequence[WrongResult]) -> Iterator[Verdict]:
        """Yield a verdict for each GPU that computes wrongly; a check that fails again soon is the same episode."""
        last: dict[tuple[object, ...], int] = {}
        for check in checks:
            gpu = check.node, check.gpu, check.index, check.rank
            before = last.get(gpu, NEVER)
            last[gpu] = max(before, check.end)
            if check.time - before > self.config.memory:
                key = (check.node or "", check.who)
                yield WrongResultVerdict(key=key, episode=check.source, time=check.time, check=check)

    def _low(
        self,
        counters: CorruptionCounters,
        job: Key,
        evaluations: Sequence[EvalAccuracy],
        observed: Mapping[tuple[Key, float], Sequence[EvalAccuracy]],
    ) -> Iterator[Verdict]:
        # The attempt whose evaluations are low.
        low = NEVER
        for evaluation in evaluations:
            drop = drop_of(evaluation)
            if drop is None:
                continue
            if drop < self.config.drop or not self._comparable(evaluation, job, observed):
                low = NEVER
                continue
            if evaluation.attempt <= low:
                continue
            counter, rises, skew = counters.during(evaluation, self.config.memory)
            if evaluation.compared and not self._others_evaluate_well(evaluation, evaluations):
                continue
            if counter is not None or drop >= 2 * self.config.drop:
                low = evaluation.attempt
                yield SilentDataCorruptionVerdict(
                    key=job,
                    episode=evaluation.source,
                    time=evaluation.time if counter is None else max(evaluation.time, counter.time),
                    confidence="partial" if counter is None else "full",
                    skew=skew,
                    evaluation=evaluation,
                    drop=drop,
                    counter=counter,
                    rises=rises,
                )

    def _others_evaluate_well(self, evaluation: EvalAccuracy, others: Sequence[EvalAccuracy]) -> bool:
        """Return whether another machine evaluated the same checkpoint and got the expected accuracy."""
        return evaluation.checksum is not None and any(
            other.compared
            and other.checksum == evaluation.checksum
            and other.node not in (None, evaluation.node)
            and (drop_of(other) or 0.0) < self.config.drop
            for other in others
        )

    def _comparable(
        self,
        evaluation: EvalAccuracy,
        job: Key,
        observed: Mapping[tuple[Key, float], Sequence[EvalAccuracy]],
    ) -> bool:
        """Return whether the baseline may be of the same data and checkpoint.

        Data and checkpoint of the baseline are in the evaluation, or in the earlier evaluation that observed it.
        """
        checksum, step = evaluation.baseline_checksum, evaluation.baseline_step
        if checksum is None and step is None and evaluation.baseline is not None:
            same = observed.get((job, evaluation.baseline), ())
            place = bisect_right(same, evaluation.time, key=_time) - 1
            if place >= 0 and same[place].time >= evaluation.time - self.config.memory:
                checksum, step = same[place].checksum, same[place].checkpoint_step
        return _agree(evaluation.checksum, checksum) and _agree(evaluation.checkpoint_step, step)


def _job(evaluation: EvalAccuracy) -> Key:
    return job_keys(evaluation)[0]


def _job_and_observed(evaluation: EvalAccuracy) -> tuple[Key, float]:
    return _job(evaluation), evaluation.observed


def drop_of(evaluation: EvalAccuracy) -> float | None:
    """Return the baseline minus the observed accuracy, as a fraction of 1; accuracies above 1 are percent."""
    if evaluation.baseline is None or not isfinite(evaluation.baseline - evaluation.observed):
        return None
    scale = 100.0 if max(evaluation.baseline, evaluation.observed) > 1.0 else 1.0
    # Decimal fractions are not exact in binary: 0.9 minus 0.895 must be 0.005.
    return round((evaluation.baseline - evaluation.observed) / scale, 9)


def _agree(one: object, other: object) -> bool:
    return one is None or other is None or one == other
