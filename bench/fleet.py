"""A process that joins the facts of a fleet, and the score of a fleet that fails as often as published.

First 2,048 nodes with 8 ranks each, healthy, then 150 nodes failing at once. Then days of a simulated fleet with its
truth (`tracecore.simulation`): roots right, false and duplicate pages; then health events of which none needs an
action, and as many of which one in a hundred is a failure. `--full` plays 54 days of 16,384 GPUs, and 100,000 events.

Simulated: facts arrive as OTLP requests of about a thousand, on a clock that the benchmark moves. Counted is the
processor time of the joining process, decoding included.
"""

from __future__ import annotations

import gc
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench import Measurement
from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.webhook import told
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.processors.patterndetector.options import IncidentOptions
from tracecore.agent.telemetry import Meter
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import GpuLost, Xid
from tracecore.facts.host import Heartbeat
from tracecore.facts.process import CudaError, ExceptionRaised
from tracecore.facts.training import Progress
from tracecore.signals.record import Source
from tracecore.simulation.fleet import NOISE, TABLE_DAYS
from tracecore.simulation.run import PlayedRun
from tracecore.simulation.score import Score
from tracecore.simulation.simulate import simulate

SECOND = 1_000_000_000
START = 1_790_000_000 * SECOND
NODES, RANKS, JOBS = 2_048, 8, 32
#: A rank sends a report of progress, and a node a heartbeat, in so many seconds (facts/thinning.py, pulse.py).
PROGRESS, HEARTBEAT = 10, 15
WARM, SECONDS = 30, 60
FAILING = 150
SETTLE = 10
HEALTH_EVENTS = 100_000
#: As many in the short run.
FEW_EVENTS = 2_000
#: Nodes on which as many events are played with failures among them.
SMALL = 64
#: Interruptions of the published table that nobody had planned.
UNPLANNED = 419


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


