"""Incidents of a fleet while they happen: verdicts arbitrated job by job, and the life of each incident.

    facts, emissions ─▶ what is known of each job ─▶ arbitrate ─▶ updates

Arbitration is the function that an offline diagnosis uses, called again for a job whenever something about it changed.
An incident is told after a settle time, so that symptoms do not go out before their cause. It is updated under the
same id as the diagnosis gets better, and resolved when the job makes steps again.

    (settling) ─▶ open ─▶ diagnosed ─▶ resolved ─▶ (reopened within a window)

The clock is handed in, and nothing here depends on the order in which facts arrived.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.facts.host import Heartbeat
from tracecore.facts.training import Progress
from tracecore.incidents import precedence
from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import WENT_ON, arbitrate
from tracecore.incidents.incident import Incident
from tracecore.patterns.contract import rfc3339
from tracecore.signals.record import LAYERS

SECOND: Final = 1_000_000_000
State: TypeAlias = Literal["open", "diagnosed", "resolved"]
Classify: TypeAlias = Callable[[Incident, runs.Attempt | None], dict[str, Any]]

#: Patterns that no rule explains by another one: nothing that arrives later can outrank them.
FINAL_CAUSES: Final = frozenset(name for rule in precedence.RULES for name in rule.causes) - frozenset(
    name for rule in precedence.RULES for name in rule.effects
)

#: Verdicts that an update carries in full, the root first; the others are named.
MAX_VERDICTS: Final = 8
#: Before the name of a node on which no job is known.
_LONE: Final = "\x00node "


class LiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is kept.

    Args:
        jobs: jobs and lone nodes; beyond it, the one heard least recently that has nothing open is forgotten.
        facts: facts of one job beside its progress, of which the last report of each rank is kept.
        verdicts: standing verdicts of one job.
    """

    jobs: int = 4_096
    facts: int = 20_000
    verdicts: int = 1_000


class Update(msgspec.Struct, frozen=True, kw_only=True):
    """Something to tell about an incident.

    Args:
        id: of the incident.
        revision: 1 at first, one more with each update.
        state: `open` while the cause is not known, `diagnosed`, `resolved`.
        incident: as it is now; as it last was when it is resolved.
        verdicts: those it is made of, the root first.
        at: the clock.
        reason: why there is an update, in words.
    """

    id: str
    revision: int
    state: State
    incident: Incident
    verdicts: tuple[Emission, ...]
    at: int
    reason: str

    def document(self) -> dict[str, Any]:
        """The incident as `docs/diagnosis.schema.json` describes it, with where its life stands."""
        return {
            **self.incident.document(),
            "state": self.state,
            "revision": self.revision,
            "updated_at": rfc3339(self.at),
            "reason": self.reason,
            "verdicts": [emission.document() for emission in self.verdicts[:MAX_VERDICTS]],
        }


class _Known(msgspec.Struct):
    """An incident that was found and perhaps told."""

    incident: Incident
    since: int
    verdicts: tuple[Emission, ...] = ()
    revision: int = 0
    state: State = "open"
    told: bytes = b""
    resolved_at: int = 0


