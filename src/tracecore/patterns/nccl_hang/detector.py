"""A collective that some ranks never finish, and the ranks that they wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import CollectiveEntry, GroupProgress, called, named, odd_ones, sides_of
from tracecore.facts.nccl import WatchdogReport
from tracecore.patterns.config import HOUR, MINUTE, Count, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Why: TypeAlias = Literal["never_entered", "called_different", "unmeasured"]

#: The watchdog prints point-to-point operations with a counter of their own.
_PAIRWISE = ("SEND", "RECV", "COALESCED")


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


class Culprit(msgspec.Struct, frozen=True):
    """A rank that the others wait for.

    Args:
        why: never_entered, or called_different.
        last_enqueued: the last collective it entered, where known.
        frame: the last line of user code known of it.
        what: what it called instead, or last.
        fact: what says so.
    """

    rank: int
    why: Why
    last_enqueued: int | None = None
    frame: str | None = None
    what: str | None = None
    fact: GroupProgress | CollectiveEntry | WatchdogReport | None = None


class NcclHangVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        pg, pg_desc, seq: the collective.
        hanging: one fact for each rank that is stuck in it, by rank.
        culprits: whom they wait for, by rank.
        unmeasured: members of the group that left nothing to read.
        origin: (group as people call it, sequence) at which the chain of waits begins, where that is another one.
        size: members of the group, where known.
    """

    pattern_id: ClassVar[str] = "8"
    pattern_name: ClassVar[str] = "nccl_hang"
    role: ClassVar[Role] = "symptom"

    pg: str
    seq: int
    pg_desc: str | None = None
    op: str | None = None
    is_p2p: bool = False
    hanging: tuple[CollectiveEntry | WatchdogReport, ...]
    culprits: tuple[Culprit, ...] = ()
    unmeasured: tuple[int, ...] = ()
    origin: tuple[str, int] | None = None
    size: int | None = None

    @property
    def hanging_ranks(self) -> list[int]:
        return [fact.rank for fact in self.hanging if fact.rank is not None]

    @property
    def looked_for(self) -> tuple[int, ...]:
        """Ranks to look at first: the culprits; by elimination those that left nothing, where they are the few."""
        if self.culprits:
            return tuple(culprit.rank for culprit in self.culprits)
        return self.unmeasured if len(self.unmeasured) < len(self.hanging) else ()

    def _what(self) -> str:
        group = self.pg_desc or (f"group {self.pg}" if self.pg else "their group")
        if self.is_p2p:
            return f"point-to-point operations of {group}"
        return f"{self.op or 'collective'} seq {self.seq} of {group}"

    def headline(self) -> str:
        head = f"{named(self.hanging_ranks, capital=True)} hang in {self._what()}"
        if self.culprits:
            different = [c.rank for c in self.culprits if c.why == "called_different"]
            never = [c.rank for c in self.culprits if c.why == "never_entered"]
            if different:
                return f"{head}: {named(different)} called something else"
            if self.is_p2p:
                return f"{head}: they wait for {named(never)}"
            if self.origin:
                return f"{head}, behind seq {self.origin[1]} of {self.origin[0]}, which {named(never)} never entered"
            return f"{head}: {named(never)} never entered it"
        if self.looked_for:
            return f"{head}: every rank that left a record waits; {named(self.unmeasured)} left none"
        return f"{head}: all ranks that can be seen entered it"

    def remediation(self) -> str:
        steps = []
        for culprit in self.culprits[:3]:
            where = f"; its last call was {culprit.what or 'a collective'} at {culprit.frame}" if culprit.frame else ""
            if culprit.why == "called_different":
                steps.append(f"Compare what rank {culprit.rank} called with the others{where}")
            else:
                steps.append(
                    f"Look at rank {culprit.rank}{where}. If its process still runs, `py-spy dump --pid PID` on its "
                    f"host shows where it is; its log, `dmesg` and the storage it reads from show why"
                )
        if not steps and self.looked_for:
            steps.append(
                f"Look at {named(self.looked_for)} first: whether the process is alive (`ps`, exit status), its log "
                f"and `dmesg` of its host"
            )
        if not steps:
            steps.append(
                "No rank is missing, so look at what is between them: link state and `nvidia-smi` of the hosts of "
                f"{named(self.hanging_ranks)}, NCCL_DEBUG=INFO output, and whether all ran the same code"
            )
        return (
            ". ".join(steps)
            + ". Then restart the job from its last checkpoint: these ranks will not go on by themselves."
        )

    def evidence(self) -> Sequence[Fact]:
        stuck = set(map(id, self.hanging))
        proof = [c.fact for c in self.culprits if c.fact is not None and id(c.fact) not in stuck]
        return sorted((*self.hanging, *proof), key=lambda fact: (fact.time, fact.uid))

    def missing_layers(self) -> tuple[str, ...]:
        return ("flight_recorder",) if self.confidence == "partial" else ()

    def suspects(self) -> Suspects:
        ranks = self.looked_for
        facts = [c.fact for c in self.culprits if c.fact is not None]
        return Suspects(
            ranks=ranks,
            nodes=tuple(sorted({f.node for f in facts if f.node})),
            gpus=tuple(sorted({f.gpu for f in facts if f.gpu})),
            pods=tuple(sorted({f.pod for f in facts if f.pod})),
        )

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "nccl.fr.pg_id": self.pg,
            "nccl.fr.collective_seq_id": self.seq,
            "nccl.fr.hanging_ranks_count": len(self.hanging),
            "hanging_ranks": self.hanging_ranks,
            "culprit_ranks": [culprit.rank for culprit in self.culprits],
        }
        if self.pg_desc:
            fields["pg_desc"] = self.pg_desc
        if self.op:
            fields["operation"] = self.op
        if self.size is not None:
            fields["group_size"] = self.size
        if self.unmeasured:
            fields["not_measured_ranks"] = list(self.unmeasured)
        if self.origin:
            fields["origin"] = {"group": self.origin[0], "nccl.fr.collective_seq_id": self.origin[1]}
        if self.culprits:
            fields["culprits"] = [_document(culprit) for culprit in self.culprits]
        frames = _frames(self.hanging)
        if frames:
            fields["waiting_frames"] = frames
        if job := next((fact.job for fact in self.hanging if fact.job), None):
            fields["gen_ai.training.job_id"] = job
        return fields

    def promoted(self) -> dict[str, Any]:
        return {
            "nccl.fr.pg_id": self.pg,
            "nccl.fr.collective_seq_id": self.seq,
            "nccl.fr.hanging_ranks_count": len(self.hanging),
        }


