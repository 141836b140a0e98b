"""An offline diagnosis: what a dead run left behind in, incidents out.

    discover → read and stamp → facts → fold → bridges → engine → arbitrate → classify

The same code as the agent's from facts on. The same directory gives the same bytes, in whatever order its files were
written and with any number of jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.actions.incident_failure import failure_of
from tracecore.diagnose import dumps, metrics, others, second_look
from tracecore.diagnose import facts as reading
from tracecore.facts import progress as progress_bridge
from tracecore.facts import silence as silence_bridge
from tracecore.facts.fold import fold
from tracecore.facts.memory import OomKill
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
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from tracecore.facts.fact import Fact
    from tracecore.facts.ordinals import Ordinals
    from tracecore.patterns.contract import Pattern
    from tracecore.signals.stream import Counters


#: Layers whose facts name machines as the cluster does.
_CLUSTER: Final = ("kubernetes", "scheduler")
#: What a program says all the time, and not where something goes wrong.
_COURSE: Final = (Progress, CheckpointPhase)
#: After a pause of so many nanoseconds a line without a time is not believed to be of the time before it.
LONG: Final = 300 * 1_000_000_000
#: Bytes of a log within which complaints and the next time belong together.
_BESIDE: Final = 1 << 16
#: What is assumed of somebody who waited.
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
    """Say what broke.

    Args:
        paths: files, directories, archives.
        jobs: processes to read with.
        progress: told now and then how many bytes of how many have been read.
        config: settings of patterns, by name.
        ordinals: how CUDA's device ordinals may be looked up (docs/metrics.md).
        redact: take secrets out of all that is quoted.

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
    """A bundle with its files recognised and its dumps and metrics read; its logs are not read yet.

    Args:
        bundle: its clock knows the times of dumps and metrics too.
    """

    bundle: Bundle
    dumps: dumps.Dumps
    scrapes: metrics.Scrapes


