"""Facts into windows.

A fact goes to the windows of those it is about. Types of which many come (`Pattern.steady`) are gathered first: facts
of one type for windows of one key are one `Group`, and are put there together. Most of them change nothing by
themselves (a step, for a pattern that waits for an error): they stay with their group until somebody looks at one of
its windows.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from itertools import islice
from operator import attrgetter, lt
from typing import TYPE_CHECKING, Any

from tracecore.engine.routes import Routes, identity
from tracecore.engine.windows import ASLEEP, CHANGED, FactWindow
from tracecore.facts.fact import order
from tracecore.patterns.contract import FOREVER, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence, Set

    from tracecore.engine.bounds import Limits, Stats
    from tracecore.engine.routes import Group, Route, Shelf, Way
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key

SECOND = 1_000_000_000
#: How long a window that changed may be left alone.
PAUSE = SECOND
#: Facts that are taken before it is seen whether there are too many windows.
PORTION = 4096
#: Identities of one fact type whose groups are remembered.
REMEMBERED = 65_536

_time = attrgetter("time")


class Intake:
    """All windows, and the way of facts into them.

    Args:
        shelves: of the patterns, in order.
        limits: see `Limits`.
        stats: where it counts.
        lateness: how long after its own time a fact may arrive.
        skew: see `patterns.contract.Window`.
        forget: told of every window that is dropped.

    `changed` are the windows that are to be looked at, each once.
    """

    def __init__(
        self,
        shelves: Sequence[Shelf],
        limits: Limits,
        stats: Stats,
        *,
        lateness: int,
        skew: int,
        forget: Callable[[FactWindow], None],
    ) -> None:
        self.changed: list[FactWindow] = []
        self._shelves = shelves
        self._limits = limits
        self._stats = stats
        self._lateness = lateness
        self._skew = skew
        self._forget = forget
        kinds = dict.fromkeys(kind for shelf in shelves for kind in shelf.pattern.needs)
        #: By the place of a pattern the ways on which facts may wait before they come into its windows.
        self._ways: list[list[Way]] = [[] for _ in shelves]
        self._routes = {kind: Routes(kind, shelves, self._ways) for kind in kinds}
        self._lodging = [shelf for shelf in shelves if shelf.lodging is not None]
        self._ready: list[Group] = []
        #: No fact has ever been of a time before this, or after that.
        self._earliest, self._newest = FOREVER, NEVER

    # -- taking -------------------------------------------------------------------------------------------------------

    def take(self, facts: Sequence[Fact], clock: int) -> None:
        """Take facts, in order of time, that came when the clock stood here."""
        if facts and facts[0].time < self._earliest:
            self._earliest = facts[0].time
        for begin in range(0, len(facts), PORTION):
            self._sort(facts[begin : begin + PORTION], clock)
            for shelf in self._lodging:
                self._lodge(shelf)
            self._bound_windows()

    def settle(self) -> None:
        """Put what waits and may change something into its windows."""
        ready, self._ready = self._ready, []
        for group in ready:
            if group.batch:
                self._deliver(group)
        self._bound_windows()

    def complete(self, window: FactWindow) -> None:
        """Before a look: everything that waits for this window. What the look says may change what can wait."""
        for way in self._ways[window.shelf]:
            group = way.groups.get(window.key)
            if group is not None:
                if group.batch:
                    self._deliver(group)
                if group.until is not FOREVER:
                    group.until = FOREVER

    def _sort(self, facts: Sequence[Fact], clock: int) -> None:
        # A window may be left alone for a while; a fact that is older than this by then could miss what it joins.
        hurry = clock - self._lateness + PAUSE
        newest, self._newest = self._newest, max(self._newest, facts[-1].time)
        kinds: defaultdict[type[Fact], list[Fact]] = defaultdict(list)
        for fact in facts:
            kinds[type(fact)].append(fact)
        for kind, known in kinds.items():
            routes = self._routes.get(kind)
            if routes is None:
                self._stats.unneeded += len(known)
                continue
            # They are in order of time: those that cannot wait come first, and mostly there are none.
            late = bisect_left(known, hurry, key=_time) if known[0].time < hurry else 0
            if late:
                self._send(routes, known[:late], hurry, newest, late=True)
                known = known[late:]
            if known:
                self._send(routes, known, hurry, newest, late=False)

    def _send(self, routes: Routes, facts: list[Fact], hurry: int, newest: int, *, late: bool) -> None:
        """Send facts of one type on all their ways.

        Args:
            newest: the latest time of all facts that came before these.
            late: whether they are from before `hurry`.
        """
        idle = self._place(routes, facts, hurry, newest, late) if routes.others else facts
        unneeded = len(idle)
        if routes.steady:
            chosen = facts if routes.sift is None else routes.sift(facts)
            if late:
                left = self._rush(routes, chosen, hurry)
            elif routes.only is None:
                left = self._gather(routes, chosen)
            else:
                left = self._gather_alone(routes.only, chosen)
            if idle is facts:
                unneeded -= len(chosen) - len(left)
            elif idle:
                unneeded -= len(set(map(id, idle)).intersection(map(id, chosen)).difference(map(id, left)))
        self._stats.unneeded += unneeded

    def _place(self, routes: Routes, facts: list[Fact], hurry: int, newest: int, late: bool) -> list[Fact]:
        """Put facts of one type into windows; those that nobody wants."""
        kind, others, changed = routes.kind, routes.others, self.changed
        # Mostly each is later than all before it, wherever it goes: then what is in its windows need not be looked at.
        in_order = not late and facts[0].time > newest and (len(facts) == 1 or _rise([fact.time for fact in facts]))
        idle: list[Fact] = []
        held = 0
        for fact in facts:
            wanted = False
            for route in others:
                for key in route.keys(fact):
                    wanted = True
                    window = route.windows.get(key)
                    if window is None:
                        window = self._open(route.shelf, key, fact.time)
                    present = window.facts.get(kind)
                    if not in_order and (late or (present and fact.time <= present[-1].time)):
                        if not self._join(window, route, fact, hurry):
                            continue
                    else:
                        held += 1
                        if present:
                            present.append(fact)
                        else:
                            window.facts[kind] = [fact]
                            if fact.time < window.oldest:
                                window.oldest = fact.time
                    state = window.state
                    if state == CHANGED:
                        continue
                    if state == ASLEEP:
                        worth = route.wakes(fact, key) if route.arms is None else route.arms
                    else:
                        worth = route.matters is None or route.matters(window, fact)
                    if worth:
                        window.state = CHANGED
                        changed.append(window)
            if not wanted:
                idle.append(fact)
        self._stats.held += held
        return idle

    def _gather(self, routes: Routes, facts: Sequence[Fact]) -> list[Fact]:
        """Put facts of one type into their groups; those that go to none."""
        remembered, ready = routes.identities.get, self._ready
        idle: list[Fact] = []
        held = 0
        for fact in facts:
            # As `identity`; read one by one, which is cheaper for facts of one type.
            groups = remembered((fact.node, fact.pod, fact.job, fact.rank, fact.gpu, fact.attempt))
            if groups is None:
                groups = self._groups(routes, fact)
            for group in groups:
                batch, until = group.batch, group.until
                # Where whatever comes may matter, the group is ready since the first that waits.
                if until is not None and (
                    not batch
                    if until is FOREVER
                    else fact.time <= until or (group.arms is not None and group.arms(fact, group.key))
                ):
                    ready.append(group)
                batch.append(fact)
            if groups:
                held += len(groups)
            else:
                idle.append(fact)
        self._stats.held += held
        return idle

    def _gather_alone(self, way: Way, facts: Sequence[Fact]) -> list[Fact]:
        """The same where there is one way: keys are asked for, and nothing is remembered."""
        keys, known, arms, ready = way.routes[0].keys, way.groups.get, way.arms, self._ready
        idle: list[Fact] = []
        held = 0
        for fact in facts:
            own = keys(fact)
            for key in own:
                group = known(key)
                if group is None:
                    group = way.open(key)
                group.batch.append(fact)
                until = group.until
                if until is not None and (fact.time <= until or (arms is not None and arms(fact, key))):
                    ready.append(group)
            if own:
                held += len(own)
            else:
                idle.append(fact)
        self._stats.held += held
        return idle

    def _groups(self, routes: Routes, fact: Fact) -> list[Group]:
        """The groups that a fact goes to, where nothing like it is remembered."""
        if routes.only is not None:
            return [routes.only.groups.get(key) or routes.only.open(key) for key in routes.only.routes[0].keys(fact)]
        if len(routes.identities) >= REMEMBERED:
            self._start_over(routes)
        groups = [way.groups.get(key) or way.open(key) for key, way in routes.parted(fact)]
        routes.identities[identity(fact)] = groups
        return groups

    def _rush(self, routes: Routes, facts: Sequence[Fact], hurry: int) -> list[Fact]:
        """Put facts that cannot wait into their windows; those that go to none."""
        idle: list[Fact] = []
        for fact in facts:
            groups = self._groups(routes, fact)
            for group in groups:
                self._hurry(group, fact, hurry)
            if not groups:
                idle.append(fact)
        return idle

    def _hurry(self, group: Group, fact: Fact, hurry: int) -> None:
        """A fact that cannot wait; what came before it goes first."""
        if group.batch:
            self._deliver(group)
        self._put(group, [fact], hurry)

    def _lodge(self, shelf: Shelf) -> None:
        """Put facts into windows that were opened after they came."""
        assert shelf.lodging is not None
        arrivals, shelf.lodging.arrivals = shelf.lodging.arrivals, []
        for fact, key in arrivals:
            window = shelf.windows.get(key)
            if window is None:
                continue
            added = window.add(fact)
            self._stats.held += max(added, 0)
            if added >= 0 and window.state != CHANGED:
                window.state = CHANGED
                self.changed.append(window)

    # -- into windows -------------------------------------------------------------------------------------------------

    def _deliver(self, group: Group) -> None:
        """Put what a group has gathered into its windows."""
        batch, group.batch = group.batch, []
        self._stats.held -= len(batch)
        self._put(group, batch, None)

    def _put(self, group: Group, facts: list[Fact], hurry: int | None) -> None:
        """Put facts into all windows of their group, and see which later ones will be able to wait.

        Args:
            hurry: as in `_join`; None for facts that were in time when they came.
        """
        kind, key = group.kind, group.key
        in_order = hurry is None and (len(facts) == 1 or _rise([fact.time for fact in facts]))
        if hurry is None and not in_order:
            facts = sorted(facts, key=order)
            in_order = _rise([order(fact) for fact in facts])
        for route in group.routes:
            new = facts
            if route.sift is not None:
                new = route.sift(facts)
                if not new:
                    continue
            window = route.windows.get(key)
            if window is None:
                window = self._open(route.shelf, key, new[0].time)
            if in_order and window.extend(kind, new):
                self._stats.held += len(new)
            else:
                new = [fact for fact in new if self._join(window, route, fact, hurry)]
            if window.state != CHANGED and new and self._worth(window, route, new):
                window.state = CHANGED
                self.changed.append(window)
        group.settle()

    def _worth(self, window: FactWindow, route: Route, new: Sequence[Fact]) -> bool:
        """Whether facts that came into a window together make it worth a look."""
        if window.state == ASLEEP:
            if route.arms is not None:
                return route.arms
            wakes, key = route.wakes, window.key
            return any(wakes(fact, key) for fact in new)
        if route.matters is None:
            return True
        matters, heeds = route.matters, window.heeds
        # They are in order of time: where the first is past what is heeded, all are.
        return new[0].time <= heeds and any(fact.time <= heeds and matters(window, fact) for fact in new)

    def _join(self, window: FactWindow, route: Route, fact: Fact, hurry: int | None) -> bool:
        """Put a fact where it belongs; False where it is known, or too old for this window."""
        if hurry is not None and fact.end < hurry:
            if hurry - PAUSE - fact.end > 2 * route.shelf.horizon:
                self._stats.expired += 1
                return False
            # What is so late cannot wait.
            window.urgent = True
        added = window.add(fact)
        if added < 0:
            self._stats.duplicates += 1
            return False
        self._stats.held += added
        return True

    def _open(self, shelf: Shelf, key: Key, time: int) -> FactWindow:
        """A new window, which holds nothing from before this time."""
        self._stats.windows += 1
        window = shelf.windows[key] = FactWindow(key, self._skew, shelf.index, time)
        return window

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def bound(self, instant: int) -> None:
        """Forget what is too old, and what is too much."""
        for shelf in self._shelves:
            if shelf.swept is None:
                shelf.swept = instant
            elif instant - shelf.swept > max(shelf.horizon, 2 * self._lateness, SECOND):
                shelf.swept = instant
                cutoff = instant - self._lateness - 2 * shelf.horizon
                if cutoff > self._earliest:
                    self._sweep(shelf, cutoff)
        if self._stats.held > self._limits.total:
            self._shrink()

    def _sweep(self, shelf: Shelf, cutoff: int) -> None:
        if shelf.lodging is not None:
            shelf.lodging.sweep(cutoff)
        empty = set()
        for window in shelf.windows.values():
            if window.oldest < cutoff:
                self._stats.held -= window.prune(cutoff)
                if window.state != CHANGED and not any(window.facts.values()):
                    empty.add(window)
        if empty:
            self._drop(shelf, empty)
        for way in self._ways[shelf.index]:
            if way.keeper is shelf:
                self._sweep_groups(way, cutoff)

    def _sweep_groups(self, way: Way, cutoff: int) -> None:
        """Forget what waited for too long, and groups of which nothing is left."""
        gone: list[Group] = []
        for group in way.groups.values():
            batch = group.batch
            if batch:
                if batch[0].time >= cutoff:
                    continue
                group.batch = [fact for fact in batch if fact.time >= cutoff or fact.end >= cutoff]
                self._stats.held -= len(batch) - len(group.batch)
                if group.batch:
                    continue
            for route in way.routes:
                if group.key in route.windows:
                    break
            else:
                gone.append(group)
        for group in gone:
            group.gone = True
            del way.groups[group.key]
        if gone:
            self._routes[way.kind].forget()

    def _start_over(self, routes: Routes) -> None:
        """Too many identities to remember: forget them all."""
        for way in routes.ways.values():
            for group in way.groups.values():
                if group.batch:
                    self._deliver(group)
            way.groups.clear()
        routes.identities.clear()

    def _shrink(self) -> None:
        """Drop the oldest facts of all windows until a tenth of the limit is free."""
        for routes in self._routes.values():
            self._start_over(routes)
        excess = self._stats.held - self._limits.total * 9 // 10
        if excess <= 0:
            return
        everything = [window for shelf in self._shelves for window in shelf.windows.values()]
        times = sorted(fact.time for window in everything for facts in window.facts.values() for fact in facts)
        cutoff = times[excess - 1] + 1
        for window in everything:
            if dropped := window.prune(cutoff):
                window.raise_floor(cutoff)
                self._stats.held -= dropped
                self._stats.evicted_total += dropped

    def _bound_windows(self) -> None:
        """Drop windows until one in sixteen is free, of the patterns that have most the least recently touched.

        Whoever makes up jobs or nodes fills the windows of some patterns, and thereby drops his own.
        """
        limit = self._limits.windows
        if self._stats.windows <= limit:
            return
        most = _level([len(shelf.windows) for shelf in self._shelves], limit - limit // 16)
        for shelf in self._shelves:
            excess = len(shelf.windows) - most
            if excess > 0:
                gone = set(heapq.nsmallest(excess, shelf.windows.values(), key=self._touched))
                self._stats.evicted_windows += len(gone)
                dropped = sum(map(len, gone))
                self._stats.held -= dropped
                self._stats.evicted_total += dropped
                self.changed = [window for window in self.changed if window not in gone]
                self._drop(shelf, gone)

    def _touched(self, window: FactWindow) -> int:
        """The time of its newest fact."""
        ways, key = self._ways[window.shelf], window.key
        waiting = [way.groups[key].batch for way in ways if key in way.groups]
        return max((facts[-1].time for facts in (*window.facts.values(), *waiting) if facts), default=0)

    def _drop(self, shelf: Shelf, windows: Set[FactWindow]) -> None:
        for window in windows:
            del shelf.windows[window.key]
            self._forget(window)
        self._stats.windows -= len(windows)


def _rise(places: Sequence[int | tuple[int, str]]) -> bool:
    """Whether each comes after the one before."""
    after: Callable[[Any, Any], bool] = lt
    return all(map(after, places, islice(places, 1, None)))


def _level(sizes: list[int], total: int) -> int:
    """The most that each may have so that all together have no more than this."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > total:
            return total // left
        total -= size
        left -= 1
    return max(sizes, default=0)
