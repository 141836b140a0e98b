"""The join of node-scoped facts with the jobs on that node.

Kernel logs and most cluster events name a node and no job. A pattern that joins by job lists such types in
`Pattern.node_scoped`. A fact of these types that knows its node and no job goes to every window that received one of
the pattern's triggers from the same node, whichever of the two arrived first. The pattern's `keys` still decides about
the fact's own windows, and a fact without own windows is not joined at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracecore.engine.bounds import EngineStats
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Pattern

#: Bounds: facts of one node that can still meet a job, and nodes.
MOST_FACTS: Final = 1024
MOST_NODES: Final = 16_384


class NodeFacts:
    """Node-scoped facts and windows by node, for one pattern."""

    __slots__ = ("_facts", "_keys", "_node_scoped", "_stats", "_triggers", "_windows")

    def __init__(self, pattern: Pattern[Any], stats: EngineStats) -> None:
        self._keys = pattern.keys
        self._node_scoped = frozenset(pattern.node_scoped)
        self._triggers = frozenset(pattern.triggers)
        self._stats = stats
        self._facts: dict[str, dict[tuple[str, type[Fact]], Fact]] = {}
        #: By node the windows that received a trigger from there, each with the time of its last.
        self._windows: dict[str, dict[Key, int]] = {}

    def deliveries(self, fact: Fact) -> list[tuple[Fact, Key]]:
        """Return what goes where because of this fact: itself, and node-scoped facts that waited for it."""
        own = self._keys(fact)
        out = [(fact, key) for key in own]
        node, kind = fact.node, type(fact)
        if node is None or not own:
            return out
        if kind in self._node_scoped and fact.job is None:
            self._remember(node, fact)
            out += [(fact, key) for key in self._windows.get(node, ()) if key not in own]
        elif kind in self._triggers:
            windows = self._windows.setdefault(node, {})
            for key in own:
                if key not in windows:
                    waiting = self._facts.get(node, {}).values()
                    out += [(other, key) for other in waiting if key not in self._keys(other)]
                windows[key] = max(fact.time, windows.get(key, fact.time))
            if len(self._windows) > MOST_NODES:
                del self._windows[next(iter(self._windows))]
        return out

    def _remember(self, node: str, fact: Fact) -> None:
        facts = self._facts.setdefault(node, {})
        facts[fact.uid, type(fact)] = fact
        if len(facts) > MOST_FACTS:
            del facts[next(iter(facts))]
            self._stats.evicted_total += 1
        if len(self._facts) > MOST_NODES:
            self._stats.evicted_total += len(self._facts.pop(next(iter(self._facts))))

    def prune(self, cutoff: int) -> None:
        """Forget facts and windows from before this time."""
        for node, facts in list(self._facts.items()):
            self._facts[node] = {place: fact for place, fact in facts.items() if fact.end >= cutoff}
            if not self._facts[node]:
                del self._facts[node]
        for node, windows in list(self._windows.items()):
            self._windows[node] = {key: time for key, time in windows.items() if time >= cutoff}
            if not self._windows[node]:
                del self._windows[node]
