"""The ranks and machines of a root cause that only other files name: by process, GPU, pod, local rank or machine.

A root that is about a process or GPU of a machine, or about a pod, need not know its rank, and a rank not its machine.
Where the files of the bundle leave one candidate, it is named; where they leave two, none is.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import re2

from tracecore.facts.host import HostEvent
from tracecore.facts.memory import OomKill
from tracecore.facts.process import CudaError, LauncherFailure
from tracecore.signals.bundle import ordinals
from tracecore.signals.bundle.placement import short

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from tracecore.facts.fact import Fact
    from tracecore.incidents.footprint import Footprint
    from tracecore.incidents.run import JobAttempt, JobRun
    from tracecore.patterns.contract import Suspects

#: Fields of facts of a machine that name a process.
_PIDS: Final = ("pid", "victim_pid")
#: Numbers of ranks that machines have.
_SHARES: Final = (1, 2, 4, 8, 16)
#: What is wrong with one process or its GPU.
_OF_PROCESS: Final = frozenset({"worker_crash", "gpu_fault", "gpu_app_fault", "hbm_ecc", "cuda_oom"})
#: What hits every process of a machine.
_WHOLE: Final = frozenset({"host_lost", "ib_link_flap"})
#: What is wrong with one GPU.
OF_GPU: Final = frozenset({"gpu_fault", "hbm_ecc", "pcie_aer", "cuda_oom", "gpu_app_fault"})
#: What ranks that read or write on a machine wait for.
OF_STORAGE: Final = frozenset({"storage_failure", "checkpointer_hang", "dataloader_hang"})
#: Ranks of a job of which the missing ones are named.
_MOST: Final = 16_384
#: GPUs of most machines.
_GPUS: Final = 8
#: Names that every machine has for itself.
_HERE: Final = frozenset({"localhost", "127.0.0.1"})
#: What tells the pods of one job apart.
POD_NUMBER: Final = re2.compile(r"-\d+$")
#: A task that hangs this long before or after storage stopped answering waits for it, nanoseconds.
_NEAR: Final = 900 * 1_000_000_000


def ranks_of(root: Footprint, suspects: Suspects, attempt: JobAttempt | None, run: JobRun) -> tuple[int, ...]:
    """Return the ranks that a root about a machine, a GPU or a pod hits."""
    known: AbstractSet[int] = attempt.ranks if attempt is not None else frozenset()
    if len(run.jobs()) > 1:
        return ()  # a bundle of two jobs has two ranks of each number
    own = [fact for fact in root.evidence if fact.layer in ("kernel", "metrics")]
    if suspects.gpus:
        own = [fact for fact in own if fact.gpu in suspects.gpus]
    if own and (ranks := _of_processes(own, known, run)):
        return ranks if len(ranks) == 1 or not suspects.gpus else ()
    if len(suspects.gpus) == 1 and len(suspects.nodes) <= 1:
        node = next(iter(suspects.nodes), None)
        rank = run.placement.rank_of_gpu(node, suspects.gpus[0], known)
        if rank is not None:
            return (rank,)
    if root.name == "storage_failure" and suspects.nodes:
        hung = [fact for fact in run.hung if fact.node in suspects.nodes and _is_near(fact, root)]
        if hung and (ranks := _of_processes(hung, known, run)):
            return ranks
    if suspects.pods:
        return _of_pods(suspects.pods, attempt, run)
    return ()


def ranks_at(root: Footprint, suspects: Suspects, attempt: JobAttempt | None, run: JobRun) -> tuple[int, ...]:
    """Return the ranks on the machines that a root is about, or in its pods; of one GPU only a sole rank's."""
    if attempt is None:
        return ()
    # The node of each rank is known from the rank's own facts.
    places = suspects.pods or suspects.nodes
    ranks = {rank for place in places for rank in attempt.places.get(place, ())}
    if len(run.jobs()) <= 1 and not suspects.pods:
        names = set(map(short, suspects.nodes))
        listed = {rank for node in suspects.nodes for rank in run.placement.ranks_on(node, attempt.ranks)}
        if root.name in _WHOLE or lacks_interface(root) or (suspects.gpus and listed):
            ranks |= listed
        if hits_machine(root) or (suspects.gpus and ranks):
            # Other ranks of the machine are known by their files alone.
            ranks |= {rank for rank, node in run.placement.nodes.items() if short(node) in names}
        if root.name in _WHOLE and not ranks and len(names) == 1:
            ranks |= _left_over(names, run)
        if root.name in OF_STORAGE:
            ranks |= listed & attempt.saving.keys()
        pods = {pod for pod, node in run.pod_nodes.items() if short(node) in names}
        ranks |= set(_of_pods(sorted(pods), attempt, run))
    return tuple(sorted(ranks)) if len(ranks) == 1 or not (suspects.gpus and suspects.nodes) else ()


