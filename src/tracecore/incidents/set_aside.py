"""Verdicts that are set aside before the others are weighed: about another job, overcome, or only listed."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Final

import re2

from tracecore.facts.gpu import GpuCondition
from tracecore.facts.kubernetes import SLURM_DOWN, MountEvent, NodeReadiness, WorkloadEvent
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured, MemoryKillReport
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.stop import PlannedStop
from tracecore.facts.training import NonFinite
from tracecore.incidents import rule_conditions
from tracecore.incidents.footprint import Footprint
from tracecore.incidents.pattern_groups import CONDITIONS, STANDS_ALONE
from tracecore.incidents.whereabouts import POD_NUMBER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.incidents.run import JobAttempt, JobRun

#: A rank that makes a step so long after a death is not the one that died.
WENT_ON: Final = 60_000_000_000
#: Names in a sentence.
_WORDS: Final = re2.compile(r"[\w.-]+")


def stands(t: Footprint, attempt: JobAttempt | None) -> bool:
    """Whether a verdict is worth an incident although the run ended well."""
    if t.name == "planned_stop":
        # A rank that was asked to stop and saved its work exits with 0, too. One that says it is complete was not cut.
        return attempt is None or not (attempt.finished or attempt.completed or _resumed(t, attempt))
    if t.name == "training_divergence" and attempt is not None and _was_finite_again(t, attempt):
        return False
    return t.name in STANDS_ALONE


def _was_finite_again(t: Footprint, attempt: JobAttempt) -> bool:
    """Whether a complaint about a value is all, and the last loss below it is finite: one bad step was skipped."""
    if t.fields.get("kind") != "explicit":
        return False
    complaints = [fact for fact in t.evidence if isinstance(fact, NonFinite)]
    after = [(fact, attempt.last_losses.get(fact.source.path)) for fact in complaints]
    return bool(after) and all(
        step is not None and isfinite(step.loss or 0.0) and step.source.offset > fact.source.offset
        for fact, step in after
    )


def _resumed(t: Footprint, attempt: JobAttempt) -> bool:
    """Whether steps follow the stop further down in the same files: the job was started again and appended to them."""
    steps = {step.source.path: step.source.offset for step in attempt.last_steps.values()}
    stops = {path: end for path, _, end in t.places if path in steps}
    return bool(stops) and all(steps[path] > end for path, end in stops.items())


def is_anothers(t: Footprint, attempt: JobAttempt | None) -> bool:
    """Whether memory ran out for a process that is not known to be one of the run's, which made steps long after."""
    if t.name != "host_oom" or attempt is None or attempt.state != "unknown" or t.ranks:
        return False
    return t.timed and attempt.timed and attempt.progress > t.last + WENT_ON


def is_elsewhere(t: Footprint, attempt: JobAttempt) -> bool:
    """Whether it happened on machines that are none of the job's, which a scheduler lists."""
    if not attempt.nodes or not t.nodes or any(fact.layer == "stdout" for fact in t.evidence):
        return False
    return {node.partition(".")[0] for node in t.nodes}.isdisjoint(node.partition(".")[0] for node in attempt.nodes)


def is_another_pods(t: Footprint, touches: Sequence[Footprint], attempt: JobAttempt) -> bool:
    """Whether a pod whose lines were not read could not mount something, while the job made steps and then failed.

    A pod that waits for its volumes has not begun: it is none of those that made the steps. One that is named like
    them may be waited for, which makes no loss diverge.
    """
    if t.name != "storage_failure" or not all(isinstance(fact, MountEvent) for fact in t.evidence):
        return False
    running = attempt.pods | attempt.places.keys()
    if not attempt.progress or not t.pods.isdisjoint(running):
        return False
    alike = {POD_NUMBER.sub("", pod) for pod in t.pods} & {POD_NUMBER.sub("", pod) for pod in running}
    if alike and not any(o.name == "training_divergence" for o in touches):
        return False
    return any(o.verdict.role == "cause" and any(fact.layer == "stdout" for fact in o.evidence) for o in touches)


def is_anothers_stop(t: Footprint, attempt: JobAttempt) -> bool:
    """Whether an autoscaler or a cloud takes a machine away, and nothing says that the job was on it."""
    if t.name != "planned_stop" or t.pods or not all(map(_is_of_machine, t.evidence)):
        return False
    mine = {name.partition(".")[0] for name in (*attempt.nodes, *attempt.hosts, *attempt.places)}
    if any(fact.node is not None and fact.node.partition(".")[0] in mine for fact in t.evidence):
        return False
    words = set(_WORDS.findall(" ".join(fact.detail or "" for fact in t.evidence if isinstance(fact, PlannedStop))))
    return words.isdisjoint(pod.rpartition("/")[2] for pod in attempt.pods)


def _is_of_machine(fact: Fact) -> bool:
    """Whether somebody who looks after machines, and not after this job, says that one of them goes away."""
    if not isinstance(fact, PlannedStop):
        return False
    return fact.requester == "autoscaler" or (fact.requester == "cloud" and fact.node is not None)


def is_only_listed(t: Footprint, touches: Sequence[Footprint], attempt: JobAttempt) -> bool:
    """Whether a list of a cluster's nodes shows one that does not answer, which need not be one of the job's.

    It may be why a job failed for which there is no other cause.
    """
    if t.name != "host_lost" or not all(map(_is_row, t.evidence)) or any(node in attempt.places for node in t.nodes):
        return False
    if attempt.nodes:
        return False  # one of the job's, or it was left out before
    others = [o for o in touches if o.name not in ("host_lost", *CONDITIONS)]
    failed = attempt.state == "failed" or attempt.lost
    return any(o.verdict.role == "cause" for o in others) or not (others or failed)


