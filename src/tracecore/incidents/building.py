"""The incident of a root cause: suspects, advice, symptoms, gaps, and what the rest of the run adds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import msgspec
import re2

from tracecore.facts.network import STATES, LinkState, PortState
from tracecore.facts.process import ExceptionRaised, ExitStatus
from tracecore.facts.wording import counted
from tracecore.incidents import pattern_groups, rule_conditions, whereabouts
from tracecore.incidents.footprint import Footprint
from tracecore.incidents.gaps import gaps
from tracecore.incidents.incident import Edge, Incident, origin
from tracecore.patterns.contract import IncidentContext, LastLines, Suspects, Verdict, to_the_second

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.facts.training import Preparation
    from tracecore.incidents.run import JobAttempt, JobRun

#: Stands for a machine that a verdict does not know, in the commands of its advice.
_UNKNOWN: Final = re2.compile(r"\bNODE\b")
#: Looks at one port that are told.
_CHANGES: Final = 4
#: Failures in which a rank does not go on: what it wrote last is worth reading.
HANGS: Final = frozenset({"nccl_hang", "collective_mismatch", "checkpointer_hang", "dataloader_hang"})


def incident_of(
    root: Footprint,
    touches: Sequence[Footprint],
    edges: Sequence[Edge],
    attempt: JobAttempt | None,
    layers: Mapping[str, int],
    run: JobRun,
) -> Incident:
    """Return the incident of a root: everything that its edges reach is a symptom."""
    by_id = {t.id: t for t in touches}
    reached: dict[str, None] = {}
    used: list[Edge] = []
    following: dict[str, list[Edge]] = {}
    for edge in edges:
        following.setdefault(edge.cause, []).append(edge)
    stack = [root.id]
    while stack:
        for edge in following.get(stack.pop(), ()):
            if edge.effect != root.id:
                used.append(edge)
                if edge.effect not in reached:
                    reached[edge.effect] = None
                    stack.append(edge.effect)
    symptoms = sorted((by_id[name] for name in reached), key=lambda t: (t.first, t.id))
    whole = [root, *symptoms]
    timed = [t for t in whole if t.timed] or whole
    said = root.verdict.beside(_rest(root, symptoms, attempt, run))
    suspects = _suspects(root, said, symptoms, attempt, run)
    if run.machine is not None and not suspects.nodes and root.name in ("gpu_fault", "hbm_ecc"):
        suspects = msgspec.structs.replace(suspects, nodes=(run.machine,))
    hangs = any(t.name in HANGS for t in whole)
    return Incident(
        status="diagnosed",
        headline=said.headline(),
        advice=_addressed(said.remediation(), suspects),
        root=root.emission,
        symptoms=[t.emission for t in symptoms],
        edges=sorted(used, key=lambda e: (e.effect, e.cause)),
        alternatives=[],
        gaps=gaps(layers, root.name, root.verdict.missing_layers()),
        suspects=suspects,
        last_lines=_last_lines(suspects.ranks, attempt, run) if hangs else (),
        job=root.job,
        attempt=root.attempt,
        origin=origin(attempt, root.evidence),
        slot=root.name if root.name in pattern_groups.CONDITIONS else "0",
        first=min(t.first for t in timed),
        last=max(t.last for t in timed),
        timed=any(t.timed for t in whole),
        evidence=tuple(said.evidence()),
        judged=said,
    )


def _last_lines(ranks: Sequence[int], attempt: JobAttempt | None, run: JobRun) -> tuple[LastLines, ...]:
    return tuple(lines for rank in ranks[:3] if (lines := run.last_lines(rank, attempt)) is not None)


def _addressed(advice: str, suspects: Suspects) -> str:
    """Return advice whose commands name the machine, where only the incident knows it."""
    return str(_UNKNOWN.sub(lambda _: suspects.nodes[0], advice)) if len(suspects.nodes) == 1 else advice


def _transport(root: Footprint, run: JobRun) -> tuple[str, ...]:
    """Return transport trouble measured before the ranks gave up: it explains the connections they lost afterwards."""
    given_up = rule_conditions.gave_up(root)
    known = [fact for fact in run.transport if fact.approximate or fact.time <= given_up]
    ports: dict[tuple[str | None, str], list[PortState]] = {}
    for fact in known:
        if isinstance(fact, PortState):
            ports.setdefault((fact.node, fact.named), []).append(fact)
    said: dict[str, None] = {}
    for fact in reversed(known):
        if isinstance(fact, LinkState) and (fact.node, fact.interface) in ports:
            continue  # it is one of the ports
        said.setdefault(_seen(ports[fact.node, fact.named]) if isinstance(fact, PortState) else _told(fact))
        if len(said) == 3:
            break
    return tuple(reversed(said))


def _seen(states: Sequence[PortState]) -> str:
    """Return what was seen of a port: its last state, and those before it where it changed."""
    last = states[-1]
    changes = [fact for before, fact in pairwise(states) if before.state != fact.state]
    if not changes:
        return _told(last)
    if all(fact.approximate for fact in states):
        shown = [states[0], *changes][-_CHANGES:]
        if len({fact.source.path for fact in shown}) < len(shown):
            return f"{last.describe()} (it changed {counted(len(changes), 'time')}, at times that are not known)"
        looks = [f"{STATES[fact.state]} in {fact.source.path.rpartition('/')[2]}" for fact in shown]
        return f"port {last.named}{f' on {last.node}' if last.node else ''} is {', '.join(looks)}"
    times = f", its last of {len(changes)} changes" if len(changes) > 1 else ""
    return f"{changes[-1].describe()} since {to_the_second(changes[-1].time)}{times}"


def _told(fact: Fact) -> str:
    return fact.describe() if fact.approximate else f"{fact.describe()}, at {to_the_second(fact.time)}"


def _rest(root: Footprint, symptoms: Sequence[Footprint], attempt: JobAttempt | None, run: JobRun) -> IncidentContext:
    """Return what the rest of the incident adds to the root: awaited ranks, ranks with a log, ends of ranks."""
    awaited = {rank for t in symptoms if t.name == "nccl_hang" for rank in t.suspects.ranks}
    alike = {rank for t in symptoms if t.name == root.name for rank in t.ranks} - root.ranks
    devices = {t.fields.get("kernelevents.gpu.device") for t in symptoms if t.name == root.name == "gpu_fault"}
    ended = attempt.ended if attempt is not None else {}
    return IncidentContext(
        ranks=frozenset(attempt.ranks | attempt.started if attempt is not None else ()),
        lost=frozenset(attempt.lost if attempt is not None else ()),
        awaited=tuple(sorted(awaited)),
        alike=tuple(sorted(alike)),
        numbers=tuple(sorted(str(device) for device in devices if device)),
        ended={rank: status.how for rank, status in ended.items() if not status.alive},
        alive=frozenset(rank for rank, status in ended.items() if status.alive),
        stacks=attempt.stacks if attempt is not None else {},
        reports=attempt.reports if attempt is not None else {},
        preparation=_preparation(attempt) if attempt is not None else None,
        transport=_transport(root, run),
        damaged=run.damaged,
        probed=run.probed,
        last_lines=lambda rank: run.last_lines(rank, attempt),
    )


def _preparation(attempt: JobAttempt) -> Preparation | None:
    """Return the work before the steps that some rank had not finished, if no step follows it."""
    bar = attempt.preparation
    if bar is None or bar.done or attempt.progress > bar.end:
        return None
    return bar if attempt.last_places.get(bar.source.path, -1) < bar.source.offset else None


def _named_by_ranks(
    root: Footprint, suspects: Suspects, symptoms: Sequence[Footprint], attempt: JobAttempt | None, run: JobRun
) -> tuple[int, ...]:
    """Return the ranks of the machine that failed by its ranks' own words, or by those of the ranks that waited."""
    failed = {rank for t in symptoms if t.name == "worker_crash" for rank in t.suspects.ranks}
    awaited = {rank for t in symptoms if t.name == "nccl_hang" for rank in t.suspects.ranks}
    if root.name in whereabouts.OF_GPU and len(awaited) == 1 and not failed:
        # The others wait for the one whose GPU failed.
        return () if whereabouts.are_elsewhere(awaited, suspects.nodes, attempt, run) else tuple(awaited)
    if root.name in whereabouts.OF_STORAGE:
        there = whereabouts.ranks_among(awaited, suspects.nodes, attempt, run)
        sole = root.name == "storage_failure" and len(awaited) == len(suspects.nodes) == 1
        if (there or sole) and not whereabouts.are_elsewhere(awaited, suspects.nodes, attempt, run):
            return tuple(sorted(awaited))
        waiting = {rank for t in symptoms if t.name == "nccl_hang" for rank in t.fields.get("hanging_ranks") or ()}
        if waiting and not awaited and attempt is not None and root.name == "storage_failure":
            # The hang does not say which rank is missing: those that were heard of and do not wait.
            quiet = attempt.ranks - waiting
            there = whereabouts.ranks_among(quiet, suspects.nodes, attempt, run)
            if there and set(there) == quiet:
                return there
    return whereabouts.ranks_among(failed, suspects.nodes, attempt, run)


