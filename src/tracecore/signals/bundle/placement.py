"""The machine, process, pod and GPU of each rank, as the files of a bundle tell.

`place_statements` reads what they say. Where two of them contradict each other, nothing is known.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from tracecore.signals.bundle.place_statements import Told
from tracecore.signals.bundle.process_ranks import ANY, RANK, Process
from tracecore.signals.stream import Stream

K = TypeVar("K")
V = TypeVar("V")

#: Parents of a process that are asked for their rank, one after the other.
_PARENTS: Final = 4


class Placement(msgspec.Struct, kw_only=True):
    """The places of the ranks of a bundle, as far as its files tell and agree.

    Args:
        nodes: the machine of each rank.
        machines: the ranks of each machine by local rank, where a table has all of them.
        world: how many ranks such a table has.
        ranks, locals: the rank and the local rank of each process.
        parents: which process started another.
        gpus: the processes on each GPU, by machine and bus id.
        of_gpus: the rank on each GPU.
        pods: the rank of each pod.
        pod_nodes: the machine of each pod.
        logs: the rank of each log that may be a pod's, by the name of its file.
        hosts: machines that files of the bundle are of.
    """

    nodes: dict[int, str] = {}
    machines: dict[str, tuple[int, ...]] = {}
    world: int = 0
    ranks: dict[Process, int] = {}
    locals: dict[Process, int] = {}
    parents: dict[Process, int] = {}
    gpus: dict[tuple[str, str], tuple[int, ...]] = {}
    of_gpus: dict[tuple[str, str], int] = {}
    pods: dict[str, int] = {}
    pod_nodes: dict[str, str] = {}
    logs: dict[str, int] = {}
    hosts: frozenset[str] = frozenset()

    def node_of(self, rank: int, known: Collection[int] = ()) -> str | None:
        """Return the machine of a rank; none of a table that has fewer ranks than are known."""
        return None if self._is_of_another_run(known) and rank not in self._named else self.nodes.get(rank)

    def ranks_on(self, node: str, known: Collection[int] = ()) -> tuple[int, ...]:
        """Return all ranks of a machine, as a table has them."""
        return () if self._is_of_another_run(known) else self.machines.get(short(node), ())

    def rank_of_local(self, node: str, local: int, known: Collection[int] = ()) -> int | None:
        """Return the rank that has this local rank on a machine."""
        mine = self.ranks_on(node, known)
        if mine:
            return mine[local] if local < len(mine) else None
        told = {number for (host, _), number in self.locals.items() if host in ("", short(node))}
        # Ranks of a second machine would be higher than every local rank.
        alone = not self.machines and self._is_sole(node)
        return local if alone and local in told and known and max(known) <= max(told) else None

    def rank_of_process(self, node: str | None, pid: int, known: Collection[int] = ()) -> int | None:
        """Return the rank that a process is, or belongs to as a child of it."""
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
        return found.pop() if len(found) == 1 else None

    def rank_of_pod(self, pod: str, others: Collection[str]) -> int | None:
        """Return the rank of a pod by its name, or by the log that is called like it.

        Args:
            others: names of all pods that are known.
        """
        if pod in self.pods:
            return self.pods[pod]
        leader = next((role for role in ("-master-", "-chief-") if any(role in name for name in others)), "")
        if "-worker-" in pod and leader and not any(leader.strip("-") in log for log in self.logs):
            return None  # workers are counted from 1 there, which only its own log would tell
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
        """Whether a process of this machine is one of that; who names no machine may be of any of several."""
        if host and node:
            return host == short(node)
        return self._is_sole(host or node or "")

    def _hosts(self, node: str | None) -> tuple[str, ...]:
        """Return names under which a process of this machine may be known; no other one `_fits`."""
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


def settle(
    streams: Sequence[Stream],
    told: Iterable[tuple[Stream, Told]],
    processes: Iterable[tuple[Process, int]] = (),
) -> Placement:
    """Return what the statements of a bundle agree on.

    Args:
        processes: ranks that logs give to processes (`process_ranks.said`).
    """
    renamed = next((stream.nodes for stream in streams if stream.nodes), {})
    named = {
        str(host) for stream in streams for key in ("host.name", "k8s.node.name") if (host := stream.resource.get(key))
    }
    statements = []
    for stream, one in told:
        node = one.node or str(stream.resource.get("host.name") or "")
        if one.pod and not one.node:
            node = ""
        elif "k8s.pod.name" in stream.resource and one.pid is not None:
            continue  # a container counts its processes by itself
        statements.append(msgspec.structs.replace(one, node=renamed.get(node, node)))
    for (host, pid), rank in processes:
        if host:
            statements.append(Told(rank=rank, pid=pid, node="" if host == ANY else renamed.get(host, host)))
    machines, world = _machines(statements)
    placed: dict[int, set[str]] = {}
    spoken: dict[int, set[str]] = {}
    ranks: dict[Process, set[int]] = {}
    locals_: dict[Process, set[int]] = {}
    parents: dict[Process, set[int]] = {}
    gpus: dict[tuple[str, str], set[int]] = {}
    of_gpus: dict[tuple[str, str], set[int]] = {}
    pods: dict[str, set[int]] = {}
    pod_nodes: dict[str, set[str]] = {}
    world_size = _communicator(statements)
    for one in statements:
        host = short(one.node)
        if one.group and one.group != world_size:
            continue
        if one.rank is not None and one.node and not one.pod:
            spoken.setdefault(one.rank, set()).add(one.node)
        if one.pid is not None:
            process = host, one.pid
            for table, value in ((ranks, one.rank), (locals_, one.local), (parents, one.parent)):
                if value is not None:
                    table.setdefault(process, set()).add(value)
            if one.gpu:
                gpus.setdefault((host, one.gpu), set()).add(one.pid)
        if one.gpu and one.rank is not None:
            of_gpus.setdefault((host, one.gpu), set()).add(one.rank)
        if one.pod:
            name = one.pod.rpartition("/")[2]
            if one.rank is not None:
                pods.setdefault(name, set()).add(one.rank)
            if one.node:
                pod_nodes.setdefault(name, set()).add(one.node)
    for node, mine in machines.items():
        for rank in mine:
            placed.setdefault(rank, set()).add(node)
    if any({short(n) for n in nodes} != {short(n) for n in placed.get(rank, nodes)} for rank, nodes in spoken.items()):
        # A list of hosts that the run did not follow.
        machines, world, placed = {}, 0, {}
    for rank, nodes in spoken.items():
        placed[rank] = nodes
    logs = _logs(streams)
    said_of_pods = frozenset(pods)
    for stream in streams:
        pod, own = stream.resource.get("k8s.pod.name"), stream.resource.get(RANK)
        if isinstance(pod, str) and isinstance(own, int) and pod not in said_of_pods:
            pods.setdefault(pod, set()).add(own)
    return Placement(
        nodes={rank: only for rank, nodes in placed.items() if (only := _alike(nodes)) is not None},
        machines={short(node): mine for node, mine in machines.items()},
        world=world,
        ranks=_certain(ranks),
        locals=_certain(locals_),
        parents=_certain(parents),
        gpus={gpu: tuple(sorted(pids)) for gpu, pids in gpus.items()},
        of_gpus=_certain(of_gpus),
        pods=_certain(pods),
        pod_nodes=_certain(pod_nodes),
        logs=logs,
        hosts=frozenset(map(short, {*named, *(one.node for one in statements if one.node and not one.pod)})),
    )


def _communicator(statements: Sequence[Told]) -> int:
    """Return the size of the largest communicator, if it has every rank once: then it is that of all ranks; else 0."""
    largest = max((one.group for one in statements), default=0)
    holders: dict[int, set[tuple[str, int | None]]] = {}
    known = 0
    for one in statements:
        if one.rank is not None and one.group == largest:
            holders.setdefault(one.rank, set()).add((one.node, one.pid))
        elif one.rank is not None and not one.group:
            known = max(known, one.rank)
    return largest if known < largest and all(len(who) == 1 for who in holders.values()) else 0


def _machines(statements: Sequence[Told]) -> tuple[dict[str, tuple[int, ...]], int]:
    """Return the ranks of each machine by the one table of them that there is, and how many it has."""
    tables: dict[str, dict[str, tuple[int, ...]]] = {}
    counts: dict[str, dict[str, tuple[int, ...]]] = {}
    for one in statements:
        if one.ranks:
            tables.setdefault(one.table, {})[one.node] = one.ranks
        elif one.slots:
            mine = counts.setdefault(one.table, {})
            first = sum(map(len, mine.values()))
            mine[one.node] = tuple(range(first, first + one.slots))
    # Who lists ranks knows better than who lists places for them.
    different = {tuple(sorted(table.items())): table for table in (tables or counts).values()}
    if len(different) != 1:
        return {}, 0
    (table,) = different.values()
    return table, sum(map(len, table.values()))


def _logs(streams: Sequence[Stream]) -> dict[str, int]:
    """Return the rank of each log by its name, where one file has that name."""
    found: dict[str, set[int | None]] = {}
    for stream in streams:
        if stream.layer == "stdout" and "k8s.pod.name" not in stream.resource and stream.format in ("text", "cri"):
            rank = stream.resource.get(RANK)
            stem = stream.path.rpartition("/")[2].partition(".")[0]
            found.setdefault(stem, set()).add(rank if isinstance(rank, int) else None)
    return {stem: rank for stem, ranks in found.items() if len(ranks) == 1 and (rank := next(iter(ranks))) is not None}


def _certain(found: Mapping[K, Collection[V]]) -> dict[K, V]:
    return {key: next(iter(values)) for key, values in found.items() if len(values) == 1}


def _alike(nodes: Collection[str]) -> str | None:
    """Return the name of the one machine that these are, the longest; None where they are of several."""
    return max(nodes, key=lambda node: (len(node), node)) if len(set(map(short, nodes))) == 1 else None