class Calls:
    """The latest word on each collective of each rank, and on each rank's sends and receives.

    Completed supersedes started; otherwise the later one counts. `open` says how many ranks have not ended it, where
    there are any.
    """

    def __init__(self) -> None:
        self.latest: dict[int, dict[int, CollectiveEntry]] = {}
        self.open: dict[int, int] = {}
        self.pairs: dict[int, CollectiveEntry] = {}

    def add(self, entries: Sequence[CollectiveEntry]) -> None:
        latest, open_, pairs = self.latest, self.open, self.pairs
        # No calls in here but where an entry takes the place of another: this runs for every entry.
        for entry in entries:
            rank, seq = entry.rank, entry.seq
            if rank is None:
                continue
            if entry.is_p2p:
                if rank not in pairs or _order(pairs[rank]) < _order(entry):
                    pairs[rank] = entry
                continue
            left = 0 if entry.state == "completed" or entry.completed is not None else 1
            if seq not in latest:
                latest[seq] = {rank: entry}
            else:
                ranks = latest[seq]
                if rank in ranks:
                    if not _supersedes(entry, ranks[rank]):
                        continue
                    left -= not ranks[rank].done
                ranks[rank] = entry
            if left:
                open_[seq] = open_[seq] + left if seq in open_ else left
                if not open_[seq]:
                    del open_[seq]

    def ended(self, rank: int, seq: int) -> bool:
        """Whether the rank is known to have finished this collective."""
        return seq in self.latest and rank in self.latest[seq] and self.latest[seq][rank].done


