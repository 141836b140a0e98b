"""Folding: a storm of one statement is one fact with a count, a first and a last time.

Two facts are the same statement when they have the same type, the same identity and the same content, but for the
time, the place they were read, and the fields their type calls `varying`. Repeats that follow each other within a gap
make one run, and a run is one fact: its first statement (earliest time, then uid), how many there were, and the last
time. The runs of a set of facts are the same in whatever order the facts arrive.

A run that grows keeps its uid as long as nothing earlier arrives; whoever holds the fact replaces it by what
`Change.replaces` names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from tracecore.facts.fact import Fact

GAP = 30 * 1_000_000_000
CAPACITY = 65_536
#: Places remembered for each run, so that the same line read twice counts once. A longer run counts re-readings.
REMEMBERED = 256
#: Runs of one statement that are still open at a time; an older one is closed.
RUNS = 64

_NOT_CONTENT = frozenset({"time", "source", "count", "last_time", "approximate"})


class FactChange(NamedTuple):
    """A fact that is new or has grown, and the facts it stands for now."""

    fact: Fact
    replaces: tuple[Fact, ...] = ()


class _Run:
    __slots__ = ("count", "end", "first", "seen", "start", "stated")

    def __init__(self, fact: Fact) -> None:
        self.first = fact
        self.start = fact.time
        self.end = fact.end
        self.count = fact.count
        self.seen = {hash(fact.source)}
        self.stated: tuple[Fact, ...] = ()

    def take(self, fact: Fact) -> None:
        if fact.time < self.start or (fact.time == self.start and fact.uid < self.first.uid):
            self.first = fact
            self.start = fact.time
        self.end = max(self.end, fact.end)
        self.count += fact.count

    def merge(self, other: _Run) -> None:
        self.take(msgspec.structs.replace(other.first, count=other.count, last_time=other.end))
        if other.first.time == self.start and other.first.uid == self.first.uid:
            self.first = other.first
        self.seen |= other.seen
        self.stated += other.stated

    def fact(self) -> Fact:
        if self.count == 1 and self.first.last_time is None:
            return self.first
        return msgspec.structs.replace(self.first, count=self.count, last_time=self.end)


Key = tuple[Any, ...]


class Fold:
    """Folds facts as they come, in bounded memory.

    Args:
        gap: nanoseconds between two repeats that still belong together.
        capacity: statements with an open run; beyond it the one untouched for longest is closed and counted.
    """

    def __init__(self, gap: int = GAP, capacity: int = CAPACITY) -> None:
        if gap < 0 or capacity < 1:
            raise ValueError("a gap cannot be negative, and one statement must fit")
        self.gap = gap
        self.capacity = capacity
        #: Statements whose runs were closed because too many were open.
        self.evicted = 0
        self._runs: OrderedDict[Key, list[_Run]] = OrderedDict()
        self._dirty: dict[int, _Run] = {}
        self._passed: list[FactChange] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, fact: Fact) -> None:
        """Take a fact in; `changes` tells what became of it."""
        kind = type(fact)
        if not kind.folds:
            self._passed.append(FactChange(fact))
            return
        key = (kind, *_content(kind)(fact))
        runs = self._runs.get(key)
        if runs is None:
            self._open(key, fact)
            return
        self._runs.move_to_end(key)
        last = runs[-1]
        if len(runs) > 1 or not last.start - self.gap <= fact.end or not fact.time <= last.end + self.gap:
            self._place(runs, fact)
            return
        self._extend(last, fact)

    def _open(self, key: Key, fact: Fact) -> None:
        if len(self._runs) >= self.capacity:
            self._runs.popitem(last=False)
            self.evicted += 1
        run = _Run(fact)
        self._runs[key] = [run]
        self._dirty[id(run)] = run

    def _extend(self, run: _Run, fact: Fact) -> None:
        place = hash(fact.source)
        if place in run.seen:
            return
        if len(run.seen) < REMEMBERED:
            run.seen.add(place)
        run.take(fact)
        self._dirty[id(run)] = run

    def _place(self, runs: list[_Run], fact: Fact) -> None:
        """Find the runs the fact touches; it may join two that were apart."""
        near = [r for r in runs if r.start - self.gap <= fact.end and fact.time <= r.end + self.gap]
        if not near:
            run = _Run(fact)
            runs.append(run)
            self._dirty[id(run)] = run
        else:
            if any(hash(fact.source) in r.seen for r in near):
                return
            run = near[0]
            self._extend(run, fact)
            for other in near[1:]:
                run.merge(other)
                runs.remove(other)
                self._dirty.pop(id(other), None)
        runs.sort(key=lambda r: r.start)
        del runs[:-RUNS]

    def changes(self) -> list[FactChange]:
        """Return what is new or has grown since the last call, ordered by (time, uid)."""
        found, self._passed = self._passed, []
        for run in self._dirty.values():
            fact = run.fact()
            if run.stated != (fact,):
                found.append(FactChange(fact, run.stated))
                run.stated = (fact,)
        self._dirty.clear()
        found.sort(key=lambda change: _order(change.fact))
        return found

    def expire(self, before: int) -> None:
        """Close the runs that ended before this time less the gap: nothing can join them any more."""
        limit = before - self.gap
        for key in [k for k, runs in self._runs.items() if runs[-1].end < limit]:
            del self._runs[key]


def fold(facts: Iterable[Fact], gap: int = GAP) -> list[Fact]:
    """All facts with their repeats folded, ordered by (time, uid); folding the result again changes nothing."""
    folder = Fold(gap, capacity=1 << 62)
    for fact in facts:
        folder.add(fact)
    return [change.fact for change in folder.changes()]


def _order(fact: Fact) -> tuple[int, str, str]:
    return fact.time, fact.uid, type(fact).__name__


_CONTENT: dict[type[Fact], Callable[[Fact], tuple[Any, ...]]] = {}


def _content(kind: type[Fact]) -> Callable[[Fact], tuple[Any, ...]]:
    """A function that takes from a fact what must be equal in all its repeats."""
    getter = _CONTENT.get(kind)
    if getter is None:
        names = [n for n in kind.__struct_fields__ if n not in _NOT_CONTENT and n not in kind.varying]
        getter = _CONTENT[kind] = attrgetter(*names)
    return getter
