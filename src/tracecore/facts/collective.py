"""Facts about collectives: entries of ranks, the progress of each rank in each group, and late arrivals.

`collective_dumps` makes them from Flight Recorder dumps, `projectors.collective` from stamped records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence
from tracecore.signals.flight_recorder.exchange import Transfer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


#: Maximum number of ranks that a sentence lists in full.
_NAMED: Final = 8


class CollectiveEntry(Fact, frozen=True, kw_only=True):
    """One collective as one rank recorded it.

    Args:
        pg: the stable name of the process group.
        pg_desc: the description that the program gave the group.
        seq: sequence number in the group.
        op: operation (`all_reduce`), without its backend.
        state: scheduled, started or completed.
        created, started, completed: times in nanoseconds; None if it did not happen or is not known.
        signature: the part on which all ranks of the group must agree (operation, elements, types); None if not
            recorded.
        is_p2p: it is a send or receive.
        peer: the other rank of a send or receive.
        frame: the innermost line of user code.
        final: read from a dump. A rank writes a dump when it stops, so nothing came after.
        timeout_ms: its timeout.
        behind: the rank is in this other operation, which waits for the one that `pg` and `seq` name.
        transfers: in an all-to-all that does not add up, the numbers of elements that differ for this rank.
        misfit: the part of this rank in it is wrong, as far as known; or the rank made a call of another group here.
        sent, expected: numbers of elements that it sends and expects there.
    """

    kind: ClassVar[str] = "collective"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    seq: int
    state: str
    pg_desc: str | None = None
    op: str | None = None
    created: int | None = None
    started: int | None = None
    completed: int | None = None
    signature: str | None = None
    is_p2p: bool = False
    peer: int | None = None
    frame: str | None = None
    final: bool = False
    timeout_ms: int | None = None
    behind: str | None = None
    transfers: tuple[Transfer, ...] = ()
    misfit: bool = False
    sent: int | None = None
    expected: int | None = None

    @property
    def done(self) -> bool:
        return self.state == "completed" or self.completed is not None

    def describe(self) -> str:
        what = f"{self.op or 'collective'} seq {self.seq} of group {self.pg_desc or self.pg} is {self.state}"
        if self.behind:
            what = f"waits in {self.behind}, behind seq {self.seq} of group {self.pg_desc or self.pg}"
        return sentence(self, what) + (f", called from {self.frame}" if self.frame else "")


class GroupProgress(Fact, frozen=True, kw_only=True):
    """Position of one rank in one process group, from its dump.

    Args:
        pg, pg_desc: the group.
        last_enqueued: the last collective it entered, 0 for none; None if its ring buffer does not show it any more.
        last_completed: the last collective that ended.
        oldest: the oldest sequence number in its ring buffer.
        last_op: the last operation it called, in any group.
        frame: the line of user code that called it.
        waits_pg, waits_desc, waits_seq: the operation it waits in, if the group is stuck in another one.
        roots: the ranks at the end of the chain of waits.
        why: the reason for those ranks: absent (they did not come), different (they called another operation), inside
            (they are still in a collective that others completed), unstarted (their GPU has not begun it).
        origin_pg, origin_desc, origin_seq: the collective that those ranks did not enter, or in which they are.
        unseen: ranks without a dump for which it may wait, if there are no roots.
        stalled: it is one of the roots itself, and still inside a collective of this group.
        open_seq: the first collective of this group that it has entered and that has not ended.
        earlier: an earlier call of this group that differed between ranks and still ended.
        absent: members of the group without a dump.
        size: number of members of the group.
    """

    kind: ClassVar[str] = "group_progress"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    pg_desc: str | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None
    oldest: int | None = None
    last_op: str | None = None
    frame: str | None = None
    waits_pg: str | None = None
    waits_desc: str | None = None
    waits_seq: int | None = None
    roots: tuple[int, ...] = ()
    why: str = "absent"
    origin_pg: str | None = None
    origin_desc: str | None = None
    origin_seq: int | None = None
    unseen: tuple[int, ...] = ()
    stalled: bool = False
    open_seq: int | None = None
    earlier: str | None = None
    absent: tuple[int, ...] = ()
    size: int | None = None

    def describe(self) -> str:
        group = self.pg_desc or self.pg
        what = (
            f"last entered seq {self.last_enqueued} of group {group}"
            if self.last_enqueued
            else f"entered nothing of group {group}"
        )
        if self.waits_pg is not None:
            what += f" and waits in {self.waits_desc or f'group {self.waits_pg}'} seq {self.waits_seq}"
        what = sentence(self, what)
        if self.last_op or self.frame:
            what += f", last called {self.last_op or 'something'}" + (f" from {self.frame}" if self.frame else "")
        return what


class Arrival(Fact, frozen=True, kw_only=True):
    """The last rank to arrive at a collective that all ranks of its group entered.

    Args:
        pg, seq: the collective.
        lateness: nanoseconds after the median rank.
        ranks: number of ranks.
    """

    kind: ClassVar[str] = "arrival"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    seq: int
    lateness: int
    ranks: int
    pg_desc: str | None = None

    def describe(self) -> str:
        late = f"{self.lateness / 1e6:.1f} ms"
        return sentence(
            self, f"last of {self.ranks} ranks at seq {self.seq} of group {self.pg_desc or self.pg}, {late} late"
        )


class GroupCrossed(Fact, frozen=True, kw_only=True):
    """A rank whose group shares its name with a group of other members, so that ranks exchange with wrong peers.

    Args:
        pg: the name.
        members: the members of this rank's group.
        never: members that never used the group, although this rank has completed a collective in it.
        odd: the group is not the first of that name, so this rank created its groups in another order.
    """

    kind: ClassVar[str] = "group_crossed"
    layer: ClassVar[str] = "flight_recorder"

    pg: str
    members: tuple[int, ...] = ()
    never: tuple[int, ...] = ()
    odd: bool = False

    def describe(self) -> str:
        without = f"completed a collective there without {named(self.never)}"
        return sentence(self, f"calls {named(self.members)} group {self.pg}, and {without}")


TYPES: Final[tuple[type[Fact], ...]] = (CollectiveEntry, GroupProgress, Arrival, GroupCrossed)


def sides_of(entries: Iterable[CollectiveEntry]) -> dict[str, list[CollectiveEntry]]:
    """Group the entries of one (group, sequence number) by call; the largest side first, then by lowest rank.

    If an entry has no sizes and types, only operations are compared.
    """
    known = [entry for entry in entries if not entry.is_p2p and (entry.signature or entry.op)]
    whole = all(entry.signature for entry in known)
    sides: dict[str, list[CollectiveEntry]] = {}
    for entry in known:
        words = entry.signature or entry.op or ""
        sides.setdefault(words if whole else words.partition("|")[0], []).append(entry)
    for side in sides.values():
        side.sort(key=lambda entry: (entry.rank is None, entry.rank))
    return dict(
        sorted(sides.items(), key=lambda item: (-len(item[1]), item[1][0].misfit, item[1][0].rank or 0, item[0]))
    )


def odd_ones(sides: dict[str, list[CollectiveEntry]]) -> list[CollectiveEntry]:
    """Return the entries of the minority. If two sides are even: the one whose call is wrong, else all ranks."""
    ordered = list(sides.values())
    if len(ordered) < 2:
        return []
    wrong = ordered[1][0].misfit and not ordered[0][0].misfit
    odd = ordered[1:] if wrong or len(ordered[1]) < len(ordered[0]) else ordered
    return sorted((entry for side in odd for entry in side), key=lambda entry: entry.rank or 0)


def called(entry: CollectiveEntry) -> str:
    """Return `all_reduce of 4096 Float` for an entry."""
    return called_of(entry.signature or entry.op or "")


def called_of(signature: str) -> str:
    """Return `all_reduce of 4096 Float` for a signature."""
    operation, *rest = signature.split("|")
    amounts = rest[0].strip("()").rstrip(",") if rest else ""
    types = rest[1].strip("()").rstrip(",").replace("'", "") if len(rest) > 1 else ""
    if not amounts:
        return operation
    if not amounts[:1].isdigit():  # an uneven operation has types only
        return f"{operation} of {amounts.strip(chr(39))}"
    return f"{operation} of {amounts}{' ' + types if types else ''}"


def named(ranks: Sequence[int], *, capital: bool = False) -> str:
    """Return `rank 3`, `ranks 0, 1 and 3` or `1023 ranks (0, 1, 2, …)`."""
    if len(ranks) == 1:
        text = f"rank {ranks[0]}"
    elif len(ranks) > _NAMED:
        text = f"{len(ranks)} ranks ({', '.join(map(str, ranks[:3]))}, …)"
    else:
        text = f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}" if ranks else "no rank"
    return text[0].upper() + text[1:] if capital else text
