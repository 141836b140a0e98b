"""Incidents of a fleet while they happen: verdicts arbitrated job by job, and the life of each incident.

    facts, verdicts ─▶ jobs ─▶ arbitrate ─▶ life cycle ─▶ updates

Arbitration is the function that an offline diagnosis uses, called again for a job whenever something about it changed.
An incident is told after a settle time, so that symptoms do not go out before their cause. It is updated under the
same id as the diagnosis gets better, and resolved when the job makes steps again.

The clock is handed in, and nothing here depends on the order in which facts arrived.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.host import Heartbeat
from tracecore.facts.xid_catalog import entry
from tracecore.incidents import node_trouble, pattern_groups
from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import arbitrate
from tracecore.incidents.incident import Incident
from tracecore.incidents.jobs import WRITTEN_BY_JOBS, JobState, JobTable, LiveLimits
from tracecore.incidents.lifecycle import SECOND, Life, Memory, Update, recalled
from tracecore.incidents.set_aside import WENT_ON
from tracecore.signals.record import LAYERS

__all__ = ["LiveIncidents", "LiveLimits", "Memory", "Update"]

log = logging.getLogger(__name__)

Classify: TypeAlias = Callable[[Incident, runs.JobAttempt | None], dict[str, Any]]

#: A condition that slows a job down is resolved when the job made steps for so long without new evidence of it.
FADES: Final = 3600 * SECOND
#: Conditions that somebody has to look at before they count as resolved: wrong results do not fade.
_STAYS: Final = frozenset({"silent_data_corruption", "training_divergence"})


class LiveIncidents:
    """Verdicts and facts in, updates of incidents out.

    Args:
        settle: how long an incident waits before it is told for the first time, or again after it was resolved.
        reopen: how long a resolved incident can come back under its id.
        classify: the failure class and retry decision of an incident.
        limits: see `LiveLimits`.
        strict: an exception in arbitration is raised; otherwise it is logged and counted, and other jobs go on.
        owns: tells by the name of a job whether its incidents are told here; all of them where it is not given. Names
            are those of the job table: a job, `jobs.LONE` and a node, or empty. Where it is given, other processes
            take other facts, and a fact that names no job is not taken for one of the only job known here.
    """

    def __init__(
        self,
        *,
        settle: int = 10 * SECOND,
        reopen: int = 1800 * SECOND,
        classify: Classify | None = None,
        limits: LiveLimits | None = None,
        strict: bool = True,
        owns: Callable[[str], bool] | None = None,
    ) -> None:
        self.strict = strict
        self._owns = owns
        self.settle = settle
        self.reopen = reopen
        self._classify = classify
        self._jobs = JobTable(limits or LiveLimits(), whole=owns is None)
        self._layers: set[str] = set()
        #: The facts of the time before a restart have not been judged yet.
        self._resumed = False
        #: Since when incidents had waited at a restart.
        self._waited: dict[str, int] = {}

    @property
    def dropped(self) -> Counter[str]:
        """Return how much was forgotten because a limit was reached, by kind."""
        return self._jobs.dropped

    def waiting(self) -> dict[str, int]:
        """Return since when each incident waits that was found and not told yet, by id."""
        return {life.id: life.since for job in self._jobs for life in job.incidents.values() if not life.revision}

    def restore(self, memories: Iterable[Memory], now: int, waiting: Mapping[str, int] | None = None) -> int:
        """Take what was told before a restart, before any fact; return how many memories are damaged.

        Args:
            waiting: as `waiting` said it before the restart.

        The facts of the time before the restart are then taken like any others: incidents that are found again go on
        where they stood. One that is not found again although its job is judged no longer holds.
        """
        damaged = 0
        self._resumed = True
        self._waited = dict(waiting or {})
        for memory in memories:
            try:
                life = recalled(memory, now)
            except msgspec.DecodeError:
                damaged += 1
                continue
            self._jobs.get(memory.job).incidents[memory.id] = life
            self._layers.update(memory.layers)
            self._jobs.get(memory.job).layers.update(memory.layers)
        for job in self._jobs:
            self._forget_old(job, now)
        return damaged

    def take(self, facts: Iterable[Fact]) -> None:
        """Learn how runs go."""
        for fact in facts:
            if isinstance(fact, Heartbeat):
                self._jobs.meet(fact)
            else:
                self._measure(fact.layer)
                self._jobs.take(fact)

    def _measure(self, layer: str) -> None:
        """Learn that a layer is measured: incidents that were told say which ones are not."""
        if layer in self._layers:
            return
        self._layers.add(layer)
        for job in self._jobs:
            job.changed = job.changed or bool(job.incidents)

    def hear(self, emissions: Iterable[Emission]) -> None:
        """Learn what the engine says."""
        for emission in emissions:
            self._jobs.hear(emission)

    def advance(self, now: int) -> list[Update]:
        """Judge what changed, and return what is to be told now."""
        updates = [
            self._resolve(group, life, now, f"it belongs to job {job.name}" if job.name else "it belongs to a job")
            for group, life, job in self._jobs.moved
        ]
        self._jobs.moved = []
        for job in self._jobs:
            if job.is_calm or (self._owns is not None and not self._owns(job.name)):
                continue
            if job.is_due(now):
                job.changed, job.grown, job.moved_on, job.judged = False, False, False, now
                try:
                    self._judge(job, now, updates)
                except Exception:
                    if self.strict:
                        raise
                    self.dropped["judgements"] += 1
                    log.exception("the incidents of job %r could not be judged", job.name[:200])
            for life in job.incidents.values():
                self._tell(job, life, now, updates)
            self._forget_old(job, now)
        self._resumed = False
        return updates

    def _judge(self, job: JobState, now: int, updates: list[Update]) -> None:
        if job.is_stranger:
            return
        job.retire(now - self.reopen)
        job.overcome(now)
        facts = job.known()
        # Facts about a node alone tell of no run.
        run = runs.look([] if job.is_lone_node else facts, now)
        layers: Mapping[str, int] = {layer: layer in self._seen_layers(job) for layer in LAYERS}
        finding = arbitrate([*job.verdicts.values()], run, layers)
        # A stop that was asked for is no incident.
        incidents = [i for i in finding.incidents if i.root is None or i.root.verdict.pattern_name != "planned_stop"]
        incidents = [i for i in incidents if not _tells_of_no_failure(i) and not self._is_old_news(job, i, now)]
        troubles = node_trouble.uncited(facts, job.verdicts.values()) if incidents else []
        notes = tuple(node_trouble.notes(troubles, run))
        trouble = tuple(sorted(fact.uid for fact in troubles))
        job.found = found = set()
        for incident in incidents:
            incident.slot = job.slot(incident)
            incident.origin = job.origin(incident)
            if self._classify is not None:
                incident.failure = self._classify(incident, run.attempts.get((incident.job, incident.attempt)))
            node_trouble.attach(incident, troubles)
            life = job.incidents.get(incident.id)
            if life is None:
                # A restart does not make an incident wait again: what is found first had begun before it.
                since = self._waited.get(incident.id, min(now, incident.last)) if self._resumed else now
                life = job.incidents[incident.id] = Life(id=incident.id, since=since)
            elif not life.revision and life.incident is not None and incident.first > life.last:
                life.since = now  # what it was found for is over, and this is something else
            life.find(incident, notes, trouble)
            life.last = _end_of_trouble(job, life, incident, run.attempts.get((incident.job, incident.attempt)))
            found.add(incident.id)
        last = run.last(job.name)
        finished = last is not None and last.state == "finished"
        for name, life in [*job.incidents.items()]:
            if name in found or life.state == "resolved":
                continue
            if life.incident is None and not finished and now < life.since + self.settle:
                job.moved_on = True  # told before a restart: facts may still be on their way
            elif life.revision:
                reason = "the job finished" if finished else "the evidence it rested on no longer holds"
                updates.append(self._resolve(job, life, now, reason, settled=False))
            else:
                del job.incidents[name]

    def _is_old_news(self, job: JobState, incident: Incident, now: int) -> bool:
        """Tell whether an attempt ended without a known cause long ago, and that is noticed only now.

        The verdict of a planned stop, or of an incident that was resolved, does not stand for ever.
        """
        old = incident.attempt < job.attempt_at(now - self.reopen)
        return old and incident.root is None and incident.id not in job.incidents

    def _tell(self, job: JobState, life: Life, now: int, updates: list[Update]) -> None:
        over = self._over(job, life)
        if life.state == "resolved":
            if over or life.id not in job.found or life.last <= life.settled_until:
                return
            life.state, life.since, life.digest = "open", now, b""
        if over:
            if life.is_open and life.digest:
                updates.append(self._resolve(job, life, now, over))
            elif life.is_open:
                life.state = "resolved"  # it came back and went on before that was told
            # What comes next is another failure, and waits for its own cause.
            life.since = now
            return
        if not life.digest and now < life.since + life.patience(self.settle):
            return
        if (news := life.news(now)) is None:
            return
        reason = "new" if not life.revision else "there is new evidence" if life.digest else "reopened"
        life.state, life.digest = news
        updates.append(life.tell(job.name, self._seen_layers(job), now, reason))

    def _over(self, job: JobState, life: Life) -> str:
        """Return why an incident is over, in words; empty where it is not."""
        if life.incident is not None and not life.incident.timed:
            return ""
        if life.pattern not in pattern_groups.CONDITIONS and job.last_step(life.attempt + 1) > life.last + WENT_ON:
            return "the job was restarted and makes steps again"
        went_on = job.last_step()
        if life.pattern not in pattern_groups.STANDS_ALONE:
            return "the job makes steps again" if went_on > life.last + WENT_ON else ""
        faded = life.pattern not in _STAYS and went_on > life.last + FADES
        return "the job made steps for an hour without new evidence" if faded else ""

    def _resolve(self, job: JobState, life: Life, now: int, reason: str, *, settled: bool = True) -> Update:
        life.state, life.resolved_at = "resolved", max(now, life.last)
        life.settled_until = life.resolved_at if settled else 0
        return life.tell(job.name, self._seen_layers(job), now, reason)

    def _seen_layers(self, job: JobState) -> tuple[str, ...]:
        """Return the layers that were measured: what a job itself writes counts for it alone."""
        seen = {layer for layer in self._layers if layer not in WRITTEN_BY_JOBS} | job.layers
        return tuple(layer for layer in LAYERS if layer in seen)

    def _forget_old(self, job: JobState, now: int) -> None:
        for life in [*job.incidents.values()]:
            if life.state == "resolved" and now > life.resolved_at + self.reopen:
                job.forget(life.id)

    def needed(self) -> Iterable[Fact]:
        """Return the facts that a restart needs, however old: of incidents that can still change, and the first of runs
        that have no name."""
        for job in self._jobs:
            if not job.name:
                yield from job.first.values()
            if job.incidents:
                yield from job.first.values()
                yield from job.progress.values()
                yield from job.facts.values()
                for emission in job.verdicts.values():
                    yield from emission.verdict.evidence()


def _tells_of_no_failure(incident: Incident) -> bool:
    """Tell whether an incident rests on nothing but Xids that inform, or that speak about another Xid.

    Without a recording's end, a step that is late does not mean that the job failed.
    """
    if incident.root is not None or not incident.evidence:
        return False
    known = [entry(fact.code) if isinstance(fact, Xid) else None for fact in incident.evidence]
    return all(row is not None and row.fault in ("none", "follow_up") for row in known)


def _end_of_trouble(job: JobState, life: Life, incident: Incident, attempt: runs.JobAttempt | None) -> int:
    """Return the time of the last sign of a failure; steps count as going on only when they are later."""
    others = [job.verdicts[other.verdict] for other in incident.alternatives if other.verdict in job.verdicts]
    ends = [life.last, *(fact.end for held in (*life.verdicts, *others) for fact in held.verdict.evidence())]
    if attempt is not None and life.pattern not in pattern_groups.CONDITIONS:
        ended = [status for status in attempt.ended.values() if not status.alive]
        signs = (*attempt.bad, *attempt.stalls, *ended, *(r for said in attempt.reports.values() for r in said))
        ends += [fact.end for fact in signs]
    return max(ends)
