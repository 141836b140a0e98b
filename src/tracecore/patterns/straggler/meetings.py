"""Find late arrivals at collectives whose entries come one by one instead of in a dump."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from tracecore.facts.collective import Arrival, CollectiveEntry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: Attempt and group.
Group: TypeAlias = tuple[int, str]


class Meetings:
    """Arrivals of the ranks of each group, by collective."""

    def __init__(self, entries: Sequence[CollectiveEntry]) -> None:
        self._entries: dict[Group, dict[int, dict[int, CollectiveEntry]]] = {}
        self._members: dict[Group, set[int]] = {}
        for entry in entries:
            if entry.rank is None or entry.created is None:
                continue
            group = (entry.attempt, entry.pg)
            came = self._entries.setdefault(group, {}).setdefault(entry.seq, {})
            known = came.get(entry.rank)
            if known is None or _order(entry) < _order(known):
                came[entry.rank] = entry
            self._members.setdefault(group, set()).add(entry.rank)

    def arrivals(self, cohort: int) -> Iterator[Arrival]:
        """Yield the last arrival at each collective that all ranks of its group came to.

        Args:
            cohort: groups with fewer ranks are skipped.
        """
        for group, calls in self._entries.items():
            ranks = len(self._members[group])
            if ranks < cohort:
                continue
            for seq, came in calls.items():
                if len(came) == ranks:
                    times = sorted(entry.created or 0 for entry in came.values())
                    last = min((e for e in came.values() if e.created == times[-1]), key=lambda e: (e.rank, e.uid))
                    yield Arrival(
                        time=times[-1],
                        source=last.source,
                        node=last.node,
                        pod=last.pod,
                        job=last.job,
                        rank=last.rank,
                        gpu=last.gpu,
                        attempt=last.attempt,
                        pg=last.pg,
                        pg_desc=last.pg_desc,
                        seq=seq,
                        lateness=times[-1] - times[ranks // 2],
                        ranks=ranks,
                    )


def _order(entry: CollectiveEntry) -> tuple[int, int, str]:
    return entry.created or 0, entry.time, entry.uid
