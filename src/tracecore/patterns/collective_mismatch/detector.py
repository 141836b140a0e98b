"""Ranks of one group that called different collectives, sizes or types at the same sequence number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import CollectiveEntry, GroupCrossed, called, called_of, named, odd_ones, sides_of
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.wording import quote
from tracecore.patterns.collective_mismatch.reports import calls as reports_by_call
from tracecore.patterns.collective_mismatch.reports import described, tells, what
from tracecore.patterns.config import HOUR, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.scope import attempt_of
from tracecore.signals.flight_recorder.exchange import Transfer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

#: What one rank called, from its dump or from its watchdog.
Call: TypeAlias = CollectiveEntry | WatchdogReport
Differs: TypeAlias = Literal["operation", "type", "size", "splits"]

_SHOWN = 16
#: The window of what libraries say of a job as a whole.
_TOLD = "*"
#: The words of `nccl.error`: a library met calls that do not match, or waits and suspects it.
_MET = "mismatched_collective"
_SUSPECTED = "suspected_mismatch"
#: The window of groups whose names ranks use differently.
_CROSSED = "*crossed"


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        memory: how long an entry waits for the other ranks' entries of the same collective.
    """

    memory: Duration = 24 * HOUR


class CollectiveMismatchVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        pg, pg_desc, seq: where ranks first differ.
        differs: what differs first: the operation, the element type or the number of elements; or the splits of an
            all-to-all, what one rank sends and another expects.
        sides: entries by what was called, the largest side first.
        odd: the minority's entries; everybody's when the sides are even.
        transfers: of an all-to-all, what is sent and what is expected.
    """

    pattern_id: ClassVar[str] = "18"
    pattern_name: ClassVar[str] = "collective_mismatch"
    role: ClassVar[Role] = "cause"

    pg: str
    seq: int
    pg_desc: str | None = None
    differs: Differs
    sides: tuple[tuple[Call, ...], ...]
    odd: tuple[Call, ...]
    transfers: tuple[Transfer, ...] = ()

    @property
    def odd_ranks(self) -> list[int]:
        return [entry.rank for entry in self.odd if entry.rank is not None]

    def headline(self) -> str:
        group = self.pg_desc or (f"group {self.pg}" if self.pg else "their group")
        if self.transfers:
            return self._splits(group)
        words = apart([side[0] for side in self.sides])
        if self._even():
            both = zip(self.sides, words, strict=True)
            halves = "; ".join(f"{named(_of(side))} called {call}" for side, call in both)
            return f"Ranks called different collectives at seq {self.seq} of {group}: {halves}"
        return (
            f"{named(self.odd_ranks, capital=True)} called {words[1]} at seq {self.seq} of {group}, "
            f"where {named(_of(self.sides[0]))} called {words[0]}"
        )

    def _splits(self, group: str) -> str:
        """Say which splits of an all-to-all do not add up."""
        where = f"in {self.sides[0][0].op or 'all_to_all'} seq {self.seq} of {group}"
        first = self.transfers[0]
        if first.sender is not None:
            more = "; other pairs do not fit either" if len(self.transfers) > 1 else ""
            to = "itself" if first.receiver == first.sender else f"rank {first.receiver}"
            return (
                f"Rank {first.sender} sends {first.sent:,} elements to {to}, which expects {first.expected:,}, "
                f"{where}{more}"
            )
        head = f"Ranks send {first.sent:,} elements and expect {first.expected:,} {where}"
        if not self.odd:
            return f"{head}: their splits do not add up"
        mine = self.odd[0]
        if len(self.odd) > 1 or isinstance(mine, WatchdogReport) or mine.sent is None or mine.expected is None:
            return f"{head}: those of {named(self.odd_ranks)} do not fit"
        does = f"expects {mine.expected:,}" if first.expected > first.sent else f"sends {mine.sent:,}"
        ended = any(isinstance(entry, CollectiveEntry) and entry.done for entry in self.sides[0])
        left = ", and has not completed it" if ended and not mine.done else ""
        return f"{head}: rank {mine.rank} {does}{left}"

    def remediation(self) -> str:
        places = [f"{named(_of(side))}: {frame}" for side in self.sides[:4] if (frame := _frame(side))]
        where = f" The calls: {'; '.join(places)}." if places else ""
        if len(frames := {_frame(side) for side in self.sides}) == 1 and (frame := frames.pop()):
            where = f" All of them call it at {frame}."
        advice = {
            "operation": "Look for a branch that only some ranks take (a condition on rank, data or loss) and for a "
            "collective inside it",
            "type": "Look for a tensor whose dtype differs between ranks (autocast, a checkpoint loaded in another "
            "precision)",
            "size": "Look for a tensor whose size depends on the rank's own data (last batch, uneven shards); pad it, "
            "or use a collective that allows it",
            "splits": "Compare how each rank computes its input and output splits (an expert's capacity, counts that "
            "were not exchanged or are stale)",
        }[self.differs]
        begin = f", beginning with what {named(self.odd_ranks)} did" if self.odd else ""
        return (
            f"A bug in the program, so restarting as it is will end the same way. {advice}{begin}.{where} "
            f"`TORCH_DISTRIBUTED_DEBUG=DETAIL` checks every collective before it runs."
        )

    def evidence(self) -> Sequence[Fact]:
        shown = [entry for side in self.sides for entry in side[:_SHOWN]]
        known = set(map(id, shown))
        more = (entry for entry in self.odd if id(entry) not in known)
        return sorted((*shown, *more), key=lambda entry: (entry.time, entry.uid))

    def suspects(self) -> Suspects:
        return Suspects.of(self.odd)

    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "nccl.fr.collective_seq_id": self.seq,
            "differs": self.differs,
            "odd_ranks": self.odd_ranks,
            "even": self._even(),
            "sides": [_side(side) for side in self.sides],
        }
        if self.transfers:
            fields["transfers"] = [
                {name: value for name, value in msgspec.structs.asdict(t).items() if value is not None}
                for t in self.transfers
            ]
        fields["pg_desc"] = self.pg_desc
        fields["gen_ai.training.job_id"] = next((entry.job for entry in self.odd if entry.job), None)
        return {"nccl.fr.pg_id": self.pg, **filled(fields)}  # a group may have an empty name

    def promoted(self) -> dict[str, Any]:
        return {"nccl.fr.pg_id": self.pg, "nccl.fr.collective_seq_id": self.seq}

    def _even(self) -> bool:
        return not self.transfers and len(self.sides[0]) == len(self.sides[1])


class ToldMismatchVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the library's own word that calls do not match.
        ranks: those that it names.
        count: how many lines said so.
    """

    pattern_id: ClassVar[str] = "18"
    pattern_name: ClassVar[str] = "collective_mismatch"
    role: ClassVar[Role] = "cause"

    first: NcclError
    ranks: tuple[int, ...] = ()
    count: int = 1

    @property
    def suspected(self) -> bool:
        """Whether the library only suspects it of ranks that wait."""
        return self.first.error == _SUSPECTED

    def headline(self) -> str:
        if self.suspected:
            where = f" around {named(self.ranks)}" if self.ranks else ""
            return f"Ranks hang, and NCCL suspects that they called different collectives{where}"
        who = f"{named(self.ranks, capital=True)} called" if self.ranks else "Ranks called"
        other = "different collectives" if len(self.ranks) != 1 else "another collective than the others"
        return f"{who} {other}, as the library says: {quote(self.first.detail or 'no more is told', 200)}"

    def remediation(self) -> str:
        begin = f", beginning with what {named(self.ranks)} did" if self.ranks else ""
        if self.suspected:
            return (
                f"Compare what the ranks called{begin}: a branch that only some ranks take, or a tensor whose size "
                f"depends on the rank's own data. If nothing differs, a rank or a link has stopped. "
                f"`TORCH_NCCL_TRACE_BUFFER_SIZE=2000` with `TORCH_NCCL_DUMP_ON_TIMEOUT=1` records the calls, and "
                f"`TORCH_DISTRIBUTED_DEBUG=DETAIL` checks each before it runs."
            )
        return (
            f"A bug in the program, so restarting as it is will end the same way. Look for a branch that only "
            f"some ranks "
            f"take, or a tensor whose size depends on the rank's own data{begin}. "
            f"`TORCH_DISTRIBUTED_DEBUG=DETAIL` checks "
            f"every collective before it runs and prints both calls."
        )

    def evidence(self) -> Sequence[Fact]:
        return (self.first,)

    def missing_layers(self) -> tuple[str, ...]:
        return ("flight_recorder",)

    def suspects(self) -> Suspects:
        return Suspects(ranks=self.ranks)

    def fields(self) -> dict[str, Any]:
        fields = {"told": self.count, "odd_ranks": list(self.ranks), "gen_ai.training.job_id": self.first.job}
        return filled({"differs": "suspected" if self.suspected else None, **fields})

    def promoted(self) -> dict[str, Any]:
        return {}


class CrossedGroupsVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        groups: for each way to use the name, one rank that uses it so.
        odd: the ranks whose order differs.
    """

    pattern_id: ClassVar[str] = "18"
    pattern_name: ClassVar[str] = "collective_mismatch"
    role: ClassVar[Role] = "cause"

    groups: tuple[GroupCrossed, ...]
    odd: tuple[GroupCrossed, ...]

    def headline(self) -> str:
        meant = " and ".join(f"{named(fact.members)} for rank {fact.rank}" for fact in self.groups[:3])
        return (
            f"Process groups were not created in the same order on all ranks: group {self.groups[0].pg} is {meant}, "
            f"which then exchanged with the wrong peers"
        )

    def remediation(self) -> str:
        return (
            f"A bug in the program, so restarting as it is will end the same way. Every rank must call `new_group` for "
            f"every group, in the same order, also for groups it is no member of. Compare the order on "
            f"{named(self.suspects().ranks)} with that of the others."
        )

    def evidence(self) -> Sequence[Fact]:
        return sorted(self.groups, key=lambda fact: (fact.time, fact.uid))

    def suspects(self) -> Suspects:
        return Suspects.of(self.odd)

    def fields(self) -> dict[str, Any]:
        fields = {
            "differs": "groups",
            "odd_ranks": [fact.rank for fact in self.odd if fact.rank is not None],
            "gen_ai.training.job_id": self.groups[0].job,
        }
        return {"nccl.fr.pg_id": self.groups[0].pg, **filled(fields)}  # a group may have an empty name

    def promoted(self) -> dict[str, Any]:
        return {"nccl.fr.pg_id": self.groups[0].pg}


class CallsBySequence:
    """The latest entry of each rank by sequence, and the sequences at which entries are not all alike."""

    def __init__(self, entries: Sequence[CollectiveEntry]) -> None:
        self.latest: dict[int, dict[int, CollectiveEntry]] = {}
        #: By sequence the entry that came first: all others are compared with it.
        self._firsts: dict[int, CollectiveEntry] = {}
        self.mixed: set[int] = set()
        self.misfits: set[int] = set()
        for entry in entries:
            rank, seq = entry.rank, entry.seq
            assert rank is not None  # keys() asks for it
            if entry.transfers:
                self.misfits.add(seq)
            ranks = self.latest.get(seq)
            if ranks is None:
                self.latest[seq] = {rank: entry}
                self._firsts[seq] = entry
                continue
            if seq not in self.mixed:
                other = self._firsts[seq]
                if entry.signature != other.signature or entry.op != other.op:
                    self.mixed.add(seq)
            known = ranks.get(rank)
            if known is None or (known.time, known.uid) < (entry.time, entry.uid):
                ranks[rank] = entry


class CollectiveMismatch(Pattern[Config]):
    """The first sequence of a group where ranks disagree on operation, element type or size.

    What may legitimately differ (uneven all-to-all, the root of a gather or scatter, sends and receives) is not part
    of an entry's signature, so it cannot disagree.
    """

    id = "18"
    name = "collective_mismatch"
    role = "cause"
    maturity = "stable"
    needs = (CollectiveEntry, WatchdogReport, NcclError, GroupCrossed)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        job = attempt_of(fact)
        if isinstance(fact, WatchdogReport):
            return ((job, ""),) if tells(fact) else ()
        if isinstance(fact, NcclError):
            return ((job, _TOLD),) if fact.error in (_MET, _SUSPECTED) else ()
        if isinstance(fact, GroupCrossed):
            return ((job, _CROSSED),)
        if not isinstance(fact, CollectiveEntry) or fact.rank is None or fact.is_p2p:
            return ()
        return ((job, fact.pg),) if fact.signature is not None or fact.op is not None else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        if window.key[1] == _TOLD:
            return [_told(window)]
        if window.key[1] == _CROSSED:
            return _crossed(window)
        if not window.key[1]:
            return _from_reports(window)
        if _alike(window.grouped(CollectiveEntry, _call)):
            return []
        calls = CallsBySequence(window.of(CollectiveEntry))
        waits = _open_from(calls) if calls.mixed else None
        for seq in sorted(calls.mixed | calls.misfits):
            entries = calls.latest[seq].values()
            if len(entries) > 1 and any(entry.transfers for entry in entries):
                return [_misfit(window, seq, list(entries))]
            # Dumps were looked at as a whole: what their facts show is no call that ended before an open one.
            if waits is not None and seq < waits and not any(entry.final for entry in entries):
                continue
            sides = sides_of(entries)
            if len(sides) > 1:
                return [_verdict(window, seq, sides)]
        return []


def _crossed(window: Window) -> list[Verdict]:
    facts = window.of(GroupCrossed)
    groups = {fact.members: fact for fact in reversed(facts)}
    if len(groups) < 2:
        return []
    shown = tuple(sorted(groups.values(), key=lambda fact: fact.members))
    odd = tuple(sorted((fact for fact in facts if fact.odd), key=lambda fact: fact.rank or 0))
    return [
        CrossedGroupsVerdict(
            key=window.key, episode=shown[0].source, time=max(fact.time for fact in shown), groups=shown, odd=odd
        )
    ]


def _call(entry: CollectiveEntry) -> tuple[int, str | None, str | None, bool]:
    return entry.seq, entry.signature, entry.op, bool(entry.transfers)


def _alike(calls: Iterable[tuple[int, str | None, str | None, bool]]) -> bool:
    """Whether all ranks made the same call at each sequence. Nearly always they did, and no entry is looked at."""
    seen: set[int] = set()
    for seq, _signature, _op, transfers in calls:
        if transfers or seq in seen:
            return False
        seen.add(seq)
    return True


def _told(window: Window) -> Verdict:
    """Return the verdict on a mismatch that NCCL or PyTorch's own checks report."""
    every = window.of(NcclError)
    said = [fact for fact in every if fact.error == _MET] or every
    compared = {frozenset(_numbers(fact.peer)) for fact in said[:_SHOWN] if fact.peer}
    ranks: frozenset[int] = frozenset().union(*compared)
    if len(compared) > 1 and len(alone := frozenset.intersection(*compared)) == 1:
        ranks = alone  # each of the others differs from this one
    return ToldMismatchVerdict(
        key=window.key,
        episode=said[0].source,
        time=said[0].time,
        confidence="partial",
        first=said[0],
        ranks=tuple(sorted(ranks)),
        count=sum(max(fact.count, 1) for fact in said),
    )


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split() if word.isdecimal()]