def hits_machine(root: Footprint) -> bool:
    """Whether every program on a machine fails that uses a GPU: its driver waits for the fabric manager."""
    return bool(root.evidence) and all(
        isinstance(fact, CudaError) and fact.error == "system_not_ready" for fact in root.evidence
    )


def lacks_interface(root: Footprint) -> bool:
    """Whether no process on a machine finds the network interface that it was told to use."""
    return root.fields.get("discriminator") == "socket_ifname_mismatch"


def _left_over(names: AbstractSet[str], run: JobRun) -> set[int]:
    """Return the ranks that no machine has, where they are as many as each of the others has, and follow each other."""
    placed = run.placement.nodes
    world = max(placed, default=-1) + 1
    others = Counter(map(short, placed.values()))
    shares = set(others.values())
    if not names.isdisjoint(others) or len(others) < 2 or len(shares) != 1 or world > _MOST:
        return set()
    gap = [rank for rank in range(world) if rank not in placed]
    follow = len(gap) == shares.pop() and gap[-1] - gap[0] == len(gap) - 1
    return set(gap) if follow else set()


def pods_on(root: Footprint, nodes: Iterable[str], attempt: JobAttempt | None, run: JobRun) -> tuple[str, ...]:
    """Return the pods on lost machines that are named like those of the job that left lines.

    If no line names its pod, all listed pods have to begin with one name, which is the job's.
    """
    if root.name != "host_lost" or attempt is None or len(run.jobs()) > 1:
        return ()
    names = set(map(short, nodes))
    alike = {_series(pod) for pod in attempt.pods}
    there = [run.full_names.get(pod, pod) for pod, node in run.pod_nodes.items() if short(node) in names]
    if not alike and len(run.pod_nodes) > 1 and len({pod.partition("-")[0] for pod in run.pod_nodes}) == 1:
        return tuple(sorted(there))
    return tuple(sorted(pod for pod in there if _series(pod) in alike))


def _series(pod: str) -> str:
    """Return the name of a pod without its namespace and number; the pods of one job share it."""
    name = min(ordinals.host_names(pod.rpartition("/")[2]), key=len)
    return str(POD_NUMBER.sub("", name))


def ranks_among(ranks: Iterable[int], nodes: Iterable[str], attempt: JobAttempt | None, run: JobRun) -> tuple[int, ...]:
    """Return those of these ranks that run on one of these machines."""
    names = set(map(short, nodes))
    placed = _placed(ranks, attempt, run)
    return tuple(sorted(rank for rank, node in placed.items() if short(node) in names))


def are_elsewhere(ranks: Iterable[int], nodes: Iterable[str], attempt: JobAttempt | None, run: JobRun) -> bool:
    """Whether one of these ranks runs on none of these machines, as far as that is known."""
    names = set(map(short, nodes))
    return any(short(node) not in names for node in _placed(ranks, attempt, run).values())


def _placed(ranks: Iterable[int], attempt: JobAttempt | None, run: JobRun) -> dict[int, str]:
    """Return the machine of each of these ranks that is known."""
    known: AbstractSet[int] = attempt.ranks if attempt is not None else frozenset()
    places = {} if len(run.jobs()) > 1 else {rank: run.placement.node_of(rank, known) for rank in ranks}
    return {rank: node for rank, node in places.items() if node is not None}


def missing(size: object, count: object, attempt: JobAttempt | None, run: JobRun) -> tuple[int, ...]:
    """Return the ranks that never joined, where so many of so many did not: those that nobody heard of, or those of the
    pods whose containers never began.
    """
    if attempt is None or not isinstance(size, int) or not isinstance(count, int) or not 0 < count < size <= _MOST:
        return ()
    silent = set(range(size)) - attempt.ranks
    if len(silent) == count:
        return tuple(sorted(silent))
    waiting = set(_of_pods(sorted(run.waiting_pods), attempt, run))
    return tuple(sorted(waiting)) if len(waiting) == count else ()


def nodes_of(ranks: Sequence[int], attempt: JobAttempt | None, run: JobRun) -> tuple[str, ...]:
    """Return the machines of these ranks, where all of them are known."""
    if attempt is None or len(run.jobs()) > 1 or not ranks:
        return ()
    found: set[str] = set()
    sole = _sole_machine(attempt, run)
    for rank in ranks:
        told = {place for place, there in attempt.places.items() if rank in there and "/" not in place}
        node = run.placement.node_of(rank, attempt.ranks) or (told.pop() if len(told) == 1 else sole)
        if node is None or short(node) in _HERE:
            return ()
        found.add(node)
    return tuple(sorted(found))


