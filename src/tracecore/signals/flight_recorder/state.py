"""The joined state of a set of dumps: where each group and each of its ranks stands."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from tracecore.signals.flight_recorder.dump import DumpEntry

#: What is wrong with a rank that others wait for: it has not entered the collective (absent), called something else
#: (different), has not completed what others have (inside), or its GPU has not begun what others have (unstarted).
Why: TypeAlias = Literal["absent", "different", "inside", "unstarted"]


class GroupMember(msgspec.Struct, kw_only=True):
    """Where one present rank stands in one group.

    Args:
        last_enqueued: sequence number of the last collective it entered; 0 for none; None if the ring lost it.
        first_waiting: the first collective it entered that has not ended; None if all have ended.
        last_completed: the last collective that ended.
        oldest: the oldest collective in the ring.
        entry: the collective it waits in, else its last one here.
        last: its last collective here; `latest`: its last operation of any kind; `final`: its last in any group.
        pending: point-to-point operations of this group that have not ended, oldest first.
        unmatched: record numbers of pending operations whose other half was never posted.
        answered: record numbers of pending operations whose other half has ended.
        waits_in: (group label, sequence number) of the operation it waits in, if that is not this group's first
            unfinished collective.
        roots: the ranks that its chain of waits ends at (see `chains`); empty if none is known.
        why: what is wrong with the roots.
        origin: (group label, sequence number) of the operation that the roots hold up.
        unseen: ranks without a dump that it may wait for, if there are no roots.
        stalled: it is a root, and has not completed or begun this group's collective.
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
        """Whether this collective reads as completed only because the communicator was aborted."""
        return self.last is not None and self.last.seq == seq and self.last.retired is False


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that made the same call at a sequence number at which other ranks made another."""

    signature: str
    ranks: tuple[int, ...]
    created: tuple[int, ...]
    done: tuple[bool, ...]


class Disagreement(msgspec.Struct, frozen=True, kw_only=True):
    """The first sequence number at which the calls of present ranks differ; the largest side first."""

    seq: int
    sides: tuple[Side, ...]

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks outside the largest side; all ranks if two sides are the largest."""
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


class GroupState(msgspec.Struct, kw_only=True):
    """One process group over all its ranks.

    Args:
        label: unique in the set of dumps; the group's name unless two groups share it.
        members: global ranks; inferred from the ranks with entries if the backend does not write them.
        inferred: whether the members are inferred.
        present: members that left a dump, by rank.
        absent: members that left none.
        stuck: the collective in which the group hangs: the first unfinished one, unless only one of several waiting
            ranks is in it; None if no rank waits.
        waiting: the ranks that wait in `stuck`.
        missing: the ranks that have not entered `stuck` and wait in no collective of this group.
        common: the first and last compared sequence number (none if first > last).
        disagreement: the first call that differs between ranks and has not ended everywhere.
        settled: the first call that differs between ranks although it ended everywhere.
        late: the last rank to enter each of the latest collectives.
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
    """The joined state of one set of dumps.

    Args:
        unseen: ranks without a dump that must exist: they are members of a group, or gaps in the numbering.
        end: the latest time in any dump.
    """

    groups: list[GroupState]
    ranks: tuple[int, ...]
    unseen: tuple[int, ...]
    end: int
    versions: tuple[str, ...]
