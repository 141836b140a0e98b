"""Play a fleet to the detectors that join facts, and keep every update of an incident with its time.

The clock jumps from one window to the next: a window begins a minute before something happens and ends when the job
runs again. In a window the job that fails reports as agents report, every ten seconds, with heartbeats every fifteen.
Of a job of more than 32 nodes, 32 report so, the culprit's among them, and the others send a heartbeat in 45 seconds
while it stands still; what its ranks print when they fail comes from all of them. Between windows, and for jobs to
which nothing happens, rank 0 stands for the job with reports that are thinned over longer times.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.exporters.webhook import told
from tracecore.agent.processors.patterndetector.options import IncidentOptions
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.host import Heartbeat
from tracecore.facts.training import Progress, RunFinished
from tracecore.signals.record import Source
from tracecore.simulation.fleet import GPUS, SECOND, Fleet, RankEvent, SimulatedJob
from tracecore.simulation.reading import SetClock, culprit, detector, facts_of, log_of

#: Detectors among which the jobs are divided, as the partitions of a stream are.
PARTITIONS: Final = 8
#: Seconds of a window before something happens, and after the job runs again.
BEFORE: Final = 60
AFTER: Final = 150
#: Seconds after which a job runs again.
RESTART: Final = (120, 300)
REPORT: Final = 10
HEARTBEAT: Final = 15
#: Seconds between heartbeats of the other nodes of a failing job: fewer than agents send, yet a node is never silent.
FAR_HEARTBEAT: Final = 45
#: Nodes of one job that are heard as often as agents send.
HEARD: Final = 32
#: How long the detector waits before it tells an incident.
SETTLE: Final = 10 * SECOND
#: Facts of one request.
REQUEST: Final = 1_000


class Truth(msgspec.Struct, kw_only=True, frozen=True):
    """The truth about a simulated event.

    Args:
        at: nanoseconds since the epoch.
        until: when the job runs again.
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


class ToldRevision(msgspec.Struct, kw_only=True, frozen=True):
    """One revision of an incident, as a receiver of OTLP records gets it."""

    at: int
    document: dict[str, Any]


class PlayedWindow(msgspec.Struct, kw_only=True):
    """A stretch of time that is played.

    Args:
        events: what happens in it.
    """

    begin: int
    end: int
    events: list[RankEvent]


class PlayedRun(msgspec.Struct, kw_only=True):
    """Everything that was played and told.

    Args:
        facts: how many were sent.
        bytes: of their requests.
        noise: health events that needed no action.
    """

    truths: list[Truth] = []
    told: list[ToldRevision] = []
    facts: int = 0
    bytes: int = 0
    noise: int = 0
    windows: int = 0


def play(fleet: Fleet, partition: int, partitions: int = PARTITIONS) -> PlayedRun:
    """Play the jobs of one partition from the first to the last window."""
    story = Story(fleet, [slot for slot in range(len(fleet.slots)) if slot % partitions == partition])
    outcome = PlayedRun(truths=story.truths)
    clock = SetClock()
    joiner = detector(clock, forward="verdicts", tell="incidents", incidents=IncidentOptions(settle=SETTLE))

    def take(made: Iterable[Batch]) -> None:
        for batch in made:
            for attributes, _ in told(batch):
                document = msgspec.json.decode(attributes["incident.json"])
                outcome.told.append(ToldRevision(at=clock.now, document=document))

    for now, facts in story:
        clock.now = now
        for begin in range(0, len(facts), REQUEST):
            raw = Batch("logs", wire.payload(facts[begin : begin + REQUEST], now)).encoded()
            outcome.bytes += len(raw)
            take(joiner.process(Batch("logs", raw=raw)))
        outcome.facts += len(facts)
        take(joiner.tick(now))
    outcome.noise, outcome.windows = story.noise, story.windows
    return outcome


