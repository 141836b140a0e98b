"""The facts of one (pattern, key), kept sorted and bounded."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tracecore.facts.fact import order
from tracecore.patterns.contract import FOREVER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Digest, Key, Verdict
    from tracecore.signals.record import Source

    F = TypeVar("F", bound=Fact)
    D = TypeVar("D", bound=Digest[Any])

#: States of a window: nothing in it is worth a look; the next fact may be; something changed since the last look.
ASLEEP, AWAKE, CHANGED = range(3)

_time = attrgetter("time")
_uid = attrgetter("uid")


class Known(msgspec.Struct, gc=False):
    """A verdict that was emitted and stands."""

    verdict: Verdict
    revision: int


class Kept:
    """A digest, and how many of the facts of its type it has seen: always the first of them."""

    __slots__ = ("digest", "seen")

    def __init__(self, digest: Any) -> None:
        self.digest = digest
        self.seen = 0


class FactWindow(msgspec.Struct, eq=False, gc=False):
    """Implements `patterns.contract.Window`.

    There are many: what is kept in one must not refer to it, so that it need not be looked at for garbage.

    Args:
        key: of the facts.
        skew: see `patterns.contract.Window`.
        shelf: the place of its pattern.
        oldest: no fact is older than this.
        facts: by type, each sorted by (time, uid).
        digests: made so far.
        known: verdicts that stand, by episode.
        said: the verdicts of the last look, where all of them stand as they are.
        kept: see `patterns.contract.Window`.
        marks: while something is kept, how many facts of each type the last look had seen, always the first of them,
            but for those in `early`, which came later.
        early: see `marks`.
        state: whether it is to be looked at.
        called: its deadline has come.
        urgent: a fact came so late that it cannot wait.
        heeds: until when asides may matter, see `patterns.contract.Pattern`.
        looked: when it was last looked at.
        size: how many facts it had then.
        due: its deadline.
        floor: the time before which facts were dropped for a limit: what depended on them can no longer be judged.
    """

    key: Key
    skew: int
    shelf: int = 0
    oldest: int = 0
    facts: dict[type[Fact], list[Any]] = msgspec.field(default_factory=dict)
    digests: dict[tuple[type[Fact], Callable[[], Digest[Any]]], Kept] | None = None
    known: dict[str | Source, Known] | None = None
    said: Sequence[Verdict] = ()
    kept: Any = None
    marks: dict[type[Fact], int] | None = None
    early: list[Fact] | None = None
    state: int = ASLEEP
    called: bool = False
    urgent: bool = False
    heeds: int = FOREVER
    looked: int = 0
    size: int = 0
    due: int | None = None
    floor: int | None = None

    def of(self, kind: type[F]) -> Sequence[F]:
        return self.facts.get(kind, ())

    def digest(self, kind: type[F], make: Callable[[], D]) -> D:
        if self.digests is None:
            self.digests = {}
        kept = self.digests.get((kind, make))
        if kept is None:
            kept = self.digests[kind, make] = Kept(make())
        facts = self.facts.get(kind)
        if facts and kept.seen < len(facts):
            kept.digest.add(facts[kept.seen :] if kept.seen else facts)
            kept.seen = len(facts)
        return kept.digest  # type: ignore[no-any-return]

    def new(self) -> Mapping[type[Fact], Sequence[Any]]:
        if self.marks is None:
            return self.facts
        seen = self.marks.get
        found: dict[type[Fact], list[Any]] = {}
        for kind, facts in self.facts.items():
            number = seen(kind, 0)
            if number < len(facts):
                found[kind] = facts[number:]
        if self.early:
            for fact in self.early:
                found.setdefault(type(fact), []).append(fact)
            for facts in found.values():
                facts.sort(key=order)
        return found

    def keep(self, conclusions: object) -> None:
        self.kept = conclusions
        self.marks = None if conclusions is None else dict(zip(self.facts, map(len, self.facts.values()), strict=True))
        if self.early is not None:
            self.early = None

    def __len__(self) -> int:
        return sum(map(len, self.facts.values()))

    def add(self, fact: Fact) -> int:
        """Keep this fact: 1 when it is new, 0 when it takes the place of itself with a smaller count, -1 when known."""
        kind, time = type(fact), fact.time
        facts = self.facts.get(kind)
        if time < self.oldest:
            self.oldest = time
        if not facts:
            if facts is None:
                self.facts[kind] = [fact]
            else:
                facts.append(fact)
            return 1
        if time > facts[-1].time:
            facts.append(fact)
            return 1
        # Of many logs that tell time by the second, many facts are of one time.
        place = bisect_left(facts, time, key=_time)
        if facts[place].time == time:
            place = bisect_left(facts, fact.uid, place, bisect_right(facts, time, place, key=_time), key=_uid)
            if place < len(facts):
                present = facts[place]
                if present.time == time and present.uid == fact.uid:
                    if not _supersedes(fact, present):
                        return -1
                    facts[place] = fact
                    self.unlearn(kind)
                    return 0
        facts.insert(place, fact)
        if self.digests:
            for (of, _), kept in self.digests.items():
                if of is kind and place < kept.seen:
                    kept.digest.add((fact,))
                    kept.seen += 1
        if self.marks is not None and place < self.marks.get(kind, 0):
            self.marks[kind] += 1
            if self.early is None:
                self.early = []
            self.early.append(fact)
        return 1

    def extend(self, kind: type[Fact], facts: list[Any]) -> bool:
        """Keep these facts, which are in order; False, and nothing is done, where not all are later than those here."""
        present = self.facts.get(kind)
        if present and facts[0].time <= present[-1].time:
            return False
        if present is None:
            self.facts[kind] = facts.copy()
        else:
            present += facts
        if facts[0].time < self.oldest:
            self.oldest = facts[0].time
        return True

    def unlearn(self, kind: type[Fact] | None = None) -> None:
        """Facts of this type, or of all, went away: what was made of them is made anew when it is asked for."""
        self.kept = self.marks = self.early = None
        if kind is None:
            self.digests = None
        elif self.digests:
            self.digests = {name: kept for name, kept in self.digests.items() if name[0] is not kind}

    def prune(self, cutoff: int) -> int:
        """Forget facts that ended before this time, and say how many."""
        if cutoff <= self.oldest:
            return 0
        dropped = 0
        for kind, facts in self.facts.items():
            if facts and facts[0].time < cutoff:
                place = bisect_left(facts, cutoff, key=_time)
                kept = [fact for fact in facts[:place] if fact.last_time is not None and fact.last_time >= cutoff]
                if len(kept) < place:
                    dropped += place - len(kept)
                    facts[:place] = kept
                    self.unlearn(kind)
        # Every time from here on is at least this, but for storms that began before and go on: those are looked at.
        self.oldest = min((facts[0].time for facts in self.facts.values() if facts), default=cutoff)
        return dropped

    def trim(self, limit: int) -> int:
        """Forget the oldest facts until at most `limit` remain, and say how many; remembers the floor."""
        excess = len(self) - limit
        if excess <= 0:
            return 0
        last = sorted(fact.time for facts in self.facts.values() for fact in facts[:excess])[excess - 1]
        left = excess
        for kind, facts in self.facts.items():
            if place := bisect_left(facts, last, key=_time):
                del facts[:place]
                left -= place
                self.unlearn(kind)
        # Of those that are all of the last time, the first by uid.
        ties = [facts[place] for facts in self.facts.values() for place in range(bisect_right(facts, last, key=_time))]
        for fact in sorted(ties, key=order)[:left]:
            self.facts[type(fact)].remove(fact)
            self.unlearn(type(fact))
        self.raise_floor(last + 1)
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
