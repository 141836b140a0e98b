"""The jobs of a fleet, and what facts and verdicts say about each of them.

A fact belongs to the job that it names, else to the jobs that run where it was seen, else to the only job there is if
nothing says where that one runs. A fact or verdict about a node on which no job is known is kept under the node, and
moves to the first job seen there.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.facts.storage import StorageError
from tracecore.facts.training import Progress, RunFinished
from tracecore.incidents.incident import Incident
from tracecore.incidents.lifecycle import REFRESH, SECOND, Life
from tracecore.incidents.node_trouble import NEAR
from tracecore.incidents.pattern_groups import CONDITIONS
from tracecore.incidents.run import is_passing

#: A job that was silent for so long while another one on its node was heard has left the node.
LEFT: Final = 600_000_000_000
#: Before the name of a node on which no job is known.
LONE: Final = "\x00node "
#: Before the name of a pod that is of none of the jobs on its node.
_STRANGER: Final = "\x00pod "
#: Layers that each job has of its own; the others are measured on every node alike.
WRITTEN_BY_JOBS: Final = frozenset({"stdout", "flight_recorder"})
#: A job waits a second before it is judged again for each so many of its facts: after news, and after changes of what
#: was known, which are told no more often than `REFRESH`. A job of fewer facts does not wait.
NEWS: Final = 4096
DETAILS: Final = 256
#: Of a job that has an incident, steps alone are a reason to judge it again at most once in so long.
REJUDGE: Final = 5 * SECOND


class LiveLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of what is kept.

    Args:
        jobs: jobs and lone nodes; beyond it, the one heard least recently that has nothing open is forgotten.
        facts: facts of one job beside its progress, of which the last report of each rank is kept.
        ranks: ranks of one job whose last report is kept, over all attempts.
        verdicts: standing verdicts of one job.
        places: nodes and pods of one job.
        attempts: starts of one job.
    """

    jobs: int = 16_384
    facts: int = 20_000
    ranks: int = 262_144
    verdicts: int = 1_000
    places: int = 131_072
    attempts: int = 1_000