class _Job(msgspec.Struct):
    """One job, or a node on which no job is known, with all that was learned of it.

    Args:
        progress: the last report of each attempt and rank.
        first: the first fact of each attempt, which dates it.
        places: nodes and pods it was seen on.
        changed: since when something new is not judged; None where nothing is.
    """

    name: str
    facts: OrderedDict[tuple[type[Fact], int, str], Fact] = msgspec.field(default_factory=OrderedDict)
    progress: dict[tuple[int, int], Progress] = msgspec.field(default_factory=dict)
    first: dict[int, Fact] = msgspec.field(default_factory=dict)
    verdicts: OrderedDict[str, Emission] = msgspec.field(default_factory=OrderedDict)
    places: set[str] = msgspec.field(default_factory=set)
    incidents: dict[str, _Known] = msgspec.field(default_factory=dict)
    last_step: int = 0
    changed: int | None = None

    def take(self, fact: Fact) -> bool:
        """Learn a fact; whether it says something that is to be judged."""
        before = self.first.get(fact.attempt)
        earlier = fact.layer == "stdout" and not fact.approximate and (before is None or fact.time < before.time)
        if earlier:
            self.first[fact.attempt] = fact
        if isinstance(fact, Progress):
            key = fact.attempt, -1 if fact.rank is None else fact.rank
            known = self.progress.get(key)
            if known is None or (known.end, known.source.offset) <= (fact.end, fact.source.offset):
                self.progress[key] = fact
            self.last_step = max(self.last_step, fact.end)
            # A run without a name is known by when it began.
            return earlier and before is not None and not self.name
        self.facts[_key(fact)] = fact
        return True

    def known(self) -> list[Fact]:
        """Every fact that says how the run goes."""
        held = {_key(fact): fact for fact in self.first.values()}
        held.update({_key(fact): fact for fact in self.progress.values()})
        held.update(self.facts)
        return [*held.values()]


