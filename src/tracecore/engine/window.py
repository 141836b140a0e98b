"""The facts of one pattern and key, sorted and bounded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tracecore.facts.fact import order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Verdict
    from tracecore.signals.record import Source

    F = TypeVar("F", bound=Fact)
    K = TypeVar("K")

#: States of a window: it holds no trigger; nothing changed since its evaluation; facts came; a trigger came.
DORMANT, CURRENT, CHANGED, TRIGGERED = range(4)

_time = attrgetter("time")
_uid = attrgetter("uid")


class Standing(msgspec.Struct, gc=False):
    """A verdict that was emitted and not retracted."""

    verdict: Verdict
    revision: int


class Index:
    """Facts of one type, grouped by a function of the fact; `seen` counts the facts that are in it."""

    __slots__ = ("groups", "seen")

    def __init__(self) -> None:
        self.groups: dict[Any, list[Any]] = {}
        self.seen = 0


class FactWindow(msgspec.Struct, eq=False, gc=False):
    """Implements `patterns.contract.Window`.

    Nothing in a window refers back to it, so the garbage collector can ignore it.

    Args:
        key: what the facts have in common.
        skew: how far the clocks of two nodes may disagree.
        pattern: the position of the pattern in the engine.
        oldest: no fact is older than this.
        facts: by type, each sorted by (time, uid).
        size: the number of facts.
        indexes: made by `grouped`, kept up to date with the facts.
        standing: emitted verdicts by episode.
        said: the verdicts of the last evaluation, if all of them stand unchanged.
        state: whether it is to be evaluated; see `DORMANT`.
        reads: fact types that the last evaluation asked for; no other fact can change its verdicts.
        reading: the same, while it is evaluated.
        evaluated: the time of the last evaluation.
        evaluated_size: the number of facts at that time.
        unchanged: evaluations since the last one that changed something.
        timer: when to evaluate next without a new fact.
        floor: facts before this time were dropped for a limit, so verdicts about that time can no longer be judged.
    """

    key: Key
    skew: int
    pattern: int = 0
    oldest: int = 0
    facts: dict[type[Fact], list[Any]] = msgspec.field(default_factory=dict)
    size: int = 0
    indexes: dict[tuple[type[Fact], Callable[[Any], Any]], Index] | None = None
    standing: dict[str | Source, Standing] | None = None
    said: Sequence[Verdict] = ()
    state: int = 0
    reads: frozenset[type[Fact]] = frozenset()
    reading: set[type[Fact]] | None = None
    evaluated: int = 0
    evaluated_size: int = 0
    unchanged: int = 0
    timer: int | None = None
    floor: int | None = None

    def of(self, kind: type[F]) -> Sequence[F]:
        if self.reading is not None:
            self.reading.add(kind)
        return self.facts.get(kind, ())

    def grouped(self, kind: type[F], by: Callable[[F], K]) -> Mapping[K, Sequence[F]]:
        if self.reading is not None:
            self.reading.add(kind)
        if self.indexes is None:
            self.indexes = {}
        index = self.indexes.get((kind, by))
        if index is None:
            index = self.indexes[kind, by] = Index()
        facts = self.facts.get(kind)
        if facts is not None and index.seen < len(facts):
            groups = index.groups
            for fact in facts[index.seen :] if index.seen else facts:
                name = by(fact)
                group = groups.get(name)
                if group is None:
                    groups[name] = [fact]
                else:
                    group.append(fact)
            index.seen = len(facts)
        return index.groups

    def add(self, fact: Fact) -> bool:
        """Insert this fact; False if the window already holds it.

        A fact that repeats another with a larger count replaces it.
        """
        kind, time = type(fact), fact.time
        facts = self.facts.get(kind)
        if time < self.oldest:
            self.oldest = time
        if not facts:
            self.facts[kind] = [fact]
            self.size += 1
            return True
        if time > facts[-1].time:
            facts.append(fact)
            self.size += 1
            return True
        place = bisect_left(facts, time, key=_time)
        if facts[place].time == time:
            # Many logs tell time by the second, so many facts can share a time.
            place = bisect_left(facts, fact.uid, place, bisect_right(facts, time, place, key=_time), key=_uid)
            if place < len(facts):
                present = facts[place]
                if present.time == time and present.uid == fact.uid:
                    if not _supersedes(fact, present):
                        return False
                    facts[place] = fact
                    self._drop_indexes(kind)
                    return True
        facts.insert(place, fact)
        self.size += 1
        self._drop_indexes(kind)
        return True

    def _drop_indexes(self, kind: type[Fact]) -> None:
        if self.indexes:
            self.indexes = {name: index for name, index in self.indexes.items() if name[0] is not kind}

    def prune(self, cutoff: int) -> int:
        """Forget facts that ended before this time and return their number."""
        if cutoff <= self.oldest:
            return 0
        dropped = 0
        for kind, facts in self.facts.items():
            if facts and facts[0].time < cutoff:
                place = bisect_left(facts, cutoff, key=_time)
                # A folded fact that began before the cutoff may still go on.
                kept = [fact for fact in facts[:place] if fact.last_time is not None and fact.last_time >= cutoff]
                if len(kept) < place:
                    dropped += place - len(kept)
                    facts[:place] = kept
                    self._drop_indexes(kind)
        self.oldest = min((facts[0].time for facts in self.facts.values() if facts), default=cutoff)
        self.size -= dropped
        return dropped

    def trim(self, limit: int) -> int:
        """Forget the oldest facts until at most `limit` remain, raise the floor, and return how many went."""
        excess = self.size - limit
        if excess <= 0:
            return 0
        everything = sorted((fact for facts in self.facts.values() for fact in facts[:excess]), key=order)
        gone = everything[:excess]
        for fact in gone:
            self._drop_indexes(type(fact))
        removed = set(map(id, gone))
        for kind, facts in self.facts.items():
            self.facts[kind] = [fact for fact in facts if id(fact) not in removed]
        self.size -= excess
        self.raise_floor(gone[-1].time + 1)
        return excess

    def raise_floor(self, time: int) -> None:
        """Remember that facts before this time were dropped."""
        self.floor = time if self.floor is None else max(self.floor, time)


def _supersedes(fact: Fact, present: Fact) -> bool:
    """Whether a fact replaces another of the same time and uid: a fold that went on counting does.

    Two different statements under one uid are a mistake of their source; the choice must not depend on their order.
    """
    if fact == present:
        return False
    if (fact.count, fact.end) != (present.count, present.end):
        return (fact.count, fact.end) > (present.count, present.end)
    return repr(fact) > repr(present)
