"""The windows of each pattern by key: facts go in, old and excess facts go out."""

from __future__ import annotations

import heapq
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from tracecore.engine.node_facts import NodeFacts
from tracecore.engine.window import CHANGED, DORMANT, TRIGGERED, FactWindow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tracecore.engine.bounds import EngineLimits, EngineStats
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Pattern


class PatternWindows:
    """One pattern and its windows by key."""

    def __init__(self, index: int, pattern: Pattern[Any], stats: EngineStats) -> None:
        self.index = index
        self.pattern = pattern
        self.keys = pattern.keys
        self.horizon = pattern.horizon
        self.triggers = frozenset(pattern.triggers or pattern.needs)
        #: Sets of types that evaluations read. Many windows share few different sets.
        self.read: dict[frozenset[type[Fact]], frozenset[type[Fact]]] = {}
        self.node_facts = NodeFacts(pattern, stats) if pattern.node_scoped else None
        self.windows: dict[Key, FactWindow] = {}
        self.pruned = 0


class KeyedWindows:
    """The windows of all patterns.

    `changed` lists the windows that facts woke since the last evaluation. It may list a window twice.

    Args:
        patterns: in the order of emissions.
        limits: see `EngineLimits`.
        stats: counters to update.
        lateness: how long after its own time a fact may arrive and be evaluated.
        skew: see `patterns.contract.Window`.
        forget: called with every window that is dropped.
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
        self.patterns = [PatternWindows(index, pattern, stats) for index, pattern in enumerate(patterns)]
        self.changed: list[FactWindow] = []
        self._limits = limits
        self._stats = stats
        self._lateness = lateness
        self._skew = skew
        self._forget = forget
        self._by_type: dict[type[Fact], list[PatternWindows]] = {}
        for owner in self.patterns:
            for kind in dict.fromkeys(owner.pattern.needs):
                self._by_type.setdefault(kind, []).append(owner)

    def cutoff(self, owner: PatternWindows, instant: int) -> int:
        """Return the event time before which facts are forgotten: no verdict that can change depends on them."""
        return instant - self._lateness - 2 * owner.horizon

    # -- inserting ----------------------------------------------------------------------------------------------------

    def insert(self, facts: Iterable[Fact], clock: int) -> None:
        """Put facts, sorted by time, into the windows of all patterns that need them."""
        by_type, stats = self._by_type, self._stats
        watermark = clock - self._lateness
        for fact in facts:
            kind, time = type(fact), fact.time
            needed = False
            for owner in by_type.get(kind, ()):
                keys = owner.keys(fact)
                for key in keys:
                    needed = True
                    window = owner.windows.get(key)
                    present = None if window is None else window.facts.get(kind)
                    if window is not None and present and watermark <= time > window.newest:
                        # The usual case of `_put`, inline because nearly every fact takes it.
                        present.append(fact)
                        window.newest = time
                        window.size += 1
                        stats.held += 1
                        if kind in window.wakes:
                            self._wake(owner, window, kind)
                    else:
                        self._put(owner, key, fact, clock)
                if keys and owner.node_facts is not None:
                    for other, key in owner.node_facts.joined(fact, keys):
                        self._put(owner, key, other, clock)
            stats.unneeded += not needed

    def _put(self, owner: PatternWindows, key: Key, fact: Fact, clock: int) -> None:
        """Put a fact into a window, unless it is too late or a duplicate."""
        if fact.end < self.cutoff(owner, clock):
            self._stats.expired += 1
            return
        window = owner.windows.get(key)
        if window is None:
            if self._stats.windows >= self._limits.windows:
                self._make_room()
            window = FactWindow(key, self._skew, owner.index, fact.time, fact.time, wakes=owner.triggers)
            owner.windows[key] = window
            self._stats.windows += 1
        size = window.size
        if window.add(fact):
            self._stats.held += window.size - size
            if type(fact) in window.wakes:
                self._wake(owner, window, type(fact))
        else:
            self._stats.duplicates += 1

    def _wake(self, owner: PatternWindows, window: FactWindow, kind: type[Fact]) -> None:
        """Mark a window for evaluation because of a fact of this type."""
        self.changed.append(window)
        if kind in owner.triggers:
            window.state, window.wakes = TRIGGERED, frozenset()
        else:
            window.state, window.wakes = CHANGED, owner.triggers

    def waiting(self) -> list[FactWindow]:
        """Return all windows that changed since their last evaluation."""
        return [window for owner in self.patterns for window in owner.windows.values() if window.state >= CHANGED]

    # -- forgetting ---------------------------------------------------------------------------------------------------

    def prune(self, instant: int) -> None:
        """Forget old facts, once per horizon of each pattern, and the oldest facts if there are too many."""
        for owner in self.patterns:
            if instant - owner.pruned > max(owner.horizon, 2 * self._lateness):
                owner.pruned = instant
                self._prune(owner, self.cutoff(owner, instant))
        if self._stats.held > self._limits.total:
            self._shrink()

    def _prune(self, owner: PatternWindows, cutoff: int) -> None:
        if owner.node_facts is not None:
            owner.node_facts.prune(cutoff)
        empty = []
        for window in owner.windows.values():
            if window.oldest < cutoff:
                self._stats.held -= window.prune(cutoff)
                if window.state < CHANGED and not window.size:
                    empty.append(window)
        self._drop(owner, empty)

    def _shrink(self) -> None:
        """Drop the oldest facts of all windows until a tenth of the limit is free."""
        excess = self._stats.held - self._limits.total * 9 // 10
        everything = [window for owner in self.patterns for window in owner.windows.values()]
        times = sorted(fact.time for window in everything for facts in window.facts.values() for fact in facts)
        cutoff = times[excess - 1] + 1
        for window in everything:
            if dropped := window.prune(cutoff):
                window.floor = max(window.floor, cutoff)
                self._stats.held -= dropped
                self._stats.evicted_total += dropped

    def _make_room(self) -> None:
        """Drop the least recent windows of the pattern with most windows until a sixteenth of the limit is free.

        So a flood of invented jobs or nodes mostly drops its own windows.
        """
        most = self._limits.windows - self._limits.windows // 16
        while self._stats.windows >= most:
            owner = max(self.patterns, key=lambda owner: len(owner.windows))
            excess = min(self._stats.windows - most, len(owner.windows) // 16) + 1
            gone = heapq.nsmallest(excess, owner.windows.values(), key=attrgetter("newest"))
            self._stats.evicted_windows += len(gone)
            self._stats.evicted_total += sum(window.size for window in gone)
            self._drop(owner, gone)

    def _drop(self, owner: PatternWindows, windows: Collection[FactWindow]) -> None:
        for window in windows:
            del owner.windows[window.key]
            self._stats.held -= window.size
            window.state = DORMANT  # so that it is not evaluated if it is among the changed ones
            self._forget(window)
        self._stats.windows -= len(windows)
