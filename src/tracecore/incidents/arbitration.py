"""From verdicts to incidents: cause before symptom, earliest first, shared entity.

Every verdict of one job and attempt is put beside every other, and the table of `precedence` says which explains
which. What nothing explains is a root. The first root of an episode is its incident; the others are alternatives that
lost, or incidents of their own where they are conditions by themselves or the run went on in between.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from tracecore.facts import collective
from tracecore.facts.host import SlurmState
from tracecore.facts.training import StepStalled
from tracecore.facts.wording import seconds
from tracecore.incidents import precedence, rule_conditions, set_aside, whereabouts
from tracecore.incidents.building import incident_of
from tracecore.incidents.footprint import Footprint, footprint_of
from tracecore.incidents.incident import Alternative, Edge, Incident
from tracecore.incidents.insufficient import reported, unexplained
from tracecore.incidents.pattern_groups import CONDITIONS, ORDER
from tracecore.incidents.run import JobAttempt
from tracecore.patterns.contract import Suspects
from tracecore.signals.bundle.placement import short

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.incidents.run import JobRun

SECOND: Final = 1_000_000_000
#: A root so long after another, with steps made in between, is another episode.
EPISODE: Final = rule_conditions.EPISODE

#: Beside a cause of slowness, a stall counts from so many seconds on.
STALLED_S: Final = 300
#: Ignore verdicts that ended this long before the run began. Two clocks that print no time zone differ by less.
HISTORY: Final = 24 * 3600 * SECOND

#: Verdicts of one attempt that are weighed against each other, the earliest causes first.
WEIGHED: Final = 1_000

_SLOWS: Final = "it slows a run down but does not end a process"
_ROLES: Final = {"cause": 0, "symptom": 1, "outcome": 2}


class Finding(msgspec.Struct):
    """All incidents, the one that ended the run first, and what is worth saying beside them."""

    incidents: list[Incident]
    notes: list[str]


def arbitrate(emissions: Sequence[Emission], run: JobRun, layers: Mapping[str, int]) -> Finding:
    """Decide what happened.

    Args:
        emissions: the verdicts that stand.
        run: how the run went.
        layers: files of each layer that were read.
    """
    finding = Finding([], [])
    touches = []
    for t in _belonging(emissions, run):
        if _is_history(t, run):
            finding.notes.append(f"Long before the run: {t.verdict.headline()}")
        else:
            touches.append(t)
    keys = sorted({(t.job, t.attempt) for t in touches} | set(run.attempts))
    for job, group in groupby(keys, key=lambda key: key[0]):
        numbers = [number for _, number in group]
        found: list[Incident] = []
        for number in numbers:
            mine = [t for t in touches if (t.job, t.attempt) == (job, number)]
            attempt = run.attempts.get((job, number))
            over = number < numbers[-1]
            found = [*_attempt(mine, attempt, over, layers, run, finding.notes), *found]
        last = run.last(job)
        if last is not None and last.state == "finished" and len(numbers) > 1:
            kept = [incident for incident in found if incident.attempt == numbers[-1]]
            for incident in reversed([i for i in found if i not in kept]):
                finding.notes.append(
                    f"Attempt {incident.attempt + 1} failed and a later one finished: {incident.headline}"
                )
            found = kept
        finding.incidents += _worst_first(found, run)
    finding.incidents = [one for one in finding.incidents if not _is_said_of_a_job(one, finding.incidents, run)]
    if not finding.incidents and (left := reported(run, layers)) is not None:
        finding.incidents.append(left)
    return finding


def _is_said_of_a_job(incident: Incident, incidents: Sequence[Incident], run: JobRun) -> bool:
    """Return whether an incident without a job only repeats that a machine was lost, which another says of its job."""
    attempt = run.attempts.get((incident.job, incident.attempt))
    if incident.root is not None or incident.job or attempt is None or attempt.progress:
        return False
    losses = [one for one in incidents if one.root is not None and one.root.verdict.pattern_name == "host_lost"]
    lost = {short(node) for one in losses for node in one.suspects.nodes}
    nodes = [short(fact.node or "") if isinstance(fact, SlurmState) else "" for fact in attempt.bad]
    return bool(nodes) and lost.issuperset(nodes)


def _is_history(t: Footprint, run: JobRun) -> bool:
    """Whether it was over long before anything of its job began: a kernel's log goes back weeks.

    Times since boot are inferred as late as they can be, so that what seems old by them is.
    """
    begun = [attempt.first for attempt in run.of(t.job) if attempt.timed]
    known = t.timed or all(fact.layer == "kernel" for fact in t.evidence)
    return known and bool(begun) and t.last < min(begun) - HISTORY


def _worst_first(incidents: list[Incident], run: JobRun) -> list[Incident]:
    """Return what ended the run first. A restart without a step only shows what ended the attempt before it."""

    def key(incident: Incident) -> tuple[int, int]:
        root = incident.root
        if root is not None and root.verdict.pattern_name in CONDITIONS:
            return 3, -incident.attempt
        attempt = run.attempts.get((incident.job, incident.attempt))
        started = attempt is not None and attempt.progress > 0
        if root is None or (root.verdict.role == "symptom" and not started):
            return 1 if root is not None or started else 2, -incident.attempt
        return 0, -incident.attempt

    return sorted(incidents, key=key)


def _belonging(emissions: Sequence[Emission], run: JobRun) -> list[Footprint]:
    """Each verdict with the job and attempt it is about."""
    jobs = run.jobs()
    touches = []
    for emission in emissions:
        evidence = emission.verdict.evidence()
        named = sorted({fact.job for fact in evidence if fact.job})
        job = named[0] if named else jobs[0] if len(jobs) == 1 else ""
        if not named and len(jobs) > 1:
            job = _job_by_entity(emission, run) or (jobs[0] if "" not in jobs else "")
        said = [fact.attempt for fact in evidence if fact.layer == "stdout"]
        # Neither a kernel nor a dump knows which start of the job it saw.
        attempt = max(said) if said else _attempt_at(run.of(job), emission.verdict.time)
        touches.append(footprint_of(emission, job, attempt, evidence))
    touches.sort(key=lambda t: (t.first, t.id))
    return touches


def _job_by_entity(emission: Emission, run: JobRun) -> str | None:
    """The job whose ranks a verdict without a job names, where only one has them."""
    ranks = set(emission.verdict.suspects().ranks)
    mine = [job for job in run.jobs() if ranks and any(ranks <= attempt.ranks for attempt in run.of(job))]
    return mine[0] if len(mine) == 1 else None


def _attempt_at(attempts: Sequence[JobAttempt], time: int) -> int:
    """The attempt that was running at this time."""
    number = attempts[0].number if attempts else 0
    for attempt in attempts:
        if attempt.timed and attempt.first <= time:
            number = attempt.number
    return number


def _attempt(
    touches: list[Footprint],
    attempt: JobAttempt | None,
    over: bool,
    layers: Mapping[str, int],
    run: JobRun,
    notes: list[str],
) -> list[Incident]:
    """The incidents of one attempt, what ended it first."""
    state = attempt.state if attempt is not None else "unknown"
    elsewhere = [t for t in touches if attempt is not None and set_aside.is_elsewhere(t, attempt)]
    touches = _without(touches, elsewhere)
    notes += [f"On a machine that the job did not use: {t.verdict.headline()}" for t in elsewhere]
    others = [t for t in touches if attempt is not None and set_aside.is_another_pods(t, touches, attempt)]
    touches = _without(touches, others)
    notes += [f"About a pod that may not belong to the job: {t.verdict.headline()}" for t in others]
    taken = [t for t in touches if attempt is not None and set_aside.is_anothers_stop(t, attempt)]
    touches = _without(touches, taken)
    notes += [f"Nothing links it to the job: {t.evidence[0].describe()}" for t in taken]
    probed = [(t, kill) for t in touches if (kill := set_aside.killed_by_probe(t, run)) is not None]
    if probed:
        touches = _without(touches, [t for t, _ in probed])
        first, kill = probed[0]
        fresh = JobAttempt(job=first.job, number=first.attempt)
        attempt = attempt or run.attempts.setdefault((first.job, first.attempt), fresh)
        attempt.bad.insert(0, kill)
    listed = [t for t in touches if attempt is not None and set_aside.is_only_listed(t, touches, attempt)]
    touches = _without(touches, listed)
    notes += [f"In a list of nodes, and nothing links it to the job: {t.verdict.headline()}" for t in listed]
    conditions = [t for t in touches if set_aside.is_only_a_condition(t, touches, attempt)]
    target = "job" if len(conditions) == len(touches) else "failure"
    touches = _without(touches, conditions)
    notes += [f"A condition of a GPU, and nothing links it to the {target}: {t.verdict.headline()}" for t in conditions]
    if not over:
        ended = state == "finished"
        survived = [
            t
            for t in touches
            if not set_aside.stands(t, attempt)
            and (
                ended
                or set_aside.is_anothers(t, attempt)
                or set_aside.recovered(t, attempt)
                or set_aside.caught(t, attempt, run)
                or set_aside.was_slow(t, attempt)
            )
        ]
        touches = _without(touches, survived)
        unrelated = [
            t for t in touches if t.name == "host_oom" and set_aside.is_unrelated_kill(t, touches, attempt, run)
        ]
        touches = _without(touches, unrelated)
        notes += [f"Also, and nothing links it to a rank: {t.verdict.headline()}" for t in unrelated]
        how = "the run finished" if ended else "the run went on"
        notes += [f"Not fatal, {how}: {t.verdict.headline()}" for t in survived]
    if len(touches) > WEIGHED:
        notes.append(f"{len(touches) - WEIGHED} of {len(touches)} verdicts came too late to be weighed with the others")
        touches = _ordered(touches)[:WEIGHED]
    edges = _edges(touches)
    explained = {edge.effect for edge in edges}
    roots = [t for t in touches if t.id not in explained]
    _adopt(roots, edges)
    slowed = _blame_slowness(roots, edges)
    explained = {edge.effect for edge in edges}
    roots = _own_first(_ordered([t for t in roots if t.id not in explained]), attempt, run)
    incidents: list[Incident] = []
    primary: Footprint | None = None
    episode = 0
    for root in roots:
        if root.name in CONDITIONS:
            if not _slow_together(root, incidents):
                incidents.append(incident_of(root, touches, edges, attempt, layers, run))
        elif primary is None or _another_episode(primary, root, attempt):
            incidents.append(incident_of(root, touches, edges, attempt, layers, run))
            incidents[-1].slot = str(episode)
            primary, episode = root, episode + 1
        elif rule_conditions.long_before(root, primary) and _went_on_between(root, primary, attempt):
            incidents.insert(0, incident_of(root, touches, edges, attempt, layers, run))
            incidents[0].slot, episode = str(episode), episode + 1
        elif not _hung_together(root, primary, touches, edges, incidents):
            incidents[-1 if incidents[-1].root is primary.emission else _index(incidents, primary)].alternatives.append(
                Alternative(root.id, root.name, _why_not(root, primary))
            )
    # What ended the attempt comes first: the last episode of it, then earlier ones, then conditions.
    incidents.reverse()
    incidents.sort(key=lambda i: i.root is not None and i.root.verdict.pattern_name in CONDITIONS)
    # A program that checks its own results ends because of a wrong one.
    crashes = {t.id for t in touches if t.name == "worker_crash"}
    fatal_too = {slowed, *(edge.cause for edge in edges if edge.effect in crashes)}
    fatal = [
        i for i in incidents if i.root and (i.root.verdict.pattern_name not in CONDITIONS or i.root.id in fatal_too)
    ]
    if attempt is not None and not fatal:
        left = unexplained(attempt, run, layers, last=not over)
        if left is not None and incidents and _is_only_slow(attempt):
            # What is slow and goes on is all that is known: that it had not ended yet is no failure beside it.
            notes.append(left.headline)
        elif left is not None:
            left.alternatives += [
                Alternative(i.root.id, i.root.verdict.pattern_name, _SLOWS) for i in incidents if i.root
            ]
            incidents.insert(0, left)
    return incidents


def _is_only_slow(attempt: JobAttempt) -> bool:
    """Whether nothing says that an attempt failed or stands still: a log may end before others of its bundle do."""
    if attempt.state == "unended":
        return not attempt.stalls and not attempt.saving
    return attempt.state == "unknown" and all(
        isinstance(stall, StepStalled) and stall.no_progress_s < STALLED_S for stall in attempt.stalls
    )


def _slow_together(root: Footprint, incidents: Sequence[Incident]) -> bool:
    """Add a slow rank to the incident of one that is slow at the same time; False where there is none."""
    for incident in incidents:
        if root.name != "straggler" or incident.root is None or incident.root.verdict.pattern_name != root.name:
            continue
        ranks = set(incident.suspects.ranks)
        if (
            not ranks
            or not root.ranks
            or ranks & root.ranks
            or root.first > incident.last
            or root.last < incident.first
        ):
            continue
        does = "does" if len(root.ranks) == 1 else "do"
        incident.headline += f"; {collective.named(sorted(root.ranks))} {does} so, too"
        incident.suspects = _both(incident.suspects, root)
        incident.first, incident.last = min(incident.first, root.first), max(incident.last, root.last)
        incident.alternatives.append(Alternative(root.id, root.name, "it is part of the same incident"))
        return True
    return False


def _hung_together(
    root: Footprint, primary: Footprint, touches: Sequence[Footprint], edges: Sequence[Edge], incidents: list[Incident]
) -> bool:
    """Add a hang to the incident of another where a third one waits for the ranks of both, or none is part of both."""
    if root.name != "nccl_hang" or primary.name != root.name or not root.ranks or root.ranks & primary.ranks:
        return False
    held_up = {edge.effect for edge in edges if edge.cause == primary.id}
    both = root.ranks | primary.ranks
    waits_for_both = any(t.id in held_up and both <= set(t.fields.get("culprit_ranks") or ()) for t in touches)
    if not waits_for_both and not _hangs_apart(root, primary):
        return False
    incident = next(incident for incident in incidents if incident.root is primary.emission)
    who = collective.named(sorted(root.ranks))
    group = root.fields.get("pg_desc") or f"group {root.fields.get('nccl.fr.pg_id')}"
    incident.headline += f"; {who} of {group} {'is' if len(root.ranks) == 1 else 'are'} waited for, too"
    incident.advice += f" Look at {who} in the same way."
    incident.suspects = _both(incident.suspects, root)
    incident.first, incident.last = min(incident.first, root.first), max(incident.last, root.last)
    incident.alternatives.append(Alternative(root.id, root.name, "it is part of the same incident"))
    return True


def _hangs_apart(one: Footprint, other: Footprint) -> bool:
    """Return whether two hangs are of different ranks, all of which were seen, so that neither explains the other."""
    if any(t.fields.get("not_measured_ranks") or "origin" in t.fields for t in (one, other)):
        return False
    mine, its = ({*t.fields.get("hanging_ranks", ()), *t.ranks} for t in (one, other))
    return len(mine) > len(one.ranks) and len(its) > len(other.ranks) and mine.isdisjoint(its)


def _both(suspects: Suspects, other: Footprint) -> Suspects:
    return Suspects(
        ranks=tuple(sorted({*suspects.ranks, *other.ranks})),
        nodes=tuple(sorted({*suspects.nodes, *other.suspects.nodes})),
        gpus=tuple(sorted({*suspects.gpus, *other.suspects.gpus})),
        pods=tuple(sorted({*suspects.pods, *other.suspects.pods})),
    )


def _without(touches: Sequence[Footprint], gone: Sequence[Footprint]) -> list[Footprint]:
    ids = {t.id for t in gone}
    return [t for t in touches if t.id not in ids]


def _index(incidents: list[Incident], primary: Footprint) -> int:
    return next(n for n, incident in enumerate(incidents) if incident.root is primary.emission)


def _edges(touches: Sequence[Footprint]) -> list[Edge]:
    """Return which verdict explains which. Where two explain each other, the first in order does."""
    place = {t.id: number for number, t in enumerate(_ordered(touches))}
    edges: dict[tuple[str, str], Edge] = {}
    table = precedence.rules_by_names()
    by_name: dict[str, list[Footprint]] = {}
    for t in touches:
        by_name.setdefault(t.name, []).append(t)
    for (one, other), rules in table.items():
        for cause in by_name.get(one, ()):
            for effect in by_name.get(other, ()):
                if cause is not effect and (why := precedence.explanation(cause, effect, rules)) is not None:
                    edges[cause.id, effect.id] = Edge(cause.id, effect.id, why)
    for one, other in [key for key in edges if key[::-1] in edges]:
        if (one, other) in edges and (other, one) in edges:
            del edges[(one, other) if place[one] > place[other] else (other, one)]
    _break_circles(edges, place)
    return [edges[key] for key in sorted(edges, key=lambda key: (place[key[0]], place[key[1]]))]


def _break_circles(edges: dict[tuple[str, str], Edge], place: dict[str, int]) -> None:
    """Everybody explained by somebody else in a circle would leave no root: the first of a circle is one."""
    effects: dict[str, dict[str, None]] = {}
    for cause, effect in edges:
        effects.setdefault(cause, {})[effect] = None
    for name in sorted(effects, key=lambda n: place[n]):
        seen: set[str] = set()
        stack = [name]
        while stack:
            at = stack.pop()
            if name in effects.get(at, ()):
                del effects[at][name], edges[at, name]
            following = [effect for effect in effects.get(at, ()) if effect not in seen]
            seen.update(following)
            stack += following


def _adopt(roots: list[Footprint], edges: list[Edge]) -> None:
    """A symptom or outcome that no rule explains belongs to the earliest cause, where there is one before it."""
    causes = [t for t in _ordered(roots) if t.verdict.role == "cause" and t.name not in CONDITIONS]
    if not causes:
        return
    known = frozenset(name for rule in precedence.RULES for name in (*rule.causes, *rule.effects))
    for t in roots:
        if t.verdict.role == "cause" or t.name in CONDITIONS or t.name in known:
            continue
        cause = causes[0]
        if not (cause.timed and t.timed) or cause.first <= t.first + rule_conditions.SLACK:
            edges.append(Edge(cause.id, t.id, "it came after the cause, in the same job"))


#: What was over so much earlier than the end of a run is not why it ended. Logs and metrics may differ in their zone.
OVER: Final = 3 * 3600 * 1_000_000_000


def _blame_slowness(roots: Sequence[Footprint], edges: list[Edge]) -> str | None:
    """Take what made a run slow for why it ended, where nothing else says why; the verdict that does.

    Programs watch their own speed, and end with a bare exit status, or an exception that only says that they are slow.
    People end a run at the keyboard that a rank holds up, and cancel a job with a rank that heat makes late.
    """
    ends = [t for t in roots if t.name not in CONDITIONS]
    late = {edge.cause for edge in edges}
    for slow in _ordered([t for t in roots if t.name in ("thermal_throttle", "straggler")]):
        if ends and all(_follows(slow, t, felt=slow.id in late) for t in ends):
            edges += [Edge(slow.id, t.id, "the run had become slow, and it ended without another reason") for t in ends]
            return slow.id
    return None


def _follows(slow: Footprint, end: Footprint, *, felt: bool) -> bool:
    """Whether a run may have ended because of what made it slow.

    Args:
        felt: ranks were measured to be late because of it.
    """
    if slow.timed and end.timed and not slow.first - rule_conditions.SLACK <= end.last <= slow.last + OVER:
        return False
    hot = slow.name == "thermal_throttle"
    if end.name == "planned_stop":
        return end.fields.get("reason") == "interrupt" or (hot and felt and _cancelled_during(slow, end))
    return end.name == "worker_crash" and rule_conditions.gave_up_on_speed(end, by_itself=not hot)


def _cancelled_during(slow: Footprint, end: Footprint) -> bool:
    """Whether somebody cancelled a job while it was slow, or soon after."""
    near = slow.timed and end.timed and end.first <= slow.last + EPISODE
    return near and end.fields.get("reason") == "cancelled"


def _ordered(touches: Sequence[Footprint]) -> list[Footprint]:
    """Causes before symptoms before outcomes; then the earliest, where all times were read; then the table's order.

    Of one pattern at one time the verdict comes first that names its machine: programs of it may tell the same without.
    """
    timed = all(t.timed for t in touches)
    order = {name: place for place, name in enumerate(ORDER)}
    earliest = min((t.first for t in touches if t.timed and t.verdict.role == "cause"), default=None)

    def key(t: Footprint) -> tuple[int, int, int, int, bool, str]:
        place = order.get(t.name, len(order))
        role = _ROLES[t.verdict.role]
        # A verdict older than every cause cannot follow from one: a hang before a crash, a stop before a failure.
        if role and t.timed and t.name not in CONDITIONS and earliest is not None:
            role = 0 if t.first + rule_conditions.SLACK < earliest else role
        return role, t.first if timed else 0, place, t.first, not t.nodes, t.id

    return sorted(touches, key=key)


def _own_first(roots: list[Footprint], attempt: JobAttempt | None, run: JobRun) -> list[Footprint]:
    """Put a root on a machine of the job before one of the same pattern on a machine that is not known to be the job's.

    Where times tell which came first, they decide: not every machine of a job need be known.
    """
    first = next(iter(roots), None)
    if first is None or attempt is None or not first.nodes or all(t.timed for t in roots if t.name == first.name):
        return roots
    alike = [t for t in roots if t.name == first.name and t.nodes]
    if len(alike) < 2 or whereabouts.is_of_the_job(first.nodes, attempt, run):
        return roots
    mine = [t for t in alike if whereabouts.is_of_the_job(t.nodes, attempt, run)]
    return [*mine[:1], *(t for t in roots if not mine or t is not mine[0])]


def _another_episode(primary: Footprint, later: Footprint, attempt: JobAttempt | None) -> bool:
    """Whether the run went on after the one before it came to the other."""
    if not (primary.timed and later.timed) or attempt is None:
        return False
    apart = later.first - primary.last
    return apart > EPISODE and attempt.progress > primary.last + EPISODE // 10


def _went_on_between(earlier: Footprint, later: Footprint, attempt: JobAttempt | None) -> bool:
    return attempt is not None and attempt.progress > earlier.last + EPISODE // 10 and attempt.progress <= later.last


def _why_not(root: Footprint, primary: Footprint) -> str:
    if _ROLES[root.verdict.role] > _ROLES[primary.verdict.role]:
        return f"it is a {root.verdict.role}, and {primary.name} is a cause in the same job"
    if root.timed and primary.timed and root.first > primary.first:
        return f"it began {seconds(round((root.first - primary.first) / SECOND, 1))} after {primary.name}"
    if root.verdict.confidence == "partial" and primary.verdict.confidence == "full":
        return f"part of its evidence is missing, and the evidence for {primary.name} is complete"
    return f"nothing links it to the failure, and {primary.name} takes precedence when times do not decide"
