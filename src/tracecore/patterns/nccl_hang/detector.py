"""A collective that some ranks never finish, and the ranks that they wait for."""

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
    is_pairwise,
    placed,
    seq_of,
    unfinished,
)
from tracecore.patterns.scope import attempt_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.patterns.contract import Key, Verdict, Window

#: Stands for a rank whose number is not known.
_UNNAMED: Final = 1 << 30
#: Reports that do not say by themselves that a rank waits for others.
_DOUBTFUL: Final = ("heartbeat", "stuck")
#: Collectives of one group that get a verdict each; the rest wait for the same ranks and are counted.
MOST = 64


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        threshold: how long a collective may be unfinished; a watchdog's report and a dump need no waiting.
        min_ranks: ranks that must be stuck in it; a single one may be a straggler.
        memory: how long a rank's last word is remembered.
    """

    threshold: Duration = 5 * MINUTE
    min_ranks: Count = 2
    memory: Duration = 24 * HOUR


class NcclHang(Pattern[Config]):
    """Two or more ranks of a group in one collective that does not end.

    The latest entry of each rank counts, and completed supersedes started. The culprits are the members that never
    entered it while nothing else holds them, or that entered something else.
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
            # The line gives the number within the group; the group's members tell which rank that is.
            if not isinstance(fact, WatchdogReport):
                return ()
            if (fact.reporter is not None and fact.missing) or self._counts_alone(fact):
                return ((job, fact.pg or ""),)
            return ((job, fact.pg),) if fact.group_rank is not None and fact.pg else ()
        if type(fact) is CollectiveEntry and fact.is_p2p:
            return ((job, fact.pg), (job, ""))
        if isinstance(fact, CollectiveEntry | GroupProgress):
            return ((job, fact.pg),)
        if type(fact) is WatchdogReport and fact.pg == GLOO:
            return ((job, GLOO),)
        if type(fact) is WatchdogReport:
            # A report that does not name its group may be about any: it meets the others where all reports meet.
            return ((job, fact.pg), (job, "")) if fact.pg else ((job, ""),)
        return ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        reports = placed(window)
        if not window.key[1]:
            if window.of(CollectiveEntry):
                return []  # dumps know the group
            if self._named(reports):
                # The groups speak for themselves, but for sends and receives: only a report without its group says
                # that it was one.
                reports = [report for report in reports if is_pairwise(report)]
        entries = unfinished(window)
        if not reports and not entries:
            # Stacks are looked at where no rank says itself that it waits.
            seen = _told_by_stacks(window.of(StackPrinted), self.config.min_ranks)
            reports = [seen] if seen is not None else []
        if not reports and not entries:
            return []
        calls = CallsByRank(entries)
        cohorts, pairwise = self._hanging(window, calls, reports, now)
        enough = self.config.min_ranks
        few = not pairwise and not any(len(cohort) >= enough for cohort in cohorts.values())
        spokesman = _spokesman(cohorts)
        if few and spokesman is not None:
            return [_verdict(window, 0, cohorts[0], GroupFacts.of(window), False, spokesman.reporter)]
        if few and not any(fact.stalled for fact in window.of(GroupProgress)):
            return []
        known = GroupFacts.of(window)
        found: list[NcclHangVerdict] = []
        if pairwise:
            # Sends and receives are numbered by pair; who waits in one of them, or behind it, waits together.
            # Of several the one counts that was entered first; what only a watchdog tells of comes last.
            entered = dict.fromkeys(entry.seq for entry in window.of(CollectiveEntry) if not entry.is_p2p)
            told = [seq for seq in cohorts if seq not in calls.open]
            for seq in (*(seq for seq in entered if seq in cohorts and seq in calls.open), *told):
                pairwise.update({rank: fact for rank, fact in cohorts[seq].items() if rank not in pairwise})
            if len(pairwise) >= enough:
                found.append(_verdict(window, min(seq_of(f) for f in pairwise.values()), pairwise, known, True))
        else:
            if known.stalled is not None:
                # Ranks that wait in a later collective wait for the ranks still in this one: it is one hang.
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

    def _counts_alone(self, report: WatchdogReport) -> bool:
        """Return whether a report that names no rank counts: only where one rank is enough."""
        return self.config.min_ranks == 1 and self._gave_up(report) and report.group_rank is None

    def _gave_up(self, report: WatchdogReport) -> bool:
        """Return whether a rank waited in vain. A warning, or a stuck watchdog, says so where one rank is enough."""
        return report.report == "timeout" or (report.report in _DOUBTFUL and self.config.min_ranks == 1)

    def _named(self, reports: Sequence[WatchdogReport]) -> bool:
        """Whether a group has enough reports that name it. Where a log is cut short, one rank's may be missing."""
        groups: dict[tuple[str, int], set[int]] = {}
        for report in reports:
            if report.pg and report.seq is not None and report.rank is not None:
                groups.setdefault((report.pg, report.seq), set()).add(report.rank)
        return any(len(ranks) >= self.config.min_ranks for ranks in groups.values())

    def due(self, window: Window, now: int) -> int | None:
        # The first instant at which something unfinished has been so for too long, after now.
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
        """Stuck ranks by sequence, and those stuck in a send or receive."""
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
        # torch before 1.13 does not number what it waits for.
        unnumbered = not calls.open and all(report.seq is None for report in reports)
        for report in reports:
            if report.report != "exception" and not self._gave_up(report):
                continue
            if report.reporter is not None and report.missing and report.rank is None:
                cohorts.setdefault(0, {}).setdefault(_UNNAMED, report)
                continue
            if report.rank is None:
                # Its number in the group stands for it, below all ranks.
                if self._counts_alone(report):
                    cohorts.setdefault(report.seq or 0, {}).setdefault(_UNNAMED, report)
                elif report.group_rank is not None and report.seq is not None and not is_pairwise(report):
                    cohorts.setdefault(report.seq, {}).setdefault(-1 - report.group_rank, report)
                continue
            if report.pg == GLOO or (report.seq is None and report.awaits):
                said = cohorts.setdefault(0, {})
                before = said.setdefault(report.rank, report)
                if report.awaits and not getattr(before, "awaits", False):
                    said[report.rank] = report  # who is missing says more than that one waited
                continue
            if report.seq is None:
                if unnumbered and self._gave_up(report):
                    cohorts.setdefault(0, {}).setdefault(report.rank, report)
                continue
            if is_pairwise(report):
                pairwise.setdefault(report.rank, report)
            elif report.rank not in pairwise and not ended(window, report.rank, report.seq):
                cohorts.setdefault(report.seq, {}).setdefault(report.rank, report)
        return cohorts, pairwise


def _told_by_stacks(stacks: Sequence[StackPrinted], enough: int) -> WatchdogReport | None:
    """Return whom most ranks wait for in a collective, where the last stacks of the few others are elsewhere."""
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


def _spokesman(cohorts: dict[int, dict[int, CollectiveEntry | WatchdogReport]]) -> WatchdogReport | None:
    """Return the report that names, for all ranks, whom they wait for."""
    said = [fact for fact in cohorts.get(0, {}).values() if isinstance(fact, WatchdogReport)]
    return next((report for report in said if report.reporter is not None and report.missing), None)


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
        # Of all that waited one left a word: that the others left none says nothing about them.
        culprits, known = (), GroupFacts(window)
    exchanging = tuple(sorted(known.unseen)) if pairwise and not culprits else ()
    if known.absent or known.unseen:
        missing = known.absent if culprits else known.absent | known.unseen
        if pairwise:
            missing = set() if culprits else known.unseen  # only its peers take part in a send or receive
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
        # What the ranks are in: who waits further on is in something else, and a dump knows best.
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
