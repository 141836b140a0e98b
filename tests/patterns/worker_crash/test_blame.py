"""Whether a launcher's report is of a process that failed of itself: each condition and edge."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import ExceptionRaised, LauncherFailure
from tracecore.facts.stop import PlannedStop
from tracecore.patterns.worker_crash.blame import Scene
from tracecore.patterns.worker_crash.process_facts import ProcessFacts
from tracecore.signals.record import Source

SECOND = 1_000_000_000
FAILED, MEMORY, GRACE = 1000, 100, 10
F = TypeVar("F", bound=Fact)


def made(kind: type[F], at: int = FAILED, rank: int | None = 1, **fields: Any) -> F:
    path = f"{kind.__name__}-{rank}.log"
    return kind(time=at * SECOND, source=Source(path, at), rank=rank, **fields)


def report(code: int | None = 1, rank: int | None = 1, at: int = FAILED, **fields: Any) -> LauncherFailure:
    return made(LauncherFailure, at, rank, launcher="torchrun", exit_code=code, **fields)


def lost(at: int = FAILED, rank: int | None = 1) -> NcclError:
    return made(NcclError, at, rank, error="remote_error")


@pytest.mark.parametrize(
    ("fact", "others", "own"),
    [
        # By a signal: fatal ones are its own, what somebody asked for is not.
        (report(-11), [], True),
        (report(-15), [], False),
        (report(-11), [lost()], False),
        # By a status: good ones, and reporters that know none and name no root, tell nothing.
        (report(0, root=True), [], False),
        (report(None), [], False),
        (report(None, root=True), [], True),
        (report(None, root=True), [lost()], False),
        # What others say of their peers is said of the one that has no name.
        (report(None, None, root=True), [lost(rank=None)], True),
        (report(1, None, root=True), [lost(rank=None)], False),
        (report(1, root=True), [], True),
        (report(1, root=True), [lost(FAILED - MEMORY)], False),
        (report(1, root=True), [lost(FAILED - MEMORY - 1)], True),
        (report(1, root=True), [lost(FAILED + MEMORY)], False),
        (report(1, root=True), [lost(FAILED + MEMORY + 1)], True),
        (report(1, root=True), [lost(rank=2)], True),
        (report(1, root=True, exception_type="torch.ChildFailedError"), [], False),
        (report(1, root=True, exception_type="torch.distributed.DistBackendError"), [], False),
        (report(1, root=True, exception_type="ValueError"), [], True),
        # A stop was asked for.
        (report(1, root=True), [made(PlannedStop, FAILED - GRACE, reason="preempted")], False),
        (report(1, root=True), [made(PlannedStop, FAILED - GRACE - 1, reason="preempted")], True),
        (report(1, root=True), [made(PlannedStop, FAILED + 1, reason="preempted")], True),
        # Without a root: all that is known, or the first of those that the launcher had to end.
        (report(1), [], True),
        (report(1, None), [], True),
        (report(1), [made(ExceptionRaised, rank=2, type="ValueError")], False),
        (report(1), [made(ExceptionRaised, rank=2, type="ChildFailedError")], True),
        (report(1), [report(-15, 2), made(ExceptionRaised, rank=2, type="ValueError")], True),
        (report(1), [report(-15, 2), made(ExceptionRaised, rank=1, type="ValueError")], False),
        (report(1), [report(1, 2)], False),
        (report(1), [report(1, 2, FAILED + MEMORY + 1)], True),
        (report(1), [made(WatchdogReport, rank=2, report="timeout")], False),
    ],
)
def test_a_report_of_a_launcher_is_of_a_failure_itself(fact: LauncherFailure, others: list[Fact], own: bool) -> None:
    window = FactWindow(("j", ""), 2 * SECOND)
    for one in (fact, *others):
        window.add(one)
    scene = Scene(window, ProcessFacts(window), MEMORY * SECOND, GRACE * SECOND)
    assert scene.own(fact) is own
