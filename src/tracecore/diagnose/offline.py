"""Diagnose a run offline, from the files that it left behind.

    discover → read and stamp → facts → fold → bridges → engine → arbitrate → classify

From facts on this is the agent's code. The same directory always gives the same bytes, for any order in which its
files were written and for any number of jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.actions.incident_failure import failure_of
from tracecore.diagnose import drift, dumps, metrics, others, second_look
from tracecore.diagnose import facts as reading
from tracecore.facts import progress as progress_bridge
from tracecore.facts import silence as silence_bridge
from tracecore.facts.fold import fold
from tracecore.facts.memory import MemoryKillReport, OomKill
from tracecore.facts.process import ExitStatus, LauncherFailure
from tracecore.facts.restarts import numbered
from tracecore.facts.training import CheckpointPhase, Progress
from tracecore.incidents import node_trouble
from tracecore.incidents.conclusion import Conclusion, conclude
from tracecore.incidents.coverage import PART
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.incidents.excerpt import quoted
from tracecore.incidents.insufficient import awaited
from tracecore.patterns import catalogue
from tracecore.signals.bundle.discovery import Bundle, discover
from tracecore.signals.bundle.placement import Placement, short
from tracecore.signals.stamps import is_plausible
from tracecore.signals.stream import Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from tracecore.facts.fact import Fact
    from tracecore.facts.ordinals import Ordinals
    from tracecore.patterns.contract import Pattern
    from tracecore.signals.stream import Counters


#: Layers that only a job itself writes.
_OWN: Final = ("stdout", "flight_recorder")
#: Layers with the cluster's names of machines.
_CLUSTER: Final = ("kubernetes", "scheduler")
#: The namespace of a pod if no line names another.
_ASSUMED: Final = "default/"
#: Facts of a normal run. A program writes them all the time.
_ROUTINE: Final = (Progress, CheckpointPhase)
#: After a pause of this many nanoseconds, a line without a time does not get the time of the line before it.
LONG: Final = 300 * 1_000_000_000
#: Bytes of a log within which a line without a time may get the time of a later line.
_NEARBY: Final = 1 << 16
#: The assumed time that somebody watched a hang before writing down that processes are still alive.
PATIENCE: Final = 600 * 1_000_000_000


def diagnose(
    paths: Sequence[str | Path],
    *,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    config: Mapping[str, Mapping[str, Any]] | None = None,
    ordinals: Ordinals = "never",
    redact: bool = True,
) -> Diagnosis:
    """Diagnose a run.

    Args:
        paths: files, directories, archives.
        jobs: processes to read with.
        progress: called from time to time with the bytes read so far and the total.
        config: settings of patterns, by name.
        ordinals: how to look up CUDA's device ordinals (docs/metrics.md).
        redact: remove secrets from quoted text.

    Raises:
        FileNotFoundError: a given path does not exist.
        patterns.ConfigError: a setting is wrong.
    """
    patterns = catalogue(config)
    found = survey(paths, jobs=jobs, redact=redact)
    total = sum(stream.size or 0 for stream in found.bundle.streams)
    tick = None if progress is None else lambda done: progress(done, total)
    part = reading.gather(found.bundle, jobs=jobs, tick=tick)
    facts, counters = join(found, part, ordinals=ordinals)
    return judge(found.bundle, facts, counters, patterns)


class Survey(msgspec.Struct):
    """A bundle before its logs are read. Its files are recognised, and its dumps and metrics are read.

    Args:
        bundle: its clock takes the times of dumps and metrics into account.
    """

    bundle: Bundle
    dumps: dumps.Dumps
    scrapes: metrics.Scrapes


def survey(paths: Sequence[str | Path], *, jobs: int = 1, redact: bool = True) -> Survey:
    """Recognise every file, and read dumps and metrics. Their times are needed to date log lines.

    Raises:
        FileNotFoundError: a given path does not exist.
    """
    bundle = discover(paths, redact=redact)
    recorded = dumps.gather(bundle, jobs)
    scraped = metrics.gather(bundle)
    known = max(recorded.end, scraped.end)
    if is_plausible(known) and (known > bundle.clock.latest or not bundle.clock.exact):
        bundle.clock = Clock(known, True)
    return Survey(bundle, recorded, scraped)


def join(found: Survey, part: reading.StreamFacts, *, ordinals: Ordinals = "never") -> tuple[list[Fact], Counters]:
    """Return the folded facts of a whole bundle, and counters. `part` has the facts of its logs."""
    bundle, recorded, scraped = found.bundle, found.dumps, found.scrapes
    measured = metrics.facts(scraped, bundle)
    from_logs = metrics.name_gpus(part.facts, scraped, ordinals)
    for path, reason in (*recorded.skipped, *scraped.skipped, *part.skipped):
        bundle.skip(path, reason)
    counters = part.counters
    counters.bytes_read += recorded.bytes_read
    counters.add(scraped.counters)
    bundle.note_shrunk()
    folded = fold((*numbered(_with_times(from_logs)), *measured, *recorded.facts))
    placed = _with_places(_without_task_ranks(folded, bundle.placement), bundle.placement)
    return _with_cluster_names(_with_job(_with_listed_jobs(placed)), bundle), counters


def judge(
    bundle: Bundle, facts: Sequence[Fact], counters: Counters, patterns: Sequence[Pattern[Any]] | None = None
) -> Diagnosis:
    """Diagnose a bundle from its facts.

    Args:
        bundle: to quote from.
        facts: from `join`.
        counters: what was read.
        patterns: the catalogue by default.
    """
    facts, apart = others.set_apart(facts, _pod_nodes(bundle))
    end = max([bundle.clock.latest, *(fact.end for fact in facts)])
    facts = sorted((*facts, *progress_bridge.stalls(facts, end), *silence_bridge.silences(facts, end)), key=_order)
    facts = sorted((*facts, *apart_in_steps), key=_order) if (apart_in_steps := drift.drifted(facts)) else facts
    patterns = catalogue() if patterns is None else patterns
    concluded = _concluded(bundle, facts, end, patterns)
    if _is_open(concluded) and (ends := second_look.good_ends(bundle, facts)):
        facts = sorted((*facts, *ends), key=_order)
        concluded = _concluded(bundle, facts, end, patterns)
    if _is_open(concluded):
        endings = [*second_look.last_words(bundle, facts), *second_look.crashes(facts)]
        remaining = second_look.without_overcome(bundle, facts)
        if second_look.may_find_more(remaining, endings):
            more = sorted((*remaining, *endings), key=_order)
            second = _concluded(bundle, more, end, second_look.relaxed(patterns, facts))
            if not _is_open(second):
                facts, concluded = more, second
    if waits := _awaited(concluded):
        facts = sorted((*facts, *waits), key=_order)
        concluded = _concluded(bundle, facts, end, patterns)
    verdicts, run, finding, engine = concluded.verdicts, concluded.run, concluded.finding, concluded.engine
    for incident in finding.incidents:
        attempt = run.attempts.get((incident.job, incident.attempt))
        last = not any(job == incident.job and number > incident.attempt for job, number in run.attempts)
        incident.failure = failure_of(incident, attempt, bundle, last=last)
    kernel = {stream.path for stream in bundle.streams if stream.layer == "kernel"}
    troubles = node_trouble.uncited(facts, verdicts, kernel)
    for incident in finding.incidents:
        node_trouble.attach(incident, troubles)
    troubles = node_trouble.untold(troubles, finding.incidents)
    coverage = bundle.coverage(counters)
    coverage["limits_reached"] |= engine.stats.limits_reached()
    notes = [
        *finding.notes,
        *apart,
        *node_trouble.notes(troubles, run),
        *_cut_archives(bundle),
        *(f"The pattern {name} failed on this input" for name in sorted(engine.stats.errors)),
    ]
    return Diagnosis(
        incidents=finding.incidents,
        verdicts=verdicts,
        coverage=coverage,
        notes=notes,
        run=run,
        facts=facts,
        bundle=bundle,
    )


def _pod_nodes(bundle: Bundle) -> set[str]:
    """Return the nodes of all listed pods; empty if the nodes of the logs are not among them."""
    nodes = set(bundle.placement.pod_nodes.values())
    read = {stream.resource.get("k8s.node.name") for stream in bundle.streams if stream.layer == "stdout"}
    return nodes if read & nodes else set()


def _cut_archives(bundle: Bundle) -> list[str]:
    """Return a note for each archive that ends too early: what seems to be missing may be in the rest of it."""
    archives = {stream.path.partition("!/")[0] for stream in bundle.streams if "!/" in stream.path}
    return [
        f"{skipped.path} was read in part ({skipped.reason.removeprefix(PART)}): ranks and logs that are missing here "
        "may be in the rest of it"
        for skipped in bundle.skipped
        if skipped.path in archives and skipped.reason.startswith(PART)
    ]


def _concluded(bundle: Bundle, facts: Sequence[Fact], end: int, patterns: Sequence[Pattern[Any]]) -> Conclusion:
    return conclude(
        patterns,
        facts,
        end=end,
        until=end + _watched_time(facts),
        layers=bundle.layers(),
        ranks=_ranks(bundle),
        last_lines=lambda rank, attempt: quoted(bundle, rank, attempt),
        placement=bundle.placement,
    )


def _is_open(concluded: Conclusion) -> bool:
    """Whether no cause was found, and nothing shows that the run ended well or is still alive."""
    if any(incident.root is not None for incident in concluded.finding.incidents):
        return False
    return not any(attempt.state in ("finished", "unended") for attempt in concluded.run.attempts.values())


def _awaited(concluded: Conclusion) -> list[Fact]:
    """Return facts about hangs in which only the files of the ranks show which rank the others wait for."""
    if any(incident.root is not None for incident in concluded.finding.incidents):
        return []
    run = concluded.run
    return [fact for attempt in run.attempts.values() if (fact := awaited(attempt, run)) is not None]


def _ranks(bundle: Bundle) -> set[int]:
    """Return the ranks in the names of files."""
    named = (stream.resource.get("gen_ai.training.rank") for stream in bundle.streams if stream.layer == "stdout")
    return {rank for rank in named if isinstance(rank, int)}


def _with_times(facts: Sequence[Fact]) -> list[Fact]:
    """Give facts without a time the time of the next line that has one, if the previous time is long ago.

    If only the launcher writes times, the previous time is the start of the job, and the next is its end.
    """
    found: list[Fact] = []
    following: dict[str, tuple[int, int]] = {}
    for fact in sorted(facts, key=lambda fact: (fact.source.offset, fact.time), reverse=True):
        offset, time = following.get(fact.source.path, (0, 0))
        if not fact.approximate:
            following[fact.source.path] = fact.source.offset, fact.time
        elif not isinstance(fact, _ROUTINE) and time - fact.end > LONG and offset - fact.source.offset < _NEARBY:
            fact = msgspec.structs.replace(fact, time=time, last_time=None if fact.last_time is None else time)
        found.append(fact)
    return found


def _with_places(facts: Sequence[Fact], placement: Placement) -> list[Fact]:
    """Add pods and ranks that other files tell, and the namespace of pods.

    A kill by the kernel gets its pod from the pod's uid, a launcher's failure its rank from node and process id, and an
    exit status its pod from the rank.
    """
    pods: dict[int, set[str]] = {}
    for fact in facts:
        if fact.pod and fact.rank is not None:
            pods.setdefault(fact.rank, set()).add(fact.pod)
    ranks = {fact.rank for fact in facts if fact.rank is not None}
    listed: dict[str, set[str]] = {}
    told = {fact.pod for fact in facts if fact.pod and "/" in fact.pod and not fact.pod.startswith(_ASSUMED)}
    for pod in (*placement.uids.values(), *told):
        if "/" in pod and not pod.startswith(_ASSUMED):
            listed.setdefault(pod.rpartition("/")[2], set()).add(pod)
    # A list of pods without their namespaces is of one namespace.
    spaces = {full.partition("/")[0] for pod in placement.pod_nodes for full in listed.get(pod, ())}
    if len(spaces) == 1:
        (space,) = spaces
        for pod in placement.pod_nodes:
            listed.setdefault(pod, {f"{space}/{pod}"})
    families = _families(told)
    placed: list[Fact] = []
    for fact in facts:
        if fact.pod and fact.pod.startswith(_ASSUMED):
            # `kubectl logs --prefix` leaves the namespace out; the list of pods has it, or an event of one of its job.
            name = fact.pod.removeprefix(_ASSUMED)
            full = listed.get(name) or {f"{space}/{name}" for space in families.get(name.partition("-")[0], ())}
            fact = msgspec.structs.replace(fact, pod=next(iter(full))) if len(full) == 1 else fact
        if isinstance(fact, OomKill) and not fact.pod and fact.pod_uid is not None:
            fact = msgspec.structs.replace(fact, pod=placement.uids.get(fact.pod_uid))
        if isinstance(fact, LauncherFailure) and fact.rank is None and fact.pid is not None and fact.node:
            fact = msgspec.structs.replace(fact, rank=placement.rank_of_process(fact.node, fact.pid, ranks))
        known = pods.get(fact.rank, ()) if fact.rank is not None else ()
        if isinstance(fact, ExitStatus) and not fact.pod and not fact.job and len(known) == 1:
            fact = msgspec.structs.replace(fact, pod=next(iter(known)))
        placed.append(fact)
    return placed


def _families(pods: Collection[str]) -> dict[str, set[str]]:
    """Return the namespace of pods by how their names begin, if all pods that name one are in the same."""
    spaces = {pod.partition("/")[0] for pod in pods}
    return {pod.rpartition("/")[2].partition("-")[0]: spaces for pod in pods} if len(spaces) == 1 else {}


def _with_listed_jobs(facts: Sequence[Fact]) -> list[Fact]:
    """Give facts of `slurm-70214_3.out` the job 70214 if Slurm lists that job and no task of an array of it."""
    listed = {fact.job for fact in facts if fact.job and fact.layer == "scheduler"}
    arrays = {job.partition("_")[0] for job in listed if "_" in job}
    alone = listed - arrays
    found: list[Fact] = []
    for fact in facts:
        job, _, task = (fact.job or "").partition("_")
        of_task = fact.layer in _OWN and task.isdigit() and job in alone
        found.append(msgspec.structs.replace(fact, job=job) if of_task else fact)
    return found


def _with_job(facts: Sequence[Fact]) -> list[Fact]:
    """Give facts from the ranks' own files the job that only the launcher's log names, if no other job has output.

    Pods and machines may be of other jobs.
    """
    jobs = {fact.job for fact in facts if fact.job and fact.layer == "stdout"}
    if len(jobs) != 1:
        return list(facts)
    (job,) = jobs
    return [
        msgspec.structs.replace(fact, job=job) if fact.job is None and not fact.pod and fact.layer in _OWN else fact
        for fact in facts
    ]


def _without_task_ranks(facts: Sequence[Fact], placement: Placement) -> list[Fact]:
    """Remove the ranks of srun's tasks in a file where a task runs on another machine than the rank of its number.

    The tasks are launchers then, each with ranks of its own.
    """
    of_tasks = [fact for fact in facts if isinstance(fact, LauncherFailure) and fact.launcher == "slurm" and fact.node]
    nodes = {fact: placement.nodes.get(fact.rank) for fact in of_tasks if fact.rank is not None}
    files = {fact.source.path for fact, node in nodes.items() if node and short(node) != short(fact.node or "")}
    lines = {(fact.source.path, fact.source.offset) for fact in of_tasks if fact.source.path in files}
    if not lines:
        return list(facts)
    found: list[Fact] = []
    for fact in facts:
        if (fact.source.path, fact.source.offset) in lines:
            fact = msgspec.structs.replace(fact, rank=None)
            if isinstance(fact, MemoryKillReport):
                fact = msgspec.structs.replace(fact, ranks=())
        found.append(fact)
    return found


def _with_cluster_names(facts: Sequence[Fact], bundle: Bundle) -> list[Fact]:
    """Give each machine the name that the cluster uses, with or without its domain."""
    names: dict[str, set[str]] = {}
    for name in (*(f.node for f in facts if f.layer in _CLUSTER), *bundle.placement.pod_nodes.values()):
        if name and not name[:1].isdigit():
            names.setdefault(short(name), set()).add(name)
    chosen = {host: known.pop() for host, known in names.items() if len(known) == 1}
    if not chosen:
        return list(facts)
    # Two machines of two domains may share a short name.
    full: dict[str, set[str]] = {}
    for name in (*(fact.node for fact in facts), *chosen.values()):
        if name and short(name) != name:
            full.setdefault(short(name), set()).add(name)
    chosen = {host: name for host, name in chosen.items() if len(full.get(host, ())) < 2}
    found = []
    for fact in facts:
        name = chosen.get(short(fact.node)) if fact.node else None
        found.append(fact if name in (None, fact.node) else msgspec.structs.replace(fact, node=name))
    return found


def _watched_time(facts: Sequence[Fact]) -> int:
    """Return for how long somebody watched the run after its last line.

    A hang writes no last line. If a file says that processes are still alive, somebody has waited for them.
    """
    return PATIENCE if any(isinstance(fact, ExitStatus) and fact.alive for fact in facts) else 0


def _order(fact: Fact) -> tuple[int, str, str]:
    return fact.time, fact.uid, type(fact).__name__
