"""Which windows a fact goes to."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec

from tracecore.engine.windows import ASLEEP, CHANGED
from tracecore.patterns.contract import FOREVER, NEVER, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.engine.windows import FactWindow
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key

#: Who a fact is about: all that `keys` may look at for `Pattern.steady` types.
identity = attrgetter("node", "pod", "job", "rank", "gpu", "attempt")


class Shelf:
    """All windows of one pattern."""

    __slots__ = (
        "asks",
        "due",
        "evaluate",
        "heeds",
        "horizon",
        "index",
        "limit",
        "pattern",
        "steady",
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
        self.steady = bool(pattern.steady)
        self.windows: dict[Key, FactWindow] = {}
        self.swept: int | None = None


class Route:
    """One way of a fact type: into the windows of one pattern.

    Args:
        arms: whether the type arms windows; None where each fact is to be asked about.
        counts: asked of each fact whether it counts; None where all do.
        matters: asked of each fact whether it changes anything; None where all do.
        wakes: asked of each fact whether it arms a window.
    """

    __slots__ = ("arms", "counts", "keys", "matters", "shelf", "wakes", "windows")

    def __init__(self, shelf: Shelf, kind: type[Fact]) -> None:
        pattern = shelf.pattern
        self.shelf = shelf
        self.keys = pattern.keys
        self.windows = shelf.windows
        self.arms = None if shelf.asks else not shelf.triggers or kind in shelf.triggers
        self.wakes = pattern.arms
        gated = kind in pattern.steady and type(pattern).counts is not Pattern.counts
        self.counts: Callable[[Fact], bool] | None = pattern.counts if gated else None
        self.matters: Callable[[Any, Fact], bool] | None = pattern.matters if kind in pattern.asides else None


class Way:
    """Routes of one fact type that facts go together, and the groups of those that do, by the key of their windows.

    `counts` is asked of each fact whether it goes there, where only one pattern wants it; `arms` whether it wakes a
    window, where its type does not say. `keeper` keeps facts for longest.
    """

    __slots__ = ("arms", "counts", "groups", "keeper", "kind", "routes")

    def __init__(self, kind: type[Fact], routes: tuple[Route, ...]) -> None:
        self.kind = kind
        self.routes = routes
        self.groups: dict[Key, Group] = {}
        self.counts = routes[0].counts if len(routes) == 1 else None
        self.arms = tuple(route.wakes for route in routes if route.arms is None)
        self.keeper = max((route.shelf for route in routes), key=lambda shelf: shelf.horizon)

    def open(self, key: Key) -> Group:
        """A group for windows of this key."""
        group = self.groups[key] = Group(key, self.kind, self.routes, self.counts, self.arms)
        group.settle()
        return group


class Group(msgspec.Struct, eq=False, gc=False):
    """Facts of one type on their way to the windows of one key, where they are put together.

    What is later than `until` changes nothing for now: it may stay in the `batch` until somebody looks at one of the
    windows, which need not exist before; but those who are among `arms` are asked about each fact. None where nothing
    does, and nobody is asked.

    There are many: it refers to nothing that refers to it, so that it need not be looked at for garbage.
    """

    key: Key
    kind: type[Fact]
    routes: tuple[Route, ...]
    counts: Callable[[Fact], bool] | None
    arms: tuple[Callable[[Fact, Key], bool], ...]
    batch: list[Any] = msgspec.field(default_factory=list)
    gone: bool = False
    until: int | None = None

    def settle(self) -> None:
        """See from the windows, as they are now, of which instant a fact may change something at last."""
        until = NEVER
        for route in self.routes:
            window = route.windows.get(self.key)
            if window is None or window.state == ASLEEP:
                if route.arms:
                    until = FOREVER
            elif window.state == CHANGED or route.matters is None:
                until = FOREVER
            elif window.heeds > until:
                until = window.heeds
        self.until = None if until == NEVER and not self.arms else until

    def wakes(self, fact: Fact) -> bool:
        for arms in self.arms:  # noqa: SIM110 - asked of every fact, and nearly always there is one to ask
            if arms(fact, self.key):
                return True
        return False


class Routes:
    """All ways of one fact type: those that follow from its identity, remembered by it, and the others.

    Where only one pattern wants what is steady, there is one way (`only`), and keys are asked for.

    Args:
        ways: by the place of a pattern, all ways to its windows; new ones are added.
    """

    __slots__ = ("_all_ways", "_parts", "identities", "kind", "only", "others", "steady", "ways")

    def __init__(self, kind: type[Fact], shelves: Iterable[Shelf], ways: Sequence[list[Way]]) -> None:
        self.kind = kind
        self._all_ways = ways
        self.steady: list[Route] = []
        self.others: list[Route] = []
        for shelf in shelves:
            if kind in shelf.pattern.needs:
                route = Route(shelf, kind)
                (self.steady if kind in shelf.pattern.steady else self.others).append(route)
        self.identities: dict[tuple[object, ...], list[Group]] = {}
        self.ways: dict[tuple[Route, ...], Way] = {}
        self._parts: dict[tuple[Route, ...], list[Way]] = {}
        self.only = self.way(*self.steady) if len(self.steady) == 1 else None

    def parted(self, fact: Fact) -> list[tuple[Key, Way]]:
        """The steady ways of this fact by key; where all of a key ask each fact whether it counts, each by itself."""
        keys: dict[Key, tuple[Route, ...]] = {}
        for route in self.steady:
            for key in route.keys(fact):
                keys[key] = (*keys.get(key, ()), route)
        return [(key, way) for key, routes in keys.items() for way in self._parts.get(routes) or self._part(routes)]

    def _part(self, routes: tuple[Route, ...]) -> list[Way]:
        if all(route.counts is not None for route in routes):
            parts = [self.way(route) for route in routes]
        else:
            parts = [self.way(*routes)]
        self._parts[routes] = parts
        return parts

    def way(self, *routes: Route) -> Way:
        """The way that these routes have in common."""
        way = self.ways.get(routes)
        if way is None:
            way = self.ways[routes] = Way(self.kind, routes)
            for route in routes:
                self._all_ways[route.shelf.index].append(way)
        return way

    def forget(self) -> None:
        """Those groups that are gone, and whoever's facts went there."""
        for who, groups in [*self.identities.items()]:
            for group in groups:
                if group.gone:
                    del self.identities[who]
                    break