def launched_on(root: Footprint, ranks: Sequence[int], attempt: JobAttempt | None, run: JobRun) -> tuple[str, ...]:
    """Return the machine of the one rank that failed by its own words, where launchers saw processes fail on one."""
    if attempt is None or len(ranks) != 1 or len(run.jobs()) > 1 or root.name not in _OF_PROCESS:
        return ()
    reports = [fact for fact in attempt.bad if isinstance(fact, LauncherFailure) and fact.signal != "SIGTERM"]
    named = {fact.node for fact in reports if fact.rank in (None, *ranks)}
    # Where several of its processes failed, this rank need not be one of them. Machines have equal numbers of ranks.
    locals_ = {fact.local_rank for fact in reports}
    fits = {local for local in locals_ if local is None or any(ranks[0] % n == local for n in _SHARES if n > local)}
    own = len(fits) == len(locals_) == len(named) == 1
    return tuple(node for node in named if own and node and short(node) not in _HERE)


def gpus_of(root: Footprint, ranks: Sequence[int], attempt: JobAttempt | None, run: JobRun) -> tuple[str, ...]:
    """Return the GPU of the one rank whose GPU failed, by its own words, or that of the only process."""
    if root.name not in OF_GPU or attempt is None or len(run.jobs()) > 1:
        return ()
    sole = run.placement.sole_gpu
    if not ranks and not attempt.ranks and sole is not None:
        return (sole,)
    if len(ranks) != 1:
        return ()
    found = {gpu for (_, gpu), rank in run.placement.of_gpus.items() if rank == ranks[0]}
    return tuple(found) if len(found) == 1 else ()


def _sole_machine(attempt: JobAttempt, run: JobRun) -> str | None:
    """Return the machine of a job to which a scheduler gave one, where no file is of another, nor has a rank of one."""
    placed = run.placement.nodes.values()
    named = {short(host) for host in (*run.placement.hosts, *attempt.hosts, *attempt.nodes, *placed)} - _HERE
    return (
        next(iter(attempt.nodes))
        if len(named) == len(attempt.nodes) == 1 and max(attempt.ranks, default=0) < _GPUS
        else None
    )


def pods_of(ranks: Sequence[int], attempt: JobAttempt | None, run: JobRun) -> tuple[str, ...]:
    """Return the pods of these ranks, where all of them are known."""
    if attempt is None or len(run.jobs()) > 1 or not ranks:
        return ()
    mine: dict[int, set[str]] = {}
    for pod, there in run.placement.pods.items():
        for rank in there:
            mine.setdefault(rank, set()).add(pod)
    for place, known in attempt.places.items():
        for rank in known if "/" in place else ():
            mine.setdefault(rank, set()).add(place.rpartition("/")[2])
    found = [mine.get(rank, set()) for rank in ranks]
    if any(len(pods) != 1 for pods in found):
        return ()
    return tuple(sorted({run.full_names.get(pod, pod) for pods in found for pod in pods}))


def rank_of_local(node: str, local: int, attempt: JobAttempt | None, run: JobRun) -> int | None:
    """Return the rank of a machine's process that is known by its local rank."""
    known: AbstractSet[int] = attempt.ranks if attempt is not None else frozenset()
    return run.placement.rank_of_local(node, local, known) if len(run.jobs()) <= 1 else None


def is_of_the_job(nodes: Iterable[str], attempt: JobAttempt, run: JobRun) -> bool:
    """Whether ranks or pods of the job are known to have run on one of these machines."""
    mine = {
        short(place) for place in (*attempt.places, *attempt.nodes, *run.placement.nodes.values()) if "/" not in place
    }
    mine |= {short(node) for pod, node in run.pod_nodes.items() if _of_pods((pod,), attempt, run)}
    return not mine.isdisjoint(map(short, nodes))


def _of_pods(pods: Sequence[str], attempt: JobAttempt | None, run: JobRun) -> tuple[int, ...]:
    placed = attempt.places if attempt is not None else {}
    found: set[int] = set()
    for pod in pods:
        found |= placed.get(pod, set()) or set(run.placement.ranks_of_pod(pod.rpartition("/")[2], run.pods))
    return tuple(sorted(found))


def _of_processes(facts: Iterable[Fact], known: AbstractSet[int], run: JobRun) -> tuple[int, ...]:
    """Return the ranks of the processes that these facts of machines name."""
    found: set[int] = set()
    for fact in facts:
        pid = next((pid for name in _PIDS if isinstance(pid := getattr(fact, name, None), int)), None)
        rank = run.placement.rank_of_process(fact.node, pid, known) if pid is not None else None
        if rank is None and isinstance(fact, OomKill) and fact.slurm is not None and fact.node:
            local = fact.slurm[1]
            rank = run.placement.rank_of_local(fact.node, local, known) if local is not None else None
        if rank is not None:
            found.add(rank)
    return tuple(sorted(found))


def _is_near(fact: HostEvent, root: Footprint) -> bool:
    if fact.approximate or not root.timed:
        return True
    return root.first - _NEAR <= fact.time <= root.last + _NEAR
