"""The facts of one (pattern, key), kept sorted and bounded."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Verdict
    from tracecore.signals.record import Source

    F = TypeVar("F", bound=Fact)

_time = attrgetter("time")


def _order(fact: Fact) -> tuple[int, str]:
    return fact.time, fact.uid


class Known:
    """A verdict that was emitted and stands."""

    __slots__ = ("revision", "verdict")

    def __init__(self, verdict: Verdict, revision: int) -> None:
        self.verdict = verdict
        self.revision = revision


class FactWindow:
    """Implements `patterns.contract.Window`.

    `floor` is the time before which facts were dropped for a limit: what depended on them can no longer be judged.
    """

    __slots__ = ("armed", "changed", "due", "facts", "floor", "key", "known", "skew")

    def __init__(self, key: Key, skew: int) -> None:
        self.key = key
        self.skew = skew
        self.facts: dict[type[Fact], list[Fact]] = {}
        self.known: dict[str | Source, Known] | None = None
        self.changed = False
        self.armed = False
        self.due: int | None = None
        self.floor: int | None = None

    def of(self, kind: type[F]) -> Sequence[F]:
        return cast("Sequence[F]", self.facts.get(kind, ()))

    def __len__(self) -> int:
        return sum(map(len, self.facts.values()))

    def add(self, fact: Fact) -> int:
        """Keep this fact: 1 when it is new, 0 when it takes the place of itself with a smaller count, -1 when known."""
        kind = type(fact)
        facts = self.facts.get(kind)
        if not facts:
            self.facts[kind] = [fact]
            return 1
        last = facts[-1]
        if fact.time > last.time:
            facts.append(fact)
            return 1
        place = bisect_left(facts, _order(fact), key=_order)
        if place < len(facts):
            present = facts[place]
            if present.time == fact.time and present.uid == fact.uid:
                if not _supersedes(fact, present):
                    return -1
                facts[place] = fact
                return 0
        facts.insert(place, fact)
        return 1

    def prune(self, cutoff: int) -> int:
        """Forget facts that ended before this time, and say how many."""
        dropped = 0
        for facts in self.facts.values():
            if facts and facts[0].time < cutoff:
                place = bisect_left(facts, cutoff, key=_time)
                kept = [fact for fact in facts[:place] if fact.last_time is not None and fact.last_time >= cutoff]
                dropped += place - len(kept)
                facts[:place] = kept
        return dropped

    def trim(self, limit: int) -> int:
        """Forget the oldest facts until at most `limit` remain, and say how many; remembers the floor."""
        excess = len(self) - limit
        if excess <= 0:
            return 0
        oldest = heapq.nsmallest(excess, (f for facts in self.facts.values() for f in facts[:excess]), key=_order)
        for kind in {type(fact) for fact in oldest}:
            del self.facts[kind][: sum(type(fact) is kind for fact in oldest)]
        self.raise_floor(oldest[-1].time + 1)
        return excess

    def raise_floor(self, time: int) -> None:
        self.floor = time if self.floor is None else max(self.floor, time)


def _supersedes(fact: Fact, present: Fact) -> bool:
    # A fold that went on counting replaces what it was. Two different statements under one identity are somebody's
    # mistake: which one stays must not depend on which came first.
    if fact == present:
        return False
    if (fact.count, fact.end) != (present.count, present.end):
        return (fact.count, fact.end) > (present.count, present.end)
    return repr(fact) > repr(present)
