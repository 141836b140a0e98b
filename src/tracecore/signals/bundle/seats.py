"""The join of statements about the processes of a job, which name a process by rank, pod, machine, number or GPU.

For example, a line of NCCL has a rank, its pod and its GPU, a table of pods the machine of that pod, and `nvidia-smi`
the number of the process on that GPU. Together they give the rank of a process that the kernel names by number. If
two statements contradict each other, the name in which they differ is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

#: Limit of the rounds in which seats take names from each other; real files need three.
_STEPS: Final = 6
#: Attributes of which a process has only one value.
_OF_ONE: Final = ("node", "pod", "local", "gpu")


class Seat(msgspec.Struct):
    """A process with the names that one statement has for it.

    Args:
        rank, local: its rank, and its rank on its machine or in its pod.
        node: the short name of its machine.
        pid: its process number.
        inside: the process number is that inside the pod, not on the machine.
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
        """The names that only one process of the job can have at a time."""
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
    """Share the names of seats that are the same process, until nothing changes.

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
    """Set the rank of seats without one to that of seats with the same name."""
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
    """Share the attributes among all seats of a rank, if its seats do not differ in them."""
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
