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
    What the engine needs to know when to look: whether it `changed`, whether its deadline `called`, when it `looked`
    and at how many facts (`size`), and by the facts since then the `pace`, the latest time (`by`) and, when it was left
    alone, until when (`ready`).
    """

    __slots__ = (
        "armed",
        "by",
        "called",
        "changed",
        "count",
        "due",
        "facts",
        "floor",
        "key",
        "known",
        "looked",
        "oldest",
        "pace",
        "ready",
        "size",
        "skew",
    )

    def __init__(self, key: Key, skew: int) -> None:
        self.key = key
        self.skew = skew
        self.facts: dict[type[Fact], list[Fact]] = {}
        self.known: dict[str | Source, Known] | None = None
        self.changed = False
        self.called = False
        self.count = 0
        self.oldest = 0
        self.looked = 0
        self.size = 0
        self.pace = 0
        self.by = 0
        self.ready = 0
        self.armed = False
        self.due: int | None = None
        self.floor: int | None = None

    def of(self, kind: type[F]) -> Sequence[F]:
        return cast("Sequence[F]", self.facts.get(kind, ()))

    def __len__(self) -> int:
        return self.count

    def add(self, fact: Fact) -> int:
        """Keep this fact: 1 when it is new, 0 when it takes the place of itself with a smaller count, -1 when known."""
        kind = type(fact)
        facts = self.facts.get(kind)
        if fact.time < self.oldest:
            self.oldest = fact.time
        if not facts:
            self.facts[kind] = [fact]
            self.count += 1
            return 1
        last = facts[-1]
        if fact.time > last.time:
            facts.append(fact)
            self.count += 1
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
        self.count += 1
        return 1

    def prune(self, cutoff: int) -> int:
        """Forget facts that ended before this time, and say how many."""
        if cutoff <= self.oldest:
            return 0
        dropped = 0
        for facts in self.facts.values():
            if facts and facts[0].time < cutoff:
                place = bisect_left(facts, cutoff, key=_time)
                kept = [fact for fact in facts[:place] if fact.last_time is not None and fact.last_time >= cutoff]
                dropped += place - len(kept)
                facts[:place] = kept
        self.count -= dropped
        # Every time from here on is at least this, but for storms that began before and go on: those are looked at.
        self.oldest = min((facts[0].time for facts in self.facts.values() if facts), default=cutoff)
        return dropped

    def trim(self, limit: int) -> int:
        """Forget the oldest facts until at most `limit` remain, and say how many; remembers the floor."""
        excess = len(self) - limit
        if excess <= 0:
            return 0
        oldest = heapq.nsmallest(excess, (f for facts in self.facts.values() for f in facts[:excess]), key=_order)
        for kind in {type(fact) for fact in oldest}:
            del self.facts[kind][: sum(type(fact) is kind for fact in oldest)]
        self.count -= excess
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
