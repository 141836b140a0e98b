"""A process that ran out of memory goes on if it makes two further steps."""

from __future__ import annotations

import pytest

from tracecore.facts.memory import CudaOomUnmeasured
from tracecore.facts.training import Progress
from tracecore.patterns.cuda_oom.detector import ProcessSteps
from tracecore.signals.record import Source

FAILED, WITHIN = 1000, 100


def step(time: int, number: int | None, offset: int = 60, path: str = "rank1.log", rank: int = 1) -> Progress:
    return Progress(time=time, source=Source(path, offset), rank=rank, step=number)


@pytest.mark.parametrize(
    ("reports", "goes_on"),
    [
        ([], False),
        ([step(1001, 7)], False),
        ([step(1001, 7), step(1002, 8)], True),
        # One step that is printed twice is one step.
        ([step(1001, 7), step(1002, 7)], False),
        ([step(1001, 7), step(1002, None), step(1003, 7)], False),
        ([step(1001, 7), step(1002, None), step(1003, 8), step(1004, None)], True),
        # Both within the time, and after the failure.
        ([step(1001, 7), step(1100, 8)], True),
        ([step(1001, 7), step(1101, 8)], False),
        ([step(999, 6), step(1001, 7)], False),
        # Steps of others say nothing of it.
        ([step(1001, 7, rank=2), step(1002, 8, rank=2)], False),
        ([step(1001, 7, rank=2), step(1002, 7), step(1003, 8), step(1004, 9, rank=2)], True),
        ([step(1001, 6), step(1002, 7, rank=2), step(1003, 6)], False),
        # At the time of the failure the place in its file decides.
        ([step(1000, 7, 51), step(1000, 8, 52)], True),
        ([step(1000, 8, 52), step(1000, 7, 51)], True),
        ([step(1000, 7, 51), step(1000, 7, 52)], False),
        ([step(1000, 6, 49), step(1000, 7, 51)], False),
        ([step(1000, 6, 50), step(1000, 7, 51)], False),
        ([step(1000, 7, 51, path="a.log"), step(1000, 8, 52, path="a.log")], False),
        # One at that time and one later.
        ([step(1000, 7, 51), step(1001, 8)], True),
        ([step(1000, 7, 51), step(1001, 7)], False),
        ([step(1000, 7, 51), step(1101, 8)], False),
        ([step(1000, 7, 49), step(1001, 8)], False),
    ],
)
def test_two_further_steps(reports: list[Progress], goes_on: bool) -> None:
    oom = CudaOomUnmeasured(time=FAILED, source=Source("rank1.log", 50), rank=1, backend="cuda")
    assert ProcessSteps(reports).go_on(oom, WITHIN) is goes_on
