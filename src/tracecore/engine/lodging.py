"""Facts that know their node and no job, in the windows of the jobs of that node.

Kernel logs and most events of a cluster say nothing of jobs. A pattern that joins by job names such types
(`Pattern.guests`): they also go to every window that got one of the pattern's triggers from their node, whichever of
the two comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tracecore.engine.bounds import Stats
    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Pattern

#: Facts of one node that wait for a job, and nodes.
MOST_GUESTS: Final = 1024
MOST_NODES: Final = 16_384


class Lodging:
    """Who is on which node, for the windows of one pattern.

    `arrivals` are facts that came before the window they belong to: whoever takes facts in puts them there.
    """

    __slots__ = ("_guests", "_hosts", "_keys", "_stats", "arrivals")

    def __init__(self, pattern: Pattern[Any], stats: Stats) -> None:
        if not {*pattern.guests, *pattern.triggers}.isdisjoint(pattern.steady):
            raise ValueError(
                f"{pattern.name}: what is `steady` goes by its identity alone, and is neither guest nor host"
            )
        self._keys = pattern.keys
        self._stats = stats
        #: By node, by place and type.
        self._guests: dict[str, dict[tuple[str, type[Fact]], Fact]] = {}
        #: By node, the windows that got a trigger from there, and the time of the last.
        self._hosts: dict[str, dict[Key, int]] = {}
        self.arrivals: list[tuple[Fact, Key]] = []

    def of_guest(self, fact: Fact) -> tuple[Key, ...]:
        """The windows of a fact that may be a guest."""
        own = self._keys(fact)
        node = fact.node
        if node is None or fact.job is not None or not own:
            return own
        guests = self._guests.setdefault(node, {})
        guests[fact.uid, type(fact)] = fact
        if len(guests) > MOST_GUESTS:
            del guests[next(iter(guests))]
            self._stats.evicted_total += 1
        if len(self._guests) > MOST_NODES:
            self._stats.evicted_total += len(self._guests.pop(next(iter(self._guests))))
        return (*own, *(key for key in self._hosts.get(node, ()) if key not in own))

    def of_host(self, fact: Fact) -> tuple[Key, ...]:
        """The windows of a trigger, which from now on are windows of its node."""
        own = self._keys(fact)
        if fact.node is not None and own:
            hosts = self._hosts.setdefault(fact.node, {})
            for key in own:
                if key not in hosts:
                    guests = self._guests.get(fact.node, {}).values()
                    self.arrivals += [(guest, key) for guest in guests if key not in self._keys(guest)]
                hosts[key] = max(fact.time, hosts.get(key, fact.time))
            if len(self._hosts) > MOST_NODES:
                del self._hosts[next(iter(self._hosts))]
        return own

    def sweep(self, cutoff: int) -> None:
        """Forget what is older."""
        for node, guests in list(self._guests.items()):
            kept = {place: fact for place, fact in guests.items() if fact.end >= cutoff}
            if kept:
                self._guests[node] = kept
            else:
                del self._guests[node]
        for node, hosts in list(self._hosts.items()):
            left = {key: time for key, time in hosts.items() if time >= cutoff}
            if left:
                self._hosts[node] = left
            else:
                del self._hosts[node]
