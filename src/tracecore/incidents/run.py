"""The course of a run, from facts alone: jobs, attempts, participants, and the end of each process.

Arbitration asks this before it blames anybody: a failure of a run that went on and finished is no incident.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from tracecore.facts.collective import GroupProgress
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, AerRecovery, GpuCondition, GpuLost, NvlinkRate, Sxid, Xid
from tracecore.facts.host import HostEvent, SlurmState
from tracecore.facts.kubernetes import (
    COMPLETED,
    REFUSED,
    CniEvent,
    ContainerStarted,
    ContainerTerminated,
    PodEvicted,
    WorkloadEvent,
)
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured, MemoryKillReport, OomKill
from tracecore.facts.nccl import NcclError, RendezvousFailure, WatchdogReport
from tracecore.facts.network import LinkState, NicError, PortState
from tracecore.facts.process import (
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
    RankStarted,
    StackPrinted,
)
from tracecore.facts.training import CheckpointPhase, NonFinite, Preparation, Progress, RunFinished, StepStalled
from tracecore.patterns.contract import LastLines
from tracecore.signals.bundle.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

#: finished: it says so, or every process ended well; failed: something ended badly; unended: processes were alive
#: when last looked at; unknown: nothing tells.
State: TypeAlias = Literal["finished", "failed", "unended", "unknown"]

_BAD_STATES = frozenset({"FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL", "DEADLINE", "LAUNCH_FAILED"})
#: Errors that say a peer is gone, and nothing about the one that says so.
_LOST = frozenset({"remote_error", "connection_closed", "connection_reset", "gloo_connection_closed"})
#: Errors of NCCL that it often gets over by itself.
_PASSING = frozenset({"connection_closed", "connect_failed", "connection_reset", "socket_error"})
_TROUBLES = (
    CudaError, CudaOomUnmeasured, CudaOom, ExceptionRaised, FatalSignal, GpuLost, LauncherFailure,
    MemoryKillReport, OomKill, PodEvicted, RendezvousFailure, Xid,
)  # fmt: skip
#: What a program may catch, or its libraries get over.
_SURVIVABLE = (
    ExceptionRaised, CudaOom, CudaOomUnmeasured, CudaError, LoaderError, MemoryKillReport, NcclError, RendezvousFailure,
)  # fmt: skip
#: A rank stands still when it reports nothing for so many times its longest pause before.
PAUSES = 2
SECOND = 1_000_000_000
#: Steps of other ranks so long after a rank's part of a checkpoint show that nobody waits for it.
LONG_AFTER = 60 * SECOND
#: Of these, so many are kept.
_TROUBLE = 1_000
#: Of the reports of one rank's watchdog, so many are kept.
_REPORTS = 32
#: What tells how a process, a container or a job ended, from outside.
_ENDINGS = (ExitStatus, SlurmState, ContainerTerminated)
_FATAL = (LauncherFailure, FatalSignal, RendezvousFailure)
#: What tells by itself how an attempt goes or ended.
_COURSE = (
    *_ENDINGS, *_FATAL, CheckpointPhase, ExceptionRaised, GroupProgress, NcclError, Progress, RunFinished,
    StackPrinted, StepStalled, WatchdogReport,
)  # fmt: skip
#: What tells of the links, ports and connections between ranks.
_TRANSPORT = (LinkState, PortState, NcclError, NicError, NvlinkRate, Sxid)


class JobAttempt(msgspec.Struct, kw_only=True):
    """One start of a job.

    Args:
        number: 0 the first.
        first, last: times of its facts, nanoseconds; 0 where it has none.
        ranks: ranks seen in it.
        started: ranks that said who they are when they started.
        ended: how each process ended, by rank; -1 for one whose rank is not known (a launcher).
        bad: facts that say it failed.
        stalls: facts that say it stopped making progress.
        finished: the program says that it is complete.
        done: ranks that say so.
        ended_well: the last container of every pod of the job ended with status 0.
        timed: times were read, not inferred.
        progress: last time a step was reported.
        last_steps: the last report of each rank.
        last_places: the offset of the last report in each file.
        preparation: the last progress bar of work that is no step.
        last_losses: the last report of a loss in each file.
        pauses: the longest time between two reports of each rank, nanoseconds.
        saving: ranks that began a phase of a checkpoint and have not said that it ended.
        exceptions: what was printed as a traceback, survived or not.
        stacks: the last stack of each rank that was printed, where no step followed it.
        lost: ranks that lost a connection to another one.
        reports: what the watchdog of each rank said of collectives that did not end.
        unseen: ranks that must exist and left nothing to read.
        places: ranks seen in each pod and on each node, by its name.
        nodes: machines of the job, where a scheduler lists all of them.
        hosts: machines whose lines were read.
        pods: pods whose lines were read.
    """

    job: str
    number: int
    first: int = 0
    last: int = 0
    ranks: set[int] = msgspec.field(default_factory=set)
    started: set[int] = msgspec.field(default_factory=set)
    ended: dict[int, ExitStatus] = msgspec.field(default_factory=dict)
    bad: list[Fact] = msgspec.field(default_factory=list)
    stalls: list[Fact] = msgspec.field(default_factory=list)
    finished: bool = False
    done: dict[int, RunFinished] = msgspec.field(default_factory=dict)
    completed: bool = False
    ended_well: bool = False
    timed: bool = False
    progress: int = 0
    last_steps: dict[int, Progress] = msgspec.field(default_factory=dict)
    last_places: dict[str, int] = msgspec.field(default_factory=dict)
    preparation: Preparation | None = None
    last_losses: dict[str, Progress] = msgspec.field(default_factory=dict)
    pauses: dict[int, int] = msgspec.field(default_factory=dict)
    saving: dict[int, CheckpointPhase] = msgspec.field(default_factory=dict)
    exceptions: list[ExceptionRaised] = msgspec.field(default_factory=list)
    stacks: dict[int, StackPrinted] = msgspec.field(default_factory=dict)
    lost: dict[int, NcclError] = msgspec.field(default_factory=dict)
    reports: dict[int, list[WatchdogReport]] = msgspec.field(default_factory=dict)
    unseen: set[int] = msgspec.field(default_factory=set)
    places: dict[str, set[int]] = msgspec.field(default_factory=dict)
    nodes: set[str] = msgspec.field(default_factory=set)
    hosts: set[str] = msgspec.field(default_factory=set)
    pods: set[str] = msgspec.field(default_factory=set)

    @property
    def alive(self) -> list[int]:
        """Ranks that had not ended when they were looked at."""
        return sorted(rank for rank, status in self.ended.items() if status.alive)

    @property
    def state(self) -> State:
        codes = [status.exit_code for status in self.ended.values()]
        if any(codes):
            return "failed"
        if any(status.alive for status in self.ended.values()):
            # A launcher that outlived its workers' last failure has not ended well.
            return "failed" if self.bad else "unended"
        if codes or self.completed or self.ended_well:
            return "finished"
        if self.bad:
            return "failed"
        return "finished" if self.finished else "unknown"


def _unquoted(rank: int, attempt: JobAttempt | None) -> LastLines | None:
    return None


class JobRun(msgspec.Struct, kw_only=True):
    """All attempts of all jobs of a bundle, by job, then number.

    Args:
        end: end of the recording.
        trouble: what speaks of a failure by itself, from any layer, and was not followed by a step, oldest first.
        transport: what was measured of the links, ports and connections between ranks, oldest first.
        damaged: reports of processes that the kernel ended for damaged memory, oldest first.
        probed: the kubelet's reports that it killed a container whose probe failed.
        waiting_pods: pods that got no network.
        full_names: pods with their namespaces, by their names, where no two namespaces have one of that name.
        machine: the only one whose kubelet refuses a pod, which it does where a GPU failed.
        last_lines: gives the last lines of a rank's log, where the logs are at hand.
    """

    attempts: dict[tuple[str, int], JobAttempt]
    end: int
    trouble: list[Fact] = msgspec.field(default_factory=list)
    transport: list[Fact] = msgspec.field(default_factory=list)
    damaged: list[HostEvent] = msgspec.field(default_factory=list)
    hung: list[HostEvent] = msgspec.field(default_factory=list)
    probed: list[WorkloadEvent] = msgspec.field(default_factory=list)
    machine: str | None = None
    placement: Placement = msgspec.field(default_factory=Placement)
    pod_nodes: dict[str, str] = msgspec.field(default_factory=dict)
    waiting_pods: set[str] = msgspec.field(default_factory=set)
    full_names: dict[str, str] = msgspec.field(default_factory=dict)
    last_lines: Callable[[int, JobAttempt | None], LastLines | None] = _unquoted

    def jobs(self) -> list[str]:
        return sorted({job for job, _ in self.attempts})

    def of(self, job: str) -> list[JobAttempt]:
        return [self.attempts[key] for key in sorted(self.attempts) if key[0] == job]

    def last(self, job: str) -> JobAttempt | None:
        attempts = self.of(job)
        return attempts[-1] if attempts else None

    @property
    def pods(self) -> frozenset[str]:
        """Names of all pods that are known."""
        return frozenset(pod.rpartition("/")[2] for pod in (*self.pod_nodes, *self.placement.pods))


def look(facts: Iterable[Fact], end: int, logs: Collection[int] = (), placement: Placement | None = None) -> JobRun:
    """Return the course of the run according to these facts.

    Args:
        end: end of the recording.
        logs: ranks that left a log, whatever it says.
        placement: where its ranks run, as other files tell.
    """
    placement = Placement() if placement is None else placement
    # Within a second, the order of lines in their file counts.
    facts = sorted(facts, key=lambda fact: (fact.time, fact.source.path, fact.source.offset))
    own_steps: dict[int, list[Progress]] = {}
    for fact in facts:
        if isinstance(fact, Progress) and fact.pid is not None and fact.step is not None:
            own_steps.setdefault(fact.pid, []).append(fact)
    facts = [fact for fact in facts if not _was_printed(fact, own_steps)]
    progress = max((fact.end for fact in facts if isinstance(fact, Progress)), default=0)
    steps: dict[str, list[int]] = {}
    for fact in facts:
        # Some programs report a loss for each epoch, and no step.
        if isinstance(fact, Progress) and (fact.step is not None or fact.loss is not None):
            steps.setdefault(fact.source.path, []).append(fact.source.offset)
    for offsets in steps.values():
        offsets.sort()
    # What a program caught at one place and got over before, it gets over.
    raised = [fact for fact in facts if isinstance(fact, ExceptionRaised) and fact.handled is not None]
    got_over = {fact.handled for fact in raised if not _stands(fact, progress, steps)}
    facts = [fact for fact in facts if not (isinstance(fact, ExceptionRaised) and fact.handled in got_over)]
    names = sorted({fact.job for fact in facts if fact.job})
    # Facts that do not know their job are about the only one there is, else about one without a name.
    default = names[0] if len(names) == 1 else ""
    attempts: dict[tuple[str, int], JobAttempt] = {}
    endings: list[Fact] = []
    for fact in facts:
        job = fact.job or default
        if isinstance(fact, _ENDINGS) or _is_completion(fact):
            endings.append(fact)
            continue
        if fact.layer not in ("stdout", "flight_recorder"):
            continue
        key = job, fact.attempt
        if key not in attempts:
            attempts[key] = JobAttempt(job=job, number=fact.attempt)
        _take(attempts[key], fact)
    well = _jobs_that_ended_well(endings, default, attempts, placement)
    for fact in endings:
        job = fact.job or default
        number = _last_by(fact, job, attempts) if isinstance(fact, ExitStatus | SlurmState) else fact.attempt
        _end(attempts.setdefault((job, number), JobAttempt(job=job, number=number)), fact)
    for attempt in attempts.values():
        attempt.ended_well = attempt.job in well
        attempt.completed |= well.get(attempt.job, False)
        if len(names) <= 1:
            attempt.ranks.update(logs)
        _settle(attempt)
    started = {fact.pod: fact.end for fact in facts if isinstance(fact, ContainerStarted)}
    recovered = {fact.node: fact.end for fact in facts if isinstance(fact, AerRecovery) and fact.succeeded}
    own_pods = {pod for attempt in attempts.values() for pod in attempt.pods}
    trouble = [
        fact
        for fact in facts
        if _is_trouble(fact)
        and _stands(fact, progress, steps)
        and not _was_pulled(fact, started)
        and not _came_back(fact, recovered)
        and not (progress and _is_of_others(fact, own_pods))
    ]
    transport: list[Fact] = [fact for fact in facts if isinstance(fact, _TRANSPORT) or _is_of_fabric(fact)]
    damaged = [fact for fact in facts if isinstance(fact, HostEvent) and fact.event == "memory_failure"]
    hung = [fact for fact in facts if isinstance(fact, HostEvent) and fact.event == "hung_task"]
    refused = [fact for fact in facts if isinstance(fact, WorkloadEvent) and fact.reason == REFUSED]
    machines = {fact.node for fact in refused if fact.node}
    events = (fact for fact in facts if isinstance(fact, WorkloadEvent))
    probed = [fact for fact in events if fact.hint == "probe_failure" and fact.reason == "Killing"]
    return JobRun(
        attempts=attempts,
        end=end,
        trouble=trouble[:_TROUBLE],
        transport=transport[-_TROUBLE:],
        damaged=damaged[-_TROUBLE:],
        hung=hung[:_TROUBLE],
        probed=probed[-_TROUBLE:],
        placement=placement,
        pod_nodes=_pod_nodes(facts, placement),
        full_names=_full_names(facts),
        waiting_pods={fact.pod for fact in facts if isinstance(fact, CniEvent) and fact.pod},
        machine=machines.pop() if len(machines) == 1 else None,
    )


def _jobs_that_ended_well(
    endings: Iterable[Fact], default: str, attempts: dict[tuple[str, int], JobAttempt], placement: Placement
) -> dict[str, bool]:
    """Return the jobs whose containers all ended with status 0 at last, whatever happened to those before them.

    Every pod that left lines, and every pod that is listed, has to be among them: one that has not ended may hang. The
    cluster says of a whole job that it completed (True); names of its pods begin with its own.
    """
    last: dict[str, dict[tuple[str, str | None], ContainerTerminated]] = {}
    completed: dict[str, int] = {}
    for fact in endings:
        if isinstance(fact, WorkloadEvent) and fact.workload:
            last.setdefault(fact.job or default, {})
            completed[fact.workload] = fact.end
        elif isinstance(fact, ContainerTerminated) and fact.pod:
            mine = last.setdefault(fact.job or default, {})
            key = fact.pod.rpartition("/")[2], fact.container
            if key not in mine or (mine[key].attempt, mine[key].end) <= (fact.attempt, fact.end):
                mine[key] = fact
    if len(last) != 1:
        return {}
    job, ends = last.popitem()
    needed = {pod.rpartition("/")[2] for (name, _), one in attempts.items() if name == job for pod in one.pods}
    needed |= set(placement.pod_nodes)
    bad = {pod: fact.end for (pod, _), fact in ends.items() if fact.exit_code != 0}
    if any(name == job and not one.pods for (name, _), one in attempts.items()):
        completed = {}  # lines whose pod is not known may be another job's
    over = {
        pod
        for pod in {*needed, *bad}
        for name, end in completed.items()
        if pod.startswith(f"{name}-") and bad.get(pod, 0) <= end
    }
    well = {pod for pod, _ in ends} | over
    return {job: bool(over)} if well and bad.keys() <= over and needed <= well else {}


def _is_completion(fact: Fact) -> bool:
    return isinstance(fact, WorkloadEvent) and fact.hint == COMPLETED


def _is_of_fabric(fact: Fact) -> bool:
    return isinstance(fact, GpuCondition) and fact.condition in ("nvlinks_inactive", "fabric_not_ready")


def _pod_nodes(facts: Sequence[Fact], placement: Placement) -> dict[str, str]:
    """Return the machine of each pod, by its name; of a pod that was on two none."""
    found = {pod: {node} for pod, node in placement.pod_nodes.items()}
    for fact in facts:
        if fact.pod and fact.node:
            found.setdefault(fact.pod.rpartition("/")[2], set()).add(fact.node)
    return {pod: nodes.pop() for pod, nodes in found.items() if len(nodes) == 1}


def _full_names(facts: Sequence[Fact]) -> dict[str, str]:
    """Return pods with their namespaces, by their names; none of those that two namespaces have."""
    found: dict[str, set[str]] = {}
    for fact in facts:
        if fact.pod and "/" in fact.pod:
            found.setdefault(fact.pod.rpartition("/")[2], set()).add(fact.pod)
    return {pod: names.pop() for pod, names in found.items() if len(names) == 1}


def _last_by(fact: Fact, job: str, attempts: dict[tuple[str, int], JobAttempt]) -> int:
    """Return the attempt whose end an observer outside the job saw: the last one.

    A scheduler says it when it happens, so of those that had begun by then; statuses are often written down at the end.
    """
    mine = [attempt for (name, _), attempt in attempts.items() if name == job]
    known = isinstance(fact, SlurmState) and not fact.approximate
    begun = [attempt for attempt in mine if not known or not attempt.timed or attempt.first <= fact.end]
    return max((attempt.number for attempt in begun or mine), default=0)


def is_passing(fact: Fact) -> bool:
    """Whether a fact says nothing about a run that made steps long after it."""
    return not fact.approximate and not isinstance(fact, _COURSE)


def _stands(fact: Fact, progress: int, steps: dict[str, list[int]]) -> bool:
    """Whether no step was made after it. Without times, steps further down the same file say that it was survived."""
    offsets = steps.get(fact.source.path, ())
    # One further step may be another rank's.
    went_on = len(offsets) - bisect_right(offsets, fact.source.offset) > 1
    spoken = isinstance(fact, WatchdogReport) and fact.reporter is not None
    if went_on and (spoken or (isinstance(fact, NcclError) and fact.error == "horovod_stall")):
        return False  # they only waited long
    if not fact.approximate:
        return fact.end >= progress
    return not isinstance(fact, _SURVIVABLE) or not went_on


def _was_pulled(fact: Fact, started: dict[str | None, int]) -> bool:
    """Whether a container started after its image could not be pulled at first."""
    pull = isinstance(fact, WorkloadEvent) and fact.hint == "image_pull_failure"
    return pull and fact.pod is not None and started.get(fact.pod, -1) >= fact.time


def _is_of_others(fact: Fact, own: Collection[str]) -> bool:
    """Whether a pod that does not start has another name than those of the run, or is in another namespace.

    Where a list leaves the namespace out, it is called `default`.
    """
    if not isinstance(fact, WorkloadEvent) or not fact.pod or not own:
        return False
    space, _, name = fact.pod.rpartition("/")
    alike = [pod for pod in own if pod.rpartition("/")[2].partition("-")[0] == name.partition("-")[0]]
    spaces = {pod.rpartition("/")[0] for pod in alike}
    return not spaces & {space, "default"} and (space != "default" or not spaces)


def _came_back(fact: Fact, recovered: dict[str | None, int]) -> bool:
    """Whether the kernel says, after a PCIe error, that the device recovered."""
    return isinstance(fact, AerError) and recovered.get(fact.node, -1) >= fact.time


def _was_printed(fact: Fact, steps: dict[int, list[Progress]]) -> bool:
    """Whether the process that would have died of a signal makes more steps below the line that says so."""
    if not isinstance(fact, FatalSignal) or fact.pid is None:
        return False
    below = (s for s in steps.get(fact.pid, ()) if s.source.path == fact.source.path)
    return len({step.step for step in below if step.source.offset > fact.source.offset}) > 1


def _is_trouble(fact: Fact) -> bool:
    """Whether a run in which this was seen is unlikely to have gone on, whatever the cause."""
    if isinstance(fact, Progress):
        return False
    if isinstance(fact, NcclError):
        return fact.error not in _PASSING
    if isinstance(fact, WatchdogReport):
        return fact.report in ("timeout", "exception", "abort", "dump_signal", "heartbeat")
    if isinstance(fact, ContainerTerminated):
        return bool(fact.exit_code) or fact.reason in ("OOMKilled", "ContainerCannotRun", "StartError")
    if isinstance(fact, AerError):
        return fact.severity in ("nonfatal", "fatal")
    if isinstance(fact, NonFinite):
        return fact.explicit
    if isinstance(fact, WorkloadEvent):
        return fact.hint in ("image_pull_failure", "backoff")
    if isinstance(fact, LoaderError):
        return not fact.retried
    return isinstance(fact, _TROUBLES)


def _take(attempt: JobAttempt, fact: Fact) -> None:
    if fact.node and fact.layer == "stdout":
        attempt.hosts.add(fact.node)
    if fact.pod and fact.layer == "stdout":
        attempt.pods.add(fact.pod)
    if isinstance(fact, RankStarted) and fact.rank is not None:
        attempt.started.add(fact.rank)
    elif fact.rank is not None:
        attempt.ranks.add(fact.rank)
        for place in (fact.pod, fact.node):
            if place:
                attempt.places.setdefault(place, set()).add(fact.rank)
    if not fact.approximate:
        attempt.timed = True
        attempt.first = min(attempt.first or fact.time, fact.time)
        attempt.last = max(attempt.last, fact.end)
    if isinstance(fact, WatchdogReport):
        if fact.rank is not None and (fact.seq is not None or fact.awaits):
            said = attempt.reports.setdefault(fact.rank, [])
            if fact.report in ("timeout", "exception") and len(said) < _REPORTS:
                said.append(fact)
        if fact.report == "timeout" and fact.reporter is None:
            attempt.stalls.append(fact)
    elif isinstance(fact, Progress):
        attempt.progress = max(attempt.progress, fact.end)
        rank = -1 if fact.rank is None else fact.rank
        last = attempt.last_steps.get(rank)
        if last is not None and not last.approximate and not fact.approximate:
            attempt.pauses[rank] = max(attempt.pauses.get(rank, 0), fact.time - last.end)
        attempt.last_steps[rank] = fact
        path, offset = fact.source.path, fact.source.offset
        attempt.last_places[path] = max(attempt.last_places.get(path, 0), offset)
        if fact.loss is not None and fact.phase != "eval":
            attempt.last_losses[path] = fact
        attempt.saving.pop(rank, None)
        if attempt.bad:
            # Whoever makes steps was started in the end.
            attempt.bad = [bad for bad in attempt.bad if getattr(bad, "failure", None) != "launch_failed"]
    elif isinstance(fact, Preparation):
        last_bar = attempt.preparation
        if last_bar is None or (fact.end, fact.source.offset) > (last_bar.end, last_bar.source.offset):
            attempt.preparation = fact
    elif isinstance(fact, CheckpointPhase):
        rank = -1 if fact.rank is None else fact.rank
        if fact.event == "begin":
            attempt.saving[rank] = fact
        else:
            attempt.saving.pop(rank, None)
    elif isinstance(fact, RunFinished):
        if fact.always and any(_ended_by(raised, fact, attempt) for raised in attempt.exceptions):
            return
        attempt.finished = True
        if fact.whole:
            attempt.bad = []
        if fact.rank is not None:
            attempt.done[fact.rank] = fact
    elif isinstance(fact, GroupProgress):
        attempt.unseen.update(fact.absent)
    elif isinstance(fact, NcclError):
        if fact.rank is not None and fact.error in _LOST:
            attempt.lost.setdefault(fact.rank, fact)
    elif isinstance(fact, StackPrinted):
        rank = -1 if fact.rank is None else fact.rank
        before = attempt.stacks.get(rank)
        if before is None or (fact.end, fact.source.offset) >= (before.end, before.source.offset):
            attempt.stacks[rank] = fact
    elif isinstance(fact, ExceptionRaised):
        attempt.exceptions.append(fact)
    elif isinstance(fact, _FATAL):
        attempt.bad.append(fact)
        if isinstance(fact, LauncherFailure) and fact.other_rank is not None:
            attempt.ranks.add(fact.other_rank)
        if isinstance(fact, LauncherFailure):
            attempt.ranks.update(fact.failed)
    elif isinstance(fact, StepStalled):
        attempt.stalls.append(fact)


def _ended_by(raised: ExceptionRaised, end: RunFinished, attempt: JobAttempt) -> bool:
    """Whether no step stands between an exception and a line that the program writes after every end."""
    path, offset = raised.source.path, raised.source.offset
    return path == end.source.path and attempt.last_places.get(path, -1) < offset < end.source.offset


def _end(attempt: JobAttempt, fact: Fact) -> None:
    if isinstance(fact, ExitStatus):
        rank = -1 if fact.rank is None else fact.rank
        before = attempt.ended.get(rank)
        # The later word counts; of two at once, the one that says it ended.
        if before is None or (fact.time, not fact.alive) >= (before.time, not before.alive):
            attempt.ended[rank] = fact
    elif isinstance(fact, SlurmState):
        attempt.nodes.update(fact.nodes)
        if fact.state == "COMPLETED":
            attempt.completed = True
        elif fact.state in _BAD_STATES and not (fact.state == "LAUNCH_FAILED" and fact.end < attempt.progress):
            attempt.bad.append(fact)
    elif isinstance(fact, ContainerTerminated) and fact.exit_code:
        attempt.bad.append(fact)


def _settle(attempt: JobAttempt) -> None:
    """A single status beside several ranks is the launcher's, not rank 0's."""
    if set(attempt.ended) == {0} and attempt.ranks - {0}:
        attempt.ended = {-1: attempt.ended[0]}
    attempt.ranks |= {rank for rank in attempt.ended if rank >= 0}
    numbered = set(range(max(attempt.ranks, default=-1) + 1))
    if len(numbered) <= 2 * len(attempt.ranks):
        # A gap in the numbering is a rank, where the set is nearly whole.
        attempt.unseen |= numbered
    attempt.unseen -= attempt.ranks
    # A rank that made a step after it printed its stack has moved on.
    attempt.stacks = {rank: stack for rank, stack in attempt.stacks.items() if not _left(attempt, rank, stack)}
    # A rank that made a step after it could not join has joined.
    attempt.bad = [fact for fact in attempt.bad if not (isinstance(fact, RendezvousFailure) and _joined(attempt, fact))]
    # A stall that a later step ended was only slow. One that is not much longer than other pauses may be none.
    attempt.stalls = [fact for fact in attempt.stalls if not _went_on(attempt, fact) and not _is_usual(attempt, fact)]
    if not attempt.ended and not attempt.bad and not attempt.finished and not attempt.completed:
        # A traceback by itself is no end: it may have been survived. The last word of a log it is.
        attempt.bad = [fact for fact in attempt.exceptions if _is_last_word(attempt, fact)]


def _is_last_word(attempt: JobAttempt, fact: Fact) -> bool:
    """Whether no step was reported after this; without times, none further down the same file."""
    if not fact.approximate:
        return fact.end >= attempt.progress
    return attempt.last_places.get(fact.source.path, -1) < fact.source.offset


def _left(attempt: JobAttempt, rank: int, stack: StackPrinted) -> bool:
    """Whether a rank reported a step after its stack was printed."""
    last = attempt.last_steps.get(rank)
    if last is None:
        return False
    if last.source.path == stack.source.path and (last.approximate or stack.approximate):
        return stack.count == 1 and last.source.offset > stack.source.offset
    # A file without times, as py-spy writes it, ends when the bundle does: its lines stand a moment before that.
    return last.end > stack.end + (SECOND // 10 if stack.approximate else 0)


def _joined(attempt: JobAttempt, failure: RendezvousFailure) -> bool:
    """Whether a rank reported a step after it could not join; in one log, without ranks, whether anybody did."""
    last = attempt.last_steps.get(-1 if failure.rank is None else failure.rank)
    if last is None or last.step is None:
        return False
    if last.source.path == failure.source.path:
        return last.source.offset > failure.source.offset
    return not failure.approximate and not last.approximate and last.time > failure.end


def _is_usual(attempt: JobAttempt, stall: Fact) -> bool:
    """Whether a rank reports so rarely that it need not have stood still."""
    rank = -1 if stall.rank is None else stall.rank
    last = attempt.last_steps.get(rank)
    if not isinstance(stall, StepStalled) or last is None:
        return False
    usual = max(attempt.pauses.get(rank, 0) / SECOND, last.iter_time_s or 0.0)
    return stall.no_progress_s < PAUSES * usual


def _went_on(attempt: JobAttempt, stall: Fact) -> bool:
    """Whether the rank reported a step after it had stood still; any rank, where a checkpoint's lines name none.

    Of a rank that only writes checkpoints, steps of others long after it tell the same.
    """
    if not isinstance(stall, StepStalled):
        return False
    last = attempt.last_steps.get(-1 if stall.rank is None else stall.rank)
    after = stall.end
    if last is None and stall.phase == "checkpoint":
        last = max(attempt.last_steps.values(), key=lambda step: step.time, default=None)
        after += 0 if stall.rank is None else LONG_AFTER
    return last is not None and last.time > after