class Story:
    """Everything that the agents of some jobs send, with the truth about it.

    Iterate once: each item is a time at which the detector looks, and the facts that arrived since the last one.

    Args:
        slots: of the fleet, whose jobs are played.
    """

    def __init__(self, fleet: Fleet, slots: list[int]) -> None:
        self._fleet = fleet
        self._slots = slots
        self._running: dict[int, SimulatedJob] = {}
        self.truths: list[Truth] = []
        #: Health events that needed no action, and windows, that were played.
        self.noise = 0
        self.windows = 0

    def __iter__(self) -> Iterator[tuple[int, list[Fact]]]:
        mine = set(self._slots)
        for window in _windows([event for event in self._fleet.events if event.slot in mine]):
            yield from self._play(window)
            self.windows += 1

    def _play(self, window: PlayedWindow) -> Iterator[tuple[int, list[Fact]]]:
        facts = [*self._resume(window)]
        events: dict[int, list[RankEvent]] = {}
        for event in window.events:
            events.setdefault(event.slot, []).append(event)
        # Failures first: they decide how long the window is.
        failing = {event.slot for event in window.events if not event.noise}
        last: dict[int, int] = {}
        for slot in sorted(failing):
            last[slot] = window.begin
            for failure in [event for event in events[slot] if not event.noise]:
                # Until then the job has not been started again, and its machines are those that it had.
                until = failure.at + RESTART[0] * SECOND
                facts += self._noise(self._running[slot], [e for e in events[slot] if e.noise and e.at < until])
                events[slot] = [event for event in events[slot] if event.at >= until]
                last[slot] = self._fail(self._running[slot], failure, last[slot], facts)
            window.end = max(window.end, last[slot] + AFTER * SECOND)
        for slot in self._slots:
            facts += self._go_on(self._running[slot], window, events.get(slot, []), last.get(slot))
        facts.sort(key=lambda fact: fact.end)
        yield from _looks(window, facts)

    def _resume(self, window: PlayedWindow) -> Iterator[Fact]:
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

    def _noise(self, job: SimulatedJob, events: list[RankEvent]) -> Iterator[Fact]:
        """Yield what agents send about health events that need no action."""
        flapped: set[str] = set()
        for event in events:
            node = job.node(culprit(event, job))
            # Noise of days is played in a minute: a port that goes down twice in it would be a fault.
            if event.play.once and node in flapped:
                continue
            flapped |= {node} if event.play.once else set()
            self.noise += 1
            yield from facts_of(event, job)

    def _fail(self, job: SimulatedJob, failure: RankEvent, begin: int, facts: list[Fact]) -> int:
        """Add what agents send from this time until the job runs again; return when that is."""
        rank = culprit(failure, job)
        gone = job.node(rank)
        near = _near(job, rank // GPUS)
        ranks = [node * GPUS for node in near] if job.ranks > HEARD else [*range(job.ranks)]
        stops, slow = failure.at, None
        if failure.play.slow:
            stops, slow = failure.at + 250 * SECOND, rank
        facts += _reports(job, sorted({*ranks, rank}), begin, stops, slow=slow, slow_from=failure.at)
        told = facts_of(failure, job)
        facts += told
        over = max([fact.end for fact in told] + [stops])
        again = over + random.Random(f"restart {failure.number}").randint(*RESTART) * SECOND
        dark = failure.end == "dark"
        for number, node in enumerate(job.nodes):
            until = failure.at if dark and node == gone else again
            facts += _heartbeats(job, node, begin, until, HEARTBEAT if number in near else FAR_HEARTBEAT)
        self.truths.append(
            Truth(
                number=failure.number, cause=failure.cause, play=failure.play.play, end=failure.end, job=job.name,
                attempt=job.attempt, at=failure.at, until=again, node=gone, rank=rank,
                ranks=job.ranks, planned=failure.planned, signal=failure.play.signal, root=failure.play.root,
                class_=failure.play.class_, names_node=failure.play.node, page=failure.play.page,
            )
        )  # fmt: skip
        hardware = failure.cause not in ("software bug", "planned", "dependency", "NCCL watchdog timeout")
        if hardware and self._fleet.spares:
            job.nodes[rank // GPUS] = self._fleet.spares.pop(0)
            self._fleet.spares.append(gone)
            if not dark:
                # An agent speaks for the streams of a job for an hour after their last line.
                facts += _heartbeats(job, gone, again, again + AFTER * SECOND, HEARTBEAT)
        job.attempt += 1
        job.step -= min(job.step, 50)
        return again

    def _go_on(
        self, job: SimulatedJob, window: PlayedWindow, noise: list[RankEvent], again: int | None
    ) -> Iterator[Fact]:
        """Yield what agents send about a job that runs until the window ends.

        Args:
            again: when it was started again in this window; None where it did not fail.
        """
        yield from self._noise(job, noise)
        if again is not None:
            near = _near(job, 0)
            for number, node in enumerate(job.nodes):
                if number in near:
                    yield from _heartbeats(job, node, again, window.end, HEARTBEAT)
                else:  # a job that makes steps misses nobody
                    yield from _heartbeats(job, node, again, again + FAR_HEARTBEAT * SECOND, FAR_HEARTBEAT)
            yield from _reports(job, [0], again, window.end)
            return
        for node in sorted({job.node(culprit(event, job)) for event in noise}):
            yield from _heartbeats(job, node, window.begin, window.end, HEARTBEAT)
        yield from _reports(job, [0], window.begin, window.end, sparse=True)


def _near(job: SimulatedJob, culprit: int) -> set[int]:
    """Return the numbers of the nodes of a job that are heard as often as agents send, the culprit's among them."""
    return {*range(0, len(job.nodes), max(1, -(-len(job.nodes) // HEARD))), culprit}


def _looks(window: PlayedWindow, facts: list[Fact]) -> Iterator[tuple[int, list[Fact]]]:
    """Yield facts as they come: each second while something happens, else every five."""
    sent, now, quiet = 0, window.begin, 0
    while now <= window.end:
        now += SECOND if quiet < 15 else 5 * SECOND
        begin = sent
        while sent < len(facts) and facts[sent].end < now:
            sent += 1
        due = facts[begin:sent]
        quiet = 0 if any(not isinstance(fact, Heartbeat | Progress) for fact in due) else quiet + 1
        yield now, due


def _windows(events: list[RankEvent]) -> list[PlayedWindow]:
    """Join the times around events that overlap."""
    found: list[PlayedWindow] = []
    for event in events:
        begin = event.at - BEFORE * SECOND
        # A failure makes its window longer when it is known how long it lasts.
        end = event.at + (60 if event.noise else 1_800) * SECOND
        if found and begin <= found[-1].end:
            found[-1].end = max(found[-1].end, end)
            found[-1].events.append(event)
        else:
            found.append(PlayedWindow(begin=begin, end=end, events=[event]))
    for window in found:
        if any(not event.noise for event in window.events):
            window.end = max(event.at for event in window.events) + 60 * SECOND
    return found


def _quiet(job: SimulatedJob, now: int) -> Iterator[Fact]:
    """Yield one report of rank 0 that stands for all since the last one."""
    since = max(job.reported, now - 86_400 * SECOND)
    if now - since < 2 * SECOND:
        return
    steps = max(1, int((now - since) / SECOND / job.step_s))
    yield _report(job, 0, since + SECOND, job.step + 1, job.step_s, last=now - SECOND, count=steps)
    job.step += steps
    job.reported = now


def _reports(
    job: SimulatedJob,
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


def _report(
    job: SimulatedJob, rank: int, at: int, step: int, took: float, last: int | None = None, count: int = 1
) -> Progress:
    return Progress(
        time=at, last_time=last, count=count, source=Source(log_of(job, rank), ident=f"step:{job.attempt}:{rank}:{at}"),
        node=job.node(rank), pod=job.pod(rank), job=job.name, rank=rank, attempt=job.attempt, step=step,
        loss=1.8, iter_time_s=took,
    )  # fmt: skip


def _heartbeats(job: SimulatedJob, node: str, begin: int, end: int, every: int) -> Iterator[Fact]:
    """Yield heartbeats at the seconds at which this node sends them, whenever the story begins."""
    phase = random.Random(node).randrange(FAR_HEARTBEAT) * SECOND
    first = begin + (phase - begin) % (every * SECOND)
    for at in range(first, end, every * SECOND):
        source = Source("agent", ident=f"heartbeat:{node}:{job.name}:{at}")
        yield Heartbeat(time=at, source=source, node=node, job=job.name)
