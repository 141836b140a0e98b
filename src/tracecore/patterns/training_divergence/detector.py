"""The loss, or the gradient, is no longer finite, or explodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.training import NonFinite, Progress
from tracecore.patterns.config import HOUR, Count, Duration, Factor, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, rfc3339
from tracecore.patterns.scope import job_keys
from tracecore.patterns.spread import Spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Confidence, Key, Window

Kind: TypeAlias = Literal["explicit", "non_finite", "exploding"]
Measure: TypeAlias = Literal["loss", "grad_norm"]

#: Reports that a running median looks back on.
HISTORY = 32
#: What speaks of gradients; a loss scaler meets such values every now and then and skips the step.
GRADIENTS = frozenset({"grad_norm", "gradient"})
#: Of several findings of one attempt the surest is told, then the earliest.
SUREST: dict[Kind, int] = {"explicit": 0, "non_finite": 0, "exploding": 2}


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: how far apart the reports may be that are one story; as far back a running median looks.
        reports: consecutive reports of a loss that is not finite.
        factor: how many times the running median is an explosion.
        persist: consecutive reports it must last; as many of a gradient that is not finite are believed.
    """

    window: Duration = HOUR
    reports: Count = 2
    factor: Factor = 10.0
    persist: Count = 5


class TrainingDivergenceVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        kind: `explicit` where the program complains, `non_finite` where it only reports, `exploding`.
        what: loss, grad_norm, gradient, activation or parameter.
        first: where it began.
        last: the report that decided; the same where one was enough.
        finite: the last good report before it; None where none was seen.
        usual: the running median before an explosion.
        alone: the only rank with a bad value in the step where it began, while others had good ones.
    """

    pattern_id: ClassVar[str] = "19"
    pattern_name: ClassVar[str] = "training_divergence"
    role: ClassVar[Role] = "cause"

    kind: Kind
    what: str
    first: NonFinite | Progress
    last: NonFinite | Progress
    finite: Progress | None = None
    usual: float | None = None
    alone: int | None = None

    @property
    def _value(self) -> float | None:
        """The last finite value of what went wrong; of other things, the last loss."""
        return None if self.finite is None else _measured(self.finite, self.what)

    def headline(self) -> str:
        what = self.what.replace("grad_norm", "gradient norm")
        step = f" at step {self.first.step}" if self.first.step is not None else ""
        if not step and not self.first.approximate:
            step = f" at {rfc3339(self.first.time)}"
        who = f" on rank {self.alone} alone" if self.alone is not None else ""
        if self.kind == "exploding" and isinstance(self.first, Progress):
            value = _measured(self.first, self.what)
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
            f"Stop the run: what it writes from now on is of no use. Take the last checkpoint from {before} and run "
            f"the same steps again with the same seed and data, `torch.autograd.set_detect_anomaly(True)` on. Bad "
            f"again at the same step: data ({batch}{at}: `torch.isfinite` on the inputs) or algorithm; skip that "
            f"batch, and if it then fails later, lower the learning rate, clip gradients, or compute in bf16 instead "
            f"of fp16. Not again: run it on other nodes; if it fails only on the first ones, suspect silent "
            f"corruption and test their GPUs with `dcgmi diag -r 3`."
        )

    def evidence(self) -> Sequence[Fact]:
        facts: list[Fact] = [] if self.finite is None else [self.finite]
        facts += [self.first] if self.last is self.first else [self.first, self.last]
        return sorted(facts, key=lambda fact: fact.time)

    def missing_layers(self) -> tuple[str, ...]:
        return ("non_finite_value",) if self.confidence == "partial" else ()

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"kind": self.kind, "what": self.what, "began": rfc3339(self.first.time)}
        if self.first.step is not None:
            fields["began_step"] = self.first.step
        if self.finite is not None and self._value is not None:
            fields["last_finite"] = self._value
            if self.finite.step is not None:
                fields["last_finite_step"] = self.finite.step
        if self.usual is not None:
            fields["median"] = self.usual
        if self.alone is not None:
            fields["gen_ai.training.rank"] = self.alone
        return fields

    def promoted(self) -> dict[str, Any]:
        return {
            "gen_ai.training.step": self.first.step,
            "gen_ai.training.rank": self.alone,
            "tracecore.alert.training_divergence.kind": self.kind,
            "tracecore.alert.training_divergence.what": self.what,
            "tracecore.alert.training_divergence.last_finite": self._value,
        }

    def suspects(self) -> Suspects:
        """Gradients are shared: whoever prints the value first is no worse than the others, unless it is alone."""
        if self.kind == "explicit" and self.alone is None:
            return Suspects.of((self.first,))
        return Suspects(ranks=() if self.alone is None else (self.alone,))


class Series(msgspec.Struct):
    """What one rank of one attempt reported, in order.

    Args:
        mixed: lines of one time, or good and bad values, whose order their places in the file must tell.
    """

    losses: list[NonFinite | Progress] = []
    norms: list[NonFinite | Progress] = []
    complaints: list[NonFinite] = []
    last: int = -1
    mixed: bool = False


class Values:
    """How far apart losses lie, and norms of gradients."""

    def __init__(self) -> None:
        self.losses = Spread()
        self.norms = Spread()

    def add(self, reports: Sequence[Progress]) -> None:
        self.losses.add([report.loss for report in reports])
        self.norms.add([report.grad_norm for report in reports])


class TrainingDivergence(Pattern[Config]):
    """A loss that is not finite on consecutive reports, a complaint of one, or a jump that stays; one for each attempt.

    A complaint after which the rank goes on to report finite losses was survived. A gradient that is not finite is a
    loss scaler at work, unless it stays so.
    """

    id = "19"
    name = "training_divergence"
    role = "cause"
    maturity = "stable"
    needs = (NonFinite, Progress)
    steady = (Progress,)
    Config = Config
    window_limit = 16_384

    @property
    def horizon(self) -> int:
        return 2 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return () if isinstance(fact, NonFinite) and fact.phase == "eval" else job_keys(fact)

    def counts(self, fact: Fact) -> bool:
        """Evaluation does not count, nor does a report without a value."""
        if not isinstance(fact, Progress) or fact.phase == "eval":
            return False
        return fact.loss is not None or fact.grad_norm is not None

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        if not self._possible(window):
            return []
        attempts: dict[int, dict[int | None, Series]] = {}
        for report in window.of(Progress):
            series = _series(attempts, report)
            if report.time == series.last:
                series.mixed = True
            series.last = report.time
            if report.loss is not None:
                series.losses.append(report)
            if report.grad_norm is not None:
                series.norms.append(report)
        for value in window.of(NonFinite):
            series = _series(attempts, value)
            series.mixed = True
            if value.explicit:
                series.complaints.append(value)
            else:
                (series.norms if value.what in GRADIENTS else series.losses).append(value)
        found: list[Verdict] = []
        for attempt in sorted(attempts):
            ranks = attempts[attempt]
            surest = min(self._candidates(window, attempt, ranks), key=_order, default=None)
            if surest is not None:
                found.append(msgspec.structs.replace(surest, alone=_alone(surest.first, ranks)))
        return found

    def _possible(self, window: Window) -> bool:
        """Whether there is anything to tell apart by rank; nearly always a look at the extremes says there is not."""
        values = window.digest(Progress, Values)
        for spread in (values.losses, values.norms):
            if spread and (spread.odd or not spread.high < self.config.factor * spread.low):
                return True
        runs: dict[tuple[int, int | None, bool], int] = {}
        for value in window.of(NonFinite):
            gradient = value.what in GRADIENTS
            series = (value.attempt, value.rank, gradient)
            runs[series] = runs.get(series, 0) + 1
            if value.explicit or runs[series] >= (self.config.persist if gradient else self.config.reports):
                return True
        return False

    def _candidates(
        self, window: Window, attempt: int, ranks: dict[int | None, Series]
    ) -> Iterator[TrainingDivergenceVerdict]:
        for series in ranks.values():
            # Facts are in order of time; several lines of one second are told apart by their place in the file.
            if series.mixed:
                series.losses.sort(key=_place)
                series.norms.sort(key=_place)

        def verdict(
            kind: Kind,
            what: str,
            run: Sequence[NonFinite | Progress],
            finite: Progress | None,
            usual: float | None = None,
        ) -> TrainingDivergenceVerdict:
            sure: Confidence = (
                "full" if kind != "exploding" and (what not in GRADIENTS or kind == "explicit") else "partial"
            )
            return TrainingDivergenceVerdict(
                key=window.key,
                episode=f"attempt {attempt}",
                time=max(run[0].time, run[-1].time),
                confidence=sure,
                kind=kind,
                what=what,
                first=run[0],
                last=run[-1],
                finite=finite,
                usual=usual,
            )

        for rank, series in ranks.items():
            everybody = [series] if rank is not None else list(ranks.values())
            for complaint in series.complaints:
                if not self._survived(complaint, everybody):
                    yield verdict("explicit", complaint.what, (complaint,), self._before(complaint, everybody))
                    break
            bad = ((series.losses, self.config.reports), (series.norms, self.config.persist)) if series.mixed else ()
            for reports, enough in bad:
                for run, finite in self._not_finite(reports, enough):
                    yield verdict("non_finite", _name(run[0]), run, finite)
            measures: tuple[tuple[list[NonFinite | Progress], Measure], ...] = (
                (series.losses, "loss"),
                (series.norms, "grad_norm"),
            )
            for reports, what in measures:
                for high, usual in self._exploding(reports, what):
                    yield verdict("exploding", what, high, self._before(high[0], (series,)), usual)

    def _not_finite(
        self, reports: Sequence[NonFinite | Progress], enough: int
    ) -> Iterator[tuple[list[NonFinite], Progress | None]]:
        """The first run of consecutive bad reports that is long enough, and the last good report before it."""
        run: list[NonFinite] = []
        finite: Progress | None = None
        for report in reports:
            if isinstance(report, Progress):
                finite, run = report, []
                continue
            run = [bad for bad in run if report.time - bad.time <= self.config.window] + [report]
            if len(run) >= enough:
                near = finite is not None and run[0].time - finite.time <= self.config.window
                yield run[-enough:], finite if near else None
                return

    def _exploding(
        self, reports: Sequence[NonFinite | Progress], what: Measure
    ) -> Iterator[tuple[list[Progress], float]]:
        """The first run of reports far above the median of those before it."""
        values = [value for one in reports if (value := _measured(one, what)) is not None]
        if not values or max(values) < self.config.factor * min(values):
            return
        before: deque[Progress] = deque(maxlen=HISTORY)
        high: list[Progress] = []
        lowest, usual = float("inf"), 0.0
        for report in reports:
            value = _measured(report, what)
            if value is None or not isinstance(report, Progress):
                continue
            if not high and value >= self.config.factor * lowest:
                while before and report.time - before[0].time > self.config.window:
                    before.popleft()
                usual = _median([_measured(one, what) or 0.0 for one in before])
                enough = len(before) >= self.config.persist
            else:
                enough = bool(high)
            if enough and usual > 0 and value >= self.config.factor * usual:
                high.append(report)
                if high[-1].time - high[0].time > self.config.window:
                    high.pop(0)
                if len(high) == self.config.persist:
                    yield high, usual
                    return
                continue
            before.extend(high)
            before.append(report)
            high = []
            lowest = min(lowest, max(value, 0.0))

    def _survived(self, complaint: NonFinite, everybody: Sequence[Series]) -> bool:
        """The rank goes on with finite losses."""
        place, until = _place(complaint), complaint.time + self.config.window
        after = 0
        for series in everybody:
            for report in reversed(series.losses):
                if _place(report) <= place or after >= self.config.persist:
                    break
                after += isinstance(report, Progress) and report.time <= until
        return after >= self.config.persist

    def _before(self, fact: NonFinite | Progress, everybody: Sequence[Series]) -> Progress | None:
        """The last good loss before this."""
        place = _place(fact)
        good = [
            next((r for r in reversed(series.losses) if isinstance(r, Progress) and _place(r) < place), None)
            for series in everybody
        ]
        near = [r for r in good if r is not None and fact.time - r.time <= self.config.window]
        return max(near, key=_place, default=None)


def _place(fact: Fact) -> tuple[int, int, str]:
    return fact.time, fact.source.offset, fact.uid


def _order(verdict: TrainingDivergenceVerdict) -> tuple[int, int, int, int, str]:
    first = verdict.first
    sure = SUREST[verdict.kind] + (verdict.confidence == "partial")
    return sure, first.time, -1 if first.rank is None else first.rank, first.source.offset, first.uid


def _name(fact: NonFinite | Progress) -> str:
    return fact.what if isinstance(fact, NonFinite) else "loss"


def _measured(report: NonFinite | Progress, what: str) -> float | None:
    if not isinstance(report, Progress):
        return None
    return report.grad_norm if what in GRADIENTS else report.loss


def _series(attempts: dict[int, dict[int | None, Series]], fact: NonFinite | Progress) -> Series:
    ranks = attempts.get(fact.attempt)
    if ranks is None:
        ranks = attempts[fact.attempt] = {}
    series = ranks.get(fact.rank)
    if series is None:
        series = ranks[fact.rank] = Series()
    return series


def _median(values: list[float]) -> float:
    values.sort()
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 if values else 0.0


def _alone(first: NonFinite | Progress, ranks: dict[int | None, Series]) -> int | None:
    """The rank of this fact, where others report the same step and all of them have a finite loss there."""
    if first.rank is None or first.step is None or not isinstance(first, NonFinite):
        return None
    others = False
    for rank, series in ranks.items():
        if rank != first.rank:
            for report in (*series.losses, *series.complaints):
                if report.step == first.step:
                    if isinstance(report, NonFinite):
                        return None
                    others = True
    return first.rank if others else None
