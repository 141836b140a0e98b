"""Ranks of one group that called different collectives, sizes or types at the same sequence number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from tracecore.facts.collective import CollectiveEntry, called, named, odd_ones, sides_of
from tracecore.patterns.config import HOUR, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Differs: TypeAlias = Literal["operation", "type", "size"]

_SHOWN = 16


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
        differs: what differs first: the operation, the element type or the number of elements.
        sides: entries by what was called, the largest side first.
        odd: the minority's entries; everybody's when the sides are even.
    """

    pattern_id: ClassVar[str] = "18"
    pattern_name: ClassVar[str] = "collective_mismatch"
    role: ClassVar[Role] = "cause"

    pg: str
    seq: int
    pg_desc: str | None = None
    differs: Differs
    sides: tuple[tuple[CollectiveEntry, ...], ...]
    odd: tuple[CollectiveEntry, ...]

    @property
    def odd_ranks(self) -> list[int]:
        return [entry.rank for entry in self.odd if entry.rank is not None]

    def headline(self) -> str:
        group = self.pg_desc or f"group {self.pg}"
        if self._even():
            halves = "; ".join(f"{named(_of(side))} called {called(side[0])}" for side in self.sides)
            return f"Ranks called different collectives at seq {self.seq} of {group}: {halves}"
        mine = self.sides[1][0]
        return (
            f"{named(self.odd_ranks, capital=True)} called {called(mine)} at seq {self.seq} of {group}, "
            f"where {named(_of(self.sides[0]))} called {called(self.sides[0][0])}"
        )

    def remediation(self) -> str:
        places = [f"{named(_of(side))}: {frame}" for side in self.sides[:4] if (frame := _frame(side))]
        where = f" The calls: {'; '.join(places)}." if places else ""
        advice = {
            "operation": "Look for a branch that only some ranks take (a condition on rank, data or loss) and for a "
            "collective inside it",
            "type": "Look for a tensor whose dtype differs between ranks (autocast, a checkpoint loaded in another "
            "precision)",
            "size": "Look for a tensor whose size depends on the rank's own data (last batch, uneven shards); pad it, "
            "or use a collective that allows it",
        }[self.differs]
        return (
            f"A bug in the program, so restarting as it is will end the same way. {advice}, beginning with what "
            f"{named(self.odd_ranks)} did.{where} `TORCH_DISTRIBUTED_DEBUG=DETAIL` checks every collective before it "
            f"runs."
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
            "nccl.fr.pg_id": self.pg,
            "nccl.fr.collective_seq_id": self.seq,
            "differs": self.differs,
            "odd_ranks": self.odd_ranks,
            "even": self._even(),
            "sides": [_side(side) for side in self.sides],
        }
        if self.pg_desc:
            fields["pg_desc"] = self.pg_desc
        if job := next((entry.job for entry in self.odd if entry.job), None):
            fields["gen_ai.training.job_id"] = job
        return fields

    def promoted(self) -> dict[str, Any]:
        return {"nccl.fr.pg_id": self.pg, "nccl.fr.collective_seq_id": self.seq}

    def _even(self) -> bool:
        return len(self.sides[0]) == len(self.sides[1])


class Calls:
    """The latest entry of each rank by sequence, and the sequences at which entries are not all alike."""

    def __init__(self) -> None:
        self.latest: dict[int, dict[int, CollectiveEntry]] = {}
        self.mixed: set[int] = set()

    def add(self, entries: Sequence[CollectiveEntry]) -> None:
        for entry in entries:
            rank, seq = entry.rank, entry.seq
            assert rank is not None  # keys() asks for it
            ranks = self.latest.get(seq)
            if ranks is None:
                self.latest[seq] = {rank: entry}
                continue
            if seq not in self.mixed:
                other = next(iter(ranks.values()))
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
    needs = (CollectiveEntry,)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.memory

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if not isinstance(fact, CollectiveEntry) or fact.rank is None or fact.is_p2p:
            return ()
        if fact.signature is None and fact.op is None:
            return ()
        job = fact.job or ""
        return ((f"{job}#{fact.attempt}" if fact.attempt else job, fact.pg),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        calls = window.digest(CollectiveEntry, Calls)
        for seq in sorted(calls.mixed):
            sides = sides_of(calls.latest[seq].values())
            if len(sides) < 2:
                continue
            odd = odd_ones(sides)
            everybody = [entry for side in sides.values() for entry in side]
            return [
                CollectiveMismatchVerdict(
                    key=window.key,
                    episode=str(seq),
                    time=max(side[0].time for side in sides.values()),
                    pg=window.key[1],
                    pg_desc=next((entry.pg_desc for entry in everybody if entry.pg_desc), None),
                    seq=seq,
                    differs=difference(*list(sides)[:2]),
                    sides=tuple(tuple(side) for side in sides.values()),
                    odd=tuple(odd),
                )
            ]
        return []


def difference(one: str, other: str) -> Differs:
    """What two signatures differ in, the coarsest first."""
    first, second = one.split("|"), other.split("|")
    if first[0] != second[0]:
        return "operation"
    return "type" if first[2::2] != second[2::2] else "size"


def _of(side: Sequence[CollectiveEntry]) -> list[int]:
    return [entry.rank for entry in side if entry.rank is not None]


def _frame(side: Sequence[CollectiveEntry]) -> str | None:
    return next((entry.frame for entry in side if entry.frame), None)


def _side(side: Sequence[CollectiveEntry]) -> dict[str, Any]:
    document: dict[str, Any] = {"ranks": _of(side), "called": called(side[0])}
    if frame := _frame(side):
        document["frame"] = frame
    return document
