"""Find checkpoint saves that began and neither ended nor were followed by steps."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
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
#: The process of a report: rank, pod and node.
_who: Callable[[Fact], Who] = attrgetter("rank", "pod", "node")


def open_phases(window: Window) -> list[CheckpointPhase]:
    """Return the last phase that each process began, if it did not end."""
    found = (_open(phases) for phases in window.grouped(CheckpointPhase, _who).values())
    return [begin for begin in found if begin is not None]


def _open(phases: Sequence[CheckpointPhase]) -> CheckpointPhase | None:
    """Return the last phase that one process began, if it did not end."""
    last = phases[-1]
    if last.event == "begin" and (len(phases) == 1 or phases[-2].time < last.time):
        return last
    latest = next((phase for phase in reversed(phases) if phase.event == "begin"), None)
    if latest is None:
        return None
    # Lines with the same time are compared by their position.
    since = phases[bisect_left(phases, latest.time, key=_time) :]
    begins = [phase for phase in since if phase.event == "begin"]
    begin = latest if len(begins) == 1 else max(begins, key=_place)
    ends = [phase for phase in since if phase.event == "end" and phase.phase == begin.phase]
    return None if any(end.time > begin.time or _place(end) > _place(begin) for end in ends) else begin


def unfinished(window: Window, begun: Iterable[CheckpointPhase]) -> list[CheckpointPhase]:
    """Return the open phases after which neither their process nor the job made a step, oldest first."""
    own = window.grouped(Progress, _who)
    finished = max((end.end for end in window.of(RunFinished)), default=NEVER)
    begun = [
        begin
        for begin in begun
        if begin.time > finished and not (_who(begin) in own and after(_last(own[_who(begin)]), begin))
    ]
    return sorted(_not_left_behind(begun, window.of(Progress)), key=order) if begun else []


def _last(reports: Sequence[Progress]) -> Progress:
    """Return the last of these reports; reports with the same time are compared by their position."""
    if len(reports) == 1 or reports[-2].time < reports[-1].time:
        return reports[-1]
    place = bisect_left(reports, reports[-1].time, key=_time)
    return max(reports[place:], key=_place)


def longest(window: Window) -> int:
    """Return how long the longest finished save in the window took; 0 if none finished."""
    begun: dict[tuple[Who, str], CheckpointPhase] = {}
    found = 0
    for fact in sorted(window.of(CheckpointPhase), key=_place):
        who = (_who(fact), fact.phase)
        if fact.event == "begin":
            begun[who] = fact
        elif (begin := begun.pop(who, None)) is not None and fact.event == "end":
            found = max(found, fact.time - begin.time)
    return found


def _not_left_behind(begun: Iterable[CheckpointPhase], reports: Sequence[Progress]) -> list[CheckpointPhase]:
    """Return the phases after which no rank reached a further step. Ranks print one step at different times."""
    if not reports:
        return list(begun)
    steps = [-1 if report.step is None else report.step for report in reports]
    furthest = max(steps)
    since = reports[steps.index(furthest)].time
    first = reports[0].time
    # If steps were reported before the phase, the furthest step of all must have been reached after it.
    return [
        begin
        for begin in begun
        if not (
            (since > begin.time and (begin.step is None or furthest > begin.step))
            if first <= begin.time
            else furthest > (steps[0] if begin.step is None else begin.step)
        )
    ]


def _place(fact: Fact) -> tuple[int, str, int, str]:
    return fact.time, fact.source.path, fact.source.offset, fact.uid


def after(fact: Fact, begin: Fact) -> bool:
    """Return whether a fact is after another; lines of one file with the same time are compared by offset."""
    same = fact.source.path == begin.source.path and fact.time == begin.time
    return fact.source.offset > begin.source.offset if same else fact.time > begin.time
