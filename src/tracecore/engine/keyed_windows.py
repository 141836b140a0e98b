"""The windows of each pattern by key: facts go in, old and excess facts go out."""

from __future__ import annotations

import heapq
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tracecore.engine.node_facts import NodeFacts
from tracecore.engine.window import CHANGED, CURRENT, DORMANT, TRIGGERED, FactWindow
from tracecore.patterns.contract import Pattern

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence, Set

    from tracecore.engine.bounds import EngineLimits, EngineStats
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key

SECOND = 1_000_000_000
#: Facts inserted between two checks of the number of windows.
PORTION = 4096

_time = attrgetter("time")


class PatternWindows:
    """One pattern and its windows by key."""

    def __init__(self, index: int, pattern: Pattern[Any], limit: int, stats: EngineStats) -> None:
        self.index = index
        self.pattern = pattern
        self.keys = pattern.keys
        self.horizon = pattern.horizon
        self.triggers = frozenset(pattern.triggers)
        self.needs = frozenset(pattern.needs)
        #: Sets of types that evaluations read: there are few, which many windows share.
        self.read: dict[frozenset[type[Fact]], frozenset[type[Fact]]] = {}
        self.due = None if type(pattern).due is Pattern.due else pattern.due
        self.limit = limit
        self.node_facts = NodeFacts(pattern, stats) if pattern.node_scoped else None
        self.windows: dict[Key, FactWindow] = {}
        self.pruned: int | None = None


