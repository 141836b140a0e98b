"""Detection of a collective that some ranks never finish, and of the ranks that hold it up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.facts.collective import CollectiveEntry, GroupProgress
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import GLOO, WatchdogReport
from tracecore.facts.process import StackPrinted
from tracecore.patterns.config import HOUR, MINUTE, Count, Duration, Settings
from tracecore.patterns.contract import Pattern
from tracecore.patterns.nccl_hang.verdict import NcclHangVerdict
from tracecore.patterns.nccl_hang.waiting import (
    CallsByRank,
    GroupFacts,
    culprits_of,
    ended,
    placed,
    seq_of,
    unfinished,
)
from tracecore.patterns.scope import attempt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.patterns.contract import Key, Verdict, Window

#: Takes the place of a rank number that is not known.
_UNKNOWN_RANK: Final = 1 << 30
#: Kinds of reports that alone do not prove that a rank waits for others.
_DOUBTFUL: Final = ("heartbeat", "stuck")
#: Maximum number of collectives of one group that get a verdict. The others are only counted.
MOST = 64


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        threshold: a collective hangs when it is unfinished for this long. Watchdog reports and dumps count at once.
        min_ranks: number of ranks that must be stuck in it. A single one may be a straggler.
        memory: how long the facts about a rank are remembered.
    """

    threshold: Duration = 5 * MINUTE
    min_ranks: Count = 2
    memory: Duration = 24 * HOUR


