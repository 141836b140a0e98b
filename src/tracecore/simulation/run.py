"""Play a fleet to the detectors that join facts, and keep every update of an incident with its time.

The clock jumps from one window to the next: a window begins a minute before something happens and ends when the job
runs again. In a window the jobs concerned report as agents report, every ten seconds, with heartbeats. A job of more
than 64 nodes is heard through 64 of them, the culprit's among them; what all its ranks print when they fail comes from
all of them. Between windows, and for jobs to which nothing happens, rank 0 stands for the job with reports that are
thinned over longer times.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.exporters.webhook import told
from tracecore.agent.processors.patterndetector.options import Incidents
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.host import Heartbeat
from tracecore.facts.training import Progress, RunFinished
from tracecore.signals.record import Source
from tracecore.simulation.fleet import GPUS, SECOND, Event, Fleet, Job
from tracecore.simulation.reading import Clock, culprit, detector, facts_of, log_of

#: Detectors among which the jobs are divided, as the partitions of a stream are.
PARTITIONS: Final = 8
#: Seconds of a window before something happens, and after the job runs again.
BEFORE: Final = 60
AFTER: Final = 150
#: Seconds after which a job runs again.
RESTART: Final = (120, 420)
REPORT: Final = 10
HEARTBEAT: Final = 15
#: Nodes of one job that are heard in a window.
HEARD: Final = 64
#: Facts of one request.
REQUEST: Final = 1_000


class Truth(msgspec.Struct, kw_only=True, frozen=True):
    """The truth about a simulated event.

    Args:
        at: nanoseconds since the epoch.
        until: when the job ran again.
        node: of the culprit.
    """

    number: int
    cause: str
    play: str
    end: str
    job: str
    attempt: int
    at: int
    until: int
    node: str
    rank: int
    ranks: int
    planned: bool
    signal: bool
    root: tuple[str, ...]
    class_: tuple[str, ...]
    names_node: bool
    page: str


class Told(msgspec.Struct, kw_only=True, frozen=True):
    """One revision of an incident, as a receiver of OTLP records gets it."""

    at: int
    document: dict[str, Any]


class Window(msgspec.Struct, kw_only=True):
    """A stretch of time that is played.

    Args:
        events: what happens in it.
    """

    begin: int
    end: int
    events: list[Event]


class Outcome(msgspec.Struct, kw_only=True):
    """Everything that was played and told.

    Args:
        facts: how many were sent.
        bytes: of their requests.
        noise: health events that needed no action.
    """

    truths: list[Truth] = []
    told: list[Told] = []
    facts: int = 0
    bytes: int = 0
    noise: int = 0
    windows: int = 0


def play(fleet: Fleet, partition: int, partitions: int = PARTITIONS) -> Outcome:
    """Play the jobs of one partition from the first to the last window."""
    return _Partition(fleet, [slot for slot in range(len(fleet.slots)) if slot % partitions == partition]).play()


class _Partition:
    def __init__(self, fleet: Fleet, slots: list[int]) -> None:
        self._fleet = fleet
        self._slots = slots
        self._clock = Clock()
        self._joiner = detector(
            self._clock, forward="verdicts", tell="incidents", incidents=Incidents(settle=10 * SECOND)
        )
        self._running: dict[int, Job] = {}
        self._outcome = Outcome()

    def play(self) -> Outcome:
        mine = set(self._slots)
        for window in _windows([event for event in self._fleet.events if event.slot in mine]):
            self._play(window)
            self._outcome.windows += 1
        return self._outcome

    def _play(self, window: Window) -> None:
        self._clock.now = window.begin
        facts = [*self._resume(window)]
        touched: dict[int, list[Event]] = {}
        for event in window.events:
            touched.setdefault(event.slot, []).append(event)
            if event.noise:
                self._outcome.noise += 1
        # Failures first: they decide how long the window is.
        failing = {event.slot for event in window.events if not event.noise}
        for slot in sorted(self._slots, key=lambda slot: slot not in failing):
            facts += self._story(self._running[slot], window, touched.get(slot, []))
        facts.sort(key=lambda fact: fact.end)
        self._feed(window, facts)

    def _resume(self, window: Window) -> Iterator[Fact]:
        """Yield what brings the detector up to date after a jump of the clock: jobs that ended, and quiet reports."""
        for slot in self._slots:
            job = self._fleet.job_at(slot, window.begin)
            before = self._running.get(slot)
            if before is not None and before.name != job.name:
                yield RunFinished(
                    time=window.begin - 2 * SECOND, source=Source("otlp", ident=f"finished:{before.name}"),
                    job=before.name, node=before.node(0), pod=before.pod(0), rank=0, attempt=before.attempt,
                )  # fmt: skip
            if before is None or before.name != job.name:
                job.reported = max(job.begins, window.begin - 600 * SECOND)
                self._running[slot] = job
            yield from _quiet(job, window.begin)

    def _story(self, job: Job, window: Window, events: list[Event]) -> Iterator[Fact]:
        """Yield what agents send about a job in this window."""
        failure = next((event for event in events if not event.noise), None)
        flapped: set[str] = set()
        for event in events:
            if event.noise:
                node = job.node(culprit(event, job))
                # Noise of days is played in a minute: a port that goes down twice in it would be a fault.
                if event.play.once and node in flapped:
                    continue
                flapped |= {node} if event.play.once else set()
                yield from facts_of(event, job)
        if failure is None:
            if events:
                yield from _heartbeats(job, job.nodes[:HEARD], window.begin, window.end)
            yield from _reports(job, [0], window.begin, window.end, sparse=True)
            return
        rank = culprit(failure, job)
        heard = sorted({*range(0, len(job.nodes), max(1, len(job.nodes) // HEARD)), rank // GPUS})
        ranks = [node * GPUS for node in heard] if job.ranks > 64 else [*range(job.ranks)]
        ranks = sorted({*ranks, rank})
        stops = failure.at
        slow = rank if failure.play.slow else None
        if slow is not None:
            stops += 250 * SECOND
        yield from _reports(job, ranks, window.begin, stops, slow=slow, slow_from=failure.at)
        facts = facts_of(failure, job)
        yield from facts
        over = max([fact.end for fact in facts] + [stops])
        gone = job.node(rank)
        dice = random.Random(f"restart {failure.number}")
        again = over + dice.randint(*RESTART) * SECOND
        window.end = max(window.end, again + AFTER * SECOND)
        # An agent speaks for the streams of a job for an hour after their last line.
        for node in [job.nodes[number] for number in heard]:
            dark = node == gone and failure.end == "dark"
            yield from _heartbeats(job, [node], window.begin, failure.at if dark else window.end)
        self._outcome.truths.append(
            Truth(
                number=failure.number, cause=failure.cause, play=failure.play.play, end=failure.end, job=job.name,
                attempt=job.attempt, at=failure.at, until=again + AFTER * SECOND, node=gone, rank=rank,
                ranks=job.ranks, planned=failure.planned, signal=failure.play.signal, root=failure.play.root,
                class_=failure.play.class_, names_node=failure.play.node, page=failure.play.page,
            )
        )  # fmt: skip
        hardware = failure.cause not in ("software bug", "planned", "dependency", "NCCL watchdog timeout")
        if hardware and self._fleet.spares:
            job.nodes[rank // GPUS] = self._fleet.spares.pop(0)
            self._fleet.spares.append(gone)
        job.attempt += 1
        job.step -= min(job.step, 50)
        if job.node(rank) != gone:
            yield from _heartbeats(job, [job.node(rank)], again, window.end)
        yield from _reports(job, [0], again, window.end)

    def _feed(self, window: Window, facts: list[Fact]) -> None:
        """Send facts as they come, and let the detector look each second while something comes."""
        sent, now, quiet = 0, window.begin, 0
        while now <= window.end:
            now += SECOND if quiet < 15 else 5 * SECOND
            due: list[Fact] = []
            while sent < len(facts) and facts[sent].end < now:
                due.append(facts[sent])
                sent += 1
            self._clock.now = now
            news = any(not isinstance(fact, Heartbeat | Progress) for fact in due)
            quiet = 0 if news else quiet + 1
            self._look(due)

    def _look(self, facts: list[Fact]) -> None:
        for begin in range(0, len(facts), REQUEST):
            raw = Batch("logs", wire.payload(facts[begin : begin + REQUEST], self._clock.now)).encoded()
            self._outcome.bytes += len(raw)
            self._take(self._joiner.process(Batch("logs", raw=raw)))
        self._outcome.facts += len(facts)
        self._take(self._joiner.tick(self._clock.now))

    def _take(self, made: Iterable[Batch]) -> None:
        for batch in made:
            for attributes, _ in told(batch):
                document = msgspec.json.decode(attributes["incident.json"])
                self._outcome.told.append(Told(at=self._clock.now, document=document))


def _windows(events: list[Event]) -> list[Window]:
    """Join the times around events that overlap."""
    found: list[Window] = []
    for event in events:
        begin = event.at - BEFORE * SECOND
        # A failure makes its window longer when it is known how long it lasts.
        end = event.at + (60 if event.noise else 1_800) * SECOND
        if found and begin <= found[-1].end:
            found[-1].end = max(found[-1].end, end)
            found[-1].events.append(event)
        else:
            found.append(Window(begin=begin, end=end, events=[event]))
    for window in found:
        if any(not event.noise for event in window.events):
            window.end = max(event.at for event in window.events) + 60 * SECOND
    return found


def _quiet(job: Job, now: int) -> Iterator[Fact]:
    """Yield one report of rank 0 that stands for all since the last one."""
    since = max(job.reported, now - 86_400 * SECOND)
    if now - since < 2 * SECOND:
        return
    steps = max(1, int((now - since) / SECOND / job.step_s))
    yield _report(job, 0, since + SECOND, job.step + 1, job.step_s, last=now - SECOND, count=steps)
    job.step += steps
    job.reported = now


def _reports(
    job: Job,
    ranks: list[int],
    begin: int,
    end: int,
    *,
    sparse: bool = False,
    slow: int | None = None,
    slow_from: int = 0,
) -> Iterator[Fact]:
    every = (2 if sparse else 1) * REPORT * SECOND
    dice = random.Random(f"{job.name} {begin}")
    at = begin + every // 2
    while at < end:
        job.step += max(1, round(every / SECOND / job.step_s))
        for rank in ranks:
            took = job.step_s * dice.uniform(0.98, 1.03) * (3.0 if rank == slow and at >= slow_from else 1.0)
            yield _report(job, rank, at + dice.randrange(SECOND // 4), job.step, took)
        at += every
    job.reported = max(job.reported, end)


def _report(job: Job, rank: int, at: int, step: int, took: float, last: int | None = None, count: int = 1) -> Progress:
    return Progress(
        time=at, last_time=last, count=count, source=Source(log_of(job, rank), ident=f"step:{job.attempt}:{rank}:{at}"),
        node=job.node(rank), pod=job.pod(rank), job=job.name, rank=rank, attempt=job.attempt, step=step,
        loss=1.8, iter_time_s=took,
    )  # fmt: skip


def _heartbeats(job: Job, nodes: Iterable[str], begin: int, end: int) -> Iterator[Fact]:
    for node in nodes:
        phase = random.Random(node).randrange(HEARTBEAT)
        for at in range(begin + phase * SECOND, end, HEARTBEAT * SECOND):
            source = Source("agent", ident=f"heartbeat:{node}:{job.name}:{at}")
            yield Heartbeat(time=at, source=source, node=node, job=job.name)
