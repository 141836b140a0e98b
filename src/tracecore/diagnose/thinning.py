"""Thin the progress facts of a long stream, so that memory does not grow with the input.

A run of a week reports a million steps for each rank. Kept are the last reports of each rank (incidents are at the
end), both reports around a pause, a step back or a change of phase, those around a failure (they tell whether it was
survived), and some of the others, evenly spread. A kept report stands for the dropped ones after it, with its
`last_time` and `count`, so the gap between two kept reports is not a pause.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.process import ExceptionRaised
from tracecore.facts.storage import StorageError
from tracecore.facts.training import Progress

#: Last reports of a rank. All of them are kept.
TAIL: Final = 128
#: Reports before them, at most: evenly spread ones, and edges.
SPREAD: Final = 256
EDGES: Final = 2048
#: Both reports around a pause this long are kept. Stalls are looked for from 60 s on.
PAUSE: Final = 30 * 1_000_000_000
#: What may have ended a process, and reports after it that are kept to tell.
FAILURES: Final = (ExceptionRaised, StorageError)
FOLLOWING: Final = 2


class _RankReports:
    """The progress reports of one rank."""

    __slots__ = ("edges", "ending", "following", "last", "late", "seen", "spread", "stood", "stride", "tail", "telling")

    def __init__(self) -> None:
        self.tail: deque[Progress] = deque()
        self.spread: list[Progress] = []
        self.late: list[Progress] = []
        self.edges: dict[int, Progress] = {}
        #: Those of `edges` after which no step was made for long.
        self.ending: set[int] = set()
        #: The step of the last report has not advanced.
        self.stood = False
        self.stride = 1
        self.seen = 0
        self.last: Progress | None = None
        #: Reports around a failure that are still in the tail, and how many more follow.
        self.telling: set[int] = set()
        self.following = 0

    def fail(self) -> None:
        """A failure stands between the last report and the next ones."""
        # Storms of failures leave room for the pauses.
        if len(self.edges) < EDGES // 2:
            self.following = FOLLOWING
            if self.tail:
                self.telling.add(id(self.tail[-1]))

    def add(self, fact: Progress) -> None:
        if self.following and fact.step is not None:
            self.following -= 1
            self.telling.add(id(fact))
        self.tail.append(fact)
        if len(self.tail) > TAIL:
            self._settle(self.tail.popleft())

    def _settle(self, fact: Progress) -> None:
        last = self.last
        self.seen += 1
        if id(fact) in self.telling:
            self.telling.remove(id(fact))
            self._edge(fact)
        if last is None:
            self.last = self.edges[id(fact)] = fact
            return
        if fact.time < last.time:
            # The reader held it back while it stood for others. Later reports have been handled already.
            self.late.append(fact)
            if len(self.late) > 2 * SPREAD:
                self.late = self.late[::2]
            return
        self.last = fact
        still = fact.step is not None and fact.step == last.step and fact.phase == last.phase
        if still and fact.attempt == last.attempt:
            # A report of the same step is not progress. The report before it is the last progress.
            self._edge(last, ends=True)
            return
        edge = (
            fact.time - last.end >= PAUSE
            or fact.attempt != last.attempt
            or fact.phase != last.phase
            or (fact.step is not None and last.step is not None and fact.step < last.step)
        )
        if edge:
            self._edge(last, ends=fact.time - last.end >= PAUSE)
            self._edge(fact)
        elif self.stood:
            self._edge(fact)
        elif self.seen % self.stride == 0:
            self.spread.append(fact)
            if len(self.spread) >= 2 * SPREAD:
                self.spread = self.spread[::2]
                self.stride *= 2
        self.stood = False

    def _edge(self, fact: Progress, *, ends: bool = False) -> None:
        if ends and self.stood:
            return  # the beginning of this standstill is kept already
        if len(self.edges) < EDGES or id(fact) in self.edges:
            self.edges[id(fact)] = fact
            if ends:
                self.ending.add(id(fact))
        self.stood = self.stood or ends

    def kept(self) -> list[Progress]:
        found = {fact.source.offset: fact for fact in (*self.edges.values(), *self.spread)}
        ordered = sorted(found.values(), key=lambda fact: (fact.time, fact.source.offset))
        # A kept report stands for the dropped ones up to the next kept one.
        after = [fact.time for fact in ordered[1:]]
        if self.last is not None:
            after.append(self.last.time)
        standing = []
        for before, fact, until in zip((None, *ordered), ordered, after, strict=False):
            # The end of a standstill is not progress and stands for no others.
            stood = before is not None and (before.step, before.phase) == (fact.step, fact.phase)
            alone = id(fact) in self.ending or until <= fact.end or (stood and fact.step is not None)
            standing.append(fact if alone else msgspec.structs.replace(fact, last_time=until, count=fact.count + 1))
        return [*standing, *self.late, *self.tail]


class Thinning:
    """Takes the facts of one stream in order, and returns the progress to keep."""

    def __init__(self) -> None:
        self._ranks: dict[int | None, _RankReports] = {}

    def take(self, fact: Fact) -> bool:
        """Take a fact if it is progress, and return whether it is."""
        if type(fact) is not Progress:
            if isinstance(fact, FAILURES):
                for rank in self._ranks.values():
                    rank.fail()
            return False
        reports = self._ranks.get(fact.rank)
        if reports is None:
            reports = self._ranks[fact.rank] = _RankReports()
        reports.add(fact)
        return True

    def kept(self) -> list[Fact]:
        """Return the reports to keep, rank by rank."""
        return [fact for reports in self._ranks.values() for fact in reports.kept()]
