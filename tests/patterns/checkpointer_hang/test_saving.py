"""Checkpoints that began and did not end."""

from __future__ import annotations

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished
from tracecore.patterns.checkpointer_hang.saving import after, longest, open_phases, unfinished
from tracecore.signals.record import Source


def phase(
    event: str, time: int, place: int = 50, *, rank: int = 0, what: str = "write", step: int | None = None
) -> CheckpointPhase:
    return CheckpointPhase(
        time=time, source=Source(f"rank{rank}.log", place), rank=rank, phase=what, event=event, step=step
    )


def step(time: int, number: int | None, place: int = 50, rank: int = 0) -> Progress:
    return Progress(time=time, source=Source(f"rank{rank}.log", place), rank=rank, step=number)


def finished(time: int) -> RunFinished:
    return RunFinished(time=time, source=Source("rank9.log"), rank=9)


def window(*facts: Fact) -> FactWindow:
    made = FactWindow(("j",), 1)
    for fact in facts:
        made.add(fact)
    return made


@pytest.mark.parametrize(
    ("phases", "times"),
    [
        ([], []),
        ([phase("begin", 10)], [10]),
        ([phase("begin", 10), phase("end", 20)], []),
        ([phase("begin", 10), phase("begin", 20)], [20]),
        ([phase("begin", 10), phase("end", 20), phase("begin", 30)], [30]),
        ([phase("begin", 10), phase("begin", 10, rank=1), phase("end", 20)], [10]),
        ([phase("end", 10)], []),
        # The end of another phase does not end this one; an error neither.
        ([phase("begin", 10), phase("end", 20, what="plan")], [10]),
        ([phase("begin", 10), phase("error", 20)], [10]),
        # Lines of one time are told apart by their places.
        ([phase("begin", 10, 1), phase("end", 10, 2)], []),
        ([phase("end", 10, 1), phase("begin", 10, 2)], [10]),
        ([phase("begin", 10, 1), phase("end", 10, 2), phase("begin", 10, 3)], [10]),
        ([phase("begin", 10, 1), phase("end", 10, 3), phase("begin", 10, 2)], []),
        ([phase("begin", 5, 1), phase("end", 10, 1), phase("begin", 10, 2)], [10]),
    ],
)
def test_the_last_phase_that_a_process_began_and_did_not_end(phases: list[CheckpointPhase], times: list[int]) -> None:
    assert [begin.time for begin in open_phases(window(*phases))] == times


@pytest.mark.parametrize(
    ("others", "open_"),
    [
        ([], True),
        # A step of the same process after it, by its place where they share a time.
        ([step(99, 7)], True),
        ([step(101, 7)], False),
        ([step(100, 7, 49)], True),
        ([step(100, 7, 51)], False),
        ([step(100, 7, 51), step(100, 6, 49)], False),
        # The end of the run.
        ([finished(99)], True),
        ([finished(100)], False),
        ([finished(50), finished(100)], False),
        # A further step of the job, whoever reports it: ranks print one step at different times.
        ([step(90, 7, rank=1), step(110, 7, rank=2)], True),
        ([step(90, 7, rank=1), step(110, 8, rank=1)], False),
        ([step(90, 7, rank=1), step(100, 8, rank=1)], True),
        ([step(90, 7, rank=1), step(110, None, rank=1)], True),
        # Without a step from before it, one beyond the first.
        ([step(110, 7, rank=1)], True),
        ([step(110, 7, rank=1), step(120, 7, rank=2)], True),
        ([step(110, 7, rank=1), step(120, 8, rank=1)], False),
    ],
)
def test_a_save_that_neither_its_process_nor_the_job_left_behind(others: list[Fact], open_: bool) -> None:
    begin = phase("begin", 100)
    assert (unfinished(window(begin, *others), [begin]) == [begin]) is open_


@pytest.mark.parametrize(
    ("number", "reports", "open_"),
    [
        (7, [step(90, 6, rank=1), step(110, 7, rank=1)], True),
        (7, [step(90, 6, rank=1), step(110, 8, rank=1)], False),
        (7, [step(110, 7, rank=1), step(120, 7, rank=2)], True),
        (7, [step(110, 8, rank=1)], False),
    ],
)
def test_a_save_of_a_known_step_is_left_behind_by_a_later_step(number: int, reports: list[Fact], open_: bool) -> None:
    begin = phase("begin", 100, step=number)
    assert (unfinished(window(begin, *reports), [begin]) == [begin]) is open_


def test_the_oldest_save_comes_first() -> None:
    begun = [phase("begin", 30, rank=2), phase("begin", 10, rank=1)]
    assert [begin.time for begin in unfinished(window(*begun), begun)] == [10, 30]


@pytest.mark.parametrize(
    ("phases", "length"),
    [
        ([], 0),
        ([phase("begin", 10)], 0),
        ([phase("begin", 10), phase("end", 25)], 15),
        ([phase("begin", 10), phase("end", 25), phase("begin", 30), phase("end", 40)], 15),
        ([phase("begin", 10), phase("end", 20), phase("begin", 30), phase("end", 50)], 20),
        ([phase("begin", 10), phase("error", 25)], 0),
        ([phase("begin", 10), phase("error", 25), phase("end", 40)], 0),
        ([phase("begin", 10), phase("end", 25, rank=1)], 0),
        ([phase("begin", 10), phase("end", 25, what="plan")], 0),
        ([phase("end", 25)], 0),
    ],
)
def test_the_longest_save_that_finished(phases: list[CheckpointPhase], length: int) -> None:
    assert longest(window(*phases)) == length


def test_lines_of_one_file_and_time_are_told_apart_by_their_place() -> None:
    begin = phase("begin", 10, 50)
    assert [after(step(10, 1, place), begin) for place in (49, 50, 51)] == [False, False, True]
    assert [after(step(time, 1, 50), begin) for time in (9, 11)] == [False, True]
    assert not after(step(10, 1, 51, rank=1), begin)