class LiveIncidents:
    """Verdicts and facts in, updates of incidents out.

    Args:
        settle: how long an incident waits before it is told for the first time.
        reopen: how long a resolved incident can come back under its id.
        classify: the failure class and retry decision of an incident.
        limits: see `LiveLimits`.
    """

    def __init__(
        self,
        *,
        settle: int = 10 * SECOND,
        reopen: int = 1800 * SECOND,
        classify: Classify | None = None,
        limits: LiveLimits | None = None,
    ) -> None:
        self.settle = settle
        self.reopen = reopen
        self.limits = limits or LiveLimits()
        #: What was forgotten because a limit was reached, by kind.
        self.dropped: Counter[str] = Counter()
        self._classify = classify
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        #: Jobs that have a name.
        self._named: set[str] = set()
        #: The jobs seen at each node and pod.
        self._where: dict[str, set[str]] = {}
        #: What is to be told beside what the next look finds.
        self._moved: list[Update] = []
        self._layers: Counter[str] = Counter()

    # -- what is known -------------------------------------------------------------------------------------------------

    def take(self, facts: Iterable[Fact], now: int) -> None:
        """Learn how runs go."""
        for fact in facts:
            if isinstance(fact, Heartbeat):
                continue
            self._layers[fact.layer] += 1
            for job in self._owners(fact, now):
                for place in (fact.node, fact.pod):
                    if place and place not in job.places:
                        self._seen_at(job, place, now)
                news = job.take(fact)
                while len(job.facts) > self.limits.facts:
                    job.facts.popitem(last=False)
                    self.dropped["facts"] += 1
                if news and job.changed is None:
                    job.changed = now

    def _owners(self, fact: Fact, now: int) -> list[_Job]:
        """The jobs a fact is about: the one it names, those that run where it was seen, or one without a name."""
        if fact.job is not None:
            return [self._job(fact.job, now)]
        if here := self._running_at((fact.pod, fact.node)):
            return here
        if (only := self._only_job()) is not None:
            return [only]
        return [self._job("", now)] if fact.layer in ("stdout", "flight_recorder", "scheduler") or not fact.node else []

    def _only_job(self) -> _Job | None:
        """The one job that has a name, where there is one: what names none is about it."""
        return self._jobs[next(iter(self._named))] if len(self._named) == 1 else None

    def _running_at(self, places: Iterable[str | None]) -> list[_Job]:
        """The jobs at the first of these places where any runs."""
        for place in places:
            if place and (names := self._where.get(place)):
                return [self._jobs[name] for name in sorted(names)]
        return []

    def _seen_at(self, job: _Job, place: str, now: int) -> None:
        """Note that a job runs there; what was said of the node alone belongs to the job from now on."""
        job.places.add(place)
        self._where.setdefault(place, set()).add(job.name)
        if (lone := self._jobs.pop(_LONE + place, None)) is not None:
            for emission in lone.verdicts.values():
                self._stand(job, emission, now)
            self._moved += self._given_up(lone, job, now)

    def _given_up(self, lone: _Job, job: _Job, now: int) -> list[Update]:
        """Resolve the incidents of a group whose verdicts belong to this job from now on."""
        reason = f"it belongs to job {job.name}" if job.name else "it belongs to a job"
        return [
            self._resolve(known, now, reason)
            for known in lone.incidents.values()
            if known.revision and known.state != "resolved"
        ]

    def hear(self, emissions: Iterable[Emission], now: int) -> None:
        """Learn what the engine says."""
        for emission in emissions:
            evidence = emission.verdict.evidence()
            names = sorted({fact.job for fact in evidence if fact.job})
            suspects = emission.verdict.suspects()
            places = [place for place in (*suspects.pods, *suspects.nodes, *(fact.node for fact in evidence)) if place]
            if names:
                owners = [self._job(names[0], now)]
            elif not (owners := self._running_at(places)):
                only = None if places else self._only_job()
                owners = [only if only is not None else self._job(_LONE + places[0] if places else "", now)]
            for job in owners:
                self._stand(job, emission, now)

    def _stand(self, job: _Job, emission: Emission, now: int) -> None:
        if emission.status == "cleared":
            job.verdicts.pop(emission.id, None)
        else:
            job.verdicts[emission.id] = emission
            while len(job.verdicts) > self.limits.verdicts:
                job.verdicts.popitem(last=False)
                self.dropped["verdicts"] += 1
        if job.changed is None:
            job.changed = now

    def _job(self, name: str, now: int) -> _Job:
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = _Job(name)
            if name and not name.startswith(_LONE):
                self._named.add(name)
                if len(self._named) == 1:
                    self._adopt_unnamed(job, now)
            self._bound()
        else:
            self._jobs.move_to_end(name)
        return job

    def _adopt_unnamed(self, job: _Job, now: int) -> None:
        """Give the first job that has a name all that named none so far."""
        unnamed = self._jobs.pop("", None)
        if unnamed is None:
            return
        for fact in unnamed.known():
            job.take(fact)
        for place in unnamed.places:
            self._where[place].discard("")
            self._where[place].add(job.name)
        job.places |= unnamed.places
        job.verdicts.update(unnamed.verdicts)
        job.changed = unnamed.changed
        self._moved += self._given_up(unnamed, job, now)

    def _bound(self) -> None:
        if len(self._jobs) <= self.limits.jobs:
            return
        idle = next((name for name, job in self._jobs.items() if not _open(job)), next(iter(self._jobs)))
        self._named.discard(idle)
        for place in self._jobs.pop(idle).places:
            self._where[place].discard(idle)
            if not self._where[place]:
                del self._where[place]
        self.dropped["jobs"] += 1

    # -- what is told --------------------------------------------------------------------------------------------------

    def due(self) -> int | None:
        """When something may have to be told though nothing new arrives."""
        times = [
            known.since + self._patience(known.incident)
            for job in self._jobs.values()
            for known in job.incidents.values()
            if not known.revision
        ]
        return min(times, default=None)

    def advance(self, now: int) -> list[Update]:
        """Judge what changed, and say what is to be told now."""
        updates, self._moved = self._moved, []
        for job in self._jobs.values():
            if job.changed is not None:
                job.changed = None
                self._judge(job, now, updates)
            for known in job.incidents.values():
                self._tell(job, known, now, updates)
            for name in [name for name, known in job.incidents.items() if self._is_over(known, now)]:
                self._forget(job, name)
        return updates

    def _judge(self, job: _Job, now: int, updates: list[Update]) -> None:
        run = runs.look(job.known(), now)
        layers: Mapping[str, int] = {layer: self._layers[layer] for layer in LAYERS}
        found = {incident.id: incident for incident in self._arbitrated(job, run, layers)}
        for name, incident in found.items():
            if self._classify is not None:
                incident.failure = self._classify(incident, run.attempts.get((incident.job, incident.attempt)))
            known = job.incidents.get(name)
            if known is None:
                known = job.incidents[name] = _Known(incident, now)
            root = () if incident.root is None else (incident.root,)
            known.incident, known.verdicts = incident, (*root, *incident.symptoms)
        for name, known in [*job.incidents.items()]:
            if name in found or known.state == "resolved":
                continue
            if known.revision:
                updates.append(self._resolve(known, now, "what it rested on no longer holds"))
            else:
                del job.incidents[name]

    def _arbitrated(self, job: _Job, run: runs.Run, layers: Mapping[str, int]) -> list[Incident]:
        """The incidents of a job; a stop that was asked for is none."""
        finding = arbitrate([*job.verdicts.values()], run, layers)
        return [
            incident
            for incident in finding.incidents
            if incident.root is None or incident.root.verdict.pattern_name != "planned_stop"
        ]

    def _patience(self, incident: Incident) -> int:
        root = incident.root
        sure = root is not None and root.verdict.confidence == "full" and root.verdict.pattern_name in FINAL_CAUSES
        return self.settle // 5 if sure else self.settle

    def _tell(self, job: _Job, known: _Known, now: int, updates: list[Update]) -> None:
        incident = known.incident
        if known.state == "resolved":
            if incident.last <= known.resolved_at or self._went_on(job, incident):
                return
            known.state, known.since, known.told = "open", now, b""
        if self._went_on(job, incident):
            if known.revision:
                updates.append(self._resolve(known, now, "the job makes steps again"))
            return
        if not known.revision and now < known.since + self._patience(incident):
            return
        state: State = "open" if incident.root is None else "diagnosed"
        said = msgspec.json.encode((state, incident.document()))
        if said == known.told:
            return
        reason = "new" if not known.revision else "there is new evidence" if known.told else "reopened"
        known.revision += 1
        known.state, known.told = state, said
        updates.append(self._update(known, now, reason))

    def _went_on(self, job: _Job, incident: Incident) -> bool:
        """Whether the job made steps long after the last of its evidence; never for what only slows a run down."""
        if incident.root is not None and incident.root.verdict.pattern_name in precedence.STANDS_ALONE:
            return False
        return incident.timed and job.last_step > incident.last + WENT_ON

    def _resolve(self, known: _Known, now: int, reason: str) -> Update:
        known.state, known.resolved_at = "resolved", max(now, known.incident.last)
        known.revision += 1
        return self._update(known, now, reason)

    def _update(self, known: _Known, now: int, reason: str) -> Update:
        incident = known.incident
        return Update(
            id=incident.id,
            revision=known.revision,
            state=known.state,
            incident=incident,
            verdicts=known.verdicts,
            at=now,
            reason=reason,
        )

    def _is_over(self, known: _Known, now: int) -> bool:
        return known.state == "resolved" and now > known.resolved_at + self.reopen

    def _forget(self, job: _Job, name: str) -> None:
        """Drop a resolved incident and the verdicts it was made of."""
        for emission in job.incidents.pop(name).verdicts:
            job.verdicts.pop(emission.id, None)

    def close(self, name: str, now: int) -> Update | None:
        """Resolve an incident by hand; None where there is no such incident open."""
        for job in self._jobs.values():
            known = job.incidents.get(name)
            if known is not None and known.revision and known.state != "resolved":
                return self._resolve(known, now, "resolved by hand")
        return None


def _key(fact: Fact) -> tuple[type[Fact], int, str]:
    return type(fact), fact.time, fact.uid


def _open(job: _Job) -> bool:
    return any(known.revision and known.state != "resolved" for known in job.incidents.values())