def is_only_a_condition(t: Footprint, touches: Sequence[Footprint], attempt: JobAttempt | None) -> bool:
    """Whether a table shows that a GPU is gone or to be replaced, and nothing that went wrong may follow from it.

    Since when that holds nobody knows, nor whether the job used this GPU: beside a run that made steps and did not
    fail it is trouble of the machine, and beside another failure, too. Of a GPU that is gone a hang may follow, and a
    crash on a GPU.
    """
    if not _is_shown(t):
        return False
    well = attempt is not None and attempt.progress and attempt.state in ("finished", "unknown") and not attempt.stalls
    if well and all(map(_is_shown, touches)):
        return True
    gone = any(isinstance(fact, GpuCondition) and fact.condition == "lost" for fact in t.evidence)
    others = [o for o in touches if not _is_shown(o) and o.gpus.isdisjoint(t.gpus)]
    if gone:
        others = [o for o in others if o.verdict.role == "cause" and not rule_conditions.same_death(t, o)]
    return bool(others)


def _is_shown(t: Footprint) -> bool:
    return all(isinstance(fact, GpuCondition) for fact in t.evidence)


def killed_by_probe(t: Footprint, run: JobRun) -> WorkloadEvent | None:
    """Return the kubelet's report that it killed a container whose probe failed, where a verdict only has its signal.

    A SIGTERM without a sender looks like a planned stop, and a container that ended with 137 like a kill for memory.
    """
    if t.verdict.confidence == "full" or t.name not in ("planned_stop", "host_oom"):
        return None
    return next((kill for kill in reversed(run.probed) if not t.pods or kill.pod in t.pods), None)


def _is_row(fact: Fact) -> bool:
    """Whether this is the state of a node when somebody looked, whenever it began."""
    return isinstance(fact, NodeReadiness) and fact.approximate and fact.reason in (None, SLURM_DOWN)


def is_unrelated_kill(t: Footprint, touches: Sequence[Footprint], attempt: JobAttempt | None, run: JobRun) -> bool:
    """Whether the kernel killed a process for memory that is none of this job, as far as anything tells.

    The job's own processes would be told of: by rank, by process id, by their pod, or by a death of SIGKILL. Where
    nothing else explains the failure, the kill stays the best explanation there is.
    """
    others = [o for o in touches if o.verdict.role == "cause" and o.name not in ("host_oom", *CONDITIONS)]
    if not others or attempt is None:
        return False
    if t.ranks or any(fact.job for fact in t.evidence) or not all(map(_is_of_node, t.evidence)):
        return False
    if any(t.pids & o.pids for o in others) or any(pod in attempt.places for pod in t.pods):
        return False
    if any(run.placement.ranks_of_pod(pod.rpartition("/")[2], run.pods) for pod in t.pods):
        return False
    deaths = [*attempt.ended.values(), *attempt.bad]
    killed = any(getattr(fact, "signal", None) == "SIGKILL" for fact in deaths)
    return not killed and not any(rule_conditions.died_of(o) == "SIGKILL" for o in others)


def _is_of_node(fact: Fact) -> bool:
    """Whether a kernel says it, or a cluster in its words, and not the job's own."""
    report = isinstance(fact, MemoryKillReport) and fact.reporter == "kubernetes" and fact.pod is None
    return fact.layer == "kernel" or report


def recovered(t: Footprint, attempt: JobAttempt | None) -> bool:
    """Whether steps were made long after something that a run can overcome.

    A port is said to have failed, and NCCL went on over it, or over another. A process was out of GPU memory, and went
    on with a smaller batch. What took long, a checkpoint or an evaluation behind it, came to its end.
    """
    if attempt is None or not (t.timed and attempt.timed):
        return False
    if t.name == "checkpointer_hang" and attempt.state != "failed":
        return attempt.progress > t.last + WENT_ON
    if t.name == "ib_link_flap" and "port_errors" in t.fields:
        return attempt.progress > t.first + WENT_ON
    if t.name != "cuda_oom":
        return False
    failed = [fact for fact in t.evidence if isinstance(fact, CudaOom | CudaOomUnmeasured)]
    return bool(failed) and all(_goes_on(fact, attempt) for fact in failed)


def _goes_on(fact: Fact, attempt: JobAttempt) -> bool:
    """Whether steps were made long after a rank failed: by itself, or by the others if it never reports any.

    Ranks work in step, so the others would wait for it.
    """
    step = attempt.last_steps.get(-1 if fact.rank is None else fact.rank)
    if step is None:
        return fact.rank is not None and attempt.progress > fact.end + WENT_ON
    return step.source.path == fact.source.path and step.end > fact.end + WENT_ON


def caught(t: Footprint, attempt: JobAttempt | None, run: JobRun) -> bool:
    """Whether a process could get no more host memory and caught that, or a program that it tried, as later steps in
    the same log tell where there are no times."""
    if t.name != "host_oom" or attempt is None or not attempt.progress or (t.timed and attempt.timed):
        return False
    told = all(isinstance(fact, MemoryKillReport) and fact.reporter == "stdout" for fact in t.evidence)
    return told and not any(fact in run.trouble for fact in t.evidence)


def was_slow(t: Footprint, attempt: JobAttempt | None) -> bool:
    """Whether a hang that one process told of, before it had to give up, was followed by a step."""
    told = [fact for fact in t.evidence if isinstance(fact, WatchdogReport) and fact.reporter is not None]
    if attempt is None or not told or len(told) < len(t.evidence):
        return False
    if t.timed and attempt.timed and attempt.progress > t.last:
        return True
    last = {step.source.path: step.source.offset for step in attempt.last_steps.values()}
    return any(last.get(fact.source.path, -1) > fact.source.offset for fact in told)