class KeyedWindows:
    """All windows.

    Args:
        patterns: in the order of emissions.
        limits: see `EngineLimits`.
        stats: counters to keep.
        lateness: how long after its own time a fact may arrive and be evaluated.
        skew: see `patterns.contract.Window`.
        forget: called with every window that is dropped.

    `changed` lists the windows to evaluate, each once.
    """

    def __init__(
        self,
        patterns: Sequence[Pattern[Any]],
        limits: EngineLimits,
        stats: EngineStats,
        *,
        lateness: int,
        skew: int,
        forget: Callable[[FactWindow], None],
    ) -> None:
        self.patterns = [PatternWindows(i, pattern, limits.window, stats) for i, pattern in enumerate(patterns)]
        self.changed: list[FactWindow] = []
        self._limits = limits
        self._stats = stats
        self._lateness = lateness
        self._skew = skew
        self._forget = forget
        #: By fact type the patterns that need it, and whether it is a trigger; those that join node-scoped facts apart.
        self._by_type: dict[type[Fact], list[tuple[PatternWindows, bool]]] = {}
        self._joining: dict[type[Fact], list[PatternWindows]] = {}
        for owner in self.patterns:
            for kind in dict.fromkeys(owner.pattern.needs):
                if owner.node_facts is not None and kind in (*owner.pattern.node_scoped, *owner.triggers):
                    self._joining.setdefault(kind, []).append(owner)
                else:
                    trigger = not owner.triggers or kind in owner.triggers
                    self._by_type.setdefault(kind, []).append((owner, trigger))

    def cutoff(self, owner: PatternWindows, instant: int) -> int:
        """The event time before which facts are forgotten: no verdict that can still change depends on them."""
        return instant - self._lateness - 2 * owner.horizon

    # -- inserting ----------------------------------------------------------------------------------------------------

    def insert(self, facts: Sequence[Fact], clock: int) -> None:
        """Put facts, sorted by time, into the windows of all patterns that need them."""
        for begin in range(0, len(facts), PORTION):
            self._insert(facts[begin : begin + PORTION], clock)
            if self._stats.windows > self._limits.windows:
                self._bound_windows()

    def _insert(self, facts: Iterable[Fact], clock: int) -> None:
        by_type, joining, changed, stats = self._by_type, self._joining, self.changed, self._stats
        watermark = clock - self._lateness
        held = 0
        for fact in facts:
            kind, time = type(fact), fact.time
            late = time < watermark
            needed = False
            for owner, trigger in by_type.get(kind, ()):
                for key in owner.keys(fact):
                    needed = True
                    if late and fact.end < self.cutoff(owner, clock):
                        stats.expired += 1
                        continue
                    window = owner.windows.get(key)
                    if window is None:
                        window = self._open(owner, key, time)
                    # The usual case of `FactWindow.add`, inline because nearly every fact takes it.
                    present = window.facts.get(kind)
                    if present and time > present[-1].time:
                        present.append(fact)
                        window.size += 1
                        held += 1
                    elif not self._add(window, fact):
                        continue
                    state = window.state
                    if state == CURRENT:
                        if kind in window.reads:
                            changed.append(window)
                            window.state = TRIGGERED if trigger else CHANGED
                    elif trigger and state != TRIGGERED:
                        if state == DORMANT:
                            changed.append(window)
                        window.state = TRIGGERED
            for owner in joining.get(kind, ()):
                needed = self._join(owner, fact, clock) or needed
            if not needed:
                stats.unneeded += 1
        stats.held += held

    def _join(self, owner: PatternWindows, fact: Fact, clock: int) -> bool:
        """Insert a fact for a pattern with node-scoped types, and what waited for it; False if no window wants it."""
        assert owner.node_facts is not None
        deliveries = owner.node_facts.deliveries(fact)
        for one, key in deliveries:
            if one.end < self.cutoff(owner, clock):
                self._stats.expired += 1
                continue
            window = owner.windows.get(key) or self._open(owner, key, one.time)
            if self._add(window, one) and (type(one) in owner.triggers or window.state != DORMANT):
                if window.state < CHANGED:
                    self.changed.append(window)
                window.state = TRIGGERED if type(one) in owner.triggers else max(window.state, CHANGED)
        return bool(deliveries)

    def _add(self, window: FactWindow, fact: Fact) -> bool:
        size = window.size
        added = window.add(fact)
        self._stats.held += window.size - size
        self._stats.duplicates += not added
        return added

    def _open(self, owner: PatternWindows, key: Key, time: int) -> FactWindow:
        window = FactWindow(key, self._skew, owner.index, time)
        if not owner.triggers:
            window.state = CURRENT
            window.reads = owner.needs
        owner.windows[key] = window
        self._stats.windows += 1
        return window

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def prune(self, instant: int) -> None:
        """Forget old facts, once in a horizon for each pattern, and the oldest if there are too many."""
        for owner in self.patterns:
            if owner.pruned is None:
                owner.pruned = instant
            elif instant - owner.pruned > max(owner.horizon, 2 * self._lateness, SECOND):
                owner.pruned = instant
                self._prune(owner, self.cutoff(owner, instant))
        if self._stats.held > self._limits.total:
            self._shrink()

    def _prune(self, owner: PatternWindows, cutoff: int) -> None:
        if owner.node_facts is not None:
            owner.node_facts.prune(cutoff)
        empty = set()
        for window in owner.windows.values():
            if window.oldest < cutoff:
                self._stats.held -= window.prune(cutoff)
                if window.state < CHANGED and not window.size:
                    empty.add(window)
        if empty:
            self._drop(owner, empty)

    def _shrink(self) -> None:
        """Drop the oldest facts of all windows until a tenth of the limit is free."""
        excess = self._stats.held - self._limits.total * 9 // 10
        everything = [window for owner in self.patterns for window in owner.windows.values()]
        times = sorted(fact.time for window in everything for facts in window.facts.values() for fact in facts)
        cutoff = times[excess - 1] + 1
        for window in everything:
            if dropped := window.prune(cutoff):
                window.raise_floor(cutoff)
                self._stats.held -= dropped
                self._stats.evicted_total += dropped

    def _bound_windows(self) -> None:
        """Drop windows until one in sixteen is free: the least recent ones of the patterns that have most.

        A flood of made-up jobs or nodes fills the windows of some patterns and thereby drops its own.
        """
        limit = self._limits.windows
        most = _level([len(owner.windows) for owner in self.patterns], limit - limit // 16)
        for owner in self.patterns:
            excess = len(owner.windows) - most
            if excess > 0:
                gone = set(heapq.nsmallest(excess, owner.windows.values(), key=_newest))
                self._stats.evicted_windows += len(gone)
                dropped = sum(window.size for window in gone)
                self._stats.held -= dropped
                self._stats.evicted_total += dropped
                self.changed = [window for window in self.changed if window not in gone]
                self._drop(owner, gone)

    def _drop(self, owner: PatternWindows, windows: Set[FactWindow]) -> None:
        for window in windows:
            del owner.windows[window.key]
            self._forget(window)
        self._stats.windows -= len(windows)


def _newest(window: FactWindow) -> int:
    """Return the time of the newest fact."""
    return max((facts[-1].time for facts in window.facts.values() if facts), default=0)


def _level(sizes: list[int], total: int) -> int:
    """Return the most that each may have so that all together have at most `total`."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > total:
            return total // left
        total -= size
        left -= 1
    return max(sizes, default=0)