def _from_reports(window: Window) -> list[Verdict]:
    """The first collective of each group about which watchdogs of different ranks say different things."""
    reports = window.of(WatchdogReport)
    found: dict[str, Verdict] = {}
    for (group, seq), ranks in sorted(reports_by_call(reports).items()):
        sides: dict[str, list[WatchdogReport]] = {}
        sized = all("|" in what(report) for report in ranks.values())
        for rank in sorted(ranks):
            words = what(ranks[rank])
            sides.setdefault(words if sized else words.partition("|")[0], []).append(ranks[rank])
        if len(sides) < 2 or group in found:
            continue
        ordered = sorted(sides.items(), key=lambda item: (-len(item[1]), item[1][0].rank or 0))
        sizes = [len(side) for _, side in ordered]
        odd = ordered[1:] if sizes[1] < sizes[0] else ordered
        found[group] = CollectiveMismatchVerdict(
            key=window.key,
            episode=f"{group}:{seq}",
            time=max(side[0].time for _, side in ordered),
            pg=group,
            pg_desc=described(reports, group),
            seq=seq,
            differs=difference(ordered[0][0], ordered[1][0]),
            sides=tuple(tuple(side) for _, side in ordered),
            odd=tuple(sorted((report for _, side in odd for report in side), key=lambda report: report.rank or 0)),
        )
    return list(found.values())


