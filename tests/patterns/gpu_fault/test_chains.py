"""Reports of a driver that belong together, what they add up to, and which of them means a failure."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import GpuDriverError, GpuLost, Sxid, Xid
from tracecore.facts.process import CudaError
from tracecore.patterns.gpu_fault import detector
from tracecore.patterns.gpu_fault.action import SEVERITY, action_of, drastic, ends_fabric, faulty
from tracecore.patterns.gpu_fault.detector import GpuFault, GpuFaultVerdict
from tracecore.signals.record import Source


def xid(time: int, code: int = 79, **fields: Any) -> Xid:
    return Xid(time=time, source=Source("kern.log", time, ident=str(code)), node="n1", gpu="g0", code=code, **fields)


@pytest.mark.parametrize(
    ("facts", "chains"),
    [
        ([], []),
        ([xid(0), xid(10), xid(20)], [[0, 10, 20]]),
        ([xid(0), xid(11)], [[0], [11]]),
        # One that lasts holds the chain together.
        ([xid(0, last_time=20), xid(5), xid(30)], [[0, 5, 30]]),
        ([xid(0, last_time=20), xid(5), xid(31)], [[0, 5], [31]]),
    ],
)
def test_reports_that_follow_each_other_are_a_chain(facts: list[Xid], chains: list[list[int]]) -> None:
    assert [[fact.time for fact in chain] for chain in detector._chains(facts, 10)] == chains


def judged(*facts: Fact) -> list[GpuFaultVerdict]:
    window = FactWindow(("n1", "g0"), 0)
    for fact in facts:
        window.add(fact)
    return [verdict for verdict in GpuFault().evaluate(window, 10**18) if isinstance(verdict, GpuFaultVerdict)]


def test_a_chain_counts_its_reports_and_the_most_drastic_code_decides() -> None:
    window = GpuFault().config.window
    mild, drastic_one = xid(2, 48, count=3), xid(1 + window, 79)
    (said,) = judged(xid(1, 95, count=0), mild, drastic_one, xid(2 + window, 119))
    assert (said.reports, said.codes) == (5, (48, 79, 95))
    assert said.first.time == 1
    assert said.worst == max((xid(1, 95), mild, drastic_one), key=drastic)


def test_an_xid_that_names_its_cause_counts_where_the_cause_is_not_told() -> None:
    ended = xid(5, 45, cause=79)
    (alone,) = judged(ended)
    assert (alone.codes, alone.reports) == ((79,), 1)
    (said,) = judged(ended, xid(6, 48))
    assert (said.codes, said.reports) == ((48,), 1)


def lost(kind: str) -> GpuDriverError:
    return GpuDriverError(time=1, source=Source("kern.log"), error=kind)


@pytest.mark.parametrize(
    ("fact", "fails", "action"),
    [
        (xid(1, 79), True, "RESTART_BM"),
        (xid(1, 31), False, "RESTART_APP"),
        (xid(1, 74), False, "WORKFLOW_NVLINK_ERR"),
        (xid(1, 9999), False, None),
        (xid(1, 45, cause=79), True, "RESTART_BM"),
        (xid(1, 45, cause=31), False, "RESTART_APP"),
        (xid(1, 154, recovery="Node Reboot Required"), True, "RESTART_BM"),
        (xid(1, 154, recovery="Drain P2P"), True, "DRAIN_AND_RESET"),
        (xid(1, 154, recovery="None"), False, None),
        (xid(1, 154), False, None),
        (xid(1, 145, fatal=True), True, None),
        (GpuLost(time=1, source=Source("kern.log")), True, "RESTART_BM"),
        (lost("uvm_fatal"), True, "RESTART_BM"),
        (lost("ring_timeout"), True, "RESET_GPU"),
        (lost("page_fault"), False, "RESET_GPU"),
        (CudaError(time=1, source=Source("log"), error="device_lost"), False, "RESET_GPU"),
        (Sxid(time=1, source=Source("kern.log"), code=1), False, "RESET_GPU"),
    ],
)
def test_what_means_that_a_gpu_failed_and_what_to_do(fact: Fact, fails: bool, action: str | None) -> None:
    assert faulty(fact) is fails
    if not (isinstance(fact, Xid) and fact.code == 145):
        assert action_of(fact) == action
        assert drastic(fact) == (SEVERITY.index(action) if action in SEVERITY else -1)


@pytest.mark.parametrize(("code", "fatal", "ends"), [(1, True, True), (1, None, False), (1, False, False)])
def test_an_error_of_a_switch_ends_jobs_where_it_says_so(code: int, fatal: bool | None, ends: bool) -> None:
    assert ends_fabric(Sxid(time=1, source=Source("kern.log"), code=code, fatal=fatal)) is ends
