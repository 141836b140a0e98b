"""Whether a run ended between the beginning of a save and another time."""

from __future__ import annotations

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.process import ExceptionRaised, ExitStatus, FatalSignal
from tracecore.facts.stop import PlannedStop
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase
from tracecore.patterns.checkpointer_hang.watched import Ends
from tracecore.signals.record import Source

BEGUN, UNTIL = 1000, 2000


def at(time: int, offset: int = 60, path: str = "rank0.log") -> dict[str, object]:
    return {"time": time, "source": Source(path, offset), "rank": 0}


def raised(time: int, offset: int = 60, path: str = "rank0.log") -> Fact:
    return ExceptionRaised(type="ValueError", **at(time, offset, path))


def phase(event: str, time: int, offset: int = 50, path: str = "rank0.log") -> CheckpointPhase:
    return CheckpointPhase(phase="write", event=event, **at(time, offset, path))


def retried(time: int) -> Fact:
    return StorageError(error="io_error", **at(time))


@pytest.mark.parametrize(
    ("facts", "ended"),
    [
        ([], False),
        ([raised(1001)], True),
        ([FatalSignal(signal="SIGABRT", **at(1001))], True),
        ([PlannedStop(reason="preempted", **at(1001))], True),
        ([phase("error", 1001)], True),
        ([ExitStatus(exit_code=1, **at(1001))], True),
        ([ExitStatus(exit_code=0, alive=True, **at(1001))], False),
        # After the beginning and before the end, which does not count.
        ([raised(999)], False),
        ([raised(1999)], True),
        ([raised(2000)], False),
        ([raised(999), raised(2000)], False),
        # An error of storage that was raised may have been retried.
        ([raised(1001), retried(1001)], False),
        ([raised(1001), retried(1002)], True),
        # At the time of the beginning: in its file what stands below it, in another file all.
        ([raised(1000, 51)], True),
        ([raised(1000, 49)], False),
        ([raised(1000, 50)], False),
        ([raised(1000, 49), raised(1000, 51)], True),
        ([raised(1000, 51), raised(1000, 49)], True),
        ([raised(1000, 49, "rank1.log")], True),
        ([raised(1000, 49), raised(1000, 49, "rank1.log")], True),
        ([phase("error", 1000, 51)], True),
        ([phase("error", 1000, 49)], False),
        ([phase("error", 1000, 51, "rank1.log")], False),
        ([ExitStatus(exit_code=1, **at(1000, 0))], True),
    ],
)
def test_a_run_ended(facts: list[Fact], ended: bool) -> None:
    window = FactWindow(("j",), 1)
    begin = phase("begin", BEGUN)
    for fact in (begin, *facts):
        window.add(fact)
    assert Ends(window).between(begin, UNTIL) is ended


def test_nothing_ends_in_no_time() -> None:
    window = FactWindow(("j",), 1)
    window.add(raised(BEGUN, 51))
    assert Ends(window).between(phase("begin", BEGUN), BEGUN) is False
    assert Ends(window).between(phase("begin", BEGUN), BEGUN + 1) is True