def _open_from(calls: CallsBySequence) -> int | None:
    """The first collective that somebody has entered and that has not ended."""
    waits = [seq for seq, ranks in calls.latest.items() if any(not entry.done for entry in ranks.values())]
    return min(waits, default=None)


def _verdict(window: Window, seq: int, sides: dict[str, list[CollectiveEntry]]) -> CollectiveMismatchVerdict:
    everybody = [entry for side in sides.values() for entry in side]
    return CollectiveMismatchVerdict(
        key=window.key,
        episode=str(seq),
        time=max(side[0].time for side in sides.values()),
        pg=window.key[1],
        pg_desc=next((entry.pg_desc for entry in everybody if entry.pg_desc), None),
        seq=seq,
        differs=difference(*list(sides)[:2]),
        sides=tuple(tuple(side) for side in sides.values()),
        odd=tuple(odd_ones(sides)),
    )


def _misfit(window: Window, seq: int, entries: list[CollectiveEntry]) -> CollectiveMismatchVerdict:
    entries.sort(key=lambda entry: entry.rank or 0)
    odd = tuple(entry for entry in entries if entry.misfit)
    rest = tuple(entry for entry in entries if not entry.misfit)
    return CollectiveMismatchVerdict(
        key=window.key,
        episode=str(seq),
        time=max(entry.time for entry in entries),
        pg=window.key[1],
        pg_desc=next((entry.pg_desc for entry in entries if entry.pg_desc), None),
        seq=seq,
        differs="splits",
        sides=tuple(side for side in (rest, odd) if side),
        odd=odd,
        transfers=tuple(dict.fromkeys(transfer for entry in entries for transfer in entry.transfers)),
    )


