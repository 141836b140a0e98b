"""Facts in order of time, and searches for those near an instant."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from tracecore.facts.fact import Fact, order
from tracecore.patterns.contract import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    K = TypeVar("K", bound=Hashable)

F = TypeVar("F", bound=Fact)

_time = attrgetter("time")
_end = attrgetter("end")


class Timeline(Generic[F]):
    """Facts in order of time. Each question costs a binary search.

    Args:
        facts: in order of time.
    """

    __slots__ = ("_longest", "facts")

    def __init__(self, facts: Sequence[F]) -> None:
        self.facts = facts
        self._longest: list[F] | None = None

    def first(self, oldest: int, newest: int) -> F | None:
        """Return the first fact that ended at `oldest` or later, if it began at `newest` or earlier."""
        longest = self._lasting()
        # The ends in this list never fall. Where they first reach `oldest`, the fact at that place itself does.
        place = bisect_left(longest, oldest, key=_end)
        return longest[place] if place < len(longest) and longest[place].time <= newest else None

    def latest(self, oldest: int, newest: int) -> F | None:
        """Return the last fact that began at `newest` or earlier, if it ended at `oldest` or later. If not, try the
        earlier fact with the latest end."""
        place = bisect_right(self.facts, newest, key=_time) if self.facts else 0
        if not place:
            return None
        last = self.facts[place - 1]
        if last.time < oldest and last.end < oldest:
            last = self._lasting()[place - 1]
        return last if last.end >= oldest else None

    def _lasting(self) -> list[F]:
        """Return for each fact the one with the latest end among it and those before it."""
        if self._longest is None:
            self._longest = list(accumulate(self.facts, _later_end))
        return self._longest


def _later_end(one: F, other: F) -> F:
    return other if other.end > one.end else one


class Others(Generic[F]):
    """Facts in order of time, to find the first near an instant that has another name.

    Args:
        facts: in order of time.
        name: returns the name of a fact: a rank, a GPU.
    """

    __slots__ = ("_ends", "_longest", "_name")

    def __init__(self, facts: Sequence[F], name: Callable[[F], object]) -> None:
        self._name = name
        #: The end of the first fact of each pair below. These never fall.
        self._ends: list[int] = []
        #: For each fact, among it and those before it: the fact with the latest end, and that of another name.
        self._longest: list[tuple[F, F | None]] = []
        one: F | None = None
        other: F | None = None
        for fact in facts:
            if one is None or fact.end > one.end:
                one, other = fact, other if one is None or name(one) == name(fact) else one
            elif name(fact) != name(one) and (other is None or fact.end > other.end):
                other = fact
            self._longest.append((one, other))
            self._ends.append(one.end)

    def first(self, value: object, oldest: int, newest: int) -> F | None:
        """Return the first fact with another name than `value` that ended at `oldest` or later, if it began at
        `newest` or earlier."""

        def of_another(pair: tuple[F, F | None]) -> F | None:
            return pair[0] if self._name(pair[0]) != value else pair[1]

        def end(pair: tuple[F, F | None]) -> int:
            fact = of_another(pair)
            return NEVER if fact is None else fact.end

        # No fact of another name ends later than the latest of all, so the search can begin there.
        place = bisect_left(self._ends, oldest)
        if place < len(self._ends) and end(self._longest[place]) < oldest:
            place = bisect_left(self._longest, oldest, place, key=end)
        fact = of_another(self._longest[place]) if place < len(self._longest) else None
        return fact if fact is not None and fact.time <= newest else None


class ValueChanges:
    """The indexes at which a sequence of values changes."""

    __slots__ = ("_places",)

    def __init__(self, values: Iterable[object]) -> None:
        self._places = [place for place, (one, other) in enumerate(pairwise(values), 1) if one != other]

    def after(self, begin: int) -> int | None:
        """Return the first index after `begin` at which the value changes; None if it stays the same."""
        place = bisect_right(self._places, begin)
        return self._places[place] if place < len(self._places) else None

    def between(self, begin: int, end: int) -> bool:
        """Return whether the values from `begin` up to but not including `end` differ."""
        place = self.after(begin)
        return place is not None and place < end


def repeats(facts: Iterable[Fact], oldest: int, newest: int) -> float:
    """Return how many repeats of these facts lie between two times, if those of a folded fact are evenly spread."""
    found = 0.0
    for fact in facts:
        length = fact.end - fact.time
        shared = min(fact.end, newest) - max(fact.time, oldest)
        if shared >= 0:
            found += fact.count * (shared / length if length else 1.0)
    return found


def grouped(facts: Iterable[F], name: Callable[[F], K]) -> dict[K, list[F]]:
    """Return the facts by name, each group in the order of the facts."""
    groups: dict[K, list[F]] = {}
    for fact in facts:
        key = name(fact)
        if key in groups:
            groups[key].append(fact)
        else:
            groups[key] = [fact]
    return groups


def in_order(*sequences: Sequence[F]) -> Sequence[F]:
    """Merge sorted sequences of facts, in order of time and then of uid."""
    filled = [facts for facts in sequences if facts]
    if len(filled) < 2:
        return filled[0] if filled else ()
    merged = sorted(chain.from_iterable(filled), key=_time)
    # Uids cost time to build, so use them only if two times are equal.
    if len(set(map(_time, merged))) < len(merged):
        merged.sort(key=order)
    return merged