class NcclHang(Pattern[Config]):
    """Two or more ranks of a group are stuck in one collective.

    For each rank the latest entry counts, and a completed entry replaces a started one. The culprits are the members
    that called another operation, or that never entered the collective although nothing else blocks them.
    """

    id = "8"
    name = "nccl_hang"
    role = "symptom"
    maturity = "stable"
    needs = (CollectiveEntry, GroupProgress, WatchdogReport, StackPrinted)
    triggers = (CollectiveEntry, WatchdogReport, StackPrinted)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        job = attempt_of(fact)
        if type(fact) is StackPrinted:
            return ((job, ""),) if fact.rank is not None else ()
        if fact.rank is None:
            # The line gives a number within the group. The members of the group show which rank has that number.
            if not isinstance(fact, WatchdogReport):
                return ()
            if (fact.reporter is not None and fact.missing) or self._counts_without_rank(fact):
                return ((job, fact.pg or ""),)
            return ((job, fact.pg),) if fact.group_rank is not None and fact.pg else ()
        if type(fact) is CollectiveEntry and fact.is_p2p:
            return ((job, fact.pg), (job, ""))
        if isinstance(fact, CollectiveEntry | GroupProgress):
            return ((job, fact.pg),)
        if type(fact) is WatchdogReport and fact.pg == GLOO:
            return ((job, GLOO),)
        if type(fact) is WatchdogReport:
            # A report without a group may be about any group. All reports meet under the empty group.
            return ((job, fact.pg), (job, "")) if fact.pg else ((job, ""),)
        return ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        reports = placed(window)
        if not window.key[1]:
            if window.of(CollectiveEntry):
                return []  # dumps name the group, so the window of that group decides
            if self._enough_name_their_group(reports):
                # The windows of the groups decide, except about sends and receives: only reports without a group show
                # that an operation was one.
                reports = [report for report in reports if report.is_p2p]
        entries = unfinished(window)
        if not reports and not entries:
            # Stacks count only if no rank reports that it waits.
            report = _report_from_stacks(window.of(StackPrinted), self.config.min_ranks)
            reports = [report] if report is not None else []
        if not reports and not entries:
            return []
        calls = CallsByRank(entries)
        cohorts, pairwise = self._hanging(window, calls, reports, now)
        enough = self.config.min_ranks
        too_few = not pairwise and not any(len(cohort) >= enough for cohort in cohorts.values())
        for_all = _report_for_all(cohorts)
        if too_few and for_all is not None:
            return [_verdict(window, 0, cohorts[0], GroupFacts.of(window), False, for_all.reporter)]
        if too_few and not any(fact.stalled for fact in window.of(GroupProgress)):
            return []
        known = GroupFacts.of(window)
        found: list[NcclHangVerdict] = []
        if pairwise:
            # Sends and receives are numbered by pair, so ranks that wait in or behind any of them are one hang. A rank
            # in several collectives counts in the one entered first; those known only from watchdogs come last.
            entered = dict.fromkeys(entry.seq for entry in window.of(CollectiveEntry) if not entry.is_p2p)
            reported = [seq for seq in cohorts if seq not in calls.open]
            for seq in (*(seq for seq in entered if seq in cohorts and seq in calls.open), *reported):
                pairwise.update({rank: fact for rank, fact in cohorts[seq].items() if rank not in pairwise})
            if len(pairwise) >= enough:
                found.append(_verdict(window, min(seq_of(f) for f in pairwise.values()), pairwise, known, True))
        else:
            if known.stalled is not None:
                # Ranks in a later collective wait for the ranks that are still in this one. All are one hang.
                behind = [seq for seq in sorted(cohorts) if seq >= known.stalled]
                whole = {rank: fact for seq in reversed(behind) for rank, fact in cohorts.pop(seq).items()}
                verdict = _verdict(window, known.stalled, whole, known, False) if whole else None
                if verdict is not None and (len(whole) >= enough or verdict.stalled):
                    found.append(verdict)
            stuck = [seq for seq in sorted(cohorts) if len(cohorts[seq]) >= enough]
            found.extend([_verdict(window, seq, cohorts[seq], known, False) for seq in stuck[:MOST]])
            if len(stuck) > MOST:
                found[0] = msgspec.structs.replace(found[0], further=len(stuck) - MOST)
        return list(found)

    def _counts_without_rank(self, report: WatchdogReport) -> bool:
        """Return whether a report without a rank counts. It counts only if one rank is enough."""
        return self.config.min_ranks == 1 and self._gave_up(report) and report.group_rank is None

    def _gave_up(self, report: WatchdogReport) -> bool:
        """Return whether a rank gave up waiting. A warning or a stuck watchdog proves it only if one rank is enough."""
        return report.report == "timeout" or (report.report in _DOUBTFUL and self.config.min_ranks == 1)

    def _enough_name_their_group(self, reports: Sequence[WatchdogReport]) -> bool:
        """Return whether enough ranks name their group, in reports about one collective."""
        groups: dict[tuple[str, int], set[int]] = {}
        for report in reports:
            if report.pg and report.seq is not None and report.rank is not None:
                groups.setdefault((report.pg, report.seq), set()).add(report.rank)
        return any(len(ranks) >= self.config.min_ranks for ranks in groups.values())

    def due(self, window: Window, now: int) -> int | None:
        # The first instant after now at which an unfinished operation is unfinished for too long.
        wait = self.config.threshold + 1
        after = now - wait
        soonest: int | None = None
        calls = CallsByRank(unfinished(window))
        for ranks in (*(calls.latest[seq] for seq in calls.open), calls.pairs):
            for entry in ranks.values():
                if entry.final or entry.state == "completed" or entry.completed is not None:
                    continue
                since = entry.started or entry.created or entry.time
                if since > after and (soonest is None or since < soonest):
                    soonest = since
        return None if soonest is None else soonest + wait

    def _hanging(
        self, window: Window, calls: CallsByRank, reports: Sequence[WatchdogReport], now: int
    ) -> tuple[dict[int, dict[int, CollectiveEntry | WatchdogReport]], dict[int, CollectiveEntry | WatchdogReport]]:
        """Return the stuck ranks by sequence number of their collective, and the ranks stuck in a send or receive."""
        cohorts: dict[int, dict[int, CollectiveEntry | WatchdogReport]] = {}
        limit = now - self.config.threshold
        for seq in calls.open:
            ranks = calls.latest[seq]
            stuck: dict[int, CollectiveEntry | WatchdogReport] | None = None
            for rank in ranks:
                entry = ranks[rank]
                if entry.state == "completed" or entry.completed is not None:
                    continue
                if entry.final or (entry.started or entry.created or entry.time) < limit:
                    if stuck is None:
                        stuck = cohorts[seq] = {rank: entry}
                    else:
                        stuck[rank] = entry
        pairwise: dict[int, CollectiveEntry | WatchdogReport] = {
            rank: entry
            for rank, entry in calls.pairs.items()
            if not entry.done and (entry.final or (entry.started or entry.created or entry.time) < limit)
        }
        # torch before 1.13 does not number collectives.
        unnumbered = not calls.open and all(report.seq is None for report in reports)
        for report in reports:
            if report.report != "exception" and not self._gave_up(report):
                continue
            if report.reporter is not None and report.missing and report.rank is None:
                cohorts.setdefault(0, {}).setdefault(_UNKNOWN_RANK, report)
                continue
            if report.rank is None:
                # A negative key made from its number in the group replaces the rank.
                if self._counts_without_rank(report):
                    cohorts.setdefault(report.seq or 0, {}).setdefault(_UNKNOWN_RANK, report)
                elif report.group_rank is not None and report.seq is not None and not report.is_p2p:
                    cohorts.setdefault(report.seq, {}).setdefault(-1 - report.group_rank, report)
                continue
            if report.pg == GLOO or (report.seq is None and report.awaits):
                cohort = cohorts.setdefault(0, {})
                before = cohort.setdefault(report.rank, report)
                if report.awaits and not getattr(before, "awaits", False):
                    cohort[report.rank] = report  # a report that names the missing ranks says more
                continue
            if report.seq is None:
                if unnumbered and self._gave_up(report):
                    cohorts.setdefault(0, {}).setdefault(report.rank, report)
                continue
            if report.is_p2p:
                pairwise.setdefault(report.rank, report)
            elif report.rank not in pairwise and not ended(window, report.rank, report.seq):
                cohorts.setdefault(report.seq, {}).setdefault(report.rank, report)
        return cohorts, pairwise


