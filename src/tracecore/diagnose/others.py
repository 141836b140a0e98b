"""Jobs and machines of a cluster that are not those of the run: a table of a day, events of all nodes."""

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
    """Return the facts without those of other jobs and machines, and notes about these.

    Args:
        pod_nodes: machines of all pods that are listed; empty where no list has the pods of the run.
    """
    facts, killed = _without_kills_of_others(_of_own_jobs(facts))
    jobs = _jobs(facts)
    looked = (fact.node for fact in facts if isinstance(fact, NodeReadiness)) if pod_nodes else ()
    nodes = {node for node in looked if node and node not in pod_nodes}
    if not jobs and not nodes:
        return list(facts), killed
    states = {fact.job: fact.state for fact in facts if isinstance(fact, SlurmState)}
    named = [f"{job} ({states[job]})" if job in states else job for job in sorted(jobs)]
    kept = [
        fact for fact in facts if fact.job not in jobs and not (isinstance(fact, NodeReadiness) and fact.node in nodes)
    ]
    notes = killed
    notes += [f"The scheduler also lists jobs whose output is not here: {_listed(named)}"] if jobs else []
    if nodes:
        notes.append(f"Not ready, and none of the listed pods runs there: {_listed(sorted(nodes))}")
    return kept, notes


def _of_own_jobs(facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the facts without states of other jobs, which a scheduler's log has beside those of the run's own."""
    output = {fact.source.path for fact in facts if fact.layer == "stdout"}
    states = [fact for fact in facts if isinstance(fact, SlurmState)]
    own = {fact.slurm_job or fact.job for fact in states if fact.source.path in output} - {None}
    if not own:
        return facts
    # Logs that do not know their job are of the only one; then what a controller says of it has none, either.
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
    """Return the facts without processes that were killed for memory in cgroups of jobs whose output is not here."""
    # A task of an array has another number in its cgroup than in the name of its log, and other schedulers have names.
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


def _jobs(facts: Sequence[Fact]) -> set[str]:
    """Return jobs of which only a scheduler speaks that also lists the job which wrote the logs.

    Without that, the scheduler may know the job by another name than its logs do.
    """
    listed = {fact.job for fact in facts if fact.job and fact.layer == "scheduler"}
    written = {fact.job for fact in facts if fact.job and fact.layer not in ("scheduler", "kernel")}
    return set() if listed.isdisjoint(written) else listed - written


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
