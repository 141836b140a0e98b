"""The facts of one pattern and key, sorted and bounded."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import Counter
from itertools import islice
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from tracecore.facts.fact import order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Verdict
    from tracecore.signals.record import Source

    F = TypeVar("F", bound=Fact)
    K = TypeVar("K")

#: States of a window: it has no trigger; nothing has changed since its evaluation; facts arrived; a trigger arrived.
DORMANT, CURRENT, CHANGED, TRIGGERED = range(4)

NOTHING: Mapping[str | Source, Emission] = MappingProxyType({})

_time = attrgetter("time")
_uid = attrgetter("uid")


class FactWindow(msgspec.Struct, eq=False, gc=False):
    """Implements `patterns.contract.Window`.

    Nothing in a window refers back to it, so the garbage collector can ignore it.

    Args:
        key: what the facts have in common.
        skew: how far the clocks of two nodes may disagree.
        pattern: the position of the pattern in the engine.
        oldest: no fact is older than this.
        newest: no fact began later than this.
        facts: by type, each sorted by (time, uid).
        size: the number of facts.
        indexes: made by `grouped` and `distinct`: the number of facts that were indexed, and the groups or values.
        standing: the last emission of each episode that was not retracted.
        verdicts: the verdicts of the last evaluation.
        state: whether the window must be evaluated; see `DORMANT`.
        wakes: fact types that cause an evaluation: triggers, or the types that the last evaluation read.
        reading: the fact types read so far by the evaluation that runs.
        evaluated: the time of the last evaluation.
        evaluated_size: the number of facts at that time.
        unchanged: evaluations since the last one that caused an emission.
        timer: when to evaluate next without a new fact.
        floor: facts before this time were dropped for a limit, so verdicts about that time can no longer be judged.
    """

    key: Key
    skew: int
    pattern: int = 0
    oldest: int = 0
    newest: int = 0
    facts: dict[type[Fact], list[Any]] = msgspec.field(default_factory=dict)
    size: int = 0
    indexes: dict[tuple[type[Fact], Callable[[Any], Any], type], tuple[int, Any]] = {}
    standing: Mapping[str | Source, Emission] = NOTHING
    verdicts: Sequence[Verdict] = ()
    state: int = 0
    wakes: frozenset[type[Fact]] = frozenset()
    reading: set[type[Fact]] | None = None
    evaluated: int = 0
    evaluated_size: int = 0
    unchanged: int = 0
    timer: int | None = None
    floor: int = 0

    def of(self, kind: type[F]) -> Sequence[F]:
        if self.reading is not None:
            self.reading.add(kind)
        return self.facts.get(kind, ())

    def grouped(self, kind: type[F], by: Callable[[F], K]) -> Mapping[K, Sequence[F]]:
        facts = self.of(kind)
        seen, groups = self.indexes.get((kind, by, dict)) or (0, {})
        if seen < len(facts):
            for fact in facts[seen:] if seen else facts:
                name = by(fact)
                if name in groups:
                    groups[name].append(fact)
                else:
                    groups[name] = [fact]
            self.indexes[kind, by, dict] = len(facts), groups
        return cast("dict[K, list[F]]", groups)

    def distinct(self, kind: type[F], by: Callable[[F], K]) -> set[K]:
        facts = self.of(kind)
        seen, values = self.indexes.get((kind, by, set)) or (0, set())
        if len(facts) > seen:
            values.update(map(by, facts[seen:] if seen else facts))
            self.indexes[kind, by, set] = len(facts), values
        return cast("set[K]", values)

    def add(self, fact: Fact) -> bool:
        """Insert a fact and return True, or return False if the window already has it.

        A repeated fact with a larger count replaces the earlier one.
        """
        kind, time = type(fact), fact.time
        facts = self.facts.setdefault(kind, [])
        self.oldest, self.newest = min(self.oldest, time), max(self.newest, time)
        if not facts or time > facts[-1].time:
            facts.append(fact)
            self.size += 1
            return True
        # Many logs have times in whole seconds, so many facts may share a time. Comparing times is faster than uids.
        place = bisect_left(facts, time, key=_time)
        end = bisect_right(facts, time, place, key=_time)
        place = bisect_left(facts, fact.uid, place, end, key=_uid)
        if place < end and facts[place].uid == fact.uid:
            if not _supersedes(fact, facts[place]):
                return False
            facts[place] = fact
        else:
            facts.insert(place, fact)
            self.size += 1
        self._drop_indexes(kind)
        return True

    def _drop_indexes(self, kind: type[Fact]) -> None:
        self.indexes = {name: index for name, index in self.indexes.items() if name[0] is not kind}

    def prune(self, cutoff: int) -> int:
        """Forget the facts that ended before this time and return their number."""
        dropped = 0
        for kind, facts in self.facts.items():
            if facts and facts[0].time < cutoff:
                place = bisect_left(facts, cutoff, key=_time)
                # A folded fact that began before the cutoff may have ended after it.
                kept = [fact for fact in facts[:place] if fact.last_time is not None and fact.last_time >= cutoff]
                if len(kept) < place:
                    dropped += place - len(kept)
                    facts[:place] = kept
                    self._drop_indexes(kind)
        self.oldest = min((facts[0].time for facts in self.facts.values() if facts), default=cutoff)
        self.newest = max((facts[-1].time for facts in self.facts.values() if facts), default=0)
        self.size -= dropped
        return dropped

    def trim(self, limit: int) -> int:
        """Forget the oldest facts until at most `limit` remain, raise the floor, and return how many went."""
        gone = list(islice(heapq.merge(*self.facts.values(), key=order), max(0, self.size - limit)))
        for kind, number in Counter(map(type, gone)).items():
            del self.facts[kind][:number]
            self._drop_indexes(kind)
        if gone:
            self.size -= len(gone)
            self.floor = max(self.floor, gone[-1].time + 1)
        return len(gone)


def _supersedes(fact: Fact, present: Fact) -> bool:
    """Whether a fact replaces another of the same time and uid, because it is a fold with a larger count.

    Other facts with one uid are a mistake of their source; the choice between them must not depend on their order.
    """
    return fact != present and (fact.count, fact.end, repr(fact)) > (present.count, present.end, repr(present))
