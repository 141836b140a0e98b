"""Detection of ranks that called different collectives, sizes or types at the same sequence number of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import CollectiveEntry, GroupCrossed, called, called_of, named, odd_ones, sides_of
from tracecore.facts.nccl import DRIFTED, NcclError, WatchdogReport
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

#: The call of one rank, from its dump or from its watchdog.
Call: TypeAlias = CollectiveEntry | WatchdogReport
Differs: TypeAlias = Literal["operation", "type", "size", "splits"]

_SHOWN = 16
#: Ranks above this are not compared one by one.
_MOST = 16_384
#: Key of the window for errors that NCCL or PyTorch report about the whole job.
_WHOLE_JOB = "*"
#: Values of `nccl.error`: a library saw calls that do not match, or it waits and only suspects them.
_CERTAIN = "mismatched_collective"
_SUSPECTED = "suspected_mismatch"
_SURENESS = (_CERTAIN, DRIFTED, _SUSPECTED)
#: Key of the window for group names that mean different groups on different ranks.
_CROSSED = "*crossed"


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        memory: an entry is compared with entries of other ranks that arrive within this time.
    """

    memory: Duration = 24 * HOUR


class CollectiveMismatchVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        pg, pg_desc, seq: the first collective at which ranks differ.
        differs: the first difference: the operation, the element type or the number of elements. `splits`: in an
            all-to-all one rank sends another number of elements than its receiver expects.
        sides: the entries grouped by call, the largest group first.
        odd: entries of the minority, or of all ranks if the two largest sides have the same size.
        transfers: numbers of elements sent and expected in an all-to-all.
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
            halves = "; ".join(f"{named(_ranks_of(side))} called {call}" for side, call in both)
            return f"Ranks called different collectives at seq {self.seq} of {group}: {halves}"
        return (
            f"{named(self.odd_ranks, capital=True)} called {words[1]} at seq {self.seq} of {group}, "
            f"where {named(_ranks_of(self.sides[0]))} called {words[0]}"
        )

    def _splits(self, group: str) -> str:
        """Return the headline about splits of an all-to-all that do not add up."""
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
        does = f"sends {mine.sent:,} and expects {mine.expected:,}"
        ended = any(isinstance(entry, CollectiveEntry) and entry.done for entry in self.sides[0])
        left = ", and has not completed it" if ended and not mine.done else ""
        return f"{head}: rank {mine.rank} {does}{left}"

    def remediation(self) -> str:
        places = [f"{named(_ranks_of(side))}: {frame}" for side in self.sides[:4] if (frame := _frame(side))]
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
            f"This is a bug in the program: a restart without a fix will fail again. {advice}{begin}.{where} "
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
        even = not self.transfers and len(self.sides[0]) == len(self.sides[1])
        return even and len(self.odd) > len(self.sides[1])


class ToldMismatchVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the first error in which a library says that calls do not match.
        ranks: the ranks that the errors name.
        count: number of lines with such an error.
    """

    pattern_id: ClassVar[str] = "18"
    pattern_name: ClassVar[str] = "collective_mismatch"
    role: ClassVar[Role] = "cause"

    first: NcclError
    ranks: tuple[int, ...] = ()
    count: int = 1

    @property
    def suspected(self) -> bool:
        """Return whether the library only suspects a mismatch because ranks wait."""
        return self.first.error == _SUSPECTED

    @property
    def drifted(self) -> bool:
        """Return whether only the ranks' steps show it: calls of one step met those of another, and nobody noticed."""
        return self.first.error == DRIFTED

    def headline(self) -> str:
        if self.drifted:
            return f"Collectives of different steps met: {self.first.detail}"
        if self.suspected:
            where = f" around {named(self.ranks)}" if self.ranks else ""
            return f"Ranks hang, and NCCL suspects that they called different collectives{where}"
        who = f"{named(self.ranks, capital=True)} called" if self.ranks else "Ranks called"
        other = "different collectives" if len(self.ranks) != 1 else "a different collective than the others"
        return f"{who} {other}, according to the library: {quote(self.first.detail or 'no details given', 200)}"

    def remediation(self) -> str:
        begin = f", beginning with what {named(self.ranks)} did" if self.ranks else ""
        if self.drifted:
            return (
                f"This is a bug in the program: a restart without a fix will fail again, and what the run computed is "
                f"wrong since the ranks came apart. Count the collectives of one step on each rank{begin}: look for a "
                f"call of the model on one rank only (sampling, evaluation, saving), for tensors of another size, and "
                f"for a loop of another length. `TORCH_DISTRIBUTED_DEBUG=DETAIL` checks each call before it runs."
            )
        if self.suspected:
            return (
                f"Compare what the ranks called{begin}: a branch that only some ranks take, or a tensor whose size "
                f"depends on the rank's own data. If nothing differs, a rank or a link has stopped. "
                f"`TORCH_NCCL_TRACE_BUFFER_SIZE=2000` with `TORCH_NCCL_DUMP_ON_TIMEOUT=1` records the calls, and "
                f"`TORCH_DISTRIBUTED_DEBUG=DETAIL` checks each before it runs."
            )
        return (
            f"This is a bug in the program: a restart without a fix will fail again. Look for a branch that only "
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
        return filled({"differs": "suspected" if self.suspected else "steps" if self.drifted else None, **fields})

    def promoted(self) -> dict[str, Any]:
        return {}


class CrossedGroupsVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        groups: one fact for each meaning of the group's name.
        odd: facts of the ranks that created groups in another order.
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
            f"This is a bug in the program: a restart without a fix will fail again. Every rank must call "
            f"`new_group` for every group, in the same order, even for groups it is not part of. Compare the order on "
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
    """The latest entry of each rank by sequence number.

    `mixed` has the numbers at which calls differ, `misfits` those at which splits of an all-to-all do not add up.
    """

    def __init__(self, entries: Sequence[CollectiveEntry]) -> None:
        self.latest: dict[int, dict[int, CollectiveEntry]] = {}
        #: By sequence number the first entry, with which all others are compared.
        self._firsts: dict[int, CollectiveEntry] = {}
        self.mixed: set[int] = set()
        self.misfits: set[int] = set()
        for entry in entries:
            rank, seq = entry.rank, entry.seq
            assert rank is not None  # keys() drops entries without a rank
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
    """The first sequence number of a group at which ranks disagree on operation, element type or size.

    Differences that are legitimate (uneven all-to-all, the root of a gather or scatter, sends and receives) are not
    part of an entry's signature, so they are never compared.
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
            return ((job, _WHOLE_JOB),) if fact.error in _SURENESS else ()
        if isinstance(fact, GroupCrossed):
            return ((job, _CROSSED),)
        if not isinstance(fact, CollectiveEntry) or fact.rank is None or fact.is_p2p:
            return ()
        return ((job, fact.pg),) if fact.signature is not None or fact.op is not None else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        if window.key[1] == _WHOLE_JOB:
            return [_from_libraries(window)]
        if window.key[1] == _CROSSED:
            return _crossed(window)
        if not window.key[1]:
            return _from_reports(window)
        if _alike(window.grouped(CollectiveEntry, _compared_fields)):
            return []
        calls = CallsBySequence(window.of(CollectiveEntry))
        waits = _first_open(calls) if calls.mixed else None
        for seq in sorted(calls.mixed | calls.misfits):
            entries = calls.latest[seq].values()
            if len(entries) > 1 and any(entry.transfers for entry in entries):
                return [_splits_verdict(window, seq, list(entries))]
            # A mismatch before the first open collective did no harm, unless it is from a dump, where this was checked.
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


def _compared_fields(entry: CollectiveEntry) -> tuple[int, str | None, str | None, bool]:
    return entry.seq, entry.signature, entry.op, bool(entry.transfers)


def _alike(calls: Iterable[tuple[int, str | None, str | None, bool]]) -> bool:
    """Return whether all ranks made the same call at each sequence number. Usually they did, which ends the search."""
    seen: set[int] = set()
    for seq, _signature, _op, transfers in calls:
        if transfers or seq in seen:
            return False
        seen.add(seq)
    return True


def _from_libraries(window: Window) -> Verdict:
    """Return the verdict on a mismatch that NCCL or the checks of PyTorch report."""
    every = window.of(NcclError)
    surest = min((fact.error for fact in every), key=_SURENESS.index)
    errors = [fact for fact in every if fact.error == surest]
    compared = [_numbers(fact.peer) for fact in errors[:_SHOWN] if fact.peer]
    ranks = _minority([(pair[0], pair[1]) for pair in compared if len(pair) == 2]) if surest == _CERTAIN else set()
    if not ranks:
        sides = {frozenset(numbers) for numbers in compared}
        alone = frozenset.intersection(*sides) if len(sides) > 1 else frozenset[int]()
        # One rank may differ from each of the others.
        ranks = set(alone) if len(alone) == 1 else {rank for numbers in compared for rank in numbers}
    return ToldMismatchVerdict(
        key=window.key,
        episode=errors[0].source,
        time=errors[0].time,
        confidence="partial",
        first=errors[0],
        ranks=tuple(sorted(ranks)),
        count=sum(max(fact.count, 1) for fact in errors),
    )


def _minority(pairs: Sequence[tuple[int, int]]) -> set[int]:
    """Return the ranks of the smaller of two sides; nothing if there are more sides, or none is smaller.

    Args:
        pairs: a rank, and the first rank whose call PyTorch's check found to differ from its own. Those below it agree.
    """
    if not pairs:
        return set()
    side = {pairs[0][0]: 0}
    for _ in pairs:
        for rank, other in pairs:
            # A complaint whose ranks are on no known side waits for another that connects them.
            own = side.get(rank, 1 - side[other] if other in side else None)
            if own is None or max(rank, other) > _MOST:
                continue
            told = {rank: own, other: 1 - own} | dict.fromkeys(range(other), own)
            if any(side.setdefault(one, its) != its for one, its in told.items()):
                return set()
    small, large = sorted(({rank for rank, its in side.items() if its == one} for one in (0, 1)), key=len)
    joined = all(rank in side for pair in pairs for rank in pair)
    return small if joined and len(small) < len(large) else set()


def _numbers(text: str) -> list[int]:
    return [int(word) for word in text.replace(",", " ").split() if word.isdecimal()]


def _from_reports(window: Window) -> list[Verdict]:
    """Return a verdict on the first collective of each group for which the watchdogs report different calls."""
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


def _first_open(calls: CallsBySequence) -> int | None:
    """Return the first collective that any rank has entered and not completed."""
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


def _splits_verdict(window: Window, seq: int, entries: list[CollectiveEntry]) -> CollectiveMismatchVerdict:
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


def _call_text(fact: Call) -> str:
    """Return a call in words: `all_reduce of 4096 Float`, or `ALLREDUCE of 4096` from a watchdog."""
    return called(fact) if isinstance(fact, CollectiveEntry) else called_of(what(fact))


def apart(entries: Sequence[Call]) -> list[str]:
    """Return the call of each entry in words, by its whole signature where the usual words do not tell them apart."""
    words = [_call_text(entry) for entry in entries]
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


def _ranks_of(side: Sequence[Call]) -> list[int]:
    return [entry.rank for entry in side if entry.rank is not None]


def _frame(side: Sequence[Call]) -> str | None:
    return next((entry.frame for entry in side if entry.frame), None)


def _side(side: Sequence[Call]) -> dict[str, Any]:
    document: dict[str, Any] = {"ranks": _ranks_of(side), "called": _call_text(side[0])}
    if frame := _frame(side):
        document["frame"] = frame
    return document
