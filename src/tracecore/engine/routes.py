"""Which windows a fact goes to."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from tracecore.patterns.contract import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Set

    from tracecore.engine.windows import FactWindow
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key

#: Who a fact is about: all that `keys` may look at for `Pattern.steady` types.
identity = attrgetter("node", "pod", "job", "rank", "gpu", "attempt")
#: Identities of one fact type whose windows are remembered.
REMEMBERED = 65_536


class Shelf:
    """All windows of one pattern."""

    __slots__ = (
        "asks",
        "due",
        "evaluate",
        "horizon",
        "index",
        "limit",
        "pattern",
        "swept",
        "triggers",
        "windows",
    )

    def __init__(self, index: int, pattern: Pattern[Any], limit: int) -> None:
        self.index = index
        self.pattern = pattern
        self.horizon = pattern.horizon
        self.evaluate = pattern.evaluate
        self.due = None if type(pattern).due is Pattern.due else pattern.due
        self.triggers = frozenset(pattern.triggers)
        self.asks = type(pattern).arms is not Pattern.arms
        self.limit = limit if pattern.window_limit is None else min(limit, pattern.window_limit)
        self.windows: dict[Key, FactWindow] = {}
        self.swept: int | None = None


class Route:
    """One way of a fact type: into the windows of one pattern.

    Args:
        arms: whether the type arms windows; None where each fact is to be asked about.
        counts: asked of each fact whether it counts; None where all do.
        matters: asked of each fact whether it changes anything; None where all do.
    """

    __slots__ = ("arms", "counts", "keys", "matters", "shelf", "windows")

    def __init__(self, shelf: Shelf, kind: type[Fact]) -> None:
        pattern = shelf.pattern
        self.shelf = shelf
        self.keys = pattern.keys
        self.windows = shelf.windows
        self.arms = None if shelf.asks else not shelf.triggers or kind in shelf.triggers
        gated = kind in pattern.steady and type(pattern).counts is not Pattern.counts
        self.counts: Callable[[Fact], bool] | None = pattern.counts if gated else None
        self.matters: Callable[[Any, Fact], bool] | None = pattern.matters if kind in pattern.asides else None


#: A window, its facts of one type (None while it has none), and what to ask of a fact that is added to them.
Spot: TypeAlias = "tuple[list[Any] | None, FactWindow, Route]"


class Group:
    """Windows of one key that facts of several identities go to: they are put there together.

    Args:
        owner: the only identity whose facts go there; None when there are several.
        counts: asked of each fact whether it goes there; None where all go to some of the windows.
    """

    __slots__ = ("batch", "counts", "gone", "owner", "spots")

    def __init__(self, owner: tuple[object, ...] | None, counts: Callable[[Fact], bool] | None) -> None:
        self.owner = owner
        self.counts = counts
        self.spots: list[Spot] = []
        #: Facts that have come and are not in the windows yet.
        self.batch: list[Any] = []
        self.gone = False


#: Where facts of one identity go: one by one, and together with those of others.
Places: TypeAlias = "tuple[list[Spot], list[Group]]"


class Routes:
    """All ways of one fact type: those that follow from its identity, remembered by it, and the others."""

    __slots__ = ("groups", "identities", "others", "steady")

    def __init__(self) -> None:
        self.steady: list[Route] = []
        self.others: list[Route] = []
        self.groups: dict[tuple[Key, tuple[int, ...]], Group] = {}
        self.identities: dict[tuple[object, ...], Places] = {}

    def add(self, route: Route, kind: type[Fact]) -> None:
        (self.steady if kind in route.shelf.pattern.steady else self.others).append(route)

    def remember(self, fact: Fact, find: Callable[[Shelf, Key, int], FactWindow]) -> Places:
        """Where facts of this one's identity go; `find` gives the window of a pattern and key."""
        who = identity(fact)
        if len(self.identities) >= REMEMBERED:
            self.identities.clear()
            self.groups.clear()
        places: Places = ([], [])
        for name, routes in self._groups(fact).items():
            group = self.groups.get(name)
            if group is None:
                group = self.groups[name] = Group(who, routes[0].counts if len(routes) == 1 else None)
                for route in routes:
                    window = find(route.shelf, name[0], fact.time)
                    group.spots.append((window.facts.setdefault(type(fact), []), window, route))
            elif group.owner is not None:
                spots, shared = self.identities[group.owner]
                spots[:] = [spot for spot in spots if spot not in group.spots]
                shared.append(group)
                group.owner = None
            if group.owner is None:
                places[1].append(group)
            else:
                places[0].extend(group.spots)
        self.identities[who] = places
        return places

    def _groups(self, fact: Fact) -> dict[tuple[Key, tuple[int, ...]], list[Route]]:
        """Its routes by key; where all of a key ask each fact whether it counts, each is by itself."""
        keys: dict[Key, list[Route]] = {}
        for route in self.steady:
            for key in route.keys(fact):
                keys.setdefault(key, []).append(route)
        groups: dict[tuple[Key, tuple[int, ...]], list[Route]] = {}
        for key, routes in keys.items():
            if all(route.counts is not None for route in routes):
                groups |= {(key, (route.shelf.index,)): [route] for route in routes}
            else:
                groups[key, tuple(route.shelf.index for route in routes)] = routes
        return groups

    def forget(self, windows: Set[FactWindow]) -> None:
        """These windows are no more."""
        gone: set[tuple[object, ...]] = set()
        for group in self.groups.values():
            for _, window, _ in group.spots:
                if window in windows:
                    group.gone = True
                    if group.owner is not None:
                        gone.add(group.owner)
        for who, (_, shared) in self.identities.items():
            if any(group.gone for group in shared):
                gone.add(who)
        for who in gone:
            del self.identities[who]
        # What was only theirs is found anew with them.
        kept = {name: group for name, group in self.groups.items() if not group.gone and group.owner not in gone}
        self.groups = kept
