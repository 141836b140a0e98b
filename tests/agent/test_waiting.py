"""An agent that nothing comes to does nothing, and is there when something is due."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.configuration import Configuration, Service
from tracecore.agent.graph import Pipeline, Stage
from tracecore.agent.processors.patterndetector import Options, PatternDetector
from tracecore.agent.service import AGAIN, PULSE, SHORTEST, Graph, _pause
from tracecore.agent.telemetry import Meter, Telemetry

MILLISECOND = 1_000_000
SECOND = 1000 * MILLISECOND
START = 1_790_000_000 * SECOND
CRASH = "RuntimeError: CUDA error: an illegal memory access was encountered"


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _none(id: str) -> Any:
    raise KeyError(id)


@pytest.fixture
def detector(clock: Clock) -> PatternDetector:
    meter = Meter("processor", "patterndetector", "logs")
    setting = Setting("patterndetector", meter, clock, _none, Path(), lambda: (True, {}))
    return PatternDetector(Options(forward="verdicts"), setting)


@pytest.fixture
def looks(detector: PatternDetector, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The instants at which the engine looks."""
    found: list[int] = []
    engine = detector.detection._engine
    advance = engine.advance

    def counted(now: int) -> Any:
        found.append(now)
        return advance(now)

    monkeypatch.setattr(engine, "advance", counted)
    return found


def lines(time: int, *texts: str, path: str = "/a.log", pause: int = 0) -> Batch:
    records = [{"body": text, "attributes": {"log.file.path": path}, "time_unix_nano": time} for text in texts]
    entry = {"resource": {"attributes": {"host.name": "n"}}, "scope_logs": [{"scope": {}, "log_records": records}]}
    return Batch("logs", {"resource_logs": [entry]}, pause=pause)


def told(batches: Iterable[Batch]) -> list[str]:
    return [
        record["attributes"]["pattern.name"]
        for batch in batches
        for entry in batch.view()["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
    ]


def until(clock: Clock, detector: PatternDetector, end: int) -> list[str]:
    """As an agent does: asleep until something is due."""
    found = []
    while (due := detector.due() or 0) <= end:
        clock.now = max(clock.now, due)
        found += told(detector.tick(clock.now))
    clock.now = end
    return found


def test_an_engine_that_nothing_comes_to_looks_once_a_second(
    clock: Clock, detector: PatternDetector, looks: list[int]
) -> None:
    list(detector.process(lines(clock.now, "step 1 loss 2.0")))
    until(clock, detector, START + SECOND)
    looks.clear()
    assert until(clock, detector, START + 11 * SECOND) == []
    assert len(looks) == 10
    assert all(later - earlier == SECOND for earlier, later in itertools.pairwise(looks))


def test_a_line_is_judged_in_the_moment_in_which_its_block_is_whole(clock: Clock, detector: PatternDetector) -> None:
    until(clock, detector, START + 10 * SECOND)
    assert told(detector.process(lines(clock.now, CRASH, pause=25 * MILLISECOND))) == []
    assert detector.due() == clock.now + 100 * MILLISECOND
    assert until(clock, detector, clock.now + 99 * MILLISECOND) == []
    assert until(clock, detector, clock.now + MILLISECOND) == ["worker_crash"]


def test_what_is_read_together_is_judged_together(clock: Clock, detector: PatternDetector, looks: list[int]) -> None:
    until(clock, detector, START + 10 * SECOND)
    for step in (1, 2):
        for rank in range(8):
            text = f"[rank{rank}]: step {step} loss 2.0"
            list(detector.process(lines(clock.now, text, path=f"/{rank}.log", pause=200 * MILLISECOND)))
        looks.clear()
        until(clock, detector, clock.now + 200 * MILLISECOND)
    assert len(looks) == 1


def test_a_clock_that_is_set_back_stops_nothing(clock: Clock, detector: PatternDetector, looks: list[int]) -> None:
    list(detector.process(lines(clock.now, "step 1 loss 2.0")))
    until(clock, detector, START + 2 * SECOND)
    clock.now -= 3600 * SECOND
    looks.clear()
    until(clock, detector, clock.now + 3 * SECOND)
    assert 2 <= len(looks) <= 4


class Patient:
    """A processor that wants to be called a while after every batch."""

    def __init__(self, clock: Callable[[], int], patience: int) -> None:
        self._clock, self._patience = clock, patience
        self._due: int | None = None
        self.ticks: list[int] = []

    def process(self, batch: Batch) -> Iterable[Batch]:
        self._due = self._clock() + self._patience
        batch.done()
        return ()

    def due(self) -> int | None:
        return self._due

    def tick(self, now: int) -> Iterable[Batch]:
        self.ticks.append(now)
        self._due = None
        return ()

    def drain(self, now: int) -> Iterable[Batch]:
        return ()


def test_who_waits_is_woken_only_when_something_is_due_sooner(clock: Clock) -> None:
    rung: list[int] = []
    nothing = Configuration({}, Service(pipelines={}), ())
    graph = Graph(nothing, Telemetry(), None, lambda: rung.append(clock.now))
    soon, late = (Patient(clock, patience * SECOND) for patience in (5, 60))
    for processor in (soon, late):
        stage = Stage("p", processor, Meter("processor", "p", "logs"))
        graph.pipelines.append(Pipeline("logs", "logs", [stage], (), clock, graph._await))
    assert graph.tick(clock.now) is None
    graph.pipelines[1].consume(lines(clock.now, "a"))
    assert len(rung) == 1, "nobody knew that something would be due"
    assert graph.tick(clock.now) == START + 60 * SECOND
    graph.pipelines[0].consume(lines(clock.now, "b"))
    assert len(rung) == 2
    assert graph.tick(clock.now) == START + 5 * SECOND
    clock.now += SECOND
    graph.pipelines[0].consume(lines(clock.now, "c"))
    graph.pipelines[1].consume(lines(clock.now, "d"))
    assert len(rung) == 2, "both are due later than what is waited for"
    clock.now = START + 6 * SECOND
    assert graph.tick(clock.now) == START + 61 * SECOND
    assert (len(soon.ticks), len(late.ticks)) == (1, 0)


def test_how_long_an_agent_sleeps() -> None:
    now = time.time_ns()
    assert _pause(None, now) == _pause(now + 60 * SECOND, now) == PULSE
    assert _pause(now + SECOND // 4, now) == 0.25
    assert _pause(now + 1, now) == SHORTEST
    # What was due and could not be done, since nobody takes what would come of it.
    assert _pause(now - SECOND, now) == AGAIN