class NcclHang(Pattern[Config]):
    """Two or more ranks of a group in one collective that does not end.

    The latest entry of each rank counts, and completed supersedes started. The culprits are the members that never
    entered it while nothing else holds them, or that entered something else.
    """

    id = "8"
    name = "nccl_hang"
    role = "symptom"
    maturity = "stable"
    needs = (CollectiveEntry, GroupProgress, WatchdogReport)
    triggers = (CollectiveEntry, WatchdogReport)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if fact.rank is None:
            return ()
        job = fact.job or ""
        job = f"{job}#{fact.attempt}" if fact.attempt else job
        if isinstance(fact, CollectiveEntry) and fact.is_p2p:
            return ((job, fact.pg), (job, ""))
        if isinstance(fact, CollectiveEntry | GroupProgress):
            return ((job, fact.pg),)
        if isinstance(fact, WatchdogReport):
            # A report that does not name its group may be about any: it meets the others where all reports meet.
            return ((job, fact.pg), (job, "")) if fact.pg else ((job, ""),)
        return ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        reports = window.of(WatchdogReport)
        if not window.key[1]:
            if window.of(CollectiveEntry):
                return []  # dumps know the group
            if any(report.pg for report in reports):
                # The groups speak for themselves, but for sends and receives: only a report without its group says
                # that it was one.
                reports = [report for report in reports if _is_pairwise(report)]
        calls = window.digest(CollectiveEntry, Calls)
        cohorts, pairwise = self._hanging(calls, reports, now)
        enough = self.config.min_ranks
        if len(pairwise) < enough and not any(len(cohort) >= enough for cohort in cohorts.values()) and not pairwise:
            return []
        known = _Known.of(window)
        found: list[NcclHangVerdict] = []
        if pairwise:
            # Sends and receives are numbered by pair; who waits in one of them, or behind it, waits together.
            # Of several the one counts that was entered first; what only a watchdog tells of comes last.
            entered = dict.fromkeys(entry.seq for entry in window.of(CollectiveEntry) if not entry.is_p2p)
            told = [seq for seq in cohorts if seq not in calls.open]
            for seq in (*(seq for seq in entered if seq in cohorts and seq in calls.open), *told):
                pairwise.update({rank: fact for rank, fact in cohorts[seq].items() if rank not in pairwise})
            if len(pairwise) >= enough:
                found.append(_verdict(window, min(_seq(f) for f in pairwise.values()), pairwise, known, True))
        else:
            stuck = [seq for seq in sorted(cohorts) if len(cohorts[seq]) >= enough]
            found.extend([_verdict(window, seq, cohorts[seq], known, False) for seq in stuck])
        return list(found)

    def due(self, window: Window, now: int) -> int | None:
        # The first instant at which something unfinished has been so for too long, after now.
        wait = self.config.threshold + 1
        after = now - wait
        soonest: int | None = None
        calls = window.digest(CollectiveEntry, Calls)
        for ranks in (*(calls.latest[seq] for seq in calls.open), calls.pairs):
            for entry in ranks.values():
                if entry.final or entry.state == "completed" or entry.completed is not None:
                    continue
                since = entry.started or entry.created or entry.time
                if since > after and (soonest is None or since < soonest):
                    soonest = since
        return None if soonest is None else soonest + wait

    def _hanging(
        self, calls: Calls, reports: Sequence[WatchdogReport], now: int
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
        for report in reports:
            if report.seq is None or report.rank is None or report.report not in ("timeout", "exception"):
                continue
            if _is_pairwise(report):
                pairwise.setdefault(report.rank, report)
            elif report.rank not in pairwise and not calls.ended(report.rank, report.seq):
                cohorts.setdefault(report.seq, {}).setdefault(report.rank, report)
        return cohorts, pairwise


class _Known:
    """What the facts of one window say, gathered once for all its verdicts."""

    __slots__ = ("absent", "entered", "odd", "progress", "size", "stuck_at")

    def __init__(self) -> None:
        self.progress: dict[int, GroupProgress] = {}
        #: The last collective each rank is known to have entered.
        self.entered: dict[int, int] = {}
        #: The first collective in which each rank is itself stuck.
        self.stuck_at: dict[int, int] = {}
        #: The odd ones out at the first sequence where signatures differ.
        self.odd: list[CollectiveEntry] = []
        self.absent: set[int] = set()
        self.size: int | None = None

    @classmethod
    def of(cls, window: Window) -> _Known:
        known = cls()
        for fact in window.of(GroupProgress):
            if fact.rank is not None:
                known.progress[fact.rank] = fact
                known.absent.update(fact.absent)
                known.size = known.size or fact.size
        if not known.progress:
            known.absent = _silent(window)
        known.entered = _entered(window, known.progress)
        known.stuck_at = _stuck_at(window)
        known.odd = _odd(window.of(CollectiveEntry))
        return known


def _verdict(
    window: Window, seq: int, cohort: dict[int, CollectiveEntry | WatchdogReport], known: _Known, pairwise: bool
) -> NcclHangVerdict:
    hanging = tuple([cohort[rank] for rank in sorted(cohort)])
    culprits, origin = _culprits(window, seq, cohort, known, pairwise)
    unmeasured: tuple[int, ...] = ()
    if known.absent:
        unmeasured = tuple(sorted(known.absent - cohort.keys() - {c.rank for c in culprits}))
    first: CollectiveEntry | None = None
    time = hanging[0].time
    pg_desc = None
    for fact in hanging:
        if fact.time > time:
            time = fact.time
        pg_desc = pg_desc or fact.pg_desc
        if first is None and isinstance(fact, CollectiveEntry):
            first = fact
    partial = not culprits and (bool(unmeasured) or first is None)
    return NcclHangVerdict(
        key=window.key,
        episode=f"p2p:{seq}" if pairwise else str(seq),
        time=time,
        confidence="partial" if partial else "full",
        pg=window.key[1],
        pg_desc=pg_desc,
        seq=seq,
        op=None if pairwise else (first or hanging[0]).op,
        is_p2p=pairwise,
        hanging=hanging,
        culprits=culprits,
        unmeasured=unmeasured,
        origin=origin,
        size=known.size,
    )


def _culprits(
    window: Window, seq: int, cohort: dict[int, CollectiveEntry | WatchdogReport], known: _Known, pairwise: bool
) -> tuple[tuple[Culprit, ...], tuple[str, int] | None]:
    if known.odd and not pairwise and known.odd[0].seq <= seq:
        # Called something else, here or before: nothing after that can match.
        return tuple([_different(odd) for odd in known.odd]), None
    found: dict[int, Culprit] = {}
    origin: tuple[str, int] | None = None
    progress = known.progress
    for rank in known.entered:
        if rank in cohort or (known.entered[rank] >= seq and not pairwise):
            continue
        mine = progress.get(rank)
        if mine is not None and mine.waits_pg is not None:
            # It waits itself, here or elsewhere: whom it waits for is to be asked, not it.
            origin = origin or _origin(mine, window.key[1])
            for root in mine.roots:
                found.setdefault(root, _culprit(root, progress.get(root), window))
        elif not pairwise and known.stuck_at.get(rank, seq) >= seq:
            found.setdefault(rank, _culprit(rank, mine, window))
    if progress:
        for rank in cohort:
            mine = progress.get(rank)
            for root in mine.roots if mine is not None else ():
                if root not in found:
                    found[root] = _culprit(root, progress.get(root), window)
    if not found:
        return (), origin
    return tuple([found[rank] for rank in sorted(found) if rank not in cohort or pairwise]), origin


def _different(entry: CollectiveEntry) -> Culprit:
    assert entry.rank is not None  # keys() asks for it
    return Culprit(entry.rank, "called_different", entry.seq, entry.frame, f"{called(entry)} at seq {entry.seq}", entry)


def _is_pairwise(report: WatchdogReport) -> bool:
    return (report.op or "").upper().startswith(_PAIRWISE)


def _supersedes(entry: CollectiveEntry, before: CollectiveEntry) -> bool:
    return entry.done if entry.done != before.done else _order(before) < _order(entry)


def _order(entry: CollectiveEntry) -> tuple[int, str]:
    return entry.time, entry.uid


def _seq(fact: CollectiveEntry | WatchdogReport) -> int:
    return fact.seq or 0


def _odd(entries: Sequence[CollectiveEntry]) -> list[CollectiveEntry]:
    """The odd ones out at the first sequence where signatures differ."""
    for entry in entries:
        if entry.signature is not None:
            break
    else:
        return []
    calls = Calls()
    calls.add(entries)
    latest = calls.latest
    for seq in sorted(latest):
        sides = sides_of([entry for entry in latest[seq].values() if entry.signature is not None])
        if len(sides) > 1:
            return odd_ones(sides)
    return []


def _entered(window: Window, progress: dict[int, GroupProgress]) -> dict[int, int]:
    """The last collective each rank is known to have entered in this group."""
    entered: dict[int, int] = {}
    for report in window.of(WatchdogReport):
        if report.rank is not None and report.pg and report.last_enqueued is not None:
            entered[report.rank] = max(entered.get(report.rank, -1), report.last_enqueued)
    for entry in window.of(CollectiveEntry):
        rank = entry.rank
        if rank is None or entry.is_p2p:
            continue
        if rank not in entered or entered[rank] < entry.seq:
            entered[rank] = entry.seq
    # A dump knows best: the watchdog's counter also counts sends and receives.
    for rank, fact in progress.items():
        if fact.last_enqueued is not None:
            entered[rank] = fact.last_enqueued
        else:
            entered.pop(rank, None)
    return dict(sorted(entered.items()))


def _silent(window: Window) -> set[int]:
    """Ranks that must exist, for everybody is in the default group, and of which no watchdog was heard."""
    heard = {report.rank for report in window.of(WatchdogReport) if report.rank is not None}
    if window.key[1] != "0" or not heard:
        return set()
    heard |= {entry.rank for entry in window.of(CollectiveEntry) if entry.rank is not None}
    return set(range(max(heard))) - heard if max(heard) < 2 * len(heard) else set()


def _stuck_at(window: Window) -> dict[int, int]:
    """The first collective of the group in which each rank is itself stuck."""
    stuck: dict[int, int] = {}
    for report in window.of(WatchdogReport):
        if report.rank is not None and report.seq is not None and report.report in ("timeout", "exception"):
            stuck[report.rank] = min(stuck.get(report.rank, report.seq), report.seq)
    for entry in window.of(CollectiveEntry):
        if entry.final and entry.rank is not None and not entry.done:
            stuck[entry.rank] = min(stuck.get(entry.rank, entry.seq), entry.seq)
    return stuck


def _origin(fact: GroupProgress, pg: str) -> tuple[str, int] | None:
    if fact.waits_pg is None or fact.waits_pg == pg or fact.waits_seq is None:
        return None
    return fact.waits_desc or f"group {fact.waits_pg}", fact.waits_seq


def _culprit(rank: int, fact: GroupProgress | None, window: Window) -> Culprit:
    if fact is not None:
        return Culprit(rank, "never_entered", fact.last_enqueued, fact.frame, fact.last_op, fact)
    said = [r for r in window.of(WatchdogReport) if r.rank == rank and r.last_enqueued is not None]
    if said:
        return Culprit(rank, "never_entered", said[-1].last_enqueued, None, None, said[-1])
    seen = [e for e in window.of(CollectiveEntry) if e.rank == rank and not e.is_p2p]
    if seen:
        last = max(seen, key=lambda entry: (entry.seq, entry.time, entry.uid))
        return Culprit(rank, "never_entered", last.seq, last.frame, last.op, last)
    return Culprit(rank, "never_entered")


def _document(culprit: Culprit) -> dict[str, Any]:
    document: dict[str, Any] = {"rank": culprit.rank, "why": culprit.why}
    if culprit.last_enqueued is not None:
        document["last_enqueued"] = culprit.last_enqueued
    if culprit.what:
        document["what"] = culprit.what
    if culprit.frame:
        document["frame"] = culprit.frame
    return document


def _frames(facts: Sequence[CollectiveEntry | WatchdogReport]) -> list[str]:
    """Where the waiting ranks are, in user code; each place once, the commonest first."""
    counts: dict[str, int] = {}
    for fact in facts:
        frame = fact.frame if isinstance(fact, CollectiveEntry) else None
        if frame:
            counts[frame] = counts.get(frame, 0) + 1
    return sorted(counts, key=lambda frame: (-counts[frame], frame))[:4]
