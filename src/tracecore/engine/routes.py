"""Which windows a fact goes to."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tracecore.engine.lodging import Lodging
from tracecore.engine.windows import ASLEEP, CHANGED
from tracecore.patterns.contract import FOREVER, NEVER, Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracecore.engine.bounds import Stats
    from tracecore.engine.windows import FactWindow
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key

Arms: TypeAlias = "Callable[[Fact, Key], bool]"
Sift: TypeAlias = "Callable[[Sequence[Any]], list[Any]]"

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
        "lodging",
        "pattern",
        "steady",
        "swept",
        "triggers",
        "windows",
    )

    def __init__(self, index: int, pattern: Pattern[Any], limit: int, stats: Stats) -> None:
        self.index = index
        self.lodging = Lodging(pattern, stats) if pattern.guests else None
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
        sift: says which of several facts count; None where all do.
        matters: asked of each fact whether it changes anything; None where all do.
        wakes: asked of each fact whether it arms a window.
    """

    __slots__ = ("arms", "keys", "matters", "shelf", "sift", "wakes", "windows")

    def __init__(self, shelf: Shelf, kind: type[Fact]) -> None:
        pattern = shelf.pattern
        self.shelf = shelf
        self.keys = pattern.keys
        if shelf.lodging is not None:
            if kind in pattern.guests:
                self.keys = shelf.lodging.of_guest
            elif kind in pattern.triggers:
                self.keys = shelf.lodging.of_host
        self.windows = shelf.windows
        self.arms = None if shelf.asks else not shelf.triggers or kind in shelf.triggers
        self.wakes = pattern.arms
        own = type(pattern)
        gated = kind in pattern.steady and (own.sift is not Pattern.sift or own.counts is not Pattern.counts)
        self.sift: Sift | None = pattern.sift if gated else None
        self.matters: Callable[[Any, Fact], bool] | None = pattern.matters if kind in pattern.asides else None


class Way:
    """Routes of one fact type that facts go together, and the groups of those that do, by the key of their windows.

    `arms` is asked of each fact whether it wakes a window, where its type does not say. `keeper` keeps facts for
    longest.
    """

    __slots__ = ("_at_first", "arms", "groups", "keeper", "kind", "routes")

    def __init__(self, kind: type[Fact], routes: tuple[Route, ...]) -> None:
        self.kind = kind
        self.routes = routes
        self.groups: dict[Key, Group] = {}
        self.arms = _any_of([route.wakes for route in routes if route.arms is None])
        self.keeper = max((route.shelf for route in routes), key=lambda shelf: shelf.horizon)
        #: See `Group.until`: while none of its windows is there.
        waits = None if self.arms is None else NEVER
        self._at_first = FOREVER if any(route.arms for route in routes) else waits

    def open(self, key: Key) -> Group:
        """A group for windows of this key."""
        group = self.groups[key] = Group(key, self.kind, self.routes, self.arms, until=self._at_first)
        for route in self.routes:
            if key in route.windows:
                group.settle()
                break
        return group


class Group(msgspec.Struct, eq=False, gc=False):
    """Facts of one type on their way to the windows of one key, where they are put together.

    What is later than `until` changes nothing for now: it may stay in the `batch` until somebody looks at one of the
    windows, which need not exist before; but where there is `arms`, it is asked about each fact. None where nothing
    does, and nobody is asked.

    There are many: it refers to nothing that refers to it, so that it need not be looked at for garbage.
    """

    key: Key
    kind: type[Fact]
    routes: tuple[Route, ...]
    arms: Arms | None
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
        self.until = None if until == NEVER and self.arms is None else until


def _any_of(arms: Sequence[Arms]) -> Arms | None:
    """Whether any of these says so; mostly there is one to ask, or none."""
    if len(arms) < 2:
        return arms[0] if arms else None
    return lambda fact, key: any(ask(fact, key) for ask in arms)


def _counted(sifts: Sequence[Sift | None]) -> Sift | None:
    """Which facts count by any of these; None where all do by one of them."""
    some = [sift for sift in sifts if sift is not None]
    if not some or len(some) < len(sifts):
        return None
    if len(some) == 1:
        return some[0]

    def sift(facts: Sequence[Any]) -> list[Any]:
        counted = {id(fact) for own in some for fact in own(facts)}
        return [fact for fact in facts if id(fact) in counted]

    return sift


class Routes:
    """All ways of one fact type: those that follow from its identity, remembered by it, and the others.

    Where only one pattern wants what is steady, there is one way (`only`), and keys are asked for. `sift` says which
    facts count for anybody; None where all do.

    Args:
        ways: by the place of a pattern, all ways to its windows; new ones are added.
    """

    __slots__ = ("_all_ways", "identities", "kind", "only", "others", "sift", "steady", "ways")

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
        self.only = self.way(*self.steady) if len(self.steady) == 1 else None
        self.sift = _counted([route.sift for route in self.steady])
        if self.only is not None:
            self.steady[0].sift = None

    def parted(self, fact: Fact) -> list[tuple[Key, Way]]:
        """The steady ways of this fact by key."""
        keys: defaultdict[Key, list[Route]] = defaultdict(list)
        for route in self.steady:
            for key in route.keys(fact):
                keys[key].append(route)
        return [(key, self.way(*routes)) for key, routes in keys.items()]

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