def survey(paths: Sequence[str | Path], *, jobs: int = 1, redact: bool = True) -> Survey:
    """Recognise every file, and read what is needed before a log line can be dated.

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
    """Return the folded facts of a whole bundle, and what was read; `part` has those of all its logs."""
    bundle, recorded, scraped = found.bundle, found.dumps, found.scrapes
    measured = metrics.facts(scraped, bundle)
    told = metrics.name_gpus(part.facts, scraped, ordinals)
    for path, reason in (*recorded.skipped, *scraped.skipped, *part.skipped):
        bundle.skip(path, reason)
    counters = part.counters
    counters.bytes_read += recorded.bytes_read
    counters.add(scraped.counters)
    bundle.note_shrunk()
    folded = fold((*numbered(_dated(told)), *measured, *recorded.facts))
    return _named(_placed(folded, bundle.placement), bundle), counters


def judge(
    bundle: Bundle, facts: Sequence[Fact], counters: Counters, patterns: Sequence[Pattern[Any]] | None = None
) -> Diagnosis:
    """Say what follows from the facts of a bundle.

    Args:
        bundle: to quote from.
        facts: as `join` gives them.
        counters: what was read.
        patterns: the catalogue by default.
    """
    facts, apart = others.set_apart(facts, _pod_nodes(bundle))
    end = max([bundle.clock.latest, *(fact.end for fact in facts)])
    facts = sorted((*facts, *_bridged(facts, end)), key=_order)
    patterns = catalogue() if patterns is None else patterns
    concluded = _concluded(bundle, facts, end, patterns)
    if _is_open(concluded) and (ends := second_look.good_ends(bundle, facts)):
        facts = sorted((*facts, *ends), key=_order)
        concluded = _concluded(bundle, facts, end, patterns)
    if _is_open(concluded):
        said = [*second_look.last_words(bundle, facts), *second_look.crashes(facts)]
        left = second_look.without_overcome(bundle, facts)
        if second_look.is_worth_it(left, said):
            more = sorted((*left, *said), key=_order)
            again = _concluded(bundle, more, end, second_look.again(patterns, facts))
            if not _is_open(again):
                facts, concluded = more, again
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
    """Return the machines of all listed pods, where those of the logs are among them."""
    nodes = set(bundle.placement.pod_nodes.values())
    read = {stream.resource.get("k8s.node.name") for stream in bundle.streams if stream.layer == "stdout"}
    return nodes if read & nodes else set()


def _cut_archives(bundle: Bundle) -> list[str]:
    """Return a note for each archive that ends too early: what seems to be missing from the run may have been in it."""
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
        until=end + _watched(facts),
        layers=bundle.layers(),
        ranks=_ranks(bundle),
        last_lines=lambda rank, attempt: quoted(bundle, rank, attempt),
        placement=bundle.placement,
    )


def _is_open(concluded: Conclusion) -> bool:
    """Return whether no cause was found, and nothing says that the run ended well or is still alive."""
    if any(incident.root is not None for incident in concluded.finding.incidents):
        return False
    return not any(attempt.state in ("finished", "unended") for attempt in concluded.run.attempts.values())


def _awaited(concluded: Conclusion) -> list[Fact]:
    """Return reports of hangs in which only what the ranks left shows for whom the others wait."""
    if any(incident.root is not None for incident in concluded.finding.incidents):
        return []
    run = concluded.run
    return [fact for attempt in run.attempts.values() if (fact := awaited(attempt, run)) is not None]


def _ranks(bundle: Bundle) -> set[int]:
    """Ranks that files are named after."""
    named = (stream.resource.get("gen_ai.training.rank") for stream in bundle.streams if stream.layer == "stdout")
    return {rank for rank in named if isinstance(rank, int)}


def _dated(facts: Sequence[Fact]) -> list[Fact]:
    """Give statements without a time that of the next line with one, where the line before them is from long ago.

    Where only the launcher's lines have times, the first is from the start of the job, and the next from its end.
    """
    found: list[Fact] = []
    following: dict[str, tuple[int, int]] = {}
    for fact in sorted(facts, key=lambda fact: (fact.source.offset, fact.time), reverse=True):
        offset, time = following.get(fact.source.path, (0, 0))
        if not fact.approximate:
            following[fact.source.path] = fact.source.offset, fact.time
        elif not isinstance(fact, _COURSE) and time - fact.end > LONG and offset - fact.source.offset < _BESIDE:
            fact = msgspec.structs.replace(fact, time=time)
        found.append(fact)
    return found


def _placed(facts: Sequence[Fact], placement: Placement) -> list[Fact]:
    """Give facts the pod or rank of their process, as other files tell: of one that the kernel killed by the uid of its
    pod, of one that a launcher knows by its machine and number, and of an exit status by its rank.
    """
    pods: dict[int, set[str]] = {}
    for fact in facts:
        if fact.pod and fact.rank is not None:
            pods.setdefault(fact.rank, set()).add(fact.pod)
    ranks = {fact.rank for fact in facts if fact.rank is not None}
    placed: list[Fact] = []
    for fact in facts:
        if isinstance(fact, OomKill) and not fact.pod and fact.pod_uid is not None:
            fact = msgspec.structs.replace(fact, pod=placement.uids.get(fact.pod_uid))
        if isinstance(fact, LauncherFailure) and fact.rank is None and fact.pid is not None and fact.node:
            fact = msgspec.structs.replace(fact, rank=placement.rank_of_process(fact.node, fact.pid, ranks))
        known = pods.get(fact.rank, ()) if fact.rank is not None else ()
        if isinstance(fact, ExitStatus) and not fact.pod and not fact.job and len(known) == 1:
            fact = msgspec.structs.replace(fact, pod=next(iter(known)))
        placed.append(fact)
    return placed


def _named(facts: Sequence[Fact], bundle: Bundle) -> list[Fact]:
    """Give a machine the name that its cluster has for it, where others leave its domain out or add it."""
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


def _bridged(facts: Sequence[Fact], end: int) -> list[Fact]:
    """Facts that follow from others and the clock: steps that no longer advance, nodes that fell silent."""
    return [*progress_bridge.stalls(facts, end), *silence_bridge.silences(facts, end)]


def _watched(facts: Sequence[Fact]) -> int:
    """Return how long after the last line somebody still looked.

    Whoever writes down that processes have not ended has waited for them in vain, for longer than any log tells: a
    hang has no last line. Without such a word nothing is assumed.
    """
    return PATIENCE if any(isinstance(fact, ExitStatus) and fact.alive for fact in facts) else 0


def _order(fact: Fact) -> tuple[int, str, str]:
    return fact.time, fact.uid, type(fact).__name__
