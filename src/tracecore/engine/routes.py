"""Which windows a fact goes to."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tracecore.patterns.contract import FOREVER, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tracecore.engine.windows import FactWindow
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key

#: Who a fact is about: all that `keys` may look at for `Pattern.steady` types, beside `Pattern.keyed_by`.
IDENTITY = ("node", "pod", "job", "rank", "gpu", "attempt")


class Shelf:
    """All windows of one pattern; and of the groups of facts that may wait those that no other keeps for longer."""

    __slots__ = (
        "asks",
        "due",
        "evaluate",
        "groups",
        "heeds",
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
        self.heeds = None if type(pattern).heeds is Pattern.heeds else pattern.heeds
        self.triggers = frozenset(pattern.triggers)
        self.asks = type(pattern).arms is not Pattern.arms
        self.limit = limit if pattern.window_limit is None else min(limit, pattern.window_limit)
        self.windows: dict[Key, FactWindow] = {}
        self.groups: list[Group] = []
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


class Group:
    """Facts of one type on their way to the windows of one key, where they are put together.

    Args:
        routes: to the patterns that have these windows.

    `counts` is asked of each fact whether it goes there, where only one pattern wants it; `asks` whether it wakes a
    window, where its type does not say. What is later than `until` changes nothing for now: it may stay in the
    `batch` until somebody looks at one of the windows, which need not exist before.
    """

    __slots__ = ("asks", "batch", "counts", "gone", "key", "kind", "routes", "shelves", "until")

    def __init__(self, kind: type[Fact], key: Key, routes: tuple[Route, ...]) -> None:
        self.kind = kind
        self.key = key
        self.routes = routes
        self.shelves = [route.shelf.index for route in routes]
        self.counts = routes[0].counts if len(routes) == 1 else None
        self.asks = [route.shelf.pattern.arms for route in routes if route.arms is None] or None
        self.batch: list[Any] = []
        self.until = FOREVER
        self.gone = False

    def wakes(self, fact: Fact) -> bool:
        return self.asks is not None and any(arms(fact, self.key) for arms in self.asks)


class Routes:
    """All ways of one fact type: those that follow from its identity, remembered by it, and the others."""

    __slots__ = ("identities", "identity", "kind", "others", "steady")

    def __init__(self, kind: type[Fact], shelves: Iterable[Shelf]) -> None:
        self.kind = kind
        self.steady: list[Route] = []
        self.others: list[Route] = []
        fields = dict.fromkeys(IDENTITY)
        for shelf in shelves:
            if kind in shelf.pattern.needs:
                route = Route(shelf, kind)
                (self.steady if kind in shelf.pattern.steady else self.others).append(route)
                fields |= dict.fromkeys(shelf.pattern.keyed_by.get(kind, ()))
        self.identity = attrgetter(*fields)
        self.identities: dict[tuple[object, ...], list[Group]] = {}

    def parted(self, fact: Fact) -> list[tuple[Key, tuple[Route, ...]]]:
        """The steady ways of this fact by key; where all of a key ask each fact whether it counts, each by itself."""
        if len(self.steady) == 1:
            (route,) = self.steady
            return [(key, (route,)) for key in route.keys(fact)]
        ways: dict[Key, list[Route]] = {}
        for route in self.steady:
            for key in route.keys(fact):
                ways.setdefault(key, []).append(route)
        parted: list[tuple[Key, tuple[Route, ...]]] = []
        for key, routes in ways.items():
            if all(route.counts is not None for route in routes):
                parted += [(key, (route,)) for route in routes]
            else:
                parted.append((key, tuple(routes)))
        return parted

    def forget(self) -> None:
        """Those groups that are gone, and whoever's facts went there."""
        gone = [who for who, groups in self.identities.items() if any(group.gone for group in groups)]
        for who in gone:
            del self.identities[who]
