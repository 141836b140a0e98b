"""Follow the reports of each rank in order and find where its values went wrong."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias

from tracecore.facts.training import NonFinite, Progress

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracecore.facts.fact import Fact

Measure: TypeAlias = Literal["loss", "grad_norm"]
Report: TypeAlias = NonFinite | Progress

MEASURES: tuple[Measure, ...] = ("loss", "grad_norm")
#: Maximum number of reports in a running median.
HISTORY = 32
#: Values of `what` that are about gradients. A loss scaler sees non-finite gradients now and then and skips the step.
GRADIENTS = frozenset({"grad_norm", "gradient"})


#: Smaller values are no explosion, however small the median is: the loss of a policy, or of memorised data, is near
#: zero, and gradients are clipped at larger norms.
LEAST: dict[Measure, float] = {"loss": 0.1, "grad_norm": 1.0}


class Streak:
    """The first run of consecutive bad reports that is long enough, and the last good report before it.

    Args:
        enough: required number of reports.
        window: the reports lie within this time.

    `recovered` is set when a good report follows.
    """

    __slots__ = ("_enough", "_finite", "_run", "_window", "found", "recovered")

    def __init__(self, enough: int, window: int) -> None:
        self._enough = enough
        self._window = window
        self._run: list[NonFinite] = []
        self._finite: Progress | None = None
        self.found: tuple[list[NonFinite], Progress | None] | None = None
        self.recovered = False

    def add(self, report: Report) -> None:
        if self.found is not None:
            self.recovered = self.recovered or isinstance(report, Progress)
            return
        if isinstance(report, Progress):
            self._finite = report
            if self._run:
                self._run = []
            return
        self._run = [bad for bad in self._run if report.time - bad.time <= self._window] + [report]
        if len(self._run) >= self._enough:
            finite = self._finite
            near = finite is not None and self._run[0].time - finite.time <= self._window
            self.found = self._run[-self._enough :], finite if near else None


class Surge:
    """The first run of reports far above the median of those before it, and that median.

    Several reports of one step count once. They may be from ranks that are not named, or a progress bar drawn again.

    Args:
        what: the measure.
        factor: the reports are at least this many times the median.
        persist: required number of reports.
        window: the median looks back this long, and the reports lie within this time.
    """

    __slots__ = ("_before", "_factor", "_high", "_lowest", "_persist", "_steps", "_usual", "_window", "found", "what")

    def __init__(self, what: Measure, factor: float, persist: int, window: int) -> None:
        self.what = what
        self._factor = factor
        self._persist = persist
        self._window = window
        self._before: deque[Progress] = deque(maxlen=HISTORY)
        self._high: list[Progress] = []
        self._steps: deque[int] = deque(maxlen=HISTORY)
        self._lowest, self._usual = float("inf"), 0.0
        self.found: tuple[list[Progress], float] | None = None

    def add(self, report: Report) -> None:
        value = measured(report, self.what)
        if self.found is not None or value is None or not isinstance(report, Progress):
            return
        if report.step is not None:
            if report.step in self._steps:
                return
            self._steps.append(report.step)
        before, high = self._before, self._high
        if not high and value >= self._factor * self._lowest:
            while before and report.time - before[0].time > self._window:
                before.popleft()
            # A loss that changes its sign is noise around zero, so the median is that of absolute values.
            self._usual = _median([abs(measured(one, self.what) or 0.0) for one in before])
            enough = len(before) >= self._persist
        else:
            enough = bool(high)
        if enough and self._usual > 0 and value >= max(self._factor * self._usual, LEAST[self.what]):
            high.append(report)
            if high[-1].time - high[0].time > self._window:
                high.pop(0)
            if len(high) == self._persist:
                self.found = high, self._usual
            return
        if high:
            before.extend(high)
            self._high = []
        before.append(report)
        self._lowest = min(self._lowest, max(value, 0.0))


class Course:
    """Reports of one rank of one attempt, in the order of the log.

    Args:
        reports, factor, persist, gradients, window: as in the pattern's settings.
    """

    __slots__ = ("_exploded", "_surge", "_surges", "complaints", "losses", "streaks")

    def __init__(self, reports: int, factor: float, persist: int, gradients: int, window: int) -> None:
        self.losses: list[Report] = []
        self.complaints: list[NonFinite] = []
        #: One of losses, one of gradient norms.
        self.streaks = (Streak(reports, window), Streak(gradients, window))
        self._surge = factor, persist, window
        #: Series of losses and norms, of reports with a step and without, by file if the rank is not known. These
        #: are separate series, because another program, or another part of one, writes them.
        self._surges: dict[tuple[str, Measure, bool], Surge] = {}
        self._exploded = False

    def add(self, report: Report) -> None:
        """Add a report that comes after all others."""
        losses, norms = self.streaks
        if isinstance(report, Progress):
            if report.loss is not None:
                self.losses.append(report)
                losses.add(report)
                self._follow("loss", report)
            if report.grad_norm is not None:
                norms.add(report)
                self._follow("grad_norm", report)
        elif report.explicit:
            self.complaints.append(report)
        elif report.what in GRADIENTS:
            norms.add(report)
        else:
            self.losses.append(report)
            losses.add(report)

    def _follow(self, measure: Measure, report: Progress) -> None:
        source = report.source
        file = source.path if report.rank is None and not source.ident else ""
        series = file, measure, report.step is not None
        surge = self._surges.get(series)
        if surge is None:
            surge = self._surges[series] = Surge(measure, *self._surge)
        surge.add(report)
        self._exploded = self._exploded or surge.found is not None

    @property
    def surges(self) -> Iterable[Surge]:
        """The existing series of values."""
        return self._surges.values()

    @property
    def telling(self) -> bool:
        """Return whether any value went wrong."""
        losses, norms = self.streaks
        return bool(self.complaints or losses.found or norms.found) or self._exploded

    def good_after(self, complaint: NonFinite, until: int, most: int) -> int:
        """Return the number of finite losses after a complaint and until a time, at most `most`."""
        found = 0
        for place in range(bisect_right(self.losses, place_of(complaint), key=place_of), len(self.losses)):
            report = self.losses[place]
            found += isinstance(report, Progress) and report.time <= until
            if found >= most or report.time > until:
                break
        return found

    def last_good(self, fact: Report) -> Progress | None:
        """Return the last finite loss before a fact."""
        for place in reversed(range(bisect_left(self.losses, place_of(fact), key=place_of))):
            report = self.losses[place]
            if isinstance(report, Progress):
                return report
        return None


class AttemptCourses:
    """The courses of all ranks of one attempt. `bad` and `good` have the ranks with a bad or good loss, by step."""

    def __init__(self) -> None:
        self.ranks: dict[int | None, Course] = {}
        self.telling: dict[int | None, Course] = {}
        self.bad: dict[int, set[int | None]] = {}
        self.good: dict[int, set[int | None]] = {}

    def alone(self, first: Report) -> int | None:
        """Return the rank of a fact, if other ranks report the same step and all of them have a finite loss there."""
        if first.rank is None or first.step is None or not isinstance(first, NonFinite):
            return None
        own = {first.rank}
        if self.bad.get(first.step, own) - own or not self.good.get(first.step, own) - own:
            return None
        return first.rank

    def shared(self, first: Report) -> bool:
        """Return whether other ranks follow. Gradients are shared, so the first report need not be the first cause."""
        own = {first.rank, None}
        if first.step is not None and any(step > first.step and ranks - own for step, ranks in self.bad.items()):
            return True
        return any(course.complaints for rank, course in self.ranks.items() if rank not in own)


class Courses:
    """All reports of a job, by attempt.

    Args:
        reports, factor, persist, gradients, window: as in the pattern's settings.
    """

    def __init__(self, reports: int, factor: float, persist: int, gradients: int, window: int) -> None:
        self._settings = (reports, factor, persist, gradients, window)
        self.attempts: dict[int, AttemptCourses] = {}

    def take(self, reports: Iterable[Report]) -> None:
        """Add reports in any order."""
        for report in sorted(reports, key=_order):
            attempt = self.attempts.get(report.attempt)
            if attempt is None:
                attempt = self.attempts[report.attempt] = AttemptCourses()
            rank = report.rank
            course = attempt.ranks.get(rank)
            if course is None:
                course = attempt.ranks[rank] = Course(*self._settings)
            course.add(report)
            if rank not in attempt.telling and course.telling:
                attempt.telling[rank] = course
            if report.step is not None:
                if isinstance(report, Progress):
                    if report.loss is not None:
                        attempt.good.setdefault(report.step, set()).add(rank)
                elif report.explicit or report.what not in GRADIENTS:
                    attempt.bad.setdefault(report.step, set()).add(rank)


def place_of(fact: Fact) -> tuple[int, int, str]:
    """Return the order of facts: by time, then by offset in the file."""
    return fact.time, fact.source.offset, fact.uid


def _order(report: Report) -> tuple[int, int, str, bool]:
    """Return the order of reports: by place; of one line a good value comes first."""
    return *place_of(report), isinstance(report, NonFinite)


def measured(report: Report, what: str) -> float | None:
    """Return the value of a measure in a report."""
    if not isinstance(report, Progress):
        return None
    return report.grad_norm if what in GRADIENTS else report.loss


def _median(values: list[float]) -> float:
    values.sort()
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2 if values else 0.0
