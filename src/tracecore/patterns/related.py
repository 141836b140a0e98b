"""Find facts that may be about the same process as another fact: rank, pod and job are equal or not known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from tracecore.facts.fact import Fact, order
from tracecore.patterns.timeline import Timeline, grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

F = TypeVar("F", bound=Fact)

PROCESS: Callable[[Fact], tuple[object, ...]] = attrgetter("rank", "pod", "job")
_time = attrgetter("time")


class Related(Generic[F]):
    """Facts with several names (such as rank, pod, job), each of which may be unknown.

    Two facts are related unless both know a name and it differs. There is an index for each combination of names that a
    fact may know, made when it is first needed.

    Args:
        facts: in order.
        names: gives the names of a fact.
    """

    __slots__ = ("_facts", "_indexes", "_names")

    def __init__(self, facts: Sequence[F], names: Callable[[Fact], tuple[object, ...]] = PROCESS) -> None:
        self._facts = facts
        self._names = names
        self._indexes: dict[tuple[int, ...], _Index[F]] = {}

    def __bool__(self) -> bool:
        return bool(self._facts)

    def any(self, fact: Fact, oldest: int, newest: int) -> bool:
        """Return whether a related fact began between `oldest` and `newest`."""
        for timeline in self._timelines(fact):
            place = bisect_left(timeline.facts, oldest, key=_time)
            if place < len(timeline.facts) and timeline.facts[place].time <= newest:
                return True
        return False

    def last(self, fact: Fact, oldest: int, newest: int) -> F | None:
        """Return the last related fact that began between `oldest` and `newest`."""
        best: F | None = None
        for timeline in self._timelines(fact):
            place = bisect_right(timeline.facts, newest, key=_time)
            found = timeline.facts[place - 1] if place else None
            if found is not None and found.time >= oldest and (best is None or order(found) > order(best)):
                best = found
        return best

    def lasting(self, fact: Fact, oldest: int, newest: int) -> F | None:
        """Return the first related fact that ended at `oldest` or later and began at `newest` or earlier."""
        best: F | None = None
        for timeline in self._timelines(fact):
            found = timeline.first(oldest, newest)
            if found is not None and (best is None or order(found) < order(best)):
                best = found
        return best

    def some(self, fact: Fact, oldest: int, newest: int, most: int) -> Sequence[F]:
        """Return the first related facts that began between `oldest` and `newest`, at most `most` of each timeline."""
        found: list[F] = []
        groups = 0
        for timeline in self._timelines(fact):
            place = bisect_left(timeline.facts, oldest, key=_time)
            near = timeline.facts[place : place + most]
            while near and near[-1].time > newest:
                near = near[: bisect_right(near, newest, key=_time)]
            found += near
            groups += bool(near)
        if groups > 1:
            found.sort(key=order)
        return found

    def _timelines(self, fact: Fact) -> Iterator[Timeline[F]]:
        if not self._facts:
            return
        names = self._names(fact)
        complete = None not in names
        known = tuple(range(len(names)) if complete else [n for n, name in enumerate(names) if name is not None])
        index = self._indexes.get(known)
        if index is None:
            index = self._indexes[known] = _Index(self._facts, self._names, known)
        for lacking in index.lacking:
            if lacking:
                key = tuple([None if place in lacking else names[place] for place in known])
            else:
                key = names if complete else tuple([names[place] for place in known])
            timeline = index.groups.get(key)
            if timeline is not None:
                yield timeline


class _Index(Generic[F]):
    """Facts by some of their names, and the sets of these names that facts lack."""

    __slots__ = ("groups", "lacking")

    def __init__(self, facts: Sequence[F], names: Callable[[Fact], tuple[object, ...]], known: tuple[int, ...]) -> None:
        def some_names(fact: F) -> tuple[object, ...]:
            own = names(fact)
            return tuple([own[place] for place in known])

        groups = grouped(facts, some_names)
        self.groups = {key: Timeline(group) for key, group in groups.items()}
        self.lacking = sorted(
            {tuple([p for p, name in zip(known, key, strict=True) if name is None]) for key in groups}
        )