def _report_from_stacks(stacks: Sequence[StackPrinted], enough: int) -> WatchdogReport | None:
    """Return a report on the ranks that most ranks wait for, if the last stacks of the few others are elsewhere."""
    last = {stack.rank: stack for stack in sorted(stacks, key=lambda s: (s.end, s.source.path, s.source.offset))}
    waiting = [stack for stack in last.values() if stack.waits]
    elsewhere = sorted(stack.rank for stack in last.values() if not stack.waits and stack.rank is not None)
    if len(waiting) < enough or not 0 < len(elsewhere) < len(waiting):
        return None
    known = {name: getattr(waiting[0], name) for name in Fact.__struct_fields__}
    known.update(rank=None, count=1, last_time=None)
    return WatchdogReport(
        **known, report="timeout", missing=tuple(elsewhere), reporter="the stack of each rank", op=waiting[0].inner
    )


def _report_for_all(cohorts: dict[int, dict[int, CollectiveEntry | WatchdogReport]]) -> WatchdogReport | None:
    """Return the report of a process that speaks for all ranks and names those they wait for."""
    reports = [fact for fact in cohorts.get(0, {}).values() if isinstance(fact, WatchdogReport)]
    return next((report for report in reports if report.reporter is not None and report.missing), None)


def _verdict(
    window: Window,
    seq: int,
    cohort: dict[int, CollectiveEntry | WatchdogReport],
    known: GroupFacts,
    pairwise: bool,
    reporter: str | None = None,
) -> NcclHangVerdict:
    hanging = tuple([cohort[rank] for rank in sorted(cohort)])
    culprits, origin = culprits_of(window, seq, cohort, known, pairwise)
    unmeasured: tuple[int, ...] = ()
    if len(cohort) == 1 and isinstance(hanging[0], WatchdogReport) and reporter is None:
        # Only one of the waiting ranks left a report. So the silence of the others says nothing about them.
        culprits, known = (), GroupFacts(window)
    exchanging = tuple(sorted(known.unseen)) if pairwise and not culprits else ()
    if known.absent or known.unseen:
        missing = known.absent if culprits else known.absent | known.unseen
        if pairwise:
            missing = set() if culprits else known.unseen  # only two ranks take part in a send or receive
        unmeasured = tuple(sorted(missing - cohort.keys() - {c.rank for c in culprits}))
    first: CollectiveEntry | None = None
    time = hanging[0].time
    pg_desc = op = None
    best = -1
    for fact in hanging:
        if fact.time > time:
            time = fact.time
        pg_desc = pg_desc or fact.pg_desc
        if first is None and isinstance(fact, CollectiveEntry):
            first = fact
        # Ranks that wait at a later sequence number are in another operation. A dump is more reliable than a report.
        fits = 2 * (fact.seq == seq) + isinstance(fact, CollectiveEntry)
        if fits > best and fact.op is not None:
            op, best = fact.op, fits
    untold = () if culprits or pairwise or not known.untold else tuple(sorted({*known.untold} - cohort.keys()))
    partial = reporter is not None or (not culprits and (bool(unmeasured or untold) or first is None))
    return NcclHangVerdict(
        key=window.key,
        episode=f"p2p:{seq}" if pairwise else str(seq),
        time=time,
        confidence="partial" if partial else "full",
        pg=window.key[1],
        pg_desc=pg_desc,
        seq=seq,
        op=None if pairwise else op,
        is_p2p=pairwise,
        hanging=hanging,
        culprits=culprits,
        unmeasured=unmeasured,
        exchanging=exchanging,
        origin=origin,
        size=known.size,
        earlier=known.earlier,
        untold=untold,
        reporter=reporter,
    )
