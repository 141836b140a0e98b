"""Thinning: of a very long stream's progress, what conclusions rest on.

A run of a week reports a million steps for each rank, and nothing is concluded from most of them. Of each rank are
kept: its last reports, all of them, since incidents are at the end; both reports around a pause, a step back or a
change of phase; and of the others a few, evenly spread, fewer of a longer run. So memory does not grow with the input.
A report that is kept stands for those left out after it, by its `last_time` and `count`: a gap between two that are
kept is no pause.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from tracecore.facts.fact import Fact
from tracecore.facts.training import Progress

#: Last reports of a rank that are all kept.
TAIL: Final = 128
#: Reports before them: evenly spread ones, and those around something.
SPREAD: Final = 256
EDGES: Final = 2048
#: A pause between two reports that is worth keeping both; stalls are looked for from 60 s on.
PAUSE: Final = 30 * 1_000_000_000


class _Lane:
    __slots__ = ("edges", "ending", "last", "late", "seen", "spread", "stood", "stride", "tail")

    def __init__(self) -> None:
        self.tail: deque[Progress] = deque()
        self.spread: list[Progress] = []
        self.late: list[Progress] = []
        self.edges: dict[int, Progress] = {}
        #: Of `edges`, those after which no step was made for long.
        self.ending: set[int] = set()
        self.stood = False
        self.stride = 1
        self.seen = 0
        self.last: Progress | None = None

    def add(self, fact: Progress) -> None:
        self.tail.append(fact)
        if len(self.tail) > TAIL:
            self._settle(self.tail.popleft())

    def _settle(self, fact: Progress) -> None:
        last = self.last
        self.seen += 1
        if last is None:
            self.last = self.edges[id(fact)] = fact
            return
        if fact.time < last.time:
            # It was kept back while it stood for others; what came after it has been looked at.
            self.late.append(fact)
            if len(self.late) > 2 * SPREAD:
                self.late = self.late[::2]
            return
        self.last = fact
        still = fact.step is not None and fact.step == last.step and fact.phase == last.phase
        if still and fact.attempt == last.attempt:
            # Reports of a step that does not advance are no progress; the one before them ends it.
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
            return  # its step has stood still for a while: where that began is known
        if len(self.edges) < EDGES or id(fact) in self.edges:
            self.edges[id(fact)] = fact
            if ends:
                self.ending.add(id(fact))
        self.stood = self.stood or ends

    def kept(self) -> list[Progress]:
        found = {fact.source.offset: fact for fact in (*self.edges.values(), *self.spread)}
        ordered = sorted(found.values(), key=lambda fact: (fact.time, fact.source.offset))
        # A report that is kept stands for the dropped reports that follow closely, up to the next kept one.
        after = [fact.time for fact in ordered[1:]]
        if self.last is not None:
            after.append(self.last.time)
        standing = []
        for before, fact, until in zip((None, *ordered), ordered, after, strict=False):
            # A step that stood still until now is no progress: it stands for nobody.
            stood = before is not None and (before.step, before.phase) == (fact.step, fact.phase)
            alone = id(fact) in self.ending or until <= fact.end or (stood and fact.step is not None)
            standing.append(fact if alone else msgspec.structs.replace(fact, last_time=until, count=fact.count + 1))
        return [*standing, *self.late, *self.tail]


class Thinning:
    """Takes the progress of one stream in its order, and gives what is kept of it."""

    def __init__(self) -> None:
        self._lanes: dict[int | None, _Lane] = {}

    def take(self, fact: Fact) -> bool:
        """Return whether the fact was taken; what is no progress is not."""
        if type(fact) is not Progress:
            return False
        lane = self._lanes.get(fact.rank)
        if lane is None:
            lane = self._lanes[fact.rank] = _Lane()
        lane.add(fact)
        return True

    def kept(self) -> list[Fact]:
        """The reports that are kept, rank by rank."""
        return [fact for lane in self._lanes.values() for fact in lane.kept()]
