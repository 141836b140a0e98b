"""Trouble of machines that no verdict rests on is told once, if it is near the run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, AerRecovery
from tracecore.facts.host import HostEvent
from tracecore.facts.network import PortState
from tracecore.facts.storage import StorageError
from tracecore.incidents import run as runs
from tracecore.incidents.node_trouble import MOST, NEAR, notes, uncited
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, steps, verdict


def event(at: float, number: int = 0, **more: Any) -> HostEvent:
    named = {"event": "hung_task", "node": "n1", **more}
    return HostEvent(time=T0 + int(at * SECOND), source=Source("kern.log", number), **named)


def port(at: float, state: int, number: int = 1) -> PortState:
    source = Source("ports", int(at * 10) + number)
    return PortState(time=T0 + int(at * SECOND), source=source, node="n1", device="mlx5_0", port=number, state=state)


def test_a_port_that_came_up_again_is_no_trouble() -> None:
    assert uncited([port(0, 4), port(1, 1), port(2, 4)], []) == []
    (down,) = uncited([port(0, 4), port(1, 4, number=2), port(2, 1)], [])
    assert (down.time, down.port) == (T0 + 2 * SECOND, 1)  # type: ignore[attr-defined]


def test_repeated_trouble_is_told_once_with_its_count_and_its_end() -> None:
    (found,) = uncited([event(0, 1), event(5, 2, count=3, last_time=T0 + 9 * SECOND), event(6, 3)], [])
    assert (found.time, found.end, found.count) == (T0, T0 + 9 * SECOND, 5)


def test_what_a_verdict_rests_on_is_not_told_again() -> None:
    cited, other = event(0, 1), event(0, 2, event="oops")
    assert uncited([cited, other], [verdict("host_lost", 0, cited)]) == [other]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, True),
        ({"rank": 0}, False),
        ({"pod": "ml/a"}, False),
        ({"error": "recovered"}, False),
        ({"error": "not_found"}, False),
        ({"retried": True}, False),
    ],
)
def test_only_the_kernels_word_about_storage_is_trouble_of_a_machine(more: dict[str, Any], told: bool) -> None:
    fact = StorageError(time=T0, source=Source("kern.log", 1), node="n1", **{"error": "eio", **more})
    assert bool(uncited([fact], [])) is told


def test_of_named_files_only_those_of_the_kernel_count() -> None:
    fact = StorageError(time=T0, source=Source("kern.log", 1), node="n1", rank=0, error="eio")
    assert uncited([fact], [], ["kern.log"]) == [fact]
    assert uncited([fact], [], ["other.log"]) == []


def test_corrected_errors_and_recoveries_that_worked_are_none() -> None:
    source = Source("kern.log", 1)
    made: list[tuple[Fact, bool]] = [
        (AerError(time=T0, source=source, severity="corrected", error_type="RxErr"), False),
        (AerError(time=T0, source=source, severity="fatal", error_type="RxErr"), True),
        (AerError(time=T0, source=source, severity="nonfatal", error_type="RxErr"), True),
        (AerRecovery(time=T0, source=source, succeeded=True), False),
        (AerRecovery(time=T0, source=source, succeeded=False), True),
    ]
    assert [bool(uncited([fact], [])) for fact, _ in made] == [told for _, told in made]


def test_trouble_of_the_day_before_is_told_and_older_is_not() -> None:
    run = runs.look(steps(0, 10), T0 + 100 * SECOND)
    begin = min(attempt.first for attempt in run.attempts.values())
    day = 24 * NEAR

    def at(time: int) -> HostEvent:
        return HostEvent(time=time, source=Source("kern.log", 1), node="n1", event="hung_task")

    assert len(notes([at(begin - day)], run)) == 1
    assert notes([at(begin - day - 1)], run) == []
    guessed = HostEvent(time=begin - 2 * day, source=Source("k", 1), node="n1", event="oops", approximate=True)
    (note,) = notes([guessed], run)
    assert ", at " not in note


def test_many_kinds_are_counted() -> None:
    run = runs.look([], T0)
    facts = [event(number, number, process=f"p{number}") for number in range(MOST + 3)]
    said = notes(facts, run)
    assert len(said) == MOST + 1
    assert said[-1] == "3 more kinds of trouble of machines are in what was read"
    assert len(notes(facts[:MOST], run)) == MOST
