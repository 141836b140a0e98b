"""Detection of a loss or gradient that is not finite any more, or explodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.training import NonFinite, Progress
from tracecore.patterns.config import HOUR, Count, Duration, Factor, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled, rfc3339, to_the_second
from tracecore.patterns.scope import job_keys
from tracecore.patterns.spread import bucket, close
from tracecore.patterns.training_divergence.course import GRADIENTS, MEASURES, Courses, measured, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Confidence, Key, Window
    from tracecore.patterns.training_divergence.course import AttemptCourses, Course, Report

Kind: TypeAlias = Literal["explicit", "non_finite", "exploding"]

#: In the first steps a loss scaler halves its scale until gradients are finite.
FIRST_STEPS = 16
#: Of several findings of one attempt, the one with the lowest number is reported, then the earliest.
SUREST: dict[Kind, int] = {"explicit": 0, "non_finite": 0, "exploding": 2}


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the reports of one finding lie within this time. A running median looks back this long.
        reports: required number of consecutive reports of a loss that is not finite.
        factor: a value this many times the running median is an explosion.
        persist: required number of consecutive reports of an explosion.
        gradients: required number of consecutive reports of a gradient that is not finite. If it is less than
            `persist`, no finite gradient may follow, and the first steps, in which a loss scaler works, do not count.
            A longer search of a loss scaler in the first steps does not count either if a finite gradient follows.
    """

    window: Duration = HOUR
    reports: Count = 2
    factor: Factor = 10.0
    persist: Count = 5
    gradients: Count = 5


class TrainingDivergenceVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        kind: `explicit` if the program complains, `non_finite` if it only reports the value, or `exploding`.
        what: loss, grad_norm, gradient, activation or parameter.
        first: the first bad report.
        last: the report that decided; the same fact if one was enough.
        finite: the last good report before; None if none was seen.
        usual: the running median before an explosion.
        alone: the only rank with a bad value in the first bad step, while other ranks had good values.
        shared: other ranks followed.
    """

    pattern_id: ClassVar[str] = "19"
    pattern_name: ClassVar[str] = "training_divergence"
    role: ClassVar[Role] = "cause"

    kind: Kind
    what: str
    first: Report
    last: Report
    finite: Progress | None = None
    usual: float | None = None
    alone: int | None = None
    shared: bool = False

    @property
    def _value(self) -> float | None:
        """Return the last finite value of the measure that went wrong, or the last loss for other things."""
        return None if self.finite is None else measured(self.finite, self.what)

    def headline(self) -> str:
        what = self.what.replace("grad_norm", "gradient norm")
        step = f" at step {self.first.step}" if self.first.step is not None else ""
        if not step and not self.first.approximate:
            step = f" at {to_the_second(self.first.time)}"
        who = (
            ""
            if self.alone is None
            else f", first on rank {self.alone}"
            if self.shared
            else f" on rank {self.alone} alone"
        )
        if self.kind == "exploding" and isinstance(self.first, Progress):
            value = measured(self.first, self.what)
            return f"Training explodes: {what} jumped to {value:g} from a median of {self.usual:g}{step}{who}"
        last = ""
        if self._value is not None and self.finite is not None:
            at = f" at step {self.finite.step}" if self.finite.step is not None else ""
            last = f"; the last finite {'loss' if self.what not in GRADIENTS else what} was {self._value:g}{at}"
        return f"Training diverged: {what} is not finite{step}{who}{last}"

    def remediation(self) -> str:
        step = self.first.step
        before = f"before step {step}" if step is not None else "before that"
        batch = f"the batch of rank {self.alone}" if self.alone is not None else "its batches"
        at = f" at step {step}" if step is not None else ""
        return (
            f"Stop the run: checkpoints it writes from now on are unusable. Take the last checkpoint from {before} and "
            f"run the same steps again with the same seed and data and `torch.autograd.set_detect_anomaly(True)`. If "
            f"it fails again at the same step, suspect the data ({batch}{at}: `torch.isfinite` on the inputs) or the "
            f"algorithm: skip that batch, and if it then fails later, lower the learning rate, clip gradients, or "
            f"compute in bf16 instead of fp16. If not, run it on other nodes; if it fails only on the first ones, "
            f"suspect silent corruption and test their GPUs with `dcgmi diag -r 3`."
        )

    def evidence(self) -> Sequence[Fact]:
        facts: list[Fact] = [] if self.finite is None else [self.finite]
        facts += [self.first] if self.last is self.first else [self.first, self.last]
        return sorted(facts, key=lambda fact: fact.time)

    def missing_layers(self) -> tuple[str, ...]:
        return ("non_finite_value",) if self.confidence == "partial" else ()

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "kind": self.kind,
            "what": self.what,
            "began": rfc3339(self.first.time),
            "began_step": self.first.step,
        }
        if self.finite is not None and self._value is not None:
            fields |= {"last_finite": self._value, "last_finite_step": self.finite.step}
        return filled({**fields, "median": self.usual, "gen_ai.training.rank": self.alone})

    def promoted(self) -> dict[str, Any]:
        return {
            "gen_ai.training.step": self.first.step,
            "gen_ai.training.rank": self.alone,
            "tracecore.alert.training_divergence.kind": self.kind,
            "tracecore.alert.training_divergence.what": self.what,
            "tracecore.alert.training_divergence.last_finite": self._value,
        }

    def suspects(self) -> Suspects:
        """Return the rank that alone had a bad value. Gradients are shared, so any rank may print one first."""
        if self.shared:
            return Suspects()
        if self.kind == "explicit" and self.alone is None:
            return Suspects.of((self.first,))
        return Suspects(ranks=() if self.alone is None else (self.alone,))


class TrainingDivergence(Pattern[Config]):
    """A loss that is not finite in consecutive reports, a complaint about one, or a jump that stays.

    Each attempt gets one verdict. If a rank reports finite losses after a complaint, it survived. A gradient that is
    not finite is normal for a loss scaler, unless it stays so.
    """

    id = "19"
    name = "training_divergence"
    role = "cause"
    maturity = "stable"
    needs = (NonFinite, Progress)
    Config = Config

    @property
    def horizon(self) -> int:
        return 2 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        """Return the window of the job; evaluation and reports without a value do not count."""
        if isinstance(fact, Progress) and fact.loss is None and fact.grad_norm is None:
            return ()
        return job_keys(fact) if isinstance(fact, Progress | NonFinite) and fact.phase != "eval" else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        if not self._possible(window):
            return []
        config = self.config
        courses = Courses(config.reports, config.factor, config.persist, config.gradients, config.window)
        courses.take((*window.of(Progress), *window.of(NonFinite)))
        found: list[Verdict] = []
        for number in sorted(courses.attempts):
            attempt = courses.attempts[number]
            surest = min(self._candidates(window, number, attempt), key=_order, default=None)
            if surest is not None:
                alone, shared = attempt.alone(surest.first), attempt.shared(surest.first)
                found.append(msgspec.structs.replace(surest, alone=alone, shared=shared))
        return found

    def _possible(self, window: Window) -> bool:
        """Return whether the reports need a closer look. Usually their extremes show that they do not."""
        factor, persist = self.config.factor, self.config.persist
        for what, size in zip(MEASURES, (_loss_size, _norm_size), strict=True):
            if close(window.distinct(Progress, size), factor):
                continue
            values = [value for report in window.of(Progress) if (value := measured(report, what)) is not None]
            if (total := sum(values)) != total:
                return True  # a value is not a number
            values.sort()
            # An explosion needs `persist` values of `factor` times the median of as many; half of these are no larger.
            if len(values) >= 2 * persist and not values[-persist] < factor * values[(persist - 1) // 2]:
                return True
        series = window.grouped(NonFinite, _series)
        return any(value.explicit for value in window.of(NonFinite)) or any(
            len(values) >= (self.config.gradients if gradients else self.config.reports)
            for (_, _, gradients), values in series.items()
        )

    def _candidates(self, window: Window, number: int, attempt: AttemptCourses) -> Iterator[TrainingDivergenceVerdict]:
        def verdict(
            kind: Kind, what: str, run: Sequence[Report], finite: Progress | None, usual: float | None = None
        ) -> TrainingDivergenceVerdict:
            sure: Confidence = (
                "full" if kind != "exploding" and (what not in GRADIENTS or kind == "explicit") else "partial"
            )
            return TrainingDivergenceVerdict(
                key=window.key,
                episode=f"attempt {number}",
                time=max(run[0].time, run[-1].time),
                confidence=sure,
                kind=kind,
                what=what,
                first=run[0],
                last=run[-1],
                finite=finite,
                usual=usual,
            )

        for rank, course in attempt.telling.items():
            everybody = [course] if rank is not None else list(attempt.ranks.values())
            for complaint in course.complaints:
                if not self._survived(complaint, everybody):
                    yield verdict("explicit", complaint.what, (complaint,), self._before(complaint, everybody))
                    break
            for streak in course.streaks:
                if streak.found is not None:
                    run, finite = streak.found
                    step = run[0].step
                    first = finite is None and step is not None and step < FIRST_STEPS
                    short = len(run) < self.config.persist
                    # A loss scaler that begins too high needs more steps for its search; then gradients are finite.
                    if run[0].what in GRADIENTS and (short + streak.recovered + first) > 1:
                        continue
                    yield verdict("non_finite", run[0].what, run, finite)
            for surge in course.surges:
                if surge.found is not None:
                    high, usual = surge.found
                    yield verdict("exploding", surge.what, high, self._before(high[0], (course,)), usual)

    def _survived(self, complaint: NonFinite, everybody: Sequence[Course]) -> bool:
        """Return whether finite losses follow the complaint."""
        until, enough = complaint.time + self.config.window, self.config.persist
        after = 0
        for course in everybody:
            after += course.good_after(complaint, until, enough - after)
            if after >= enough:
                return True
        return False

    def _before(self, fact: Report, everybody: Sequence[Course]) -> Progress | None:
        """Return the last good loss before a fact."""
        good = [course.last_good(fact) for course in everybody]
        near = [report for report in good if report is not None and fact.time - report.time <= self.config.window]
        return max(near, key=place_of, default=None)


def _order(verdict: TrainingDivergenceVerdict) -> tuple[int, int, int, int, str]:
    first = verdict.first
    sure = SUREST[verdict.kind] + (verdict.confidence == "partial")
    return sure, first.time, -1 if first.rank is None else first.rank, first.source.offset, first.uid


def _loss_size(report: Progress) -> float | None:
    return bucket(report.loss)


def _norm_size(report: Progress) -> float | None:
    return bucket(report.grad_norm)


def _series(value: NonFinite) -> tuple[int, int | None, bool]:
    """Return the series of a value: attempt, rank, and whether it is about gradients."""
    return value.attempt, value.rank, value.what in GRADIENTS
