"""The machine, process, pod and GPU of each rank, from the statements in a bundle (see `places`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from tracecore.signals.bundle.process_ranks import Process

#: The rank of a process may be that of its parent, its parent's parent and so on, up to this many.
_PARENTS: Final = 4


class Placement(msgspec.Struct, kw_only=True):
    """The places of the ranks of a bundle, as far as its files have statements that agree.

    Args:
        nodes: the machine of each rank.
        machines: the ranks of each machine by local rank, if a table has all ranks.
        world: the number of ranks in that table.
        ranks, locals: the rank and the local rank of each process.
        parents: the parent of each process.
        gpus: the processes on each GPU, by machine and bus id.
        of_gpus: the rank on each GPU.
        numbers: the number that each GPU has on its machine.
        sole_gpu: the GPU of the only program that says that it uses one.
        pods: the ranks of each pod.
        pod_nodes: the machine of each pod.
        uids: the pod of each uid, with its namespace.
        logs: the rank of each log that may be a pod's, by the name of its file.
        hosts: the machines that files of the bundle come from.
    """

    nodes: dict[int, str] = {}
    machines: dict[str, tuple[int, ...]] = {}
    world: int = 0
    ranks: dict[Process, int] = {}
    locals: dict[Process, int] = {}
    parents: dict[Process, int] = {}
    gpus: dict[tuple[str, str], tuple[int, ...]] = {}
    of_gpus: dict[tuple[str, str], int] = {}
    numbers: dict[tuple[str, str], int] = {}
    sole_gpu: str | None = None
    pods: dict[str, tuple[int, ...]] = {}
    pod_nodes: dict[str, str] = {}
    uids: dict[str, str] = {}
    logs: dict[str, int] = {}
    hosts: frozenset[str] = frozenset()

    def node_of(self, rank: int, known: Collection[int] = ()) -> str | None:
        """Return the machine of a rank. A table with fewer ranks than are known is of another run and not used."""
        return None if self._is_of_another_run(known) and rank not in self._named else self.nodes.get(rank)

    def ranks_on(self, node: str, known: Collection[int] = ()) -> tuple[int, ...]:
        """Return all ranks of a machine, from a table; () if there is none."""
        return () if self._is_of_another_run(known) else self.machines.get(short(node), ())

    def rank_of_local(self, node: str, local: int, known: Collection[int] = ()) -> int | None:
        """Return the rank that has this local rank on a machine."""
        mine = self.ranks_on(node, known)
        if mine:
            return mine[local] if local < len(mine) else None
        told = {number for (host, _), number in self.locals.items() if host in ("", short(node))}
        # If there were a second machine, it would have ranks higher than every local rank.
        alone = not self.machines and self._is_sole(node)
        return local if alone and local in told and known and max(known) <= max(told) else None

    def rank_of_process(self, node: str | None, pid: int, known: Collection[int] = ()) -> int | None:
        """Return the rank of a process, or of the nearest of its parents that has one."""
        seen: set[int] = set()
        while pid not in seen and len(seen) <= _PARENTS:
            seen.add(pid)
            if (rank := self._of_process(node, pid, known)) is not None:
                return rank
            hosts = (host for host in self._hosts(node) if (host, pid) in self.parents)
            parents = {self.parents[host, pid] for host in hosts if self._fits(host, node)}
            if len(parents) != 1:
                return None
            pid = parents.pop()
        return None

    def rank_of_gpu(self, node: str | None, gpu: str, known: Collection[int] = ()) -> int | None:
        """Return the only rank that uses a GPU."""
        found = {rank for (host, name), rank in self.of_gpus.items() if name == gpu and self._fits(host, node)}
        for (host, name), pids in self.gpus.items():
            if name == gpu and self._fits(host, node):
                ranks = {self.rank_of_process(node, pid, known) for pid in pids}
                found |= {rank for rank in ranks if rank is not None}
        if not found and node is not None:
            found = self._by_number(node, gpu, known)
        return found.pop() if len(found) == 1 else None

    def _by_number(self, node: str, gpu: str, known: Collection[int]) -> set[int]:
        """Return the rank whose local rank is the GPU's number, if the machine has as many ranks as GPUs."""
        gpus = {number for (host, _), number in self.numbers.items() if self._fits(host, node)}
        mine = {number for (host, name), number in self.numbers.items() if name == gpu and self._fits(host, node)}
        ranks = self.ranks_on(node, known) or self._block(node, len(gpus))
        if not ranks and self._is_sole(node) and set(known) == set(range(len(gpus))):
            ranks = tuple(range(len(gpus)))
        return {ranks[number] for number in mine if gpus == set(range(len(ranks)))}

    def _block(self, node: str, size: int) -> tuple[int, ...]:
        """Return the ranks of a machine with one rank on each of its GPUs, if all known places are such blocks."""
        blocks: dict[str, set[int]] = {}
        for rank, place in self.nodes.items() if size else ():
            blocks.setdefault(short(place), set()).add(rank // size)
        mine = blocks.get(short(node), set())
        apart = {min(numbers) for numbers in blocks.values() if len(numbers) == 1}
        if self.machines or len(blocks) < 2 or len(apart) < len(blocks):
            return ()
        first = min(mine, default=-1) * size
        return tuple(range(first, first + size)) if mine else ()

    def ranks_of_pod(self, pod: str, others: Collection[str]) -> tuple[int, ...]:
        """Return the ranks of a pod, from statements or from the log that has the pod's name.

        Args:
            others: the names of all known pods.
        """
        if pod in self.pods:
            return self.pods[pod]
        rank = self._of_log(pod, others)
        return () if rank is None else (rank,)

    def _of_log(self, pod: str, others: Collection[str]) -> int | None:
        leader = next((role for role in ("-master-", "-chief-") if any(role in name for name in others)), "")
        if "-worker-" in pod and leader and not any(leader.strip("-") in log for log in self.logs):
            return None  # with a master, the ranks of workers begin at 1, and the number in the name is one too low
        if pod in self.logs:
            return self.logs[pod]
        ends = [log for log in self.logs if "-" in log and pod.endswith(f"-{log}")]
        if len(ends) != 1 or sum(name.endswith(f"-{ends[0]}") for name in {*others, pod}) > 1:
            return None
        return self.logs[ends[0]]

    @property
    def _named(self) -> frozenset[int]:
        listed = {rank for ranks in self.machines.values() for rank in ranks}
        return frozenset(rank for rank in self.nodes if rank not in listed)

    def _is_of_another_run(self, known: Collection[int]) -> bool:
        return bool(self.world) and max(known, default=0) >= self.world

    def _of_process(self, node: str | None, pid: int, known: Collection[int]) -> int | None:
        found: set[int] = set()
        for host in self._hosts(node):
            rank = self.ranks.get((host, pid))
            if rank is not None and (self._fits(host, node) or (not host and self._is_there(rank, node, known))):
                found.add(rank)
        for host in self._hosts(node) if not found else ():
            local = self.locals.get((host, pid))
            if local is not None and self._fits(host, node):
                place = host or node or self._only
                global_rank = self.rank_of_local(place, local, known)
                found.add(-1 if global_rank is None else global_rank)
        return found.pop() if len(found) == 1 and -1 not in found else None

    def _is_there(self, rank: int, node: str | None, known: Collection[int]) -> bool:
        """Whether this rank is known to run on that machine."""
        place = self.node_of(rank, known)
        return node is not None and place is not None and short(place) == short(node)

    def _fits(self, host: str, node: str | None) -> bool:
        """Whether two names are of one machine; if one is missing, only if the bundle has no other machine."""
        if host and node:
            return host == short(node)
        return self._is_sole(host or node or "")

    def _hosts(self, node: str | None) -> tuple[str, ...]:
        """Return the hosts under which a process of this machine may be listed; no other host `_fits`."""
        return ("", short(node)) if node else ("", self._only)[: 1 + bool(self._only)]

    @property
    def _only(self) -> str:
        return next(iter(self.hosts)) if len(self.hosts) == 1 else ""

    def _is_sole(self, node: str) -> bool:
        """Whether the bundle is about no other machine."""
        return {short(host) for host in self.hosts} <= {short(node)} if node else len(self.hosts) <= 1


def short(host: str) -> str:
    """Return the name of a machine without its domain."""
    return host if host[:1].isdigit() else host.partition(".")[0]
