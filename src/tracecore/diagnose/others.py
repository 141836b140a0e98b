"""Set aside facts about other jobs and machines of the cluster, such as accounting of a day or events of all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.facts.host import SlurmState
from tracecore.facts.kubernetes import NodeReadiness
from tracecore.facts.memory import OomKill
from tracecore.facts.process import ExitStatus, FatalSignal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tracecore.facts.fact import Fact

#: Jobs or machines that a note names.
NAMED: Final = 4


def set_apart(facts: Sequence[Fact], pod_nodes: Collection[str]) -> tuple[list[Fact], list[str]]:
    """Return the facts of the run, and notes about the others.

    Args:
        pod_nodes: nodes of all listed pods; empty if no list has the pods of the run.
    """
    facts, notes = _without_kills_of_others(_without_states_of_others(facts))
    jobs = _other_jobs(facts)
    reported = (fact.node for fact in facts if isinstance(fact, NodeReadiness)) if pod_nodes else ()
    nodes = {node for node in reported if node and node not in pod_nodes}
    if not jobs and not nodes:
        return list(facts), notes
    states = {fact.job: fact.state for fact in facts if isinstance(fact, SlurmState)}
    named = [f"{job} ({states[job]})" if job in states else job for job in sorted(jobs)]
    kept = [
        fact for fact in facts if fact.job not in jobs and not (isinstance(fact, NodeReadiness) and fact.node in nodes)
    ]
    notes += [f"The scheduler also lists jobs whose output is not here: {_listed(named)}"] if jobs else []
    if nodes:
        notes.append(f"Not ready, and none of the listed pods runs there: {_listed(sorted(nodes))}")
    return kept, notes


def _without_states_of_others(facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the facts without the states of other jobs in a scheduler's log."""
    output = {fact.source.path for fact in facts if fact.layer == "stdout"}
    states = [fact for fact in facts if isinstance(fact, SlurmState)]
    own = {fact.slurm_job or fact.job for fact in states if fact.source.path in output} - {None}
    if not own:
        return facts
    # If logs do not name their job, the run has one job. Its states lose their job too, so that they match.
    unnamed = any(fact.job is None for fact in states)
    kept: list[Fact] = []
    for fact in facts:
        job = fact.slurm_job if isinstance(fact, SlurmState) else fact.job
        if job is None or fact.source.path in output or not isinstance(fact, SlurmState | ExitStatus | FatalSignal):
            kept.append(fact)
        elif job in own:
            kept.append(msgspec.structs.replace(fact, job=None) if unnamed else fact)
    return kept


def _without_kills_of_others(facts: Sequence[Fact]) -> tuple[Sequence[Fact], list[str]]:
    """Return the facts without memory kills in cgroups of jobs without output, and notes about these."""
    # Only plain numbers can be compared. An array task (`7_2`) has another number in its cgroup than in its log.
    written = {fact.job for fact in facts if fact.job and fact.layer == "stdout"}
    if not all(map(str.isdigit, written)):
        return facts, []
    others = [
        fact for fact in facts if isinstance(fact, OomKill) and fact.slurm is not None and fact.slurm[0] not in written
    ]
    if not written or not others:
        return facts, []
    gone = set(map(id, others))
    notes = [f"Of another job: {fact.describe()}" for fact in others[:NAMED]]
    return [fact for fact in facts if id(fact) not in gone], notes


def _other_jobs(facts: Sequence[Fact]) -> set[str]:
    """Return the jobs that only the scheduler names, if it also lists the job of the logs.

    Otherwise the scheduler may use another name for the job of the logs.
    """
    listed = {fact.job for fact in facts if fact.job and fact.layer == "scheduler"}
    written = {fact.job for fact in facts if fact.job and fact.layer not in ("scheduler", "kernel")}
    return set() if listed.isdisjoint(written) else listed - written


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
