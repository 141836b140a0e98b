"""Fold the repeats of one statement into one fact with a count, a first and a last time.

Two facts are the same statement if they have the same type, identity and content, except for the time, the source and
the fields that their type lists in `varying`. Repeats that follow each other within a gap form one run. A run becomes
one fact: its first statement (earliest time, then uid), with the count and the last time. The runs of a set of facts do
not depend on the order in which the facts arrive.

A run that grows keeps its uid unless an earlier fact arrives. Holders of the old fact replace it, as
`FactChange.replaces` says.
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
#: Sources remembered for each run, so that a line that is read twice counts once. Longer runs may count it twice.
REMEMBERED = 256
#: Maximum number of open runs of one statement. The oldest is closed.
RUNS = 64

_NOT_CONTENT = frozenset({"time", "source", "count", "last_time", "approximate"})


class FactChange(NamedTuple):
    """A fact that is new or has grown, and the older facts that it replaces."""

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
    """Folds facts as they arrive, in bounded memory.

    Args:
        gap: maximum nanoseconds between two repeats of one run.
        capacity: maximum number of statements with an open run. The least recently used is closed and counted.
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
        self._unfolded: list[FactChange] = []

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, fact: Fact) -> None:
        """Add a fact; `changes` returns the result."""
        kind = type(fact)
        if not kind.folds:
            self._unfolded.append(FactChange(fact))
            return
        key = (kind, *_content(kind)(fact))
        runs = self._runs.get(key)
        if runs is None:
            self._open(key, fact)
            return
        self._runs.move_to_end(key)
        last = runs[-1]
        if len(runs) > 1 or not last.start - self.gap <= fact.end or not fact.time <= last.end + self.gap:
            self._add_to_runs(runs, fact)
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

    def _add_to_runs(self, runs: list[_Run], fact: Fact) -> None:
        """Add a fact to the run that it touches. It may join two runs into one."""
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
        """Return the facts that are new or have grown since the last call, ordered by (time, uid)."""
        found, self._unfolded = self._unfolded, []
        for run in self._dirty.values():
            fact = run.fact()
            if run.stated != (fact,):
                found.append(FactChange(fact, run.stated))
                run.stated = (fact,)
        self._dirty.clear()
        found.sort(key=lambda change: _order(change.fact))
        return found

    def expire(self, before: int) -> None:
        """Close the runs that ended more than the gap before this time. No fact can join them any more."""
        limit = before - self.gap
        for key in [k for k, runs in self._runs.items() if runs[-1].end < limit]:
            del self._runs[key]


def fold(facts: Iterable[Fact], gap: int = GAP) -> list[Fact]:
    """Return the facts with repeats folded, ordered by (time, uid). Folding the result again changes nothing."""
    folder = Fold(gap, capacity=1 << 62)
    for fact in facts:
        folder.add(fact)
    return [change.fact for change in folder.changes()]


def _order(fact: Fact) -> tuple[int, str, str]:
    return fact.time, fact.uid, type(fact).__name__


_CONTENT: dict[type[Fact], Callable[[Fact], tuple[Any, ...]]] = {}


def _content(kind: type[Fact]) -> Callable[[Fact], tuple[Any, ...]]:
    """Return a function that gives the part of a fact which is equal in all its repeats."""
    getter = _CONTENT.get(kind)
    if getter is None:
        names = [n for n in kind.__struct_fields__ if n not in _NOT_CONTENT and n not in kind.varying]
        getter = _CONTENT[kind] = attrgetter(*names)
    return getter