def _said(fact: Call) -> str:
    """`all_reduce of 4096 Float`, or `ALLREDUCE of 4096` from a watchdog."""
    return called(fact) if isinstance(fact, CollectiveEntry) else called_of(what(fact))


def apart(entries: Sequence[Call]) -> list[str]:
    """Return what each entry called, with both sides where the usual amounts are the same."""
    words = [_said(entry) for entry in entries]
    if len(set(words)) == len(words):
        return words
    whole = [entry.signature if isinstance(entry, CollectiveEntry) else None for entry in entries]
    return [signature.replace("|", " ") if signature else word for signature, word in zip(whole, words, strict=True)]


def difference(one: str, other: str) -> Differs:
    """Return the coarsest difference of two signatures."""
    first, second = one.split("|"), other.split("|")
    if first[0] != second[0]:
        return "operation"
    return "type" if first[2::2] != second[2::2] else "size"


def _of(side: Sequence[Call]) -> list[int]:
    return [entry.rank for entry in side if entry.rank is not None]


def _frame(side: Sequence[Call]) -> str | None:
    return next((entry.frame for entry in side if entry.frame), None)


def _side(side: Sequence[Call]) -> dict[str, Any]:
    document: dict[str, Any] = {"ranks": _of(side), "called": _said(side[0])}
    if frame := _frame(side):
        document["frame"] = frame
    return document