class Fleet:
    """The joining process, and what its nodes send in each second."""

    def __init__(self, seed: int) -> None:
        self.clock = Clock()
        self.chance = random.Random(seed)
        self.spent = 0.0
        self.facts = 0
        self.bytes = 0
        #: When each incident was told first, its job and its root, by id.
        self.incidents: dict[str, tuple[float, str, str]] = {}
        setting = Setting(
            "patterndetector", Meter("processor", "bench"), self.clock, {}.__getitem__, Path(), lambda: (True, {})
        )
        options = Options(forward="verdicts", tell="incidents", incidents=IncidentOptions(settle=SETTLE * SECOND))
        self.joiner = PatternDetector(options, setting)
        self.gone: set[int] = set()

    def job(self, node: int) -> str:
        return f"ml/job-{node * JOBS // NODES}"

    def place(self, node: int, rank: int) -> dict[str, Any]:
        number = (node * RANKS + rank) % (NODES // JOBS * RANKS)
        name = self.job(node)
        return {"node": f"node-{node}", "pod": f"{name}-{number}", "job": name, "rank": number}

    def second(self, at: int, stuck: frozenset[str] = frozenset()) -> Iterator[Fact]:
        """What leaves the nodes in this second."""
        for node in range(NODES):
            if node in self.gone:
                continue
            if (at + node) % HEARTBEAT == 0:
                source = Source("agent", ident=f"heartbeat:{node}:{at}")
                yield Heartbeat(time=self.clock.now, source=source, node=f"node-{node}", job=self.job(node))
            if self.job(node) in stuck or at % PROGRESS:
                continue
            for rank in range(RANKS):
                source = Source("/var/log/pods/p/trainer/0.log", ident=f"record:{at}-{node}-{rank}")
                when = self.clock.now - self.chance.randrange(SECOND)
                yield Progress(
                    time=when, source=source, step=at, loss=2.0 + self.chance.random() / 10,
                    iter_time_s=self.chance.uniform(0.95, 1.05), **self.place(node, rank),
                )  # fmt: skip

    def feed(self, facts: Iterable[Fact]) -> None:
        """Send these as requests of about a thousand facts, and let the joiner look."""
        held = sorted(facts, key=lambda fact: fact.node or "")
        requests = []
        for at in range(0, len(held), 1000):
            batch = Batch("logs", wire.payload(held[at : at + 1000], self.clock.now))
            requests.append(batch.encoded())
        self.facts += len(held)
        self.bytes += sum(map(len, requests))
        self.look(requests)

    def look(self, requests: Iterable[bytes] = ()) -> None:
        begin = time.process_time()
        made: list[Batch] = []
        for raw in requests:
            made += self.joiner.process(Batch("logs", raw=raw))
        made += self.joiner.tick(self.clock.now)
        self.spent += time.process_time() - begin
        for batch in made:
            for attributes, _ in told(batch):
                job = str(attributes.get("gen_ai.training.job_id", ""))
                found = (self.clock.now - START) / SECOND, job, str(attributes.get("pattern.name", ""))
                self.incidents.setdefault(attributes["incident.id"], found)

    def run(self, begin: int, end: int, stuck: frozenset[str] = frozenset()) -> None:
        for at in range(begin, end):
            self.clock.now = START + at * SECOND
            self.feed(self.second(at, stuck))

    def fail(self, nodes: Iterable[int]) -> list[Fact]:
        """A GPU of each of these nodes is lost, and its rank says so."""
        facts: list[Fact] = []
        for node in nodes:
            whose = self.place(node, 3)
            now = self.clock.now - self.chance.randrange(SECOND)
            on = {"time": now, "node": whose["node"], "gpu": "0000:5d:00.0"}
            told_at = {"time": now + SECOND // 10, **whose}
            facts += [
                Xid(source=Source("/dev/kmsg", ident=f"xid:{node}"), code=79, **on),
                GpuLost(source=Source("/dev/kmsg", ident=f"lost:{node}"), **on),
                CudaError(source=Source("0.log", ident=f"cuda:{node}"), error="unknown error", **told_at),
                ExceptionRaised(
                    source=Source("0.log", ident=f"exception:{node}"), type="RuntimeError",
                    message="CUDA error: unspecified launch failure", **told_at,
                ),
            ]  # fmt: skip
        return facts


def healthy(seed: int) -> tuple[Fleet, float, float]:
    """The fleet after two quiet minutes, the share of a core that it took, and facts in a second."""
    fleet = Fleet(seed)
    fleet.run(0, WARM)
    gc.collect()
    fleet.spent, fleet.facts = 0.0, 0
    fleet.run(WARM, WARM + SECONDS)
    return fleet, fleet.spent / SECONDS, fleet.facts / SECONDS


def failing(fleet: Fleet) -> tuple[list[float], int, int]:
    """Seconds beyond the settle time until each affected job has its incident; jobs affected; jobs that are right."""
    at = WARM + SECONDS
    nodes = fleet.chance.sample(range(NODES), FAILING)
    affected = frozenset(fleet.job(node) for node in nodes)
    fleet.clock.now = START + at * SECOND
    fleet.feed([*fleet.second(at, affected), *fleet.fail(nodes)])
    delays: dict[str, float] = {}
    before = set(fleet.incidents)
    for tenth in range(1, 400):
        fleet.clock.now = START + at * SECOND + tenth * SECOND // 10
        spent = fleet.spent
        if tenth % 10 == 0:
            fleet.feed(fleet.second(at + tenth // 10, affected))
        else:
            fleet.look()
        for name, (_, job, _) in fleet.incidents.items():
            if name not in before and job in affected and job not in delays:
                # The time that the look itself took is part of the wait.
                delays[job] = tenth / 10 + (fleet.spent - spent) - SETTLE
        if len(delays) == len(affected):
            break
    found = [(job, root) for name, (_, job, root) in fleet.incidents.items() if name not in before]
    right = sum(1 for job in affected if [root for one, root in found if one == job] == ["gpu_fault"])
    return sorted(delays.values()), len(affected), right


def report() -> None:
    """Print the numbers of one process, as a child does."""
    fleet, core, rate = healthy(1)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    early = len(fleet.incidents)
    delays, affected, right = failing(fleet)
    p90 = delays[int(len(delays) * 0.9)] if delays else 1e9
    print(core, rate, memory, early, p90, affected, right, len(delays))


def scored(name: str, found: Score, outcome: PlayedRun, note: str) -> list[Measurement]:
    """Return the rows of a simulated fleet."""
    total, weeks = found.total, found.days / 7
    how = f"{note}; {total.counted} with signals, {outcome.noise} events of noise"
    right = f"{total.node} of {total.nodes} nodes and {total.class_} of {total.counted} classes right"
    return [
        Measurement(f"fleet.{name}.roots", found.roots_right, "% right", "≥ 95", how),
        Measurement(f"fleet.{name}.found", 100 * total.found / max(1, total.needed), "% found", "≥ 95", right),
        Measurement(f"fleet.{name}.duplicates", len(found.duplicates), "pages", "≤ 0", "about what was told already"),
        Measurement(
            f"fleet.{name}.false", len(found.false_pages) / weeks, "pages a week", "≤ 1", "nothing behind them"
        ),
        Measurement(f"fleet.{name}.missed", total.missed_pages, "failures", "≤ 0", "nobody was told"),
        Measurement(f"fleet.{name}.page", median(total.seconds or [0.0]), "s", "", "to the page, simulated, median"),
    ]


def noisy(nodes: int, days: float, events: int, seed: int, few: str = "") -> list[Measurement]:
    """Return the rows of health events that need no action, and of as many of which one in a hundred is a failure."""
    begin = sum(os.times()[:4])
    noise, outcome = simulate(nodes, days, seed, rate=0, quiet=events, jobs=2)
    spent = sum(os.times()[:4]) - begin
    how = f"{outcome.noise} health events that need no action, {days:g} days of {nodes * RANKS} GPUs, {spent:.0f} s"
    rows = [Measurement(f"fleet.{few}noise.pages", len(noise.false_pages), "pages", "≤ 0", f"{how} of processor time")]
    # On a small fleet, because it is about their number.
    rate = events / (NOISE + 1) / (UNPLANNED * SMALL / NODES * days / TABLE_DAYS)
    mixed, outcome = simulate(SMALL, days, seed, rate=rate, jobs=2)
    rows += scored(f"{few}mixed", mixed, outcome, f"{days:g} days of {SMALL * RANKS} GPUs, {rate:.0f} times the rate")
    return rows


def measure_full(seed: int = 1) -> list[Measurement]:
    """Play 54 days of 16,384 GPUs, and health events that need no action."""
    found, outcome = simulate(NODES, TABLE_DAYS, seed, jobs=2)
    rows = scored("days", found, outcome, f"54 days of {NODES * RANKS} GPUs, seed {seed}")
    return [*rows, *noisy(NODES, TABLE_DAYS, HEALTH_EVENTS, seed)]


def measure() -> list[Measurement]:
    found, outcome = simulate(12, 2, 12, rate=60, noise=10)
    rows = scored("short", found, outcome, "2 days of 96 GPUs, 60 times the published rate, seed 12")
    return [*_joined(), *rows, *noisy(SMALL, 4, FEW_EVENTS, 12, few="few_")]


def _joined() -> list[Measurement]:
    done = subprocess.run(
        [sys.executable, "-c", "from bench.fleet import report; report()"],
        check=True, capture_output=True, text=True, cwd=Path(__file__).resolve().parents[1],
    )  # fmt: skip
    core, rate, memory, early, p90, affected, right, told_of = map(float, done.stdout.split()[-8:])
    simulated = f"simulated: {NODES} nodes × {RANKS} ranks in {JOBS} jobs"
    return [
        Measurement("fleet.healthy.core", 100 * core, "% of a core", "≤ 50", f"{simulated}, {rate:.0f} facts/s"),
        Measurement("fleet.healthy.memory", memory, "MiB", "≤ 1536", simulated),
        Measurement("fleet.healthy.incidents", early, "incidents", "≤ 0", simulated),
        Measurement(
            "fleet.failing.p90", p90, "s", "≤ 2", f"{FAILING} nodes in a second, beyond {SETTLE} s of settling"
        ),
        Measurement(
            "fleet.failing.missed", affected - told_of, "jobs", "≤ 0", f"of {affected:.0f} without an incident"
        ),
        Measurement("fleet.failing.wrong", affected - right, "jobs", "≤ 0", "more or less than one, or another root"),
    ]
