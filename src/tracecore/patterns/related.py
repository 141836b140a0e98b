"""Facts that nothing tells apart from another: by rank, pod and job, or by other names that may not be known."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import product
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar

from tracecore.facts.fact import Fact, order
from tracecore.patterns.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

F = TypeVar("F", bound=Fact)

#: Stands for every value of a name.
ANY = object()
PROCESS: Callable[[Fact], tuple[object, ...]] = attrgetter("rank", "pod", "job")
_time = attrgetter("time")


class Related(Generic[F]):
    """Facts by names of which each may be unknown. Two facts are related unless one of their names differs.

    Each fact is kept once for every combination of its names and `ANY`, so that a question costs a few look-ups and
    binary searches, however many facts there are.

    Args:
        facts: in order.
        names: gives the names of a fact.
    """

    __slots__ = ("_groups", "_names")

    def __init__(self, facts: Sequence[F], names: Callable[[Fact], tuple[object, ...]] = PROCESS) -> None:
        self._names = names
        self._groups: dict[tuple[object, ...], Timeline[F]] = {}
        groups: dict[tuple[object, ...], list[F]] = {}
        keys: dict[tuple[object, ...], list[tuple[object, ...]]] = {}
        for fact in facts:
            known = names(fact)
            if known not in keys:
                keys[known] = list(product(*((name, ANY) for name in known)))
            for key in keys[known]:
                if key in groups:
                    groups[key].append(fact)
                else:
                    groups[key] = [fact]
        self._groups = {key: Timeline(group) for key, group in groups.items()}

    def __bool__(self) -> bool:
        return bool(self._groups)

    def any(self, fact: Fact, oldest: int, newest: int) -> bool:
        """Whether one that is related to this fact began at this time."""
        for timeline in self._of(fact):
            place = bisect_left(timeline.facts, oldest, key=_time)
            if place < len(timeline.facts) and timeline.facts[place].time <= newest:
                return True
        return False

    def last(self, fact: Fact, oldest: int, newest: int) -> F | None:
        """The last that is related to this fact and began at this time."""
        best: F | None = None
        for timeline in self._of(fact):
            place = bisect_right(timeline.facts, newest, key=_time)
            found = timeline.facts[place - 1] if place else None
            if found is not None and found.time >= oldest and (best is None or order(found) > order(best)):
                best = found
        return best

    def lasting(self, fact: Fact, oldest: int, newest: int) -> F | None:
        """The first that is related to this fact, ended at `oldest` or later and began at `newest` or earlier."""
        found = (timeline.first(oldest, newest) for timeline in self._of(fact))
        return min((one for one in found if one is not None), key=order, default=None)

    def some(self, fact: Fact, oldest: int, newest: int, most: int) -> Sequence[F]:
        """The first of those that are related to this fact and began at this time; of each kind at most so many."""
        found: list[F] = []
        groups = 0
        for timeline in self._of(fact):
            place = bisect_left(timeline.facts, oldest, key=_time)
            near = timeline.facts[place : place + most]
            while near and near[-1].time > newest:
                near = near[: bisect_right(near, newest, key=_time)]
            found += near
            groups += bool(near)
        if groups > 1:
            found.sort(key=order)
        return found

    def _of(self, fact: Fact) -> Iterator[Timeline[F]]:
        if self._groups:
            for key in product(*((ANY,) if name is None else (name, None) for name in self._names(fact))):
                timeline = self._groups.get(key)
                if timeline is not None:
                    yield timeline
