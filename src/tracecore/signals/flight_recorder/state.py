"""The joined state of a set of dumps: where each group and each of its ranks stands."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tracecore.signals.flight_recorder.dump import DumpEntry

#: What is wrong with a rank that others wait for: it did not come (absent), called something else (different), is still
#: in a collective that others have completed (inside), or its GPU has not begun one that others have begun (unstarted).
Why: TypeAlias = Literal["absent", "different", "inside", "unstarted"]


class GroupMember(msgspec.Struct, kw_only=True):
    """Where one present rank stands in one group.

    Args:
        last_enqueued: the last collective it entered; 0 none; None where the ring no longer tells.
        first_waiting: the first collective it entered that has not ended; None where all have.
        last_completed: the last that ended.
        oldest: the oldest sequence the ring still holds.
        entry: the collective it waits in, else its last one here.
        last: its last collective here; `latest`: its last operation of any kind; `final`: its last in any group.
        pending: point-to-point operations of this group that have not ended, oldest first.
        waits_in: (group label, sequence) of the operation it waits in, where that is not this group's first
            unfinished collective.
        roots: the ranks at the end of the chain it waits for, or of which one waits for the other in a circle; empty
            where it waits for nobody that is known.
        unmatched: record numbers of pending sends and receives whose other half was never posted.
        answered: record numbers of those whose other half has ended.
        why: what is wrong with those ranks.
        origin: (group label, sequence) where those ranks are missed, or in which they are.
        unseen: ranks without a dump for which it may wait, where there are no roots.
        stalled: it is one of them, and this group's collective is where it is still inside.
        tells_starts: its recorder writes down when the GPU begins a collective.
        listed: its dump has this group.
    """

    rank: int
    path: str
    last_enqueued: int | None
    last_completed: int
    oldest: int
    first_waiting: int | None = None
    entry: DumpEntry | None = None
    last: DumpEntry | None = None
    latest: DumpEntry | None = None
    final: DumpEntry | None = None
    pending: list[DumpEntry] = msgspec.field(default_factory=list)
    unmatched: frozenset[int] = frozenset()
    answered: frozenset[int] = frozenset()
    waits_in: tuple[str, int] | None = None
    roots: tuple[int, ...] = ()
    why: Why = "absent"
    origin: tuple[str, int] | None = None
    unseen: tuple[int, ...] = ()
    stalled: bool = False
    tells_starts: bool = False
    listed: bool = True

    @property
    def started(self) -> bool:
        """Whether its GPU has begun the collective it waits in."""
        return self.entry is not None and (self.entry.started is not None or self.entry.state == "started")

    def aborted_at(self, seq: int) -> bool:
        """Whether it reads as completed there only because its communicator was aborted."""
        return self.last is not None and self.last.seq == seq and self.last.retired is False


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that called the same thing at a sequence where others did not."""

    signature: str
    ranks: tuple[int, ...]
    created: tuple[int, ...]
    done: tuple[bool, ...]


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """The first sequence where present ranks differ; the largest side first."""

    seq: int
    sides: tuple[Side, ...]

    @property
    def minority(self) -> tuple[int, ...]:
        """The odd ones out; both sides when even."""
        largest = len(self.sides[0].ranks)
        odd = self.sides[1:] if len(self.sides[1].ranks) < largest else self.sides
        return tuple(sorted(rank for side in odd for rank in side.ranks))


class Late(msgspec.Struct, frozen=True, kw_only=True):
    """The last rank to arrive at a collective, and its delay after the median rank in nanoseconds."""

    seq: int
    rank: int
    time: int
    lateness: int
    ranks: int
    name: str


class GroupState(msgspec.Struct, kw_only=True):
    """One process group over all its ranks.

    Args:
        label: unique in the set of dumps; the group's name unless two groups share it.
        members: global ranks; inferred from who has entries where the backend does not write them.
        inferred: whether they were.
        present: members that left a dump, by rank.
        absent: members that left none: not measured.
        stuck: the first collective that some present rank entered and has not left; None where there is none.
        common: compared sequences: from, to (empty when from > to).
        disagreement: the first call that differs between ranks and has not ended everywhere.
        settled: the first call that differs and has ended everywhere all the same.
    """

    label: str
    name: str
    desc: str
    members: tuple[int, ...]
    inferred: bool
    present: dict[int, GroupMember]
    absent: tuple[int, ...]
    stuck: int | None = None
    waiting: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    common: tuple[int, int] = (1, 0)
    disagreement: Disagreement | None = None
    settled: Disagreement | None = None
    late: list[Late] = msgspec.field(default_factory=list)

    @property
    def open(self) -> bool:
        """Whether anything is unfinished here."""
        return self.stuck is not None or any(member.pending for member in self.present.values())

    @property
    def interesting(self) -> bool:
        """Whether anything is unfinished or different here."""
        return self.open or self.disagreement is not None or self.settled is not None


class JoinedDumps(msgspec.Struct, kw_only=True):
    """The reduction of one set of dumps.

    Args:
        unseen: ranks without a dump that must exist: members of a group, or gaps in the numbering.
        end: the latest time in any dump.
    """

    groups: list[GroupState]
    ranks: tuple[int, ...]
    unseen: tuple[int, ...]
    end: int
    versions: tuple[str, ...]
