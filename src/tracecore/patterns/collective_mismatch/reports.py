"""Read the calls of ranks from the reports that their watchdogs print when they give up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.facts.nccl import GLOO
from tracecore.patterns.config import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.facts.nccl import WatchdogReport

#: Operations for which all ranks must send, or receive, the same amount. Ranks may send uneven parts to an all-gather.
_SENT: Final = frozenset({"ALLREDUCE", "BROADCAST", "REDUCE", "REDUCE_SCATTER", "_REDUCE_SCATTER_BASE", "BARRIER"})
_RECEIVED: Final = frozenset({"ALLGATHER", "_ALLGATHER_BASE"})
#: Watchdogs of one hang give up within this time of each other.
_EPISODE: Final = HOUR


def tells(report: WatchdogReport) -> bool:
    """Return whether a report says in which collective its rank was, or in which group."""
    if report.rank is None or report.seq is None or report.pg == GLOO or report.report not in ("timeout", "exception"):
        return False
    return not report.is_p2p


def what(report: WatchdogReport) -> str:
    """Return the part of a call that must agree between ranks, as far as it is known: `ALLREDUCE|(262144,)`."""
    operation = report.op or ""
    amount = report.numel_out if operation in _RECEIVED else report.numel_in if operation in _SENT else None
    return operation if amount is None else f"{operation}|({amount},)"


def calls(reports: Sequence[WatchdogReport]) -> dict[tuple[str, int], dict[int, WatchdogReport]]:
    """Return the call of each rank by (group, sequence number).

    The line that names the call does not name the group. The next line of the same rank and number names the group but
    not the call. If the reports name only one group, a call without a group belongs to it.
    """
    found: dict[tuple[str, int], dict[int, WatchdogReport]] = {}
    waiting: dict[tuple[int, int], list[WatchdogReport]] = {}
    groups: dict[str, None] = {}
    for report in _ordered(reports):
        assert report.rank is not None  # `tells` drops reports without rank or number
        assert report.seq is not None
        key = report.rank, report.seq
        if report.pg:
            groups[report.pg] = None
        if report.op is not None and not report.pg:
            waiting.setdefault(key, []).append(report)
        elif report.op is not None and report.pg:
            found.setdefault((report.pg, report.seq), {})[report.rank] = report
        elif report.pg and len(said := waiting.pop(key, [])) == 1:
            found.setdefault((report.pg, report.seq), {})[report.rank] = said[0]
    if len(groups) <= 1:
        only = next(iter(groups), "")
        for (rank, seq), said in waiting.items():
            found.setdefault((only, seq), {}).setdefault(rank, said[-1])
    # A log may hold several runs that use the same numbers. Only the last run counts.
    for place, ranks in found.items():
        last = max(report.time for report in ranks.values())
        found[place] = {rank: report for rank, report in ranks.items() if report.time >= last - _EPISODE}
    return found


def _ordered(reports: Iterable[WatchdogReport]) -> list[WatchdogReport]:
    return sorted(reports, key=lambda report: (report.time, report.source.path, report.source.offset, report.uid))


def described(reports: Sequence[WatchdogReport], group: str) -> str | None:
    """Return the description that the program gave this group."""
    return next((report.pg_desc for report in _ordered(reports) if report.pg == group and report.pg_desc), None)
