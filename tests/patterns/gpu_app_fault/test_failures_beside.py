"""Jobs that failed on one GPU lately, and failures of the GPU itself beside what a program did."""

from __future__ import annotations

import pytest

from tracecore.facts.gpu import Xid
from tracecore.patterns.gpu_app_fault.detector import FailedJobs, _Failures
from tracecore.signals.record import Source


@pytest.mark.parametrize(
    ("told", "recent"),
    [
        ([(0, None)], [1]),
        ([(0, "a"), (1, "a")], [1, 1]),
        ([(0, "a"), (1, "b"), (2, None)], [1, 2, 2]),
        # Remembered for 10, and anew when it fails again.
        ([(0, "a"), (10, "b")], [1, 2]),
        ([(0, "a"), (11, "b")], [1, 1]),
        ([(0, "a"), (5, "b"), (8, "a"), (16, "c")], [1, 2, 2, 2]),
        ([(0, "a"), (11, None)], [1, 1]),
    ],
)
def test_jobs_that_failed_on_one_gpu_lately(told: list[tuple[int, str | None]], recent: list[int]) -> None:
    jobs = FailedJobs(10)
    assert [jobs.recent(time, job) for time, job in told] == recent


def xid(time: int, gpu: str | None = "g0", node: str | None = "n1", last: int | None = None) -> Xid:
    return Xid(time=time, source=Source("kern.log", time), node=node, gpu=gpu, code=79, last_time=last)


@pytest.mark.parametrize(
    ("faults", "report", "beside"),
    [
        ([], xid(100), False),
        ([xid(90)], xid(100), True),
        ([xid(89)], xid(100), False),
        ([xid(89, last=90)], xid(100), True),
        ([xid(110)], xid(100), True),
        ([xid(111)], xid(100), False),
        ([xid(115)], xid(100, last=105), True),
        # One that lasts is beside what begins later, although another ended in between.
        ([xid(50, last=95), xid(60)], xid(100), True),
        ([xid(100, "g1")], xid(100), False),
        ([xid(100, None)], xid(100), True),
        ([xid(100, "g1")], xid(100, None), True),
        ([xid(100, node="n2")], xid(100), False),
    ],
)
def test_a_failure_of_the_gpu_beside_a_report(faults: list[Xid], report: Xid, beside: bool) -> None:
    assert _Failures(faults, 10).beside(report) is beside
