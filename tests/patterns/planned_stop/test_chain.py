"""Which fact of several tells why a job stopped, and what is a failure beside it."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure
from tracecore.facts.stop import PlannedStop
from tracecore.patterns.planned_stop import detector
from tracecore.patterns.planned_stop.detector import PlannedStopPattern, PlannedStopVerdict
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
F = TypeVar("F", bound=Fact)


def made(kind: type[F], at: int = 0, **fields: Any) -> F:
    return kind(time=START + at, source=Source(kind.kind, at), job="j", **fields)


def window(*facts: Fact) -> FactWindow:
    found = FactWindow(("j", "", ""), 0)
    for fact in facts:
        found.add(fact)
    return found


DIED = made(FatalSignal, 0, signal="SIGTERM")


@pytest.mark.parametrize(
    ("facts", "reason", "time"),
    [
        ([DIED], "sigterm", 0),
        ([DIED, made(PlannedStop, 1, reason="interrupt")], "interrupt", 1),
        ([made(PlannedStop, 0, reason="interrupt"), made(PlannedStop, 1, reason="preempted")], "preempted", 1),
        ([DIED, made(PlannedStop, 1, reason="preempted"), made(PlannedStop, 2, reason="drain")], "preempted", 1),
    ],
)
def test_a_request_says_more_than_a_death(facts: list[Fact], reason: str, time: int) -> None:
    (verdict,) = PlannedStopPattern().evaluate(window(*facts), START + 10)
    assert isinstance(verdict, PlannedStopVerdict)
    assert (verdict.reason, verdict.time - START) == (reason, time)


@pytest.mark.parametrize(
    ("fact", "failed"),
    [
        (made(ExceptionRaised, type="ValueError"), True),
        (made(ExceptionRaised, type="torch.SignalException"), False),
        (made(FatalSignal, signal="SIGSEGV"), True),
        (made(FatalSignal, signal="SIGTERM"), False),
        (made(LauncherFailure, launcher="torchelastic", exit_code=1), True),
        (made(LauncherFailure, launcher="torchelastic", root=True), True),
        (made(LauncherFailure, launcher="torchelastic"), False),
        (made(LauncherFailure, launcher="torchelastic", exit_code=-15), False),
        (made(ExitStatus, exit_code=137), True),
        (made(ExitStatus, exit_code=143), False),
        (made(ExitStatus, exit_code=1), False),
        (made(ExitStatus, exit_code=0), False),
        (made(NcclError, error="timeout"), True),
        (made(WatchdogReport, report="timeout"), True),
    ],
)
def test_what_fails_by_itself(fact: Fact, failed: bool) -> None:
    assert detector._failures(window(fact)) == ([START] if failed else [])


def test_failures_are_in_order_of_time() -> None:
    facts = [made(WatchdogReport, 1, report="timeout"), made(ExceptionRaised, 2, type="ValueError")]
    assert detector._failures(window(*facts)) == [START + 1, START + 2]
