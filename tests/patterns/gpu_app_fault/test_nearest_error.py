"""The CUDA error that belongs to what the driver reports."""

from __future__ import annotations

import pytest

from tracecore.facts.gpu import Xid
from tracecore.facts.process import CudaError
from tracecore.patterns.gpu_app_fault.detector import Errors
from tracecore.signals.record import Source


def error(time: int, pid: int | None = None, node: str | None = "n") -> CudaError:
    return CudaError(time=time, source=Source("a.log", time), node=node, pid=pid, error="launch_failure")


def nearest(
    errors: list[CudaError], pid: int | None = None, node: str | None = "n", shared: bool = False
) -> int | None:
    report = Xid(time=100, source=Source("kern.log"), node=node, code=31, pid=pid)
    found = Errors(errors, shared).nearest(report, 50, 150)
    return None if found is None else found.time


@pytest.mark.parametrize(
    ("errors", "pid", "time"),
    [
        ([], None, None),
        ([error(90), error(120)], None, 90),
        ([error(80), error(110)], None, 110),
        ([error(90), error(110)], None, 90),
        # Within the time, which counts at both ends.
        ([error(49), error(151)], None, None),
        ([error(50)], None, 50),
        ([error(150)], None, 150),
        # Of the process that the driver names, or of one that is not named.
        ([error(90, 7), error(110, 8)], 8, 110),
        ([error(90, 7)], 8, None),
        ([error(90, 7)], 7, 90),
        ([error(120)], 7, 120),
        ([error(90, 7), error(120)], 7, 90),
        ([error(70, 7), error(120)], 7, 120),
        ([error(90, 7), error(110)], 7, 90),
        ([error(90), error(110, 7)], 7, 90),
    ],
)
def test_the_nearest_error_of_the_process(errors: list[CudaError], pid: int | None, time: int | None) -> None:
    assert nearest(errors, pid) == time


@pytest.mark.parametrize("pid", [None, 7])
def test_where_all_nodes_meet_only_a_fact_without_a_node_meets_others(pid: int | None) -> None:
    errors = [error(90, pid), error(120, pid, None)]
    assert nearest(errors, pid, shared=True) == 120
    assert nearest(errors, pid, node=None, shared=True) == 90
    assert nearest(errors, pid) == 90
