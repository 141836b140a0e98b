"""Dumps of jobs that are played through: each rank has a program, and what can end ends.

An operation ends when everybody it needs has entered it and has ended what it entered before. What is left when nothing
moves any more is what the ranks' recorders would hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

START = 1_790_000_000_000_000_000
SECOND = 1_000_000_000


class Op(msgspec.Struct, frozen=True):
    """One call.

    `waits`: the program goes on only when it has ended. `root`: of a scatter or gather. `sends`, `expects`: elements
    for each member, of an all-to-all.
    """

    name: str
    group: str = "0"
    size: int = 1024
    dtype: str = "Float"
    peer: int | None = None
    line: int = 0
    waits: bool = True
    parts: tuple[Op, ...] = ()
    root: int | None = None
    sends: tuple[int, ...] = ()
    expects: tuple[int, ...] = ()

    @property
    def pairwise(self) -> bool:
        return self.peer is not None or any(part.pairwise for part in self.parts)


def stop(line: int = 99) -> Op:
    """The program does something else, for ever."""
    return Op("stop", line=line)


class _Entered(msgspec.Struct):
    op: Op
    number: int
    seq: int
    p2p_seq: int
    created: int
    done: int | None = None


class Job:
    """A job of `world` ranks.

    Args:
        groups: (name, description, members) of those beside the default group.
        program: what each rank calls.
        lost: ranks that leave no dump.
        ring: entries that a recorder keeps.
        frozen: sequence numbers of groups that never end, though everybody came: a broken link.
        slow: seconds that a rank is late at each call.
        halted: ranks whose GPU ends nothing from this call of theirs on, though it has sent its part of that call.
        timed: the recorder writes down when a call begins on the GPU.
        unstarted: ranks whose GPU begins nothing from this call of theirs on.
    """

    def __init__(
        self,
        world: int,
        program: Callable[[int], Iterable[Op]],
        groups: Iterable[tuple[str, str, tuple[int, ...]]] = (),
        lost: Iterable[int] = (),
        ring: int = 2000,
        frozen: Iterable[tuple[str, int]] = (),
        slow: dict[int, float] | None = None,
        halted: dict[int, int] | None = None,
        timed: bool = False,
        unstarted: dict[int, int] | None = None,
    ) -> None:
        self.halted, self.timed, self.unstarted = halted or {}, timed, unstarted or {}
        self.world, self.ring, self.lost = world, ring, frozenset(lost)
        self.groups = {"0": ("default_pg", tuple(range(world)))} | {name: (desc, who) for name, desc, who in groups}
        self.frozen = frozenset(frozen)
        self.slow = slow or {}
        self.entered: dict[int, list[_Entered]] = {rank: [] for rank in range(world)}
        self._programs = {rank: iter(program(rank)) for rank in range(world)}
        self._seqs: dict[tuple[int, str, bool], int] = {}
        self._open: dict[int, list[_Entered]] = {rank: [] for rank in range(world)}
        self._stopped: set[int] = set()
        self.clock = START
        self._play()

    def _play(self) -> None:
        moved = True
        while moved:
            self.clock += SECOND // 10
            entered = [self._enter(rank) for rank in range(self.world)]
            ended = [self._end(rank) for rank in range(self.world)]
            moved = True in entered or True in ended

    def _enter(self, rank: int) -> bool:
        if rank in self._stopped or any(item.op.waits for item in self._open[rank]):
            return False
        op = next(self._programs[rank], None)
        if op is None or op.name == "stop":
            self._stopped.add(rank)
            return False
        key = rank, op.group, op.pairwise
        self._seqs[key] = self._seqs.get(key, 0) + 1
        item = _Entered(
            op,
            len(self.entered[rank]),
            self._seqs.get((rank, op.group, False), 0),
            self._seqs.get((rank, op.group, True), 0),
            self.clock + rank * 1000 + int(self.slow.get(rank, 0) * SECOND),
        )
        self.entered[rank].append(item)
        self._open[rank].append(item)
        return True

    def _end(self, rank: int) -> bool:
        if not self._open[rank]:
            return False
        mine = self._open[rank][0]
        op = mine.op
        if (op.group, mine.seq) in self.frozen and not op.pairwise:
            return False
        if op.pairwise:
            needed = self._partners(rank, mine)
        else:
            _, members = self.groups[op.group]
            needed = {
                other: next((e for e in self.entered[other] if self._matches(e, mine)), None) for other in members
            }
        if any(item is None or self._open[other][:1] != [item] for other, item in needed.items()):
            return False
        if any(
            item is not None and item.number >= self.unstarted.get(other, 1 << 60) for other, item in needed.items()
        ):
            return False
        if any(item is not None and item.number > self.halted.get(other, 1 << 60) for other, item in needed.items()):
            return False
        for other, item in needed.items():
            assert item is not None
            if item.number == self.halted.get(other):
                continue
            item.done = self.clock + SECOND // 20
            self._open[other].pop(0)
        return True

    def _matches(self, one: _Entered, other: _Entered) -> bool:
        alike = one.op.name == other.op.name and (one.op.size, one.op.dtype) == (other.op.size, other.op.dtype)
        if one.op.sends:
            alike = True  # its splits decide
        return not one.op.pairwise and one.op.group == other.op.group and one.seq == other.seq and alike

    def _partners(self, rank: int, mine: _Entered) -> dict[int, _Entered | None]:
        """All ranks whose sends and receives this one's depend on, at once or by way of others."""
        found: dict[int, _Entered | None] = {rank: mine}
        front = [(rank, mine)]
        while front:
            current, item = front.pop()
            for part in item.op.parts or (item.op,):
                peer = part.peer
                assert peer is not None
                theirs = self._open[peer][0] if self._open[peer] else None
                wanted = "recv" if part.name == "send" else "send"
                fits = theirs is not None and any(
                    p.name == wanted and p.peer == current and p.group == part.group
                    for p in theirs.op.parts or (theirs.op,)
                )
                if not fits:
                    found[peer] = None
                elif peer not in found:
                    assert theirs is not None
                    found[peer] = theirs
                    front.append((peer, theirs))
        return found

    # -- as dumps ----------------------------------------------------------------------------------------------------

    def document(self, rank: int, backend: str = "nccl") -> dict[str, Any]:
        """What the recorder of this rank would write."""
        mine = [name for name, (_, members) in self.groups.items() if rank in members]
        rows: list[dict[str, Any]] = []
        for item in self.entered[rank]:
            for op in (*item.op.parts, *((item.op,) if item.op.parts else ())) or (item.op,):
                rows.append(self._row(rank, item, op, mine.index(op.group), len(rows), backend))
        config = {
            name: {"name": name, "desc": self.groups[name][0], "ranks": str(list(self.groups[name][1]))}
            for name in mine
        }
        status = {
            str(number): {
                "last_enqueued_collective": self._seqs.get((rank, name, False), 0) or -1,
                "last_started_collective": -1,
                "last_completed_collective": max(
                    (e.seq for e in self.entered[rank] if e.op.group == name and e.done and not e.op.pairwise),
                    default=-1,
                ),
            }
            for number, name in enumerate(mine)
        }
        return {
            "version": "2.10",
            "pg_config": config,
            "comm_lib_version": "2.28.9",
            "pg_status": status,
            "entries": rows[-self.ring :],
        }

    def _row(self, rank: int, item: _Entered, op: Op, number: int, record: int, backend: str) -> dict[str, Any]:
        desc, members = self.groups[op.group]
        name = op.name
        if op.peer is not None:
            arrow = "->" if op.name == "send" else "<-"
            name = f"{op.name} {members.index(rank)}{arrow}{members.index(op.peer)}"
        given, taken = [[op.size]], [[op.size]]
        given_types, taken_types = [op.dtype], [op.dtype]
        if op.sends:
            given, taken = [[n] for n in op.sends], [[n] for n in op.expects]
            given_types, taken_types = [op.dtype] * len(given), [op.dtype] * len(taken)
        elif op.root is not None:
            whole = [[op.size]] * len(members) if rank == op.root else [[0]]
            taken, taken_types = whole, [op.dtype if rank == op.root else "UNKNOWN_SCALAR"]
        elif "all_gather" in op.name:
            taken = [[op.size * len(members)]]
        elif "reduce_scatter" in op.name:
            given = [[op.size * len(members)]]
        begun = self.timed and item.number < self.unstarted.get(rank, 1 << 60)
        library = "/opt/env/lib/python3.12/site-packages/torch/distributed"
        return {
            "frames": [
                {"name": op.name, "filename": f"{library}/distributed_c10d.py", "line": 3000},
                {"name": "step", "filename": "/workspace/train.py", "line": op.line},
            ],
            "record_id": record,
            "pg_id": number,
            "process_group": (op.group, desc),
            "thread_name": "python3",
            "thread_id": "140414958731584",
            "collective_seq_id": item.seq,
            "p2p_seq_id": item.p2p_seq,
            "op_id": record + 1,
            "profiling_name": f"{backend}:{name}",
            "time_created_ns": item.created,
            "input_sizes": given,
            "input_dtypes": given_types,
            "output_sizes": taken,
            "output_dtypes": taken_types,
            "state": "completed" if item.done else "started" if begun else "scheduled",
            "time_discovered_started_ns": item.created + 1000 if begun else None,
            "time_discovered_completed_ns": item.done,
            "retired": item.done is not None,
            "timeout_ms": 600000,
            "is_p2p": item.op.pairwise,
        }

    def documents(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """(rank, document) of those that leave one."""
        for rank in range(self.world):
            if rank not in self.lost:
                yield rank, self.document(rank)