def _evicted(root: Footprint, symptoms: Sequence[Footprint]) -> tuple[str, ...]:
    """Return the pods that a machine lost for what failed on it."""
    gone = [t for t in symptoms if t.name in ("pod_evicted", "xid_correlation") and not t.nodes.isdisjoint(root.nodes)]
    machine = root.name in pattern_groups.MACHINE
    return tuple(sorted({pod for t in gone for pod in t.suspects.pods})) if machine else ()


def _suspects(
    root: Footprint, said: Verdict, symptoms: Sequence[Footprint], attempt: JobAttempt | None, run: JobRun
) -> Suspects:
    """Return the suspects of the root, or of a symptom of the same event if it has none; all ranks count as none."""
    suspects = said.suspects()
    ranks = suspects.ranks or (
        whereabouts.ranks_at(root, suspects, attempt, run) if whereabouts.hits_machine(root) else ()
    )
    if not ranks:
        for t in symptoms:
            same = t.name == root.name == "gpu_fault"
            same = same or (t.name == root.name == "storage_failure" and rule_conditions.says_why(root, t))
            same = same or (t.name == "worker_crash" and rule_conditions.same_death(root, t))
            if t.ranks and same:
                ranks = t.suspects.ranks
                break
    ranks = ranks or whereabouts.ranks_of(root, suspects, attempt, run)
    ranks = ranks or _named_by_ranks(root, suspects, symptoms, attempt, run)
    ranks = ranks or whereabouts.ranks_at(root, suspects, attempt, run)
    if root.name == "storage_failure" and suspects.nodes and not root.ranks:
        # A rank of that machine that waits for the others has got over it.
        waiting = {rank for t in symptoms if t.name == "nccl_hang" for rank in t.fields.get("hanging_ranks") or ()}
        ranks = tuple(rank for rank in ranks if rank not in waiting)
    if root.name in whereabouts.OF_STORAGE and attempt is not None:
        # Of a machine's ranks those that began to save and have not ended are the ones that wait for storage.
        ranks = tuple(rank for rank in ranks if rank in attempt.saving) or ranks
    if not ranks and root.name == "nccl_bootstrap":
        size, count = (root.fields.get(name) for name in ("cohort_size", "failed_rank_count"))
        ranks = whereabouts.missing(size, count, attempt, run)
    if not ranks and root.name == "host_lost":
        # Somebody noticed that a process is not there any more, and nothing else says who ran on the machine.
        ranks = next((t.suspects.ranks for t in symptoms if rule_conditions.gone(t)), ())
    if root.name == "planned_stop":
        ranks = ()
    # An exception has one only where its launcher was told of several machines.
    several = any(isinstance(fact, ExceptionRaised) and fact.local_rank is not None for fact in root.evidence)
    deaths = (t for t in symptoms if t.name == "worker_crash" and rule_conditions.same_death(root, t))
    numbers = (touch.get("gen_ai.training.local_rank") for touch in (said.fields(), *(t.fields for t in deaths)))
    local = next((number for number in numbers if number is not None), None) if not several else None
    if not ranks and isinstance(local, int) and len(suspects.nodes) == 1:
        rank = whereabouts.rank_of_local(suspects.nodes[0], local, attempt, run)
        ranks = (rank,) if rank is not None else ()
    sole = attempt is not None and len(attempt.hosts) < 2 and len(run.placement.machines) < 2
    if not ranks and attempt is not None and sole and isinstance(local, int):
        # Where no rank is known and one machine speaks, nothing speaks of a second node; nor where the rank of that
        # very number is the highest: those of a second node are higher.
        ranks = (local,) if max(attempt.ranks, default=local) == local else ()
    # A rank implies those below it, also where they left nothing to read.
    world = set(range(max(attempt.ranks) + 1)) if attempt is not None and attempt.ranks else set()
    alike = [t.suspects for t in symptoms if t.name == root.name == "cuda_oom" and t.ranks]
    together = {*ranks, *(rank for other in alike for rank in other.ranks)}
    if alike and not together >= world:
        ranks = tuple(sorted(together))
        for name in ("nodes", "gpus", "pods"):
            both = {*getattr(suspects, name), *(one for other in alike for one in getattr(other, name))}
            suspects = msgspec.structs.replace(suspects, **{name: tuple(sorted(both))})
    # Where only rank 0 is heard of, a list of ends that has no other says that it is the whole run; its own log does
    # not, nor a launcher that tells which of its processes ended.
    told = {fact.source.path for fact in root.evidence if not isinstance(fact, ExitStatus)}
    ended = attempt is not None and any(status.source.path not in told for status in attempt.ended.values())
    whole = len(world) > 1 or ended
    if ranks and world and whole and set(ranks) >= world and "told" not in root.fields:
        # Of a checkpoint the lowest rank writes and the others wait for it, as nearly every program has it.
        ranks = ranks[:1] if root.name == "checkpointer_hang" and len(world) > 1 else ()
    nodes = suspects.nodes or whereabouts.nodes_of(ranks, attempt, run)
    nodes = nodes or whereabouts.launched_on(root, ranks, attempt, run)
    pods = suspects.pods or whereabouts.pods_of(ranks, attempt, run) or whereabouts.pods_on(root, nodes, attempt, run)
    pods = pods or _evicted(root, symptoms)
    gpus = suspects.gpus or whereabouts.gpus_of(root, ranks, attempt, run)
    return msgspec.structs.replace(suspects, ranks=tuple(ranks), nodes=nodes, pods=pods, gpus=gpus)
