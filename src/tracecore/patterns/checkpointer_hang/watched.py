"""Evidence that a save hangs while the run goes on: stalls, live processes and collectives that timed out."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING

from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import ExceptionRaised, ExitStatus, FatalSignal
from tracecore.facts.stop import PlannedStop
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, StepStalled
from tracecore.patterns.checkpointer_hang.saving import longest
from tracecore.patterns.config import SECOND
from tracecore.patterns.contract import FOREVER
from tracecore.patterns.timeline import Timeline, grouped

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Window

_end = attrgetter("end")
_rank = attrgetter("rank")


class WatchedSaves:
    """The facts of a window, for questions about its saves. Ask about saves in order of time.

    Args:
        before: a collective may begin to wait this long before the save begins.
    """

    def __init__(self, window: Window, before: int) -> None:
        self._before = before
        self._reports = window.of(WatchdogReport)
        self._report = 0
        self._stalls = sorted(window.of(StepStalled), key=_end)
        #: For each stall, the longest among it and the stalls that ended later.
        self._longest = self._stalls.copy()
        for place in range(len(self._stalls) - 2, -1, -1):
            self._longest[place] = max(self._stalls[place], self._longest[place + 1], key=_length)
        alive = [status for status in window.of(ExitStatus) if status.alive]
        self._alive = Timeline(alive)
        self._alive_ranks = {rank: Timeline(group) for rank, group in grouped(alive, _rank).items()}
        self._window = window
        self._ends: Ends | None = None
        self._usual: int | None = None

    def stall(self, begin: CheckpointPhase) -> StepStalled | None:
        """Return the longest stall that ended after the save began."""
        place = bisect_left(self._stalls, begin.time, key=_end)
        return self._longest[place] if place < len(self._stalls) else None

    def alive(self, begin: CheckpointPhase) -> ExitStatus | None:
        """Return the status of a process that still ran after the save began: of the saving rank, or without a rank."""
        if begin.rank is None:
            return self._alive.first(begin.time, FOREVER)
        own = (self._alive_ranks.get(begin.rank), self._alive_ranks.get(None))
        found = (timeline.first(begin.time, FOREVER) for timeline in own if timeline is not None)
        return min((status for status in found if status is not None), key=_when, default=None)

    def outlasts(self, begin: CheckpointPhase) -> bool:
        """Return whether a process still ran after saving for at least as long as other saves of this run took."""
        alive = self.alive(begin)
        if alive is None:
            return False
        self._usual = longest(self._window) if self._usual is None else self._usual
        return alive.end - begin.time >= self._usual

    def timeout(self, begin: CheckpointPhase) -> WatchdogReport | None:
        """Return the report of a collective that waited since about the time the save began."""
        oldest = begin.time - self._before
        while self._report < len(self._reports):
            report = self._reports[self._report]
            waited = report.elapsed_ms if report.elapsed_ms is not None else report.timeout_ms or 0
            if report.time >= begin.time and report.time - waited * (SECOND // 1000) >= oldest:
                return report
            # Saves that began later need later reports only.
            self._report += 1
        return None

    def ended(self, begin: CheckpointPhase, until: int) -> bool:
        """Return whether the run ended, failed or was asked to stop after the save began and before `until`."""
        self._ends = Ends(self._window) if self._ends is None else self._ends
        return self._ends.between(begin, until)


class Ends:
    """The times at which a run ended, failed or was asked to stop."""

    def __init__(self, window: Window) -> None:
        # An exception that is also a storage error may have been retried, so it does not prove an end.
        retried = {(error.time, error.rank) for error in window.of(StorageError)}
        ends: list[Fact] = [
            fact
            for kind in (PlannedStop, ExceptionRaised, FatalSignal)
            for fact in window.of(kind)
            if (fact.time, fact.rank) not in retried
        ]
        failed = [phase for phase in window.of(CheckpointPhase) if phase.event == "error"]
        dead = [status.time for status in window.of(ExitStatus) if not status.alive]
        self._times = sorted((*(fact.time for fact in ends), *(phase.time for phase in failed), *dead))
        self._dead = frozenset(dead)
        # By time, the last offset in each file. A traceback gets the time of the line above it.
        self._ends = _last_places(ends)
        self._failed = _last_places(failed)

    def between(self, begin: CheckpointPhase, until: int) -> bool:
        """Return whether an end came after this save began and before `until`."""
        time, source = begin.time, begin.source
        if time >= until:
            return False
        place = bisect_right(self._times, time)
        if place < len(self._times) and self._times[place] < until:
            return True
        if time in self._dead:
            return True
        ends, failed = self._ends.get(time, {}), self._failed.get(time, {})
        if ends and (len(ends) > 1 or source.path not in ends):
            return True
        return max(ends.get(source.path, -1), failed.get(source.path, -1)) > source.offset


def _last_places(facts: Iterable[Fact]) -> dict[int, dict[str, int]]:
    places: dict[int, dict[str, int]] = {}
    for fact in facts:
        files = places.setdefault(fact.time, {})
        files[fact.source.path] = max(fact.source.offset, files.get(fact.source.path, -1))
    return places


def _when(status: ExitStatus) -> tuple[int, str]:
    return status.time, status.uid


def _length(stall: StepStalled) -> tuple[float, str]:
    return stall.no_progress_s, stall.uid
