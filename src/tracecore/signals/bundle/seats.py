"""Join what files say of the processes of a job, each by other names: a rank, a pod, a machine, a number, a GPU.

A line of NCCL gives a rank, its host and its GPU, a table of pods the machine of that host, a table of processes the
number of a process on that machine: together they give the rank of the process that the kernel names. Where two
statements contradict each other, the name in which they differ tells nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

#: A statement leads to another one, and that to a third; real files need three such steps at most.
_STEPS: Final = 6
#: What one process has one of.
_OF_ONE: Final = ("node", "pod", "local", "gpu")


class Seat(msgspec.Struct):
    """The place of a process, as far as one statement tells.

    Args:
        rank, local: its rank, and its rank on its machine or in its pod.
        node: the short name of its machine.
        pid: its number.
        inside: the number counts in the pod, not on the machine.
        gpu: the bus id of its GPU.
    """

    rank: int | None = None
    local: int | None = None
    node: str = ""
    pod: str = ""
    pid: int | None = None
    inside: bool = False
    gpu: str = ""

    @property
    def names(self) -> Iterator[tuple[str, str, object]]:
        """Names that one process has at a time, and no other process of the job."""
        for where, place in (("node", self.node), ("pod", self.pod)):
            if not place:
                continue
            if self.pid is not None and (where == "pod") == self.inside:
                yield where, place, self.pid
            if self.gpu:
                yield where, place, self.gpu
            if self.local is not None:
                yield where, place, ("local", self.local)


def joined(seats: Sequence[Seat], pod_nodes: Mapping[str, str]) -> None:
    """Give each of these what the others know of the same process.

    Args:
        pod_nodes: the machine of each pod.
    """
    for _ in range(_STEPS):
        changed = False
        for seat in seats:
            if seat.pod and not seat.node and (node := pod_nodes.get(seat.pod)):
                seat.node, changed = node, True
        changed |= _ranked(seats)
        changed |= _shared(seats)
        if not changed:
            return


def _ranked(seats: Sequence[Seat]) -> bool:
    """Give seats without a rank the one that has the same name."""
    ranks: dict[tuple[str, str, object], set[int]] = {}
    for seat in seats:
        if seat.rank is not None:
            for name in seat.names:
                ranks.setdefault(name, set()).add(seat.rank)
    changed = False
    for seat in seats:
        if seat.rank is None:
            found = [ranks[name] for name in seat.names if name in ranks]
            if found and len(found[0]) == 1 and all(one == found[0] for one in found):
                seat.rank, changed = next(iter(found[0])), True
    return changed


def _shared(seats: Iterable[Seat]) -> bool:
    """Give all seats of a rank what one of them knows."""
    known: dict[tuple[int, str], set[object]] = {}
    for seat in seats:
        if seat.rank is not None:
            for name in _OF_ONE:
                if (value := getattr(seat, name)) not in ("", None):
                    known.setdefault((seat.rank, name), set()).add(value)
    changed = False
    for seat in seats:
        if seat.rank is None:
            continue
        for name in _OF_ONE:
            values = known.get((seat.rank, name), ())
            if len(values) == 1 and getattr(seat, name) in ("", None):
                setattr(seat, name, next(iter(values)))
                changed = True
    return changed
