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

#: Limits of the facts of one node and of the nodes that are remembered.
MOST_FACTS: Final = 1024
MOST_NODES: Final = 16_384


class NodeFacts:
    """Node-scoped facts and windows by node, for one pattern."""

    def __init__(self, pattern: Pattern[Any], stats: EngineStats) -> None:
        self._keys = pattern.keys
        self._node_scoped = frozenset(pattern.node_scoped)
        self._triggers = frozenset(pattern.triggers)
        self._stats = stats
        self._facts: dict[str, dict[tuple[str, type[Fact]], Fact]] = {}
        #: By node: the windows that received a trigger from the node, each with the time of the last one.
        self._windows: dict[str, dict[Key, int]] = {}

    def joined(self, fact: Fact, own: tuple[Key, ...]) -> list[tuple[Fact, Key]]:
        """Return the facts and windows that a fact joins beyond its own windows, after it was put into those."""
        node, kind = fact.node, type(fact)
        if node is None:
            return []
        if kind in self._node_scoped and fact.job is None:
            self._remember(node, fact)
            return [(fact, key) for key in self._windows.get(node, ()) if key not in own]
        if kind not in self._triggers:
            return []
        out = []
        windows = self._windows.setdefault(node, {})
        for key in own:
            if key not in windows:
                out += [(other, key) for other in self._facts.get(node, {}).values() if key not in self._keys(other)]
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
        facts = ((node, {n: f for n, f in known.items() if f.end >= cutoff}) for node, known in self._facts.items())
        self._facts = {node: kept for node, kept in facts if kept}
        windows = ((node, {k: t for k, t in known.items() if t >= cutoff}) for node, known in self._windows.items())
        self._windows = {node: kept for node, kept in windows if kept}