class JobState(msgspec.Struct):
    """One job, or a node on which no job is known, with all that was learned of it.

    Args:
        progress: the last report of each attempt and rank.
        first: the first fact of each attempt, which dates it.
        places: nodes and pods it was seen on.
        incidents: by id.
        found: ids of those that arbitration found when it looked last.
        past: number of incidents that were forgotten, by attempt and condition; the next ones are numbered after them.
        closed: time of the last evidence of forgotten incidents, by condition; "" for failures. Evidence up to then is
            not judged again.
        steps: time of the last step of each attempt.
        changed: whether something new is not judged yet.
        grown: whether facts or verdicts that were known say more since then.
        moved_on: whether steps were made since its incidents were judged, which may say more about them.
        judged: when it was judged last.
        heard: time of the last word of its ranks or of an agent that reads them.
        beats: whether agents say on which nodes it runs.
        finished: when it said that it is complete; 0 where it did not, or went on.
        layers: layers of the facts that it took.
    """

    name: str
    facts: OrderedDict[tuple[type[Fact], int, str], Fact] = msgspec.field(default_factory=OrderedDict)
    progress: OrderedDict[tuple[int, int], Progress] = msgspec.field(default_factory=OrderedDict)
    first: dict[int, Fact] = msgspec.field(default_factory=dict)
    verdicts: OrderedDict[str, Emission] = msgspec.field(default_factory=OrderedDict)
    places: set[str] = msgspec.field(default_factory=set)
    incidents: dict[str, Life] = msgspec.field(default_factory=dict)
    found: set[str] = msgspec.field(default_factory=set)
    past: dict[tuple[int, str], int] = msgspec.field(default_factory=dict)
    closed: dict[str, int] = msgspec.field(default_factory=dict)
    steps: dict[int, int] = msgspec.field(default_factory=dict)
    changed: bool = False
    grown: bool = False
    moved_on: bool = False
    judged: int = 0
    heard: int = 0
    beats: bool = False
    finished: int = 0
    layers: set[str] = msgspec.field(default_factory=set)

    def take(self, fact: Fact) -> None:
        """Learn a fact, and note whether it says something that is to be judged."""
        self.layers.add(fact.layer)
        before = self.first.get(fact.attempt)
        earlier = fact.layer == "stdout" and not fact.approximate and (before is None or fact.time < before.time)
        if earlier:
            self.first[fact.attempt] = fact
        if isinstance(fact, Progress):
            key = fact.attempt, -1 if fact.rank is None else fact.rank
            known = self.progress.get(key)
            # Of two files with the same time and place, the name decides: the order of arrival must not.
            if known is None or _last(known) < _last(fact):
                self.progress[key] = fact
            self.steps[fact.attempt] = max(self.steps.get(fact.attempt, 0), fact.end)
            self.moved_on = any(not life.is_settled for life in self.incidents.values())
            # A run without a name is known by when it began.
            self.changed = self.changed or (earlier and not self.name)
        elif fact.end > self.closed.get("", 0):
            name = _key(fact)
            if name in self.facts:
                self.grown = True
            else:
                self.changed = True
            self.facts[name] = fact

    def is_due(self, now: int) -> bool:
        """Tell whether it is to be judged now. To judge a job takes the longer the more facts it has."""
        many = len(self.facts)
        if self.changed:
            pause = many // NEWS * SECOND
        elif self.grown:
            pause = min(many // DETAILS * SECOND, REFRESH)
        elif self.moved_on:
            pause = max(min(many // DETAILS * SECOND, REFRESH), REJUDGE)
        else:
            return False
        return now >= self.judged + pause

    def known(self) -> list[Fact]:
        """Return every fact that says how the run goes."""
        held = {_key(fact): fact for fact in self.first.values()}
        held.update({_key(fact): fact for fact in self.progress.values()})
        held.update(self.facts)
        return [*held.values()]

    def last_step(self, since_attempt: int = 0) -> int:
        """Return the time of the last step of this attempt or a later one."""
        return max((time for attempt, time in self.steps.items() if attempt >= since_attempt), default=0)

    def forget(self, id: str) -> None:
        """Drop a resolved incident with the verdicts and facts it was made of."""
        life = self.incidents.pop(id)
        condition, number = _split(life.slot)
        self.closed[condition] = max(self.closed.get(condition, 0), life.last)
        before = self.past.get((life.attempt, condition), 0)
        self.past[life.attempt, condition] = max(before, number + 1)
        if not condition:
            for key in [key for key, fact in self.facts.items() if fact.end <= life.last]:
                del self.facts[key]
        for name in [name for name, emission in self.verdicts.items() if self.is_closed(emission)]:
            del self.verdicts[name]

    def slot(self, incident: Incident) -> str:
        """Return the slot of an incident as arbitration found it, counted on from those that were forgotten."""
        condition, number = _split(incident.slot)
        number += self.past.get((incident.attempt, condition), 0)
        return str(number) if not condition else f"{condition}/{number}" if number else condition

    def origin(self, incident: Incident) -> str:
        """Return the origin of an incident; of a run without a name the one under which it was told already.

        An earlier fact that arrives late must not give an episode a second id.
        """
        if incident.job:
            return incident.origin
        told = (life for life in self.incidents.values() if life.revision and not life.is_settled)
        same = (life.origin for life in told if (life.attempt, life.slot) == (incident.attempt, incident.slot))
        return next(same, incident.origin)

    def attempt_at(self, time: int) -> int:
        """Return the last attempt that had begun and made steps by this time."""
        return max((n for n, fact in self.first.items() if n in self.steps and fact.time <= time), default=0)

    def retire(self, before: int) -> None:
        """Drop attempts that a later one followed before this time: how they ended is no news any more."""
        last = self.attempt_at(before)
        kept = {life.attempt for life in self.incidents.values()}
        old = {attempt for attempt in self.first if attempt < last} - kept
        if not old:
            return
        begun = self.first[last].time
        for attempt in old:
            del self.first[attempt]
            self.steps.pop(attempt, None)
        for place in [place for place in self.progress if place[0] in old]:
            del self.progress[place]
        # Endings and machine events carry no attempt.
        over = not any(attempt < last for attempt in kept)
        for key, fact in [*self.facts.items()]:
            if (over and fact.end <= begun) or (fact.attempt in old and fact.layer == "stdout"):
                del self.facts[key]
        if over:
            self.closed[""] = max(self.closed.get("", 0), begun)
            for id in [id for id, emission in self.verdicts.items() if self.is_closed(emission)]:
                del self.verdicts[id]

    def overcome(self, now: int) -> None:
        """Drop what a job that goes on has left behind, so that judging it takes no longer the longer it runs.

        A fact is left behind when the job made steps long after it and no incident is near it. One of each rank stays.
        """
        times = [(life.first - NEAR, life.last + NEAR) for life in self.incidents.values()]
        before = min(now, self.last_step()) - NEAR
        ranks = {*self.progress}
        for key, fact in [*self.facts.items()]:
            if fact.end >= before or not is_passing(fact):
                continue
            if any(first <= fact.end and fact.time <= last for first, last in times):
                continue
            rank = fact.attempt, -1 if fact.rank is None else fact.rank
            if rank in ranks or fact.layer not in WRITTEN_BY_JOBS:
                del self.facts[key]
            ranks.add(rank)

    @property
    def is_calm(self) -> bool:
        """Whether there is nothing to judge and nothing to tell."""
        return not (self.incidents or self.changed or self.grown or self.moved_on)

    def is_closed(self, emission: Emission) -> bool:
        """Tell whether a verdict rests on nothing that is newer than what was forgotten."""
        name = emission.verdict.pattern_name
        closed = self.closed.get(name if name in CONDITIONS else "", 0)
        return bool(closed) and max((fact.end for fact in emission.verdict.evidence()), default=0) <= closed

    @property
    def is_stranger(self) -> bool:
        """Whether it stands for a pod that is of none of the jobs on its node: nobody is told of it."""
        return self.name.startswith(_STRANGER)

    @property
    def is_lone_node(self) -> bool:
        """Whether it stands for a node on which no job is known."""
        return self.name.startswith(LONE)

    @property
    def has_open_incident(self) -> bool:
        return any(life.is_open for life in self.incidents.values())


class JobTable:
    """All jobs, by name and by place.

    Args:
        limits: see `LiveLimits`.
        whole: every fact of the fleet comes here, so that facts without a job are about the only job that is known.
    """

    def __init__(self, limits: LiveLimits, *, whole: bool = True) -> None:
        self.limits = limits
        self._whole = whole
        #: Facts, verdicts, jobs, ranks and places that were forgotten because a limit was reached.
        self.dropped: Counter[str] = Counter()
        #: Incidents of a group whose verdicts moved to this job.
        self.moved: list[tuple[JobState, Life, JobState]] = []
        self._jobs: OrderedDict[str, JobState] = OrderedDict()
        #: Jobs that have a name.
        self._named: set[str] = set()
        #: The jobs seen at each node and pod, with the time of the last word of their ranks or agents there.
        self._where: dict[str, dict[str, int]] = {}

    def __iter__(self) -> Iterator[JobState]:
        return iter(self._jobs.values())

    def take(self, fact: Fact) -> None:
        """Give a fact to the jobs it is about."""
        for job in self._owners(fact):
            if not job.is_lone_node and not job.is_stranger:
                self._meet(job, fact)
            job.take(fact)
            self._bound_job(job)

    def meet(self, fact: Fact) -> None:
        """Learn from a fact where its job runs, and nothing else."""
        if fact.job is not None:
            job = self.get(fact.job)
            job.beats = True
            self._meet(job, fact)

    def _meet(self, job: JobState, fact: Fact) -> None:
        heard = 0
        if fact.job is not None and fact.layer == "stdout":
            heard = fact.end
            job.heard = max(job.heard, heard)
            if isinstance(fact, RunFinished):
                job.finished = max(job.finished, fact.end)
        # A fact without a job names a pod: the job of that pod is not known.
        own = fact.job is not None or fact.layer in ("stdout", "flight_recorder")
        for place in (fact.node, fact.pod if own else None):
            if place and place not in job.places:
                self._seen_at(job, place)
            if place and heard and place in job.places:
                here = self._where[place]
                here[job.name] = max(here[job.name], heard)

    def hear(self, emission: Emission) -> None:
        """Give a verdict to the jobs it is about."""
        evidence = emission.verdict.evidence()
        names = sorted({fact.job for fact in evidence if fact.job})
        suspects = emission.verdict.suspects()
        places = [place for place in (*suspects.pods, *suspects.nodes, *(fact.node for fact in evidence)) if place]
        if names:
            owners = [self.get(names[0])]
        elif self._are_strangers(suspects.pods, places):
            owners = [self.get(_STRANGER + suspects.pods[0])]
        elif not (owners := self._running_at(places)):
            only = None if places else self._only_job()
            owners = [only if only is not None else self.get(LONE + places[0] if places else "")]
        for job in owners:
            self._stand(job, emission)

    def get(self, name: str) -> JobState:
        """Return the job of this name, a new one where it is not known."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = JobState(name)
            if name and not name.startswith((LONE, _STRANGER)):
                self._named.add(name)
                if self._whole and len(self._named) == 1:
                    self._adopt_unnamed(job)
            self._bound()
        else:
            self._jobs.move_to_end(name)
        return job

    def _owners(self, fact: Fact) -> list[JobState]:
        """Return the jobs a fact is about: the one it names, else those that run where it was seen."""
        if fact.job is not None:
            return [self.get(fact.job)]
        if fact.pod and fact.node and self._are_strangers((fact.pod,), (fact.node,)):
            return [self.get(_STRANGER + fact.pod)]
        if here := self._running_at((fact.pod, fact.node)):
            return here
        by_machine = isinstance(fact, StorageError) and fact.is_of_machine
        by_job = fact.layer in ("stdout", "flight_recorder", "scheduler") and not by_machine
        only = self._only_job()
        # A job that says where it runs does not run elsewhere: whoever does may not have been heard yet.
        if only is not None and (by_job or not fact.node or not only.places):
            return [only]
        return [self.get("" if by_job or not fact.node else LONE + fact.node)]

    def _only_job(self) -> JobState | None:
        """Return the one job that has a name: facts that name no job are about it."""
        return self._jobs[next(iter(self._named))] if self._whole and len(self._named) == 1 else None

    def _running_at(self, places: Iterable[str | None]) -> list[JobState]:
        """Return the jobs at the first of these places where any runs; one that fell silent long ago has left."""
        for place in places:
            if place and (names := self._where.get(place)):
                jobs = [job for name in sorted(names) if not _has_left(job := self._jobs[name], names[name])]
                if not jobs:
                    continue
                latest = max(job.heard for job in jobs)
                here = [job for job in jobs if job.heard >= latest - LEFT]
                return [job for job in here if not job.finished or job.finished < job.last_step()] or here
        return []

    def _are_strangers(self, pods: Sequence[str], places: Sequence[str]) -> bool:
        """Tell whether these pods are another workload: jobs are known on their node, and none of them has these."""
        return bool(pods) and not any(self._where.get(pod) for pod in pods) and bool(self._running_at(places))

    def _seen_at(self, job: JobState, place: str) -> None:
        """Note that a job runs there; verdicts about the node alone belong to the job from now on."""
        if len(job.places) >= self.limits.places:
            self.dropped["places"] += 1
            return
        job.places.add(place)
        self._where.setdefault(place, {}).setdefault(job.name, 0)
        for kind in (LONE, _STRANGER):
            if (lone := self._jobs.pop(kind + place, None)) is not None:
                self._adopt(lone, job)

    def _adopt(self, lone: JobState, job: JobState) -> None:
        """Give a job what was said of a place before the job was seen there."""
        for fact in lone.facts.values():
            job.take(fact)
        for emission in lone.verdicts.values():
            self._stand(job, emission)
        self._give_up(lone, job)

    def _give_up(self, group: JobState, job: JobState) -> None:
        self.moved += [(group, life, job) for life in group.incidents.values() if life.is_open]

    def _stand(self, job: JobState, emission: Emission) -> None:
        if emission.status == "cleared":
            job.changed = job.verdicts.pop(emission.id, None) is not None or job.changed
            return
        if job.is_closed(emission):
            return
        if emission.id in job.verdicts:
            job.grown = True
        else:
            job.changed = True
        job.verdicts[emission.id] = emission
        while len(job.verdicts) > self.limits.verdicts:
            job.verdicts.popitem(last=False)
            self.dropped["verdicts"] += 1

    def _adopt_unnamed(self, job: JobState) -> None:
        """Give the first job that has a name all facts and verdicts that named none so far."""
        unnamed = self._jobs.pop("", None)
        if unnamed is None:
            return
        for fact in unnamed.known():
            job.take(fact)
        for place in unnamed.places:
            self._where[place][job.name] = self._where[place].pop("", 0)
        job.places |= unnamed.places
        job.verdicts.update(unnamed.verdicts)
        job.changed = unnamed.changed or unnamed.grown or bool(unnamed.verdicts)
        self._give_up(unnamed, job)

    def _bound_job(self, job: JobState) -> None:
        limits = self.limits
        while len(job.facts) > limits.facts:
            job.facts.popitem(last=False)
            self.dropped["facts"] += 1
        while len(job.progress) > limits.ranks:
            job.progress.popitem(last=False)
            self.dropped["ranks"] += 1
        if len(job.first) > limits.attempts or len(job.steps) > limits.attempts:
            for held in (job.first, job.steps):
                held.pop(min(held), None)
            self.dropped["attempts"] += 1

    def _bound(self) -> None:
        if len(self._jobs) <= self.limits.jobs:
            return
        newest = next(reversed(self._jobs))
        idle = (name for name, job in self._jobs.items() if name != newest and not job.has_open_incident)
        gone = next(idle, next(iter(self._jobs)))
        self._named.discard(gone)
        for place in self._jobs.pop(gone).places:
            self._where[place].pop(gone, None)
            if not self._where[place]:
                del self._where[place]
        self.dropped["jobs"] += 1


def _has_left(job: JobState, heard: int) -> bool:
    """Tell whether a job was started again after its last word from a place, and made steps for long without another.

    An agent speaks for a job from its first line on. It falls silent where a job prints nothing for an hour; but while
    it is not started again, a job does not move.
    """
    if not job.beats or not heard or job.last_step() <= heard + LEFT:
        return False
    return any(fact.time > heard for fact in job.first.values())


def _split(slot: str) -> tuple[str, int]:
    """Return the condition of a slot ("" for a failure) and its number: `2`, `straggler`, `straggler/1`."""
    condition, _, number = ("", "", slot) if slot.isdecimal() else slot.partition("/")
    return condition, int(number or 0)


def _key(fact: Fact) -> tuple[type[Fact], int, str]:
    return type(fact), fact.time, fact.uid


def _last(report: Progress) -> tuple[int, int, str]:
    return report.end, report.source.offset, report.uid
