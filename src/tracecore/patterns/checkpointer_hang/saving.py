"""Which checkpoints were begun and neither ended nor left behind by further steps."""

from __future__ import annotations

from operator import attrgetter, lt
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from tracecore.facts.fact import order
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished
from tracecore.patterns.contract import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window

    F = TypeVar("F", bound=Fact)
    K = TypeVar("K")

Who: TypeAlias = tuple[int | None, str | None, str | None]

_time = attrgetter("time")
#: Whose a report is: a process by rank, pod and node.
_who: Callable[[Fact], Who] = attrgetter("rank", "pod", "node")


def first_begun(window: Window) -> CheckpointPhase | None:
    """Of the phases that began and did not end, the first."""
    begun = window.digest(CheckpointPhase, Saves).open.values()
    return min(begun, key=_time, default=None)


def unfinished(window: Window) -> list[CheckpointPhase]:
    """The last phase that each process began, where neither its end nor a step came after it; oldest first."""
    current = window.digest(CheckpointPhase, Saves).open.values()
    # The job as a whole first: while it goes on, which is nearly always, nobody's own steps need be looked at.
    steps, reports = window.digest(Progress, Steps), window.of(Progress)
    begun = _not_left_behind(current, steps, reports)
    if not begun:
        return []
    own = window.digest(Progress, LastReports).known
    begun = [begin for begin in begun if (who := _who(begin)) not in own or not after(own[who], begin)]
    finished = max((end.end for end in window.of(RunFinished)), default=NEVER)
    begun = [begin for begin in begun if begin.time > finished]
    return sorted(begun, key=order)


class Saves:
    """The last phase that each process began, and when phases of it last ended."""

    def __init__(self) -> None:
        self.begun: dict[Who, CheckpointPhase] = {}
        self.ended: dict[tuple[Who, str], CheckpointPhase] = {}
        #: Those that began and did not end.
        self.open: dict[Who, CheckpointPhase] = {}

    def add(self, phases: Sequence[CheckpointPhase]) -> None:
        for fact in phases:
            who = _who(fact)
            if fact.event == "begin":
                _keep_last(self.begun, who, fact)
            elif fact.event == "end":
                _keep_last(self.ended, (who, fact.phase), fact)
            else:
                continue
            begin = self.begun.get(who)
            if begin is None:
                continue
            end = self.ended.get((who, begin.phase))
            if end is None or end.time < begin.time or _place(end) < _place(begin):
                self.open[who] = begin
            else:
                self.open.pop(who, None)


def longest(window: Window) -> int:
    """How long the longest save took that ended, of those that are still remembered; 0 where none did."""
    begun: dict[tuple[Who, str], CheckpointPhase] = {}
    found = 0
    for fact in sorted(window.of(CheckpointPhase), key=_place):
        who = (_who(fact), fact.phase)
        if fact.event == "begin":
            begun[who] = fact
        elif (begin := begun.pop(who, None)) is not None and fact.event == "end":
            found = max(found, fact.time - begin.time)
    return found


class Steps:
    """The furthest step, and when it was first reached."""

    def __init__(self) -> None:
        self.furthest = -2
        self.since = 0

    def add(self, reports: Sequence[Progress]) -> None:
        steps = [-1 if report.step is None else report.step for report in reports]
        furthest = max(steps)
        if furthest >= self.furthest:
            first = reports[steps.index(furthest)].time
            self.since = first if furthest > self.furthest else min(first, self.since)
            self.furthest = furthest


class LastReports:
    """The last report of each process."""

    def __init__(self) -> None:
        self.known: dict[Who, Progress] = {}
        self._latest = NEVER

    def add(self, reports: Sequence[Progress]) -> None:
        times = [*map(_time, reports)]
        if times[0] > self._latest and all(map(lt, times, times[1:])):
            # Each comes after all before it.
            self.known.update(zip(map(_who, reports), reports, strict=True))
        else:
            for report in reports:
                _keep_last(self.known, _who(report), report)
        self._latest = max(self._latest, *times)


def _not_left_behind(
    begun: Iterable[CheckpointPhase], steps: Steps, reports: Sequence[Progress]
) -> list[CheckpointPhase]:
    """Those after which the job made no further step, whoever reported it. Ranks print one step at different times."""
    if not reports:
        return list(begun)
    first, since, furthest = reports[0].time, steps.since, steps.furthest
    start = max(_step(reports[0]), -1)
    # Where there are steps from before it, one beyond all that were reached by then: the furthest, reached after it.
    return [
        begin
        for begin in begun
        if not (
            (since > begin.time and (begin.step is None or furthest > begin.step))
            if first <= begin.time
            else furthest > (start if begin.step is None else max(begin.step, -1))
        )
    ]


def _step(report: Progress) -> int:
    return -1 if report.step is None else report.step


def _keep_last(facts: dict[K, F], name: K, fact: F) -> None:
    known = facts.get(name)
    if known is None or fact.time > known.time or (fact.time == known.time and _place(fact) > _place(known)):
        facts[name] = fact


def _place(fact: Fact) -> tuple[int, str, int, str]:
    return fact.time, fact.source.path, fact.source.offset, fact.uid


def after(fact: Fact, begin: Fact) -> bool:
    """Lines of one file that share a time are told apart by their place in it."""
    same = fact.source.path == begin.source.path and fact.time == begin.time
    return fact.source.offset > begin.source.offset if same else fact.time > begin.time
