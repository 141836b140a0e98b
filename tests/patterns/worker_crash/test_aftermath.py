"""A process survived a failure if it goes on: by a step, by its end, or by what it says of its run."""

from __future__ import annotations

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, LauncherFailure
from tracecore.facts.training import Progress, RunFinished
from tracecore.patterns.worker_crash.aftermath import Aftermath
from tracecore.patterns.worker_crash.process_facts import LOOKED_AT, ProcessFacts
from tracecore.signals.record import Source

SECOND = 1_000_000_000
MEMORY = 100
FAILED = 1000


def where(time: float, offset: int = 0, path: str = "rank1.log", rank: int | None = 1) -> dict[str, object]:
    return {"time": round(time * SECOND), "source": Source(path=path, offset=offset), "rank": rank}


def step(time: float, offset: int = 60, path: str = "rank1.log", **more: object) -> Progress:
    return Progress(**{**where(time, offset, path), "step": 5, **more})


def finished(time: float, offset: int = 60, path: str = "rank1.log", **more: object) -> RunFinished:
    return RunFinished(**{**where(time, offset, path), **more})


def ended(code: int, time: float = FAILED, **more: object) -> ExitStatus:
    return ExitStatus(exit_code=code, **{**where(time, path="exit_codes.json"), **more})


LAUNCHED = LauncherFailure(launcher="torchrun", **where(FAILED, path="launcher.log", rank=0))


@pytest.mark.parametrize(
    ("others", "survived"),
    [
        ([], False),
        # A step of the same process after it: in one file by its place, else by its time.
        ([step(FAILED + 1)], True),
        ([step(FAILED)], True),
        ([step(FAILED, offset=40)], False),
        ([step(FAILED - 1)], False),
        ([step(FAILED, path="other.log")], False),
        ([step(FAILED + 1, path="other.log")], True),
        ([step(FAILED + 1, path="other.log", approximate=True)], False),
        ([step(FAILED + MEMORY)], True),
        ([step(FAILED + MEMORY + 1)], False),
        ([step(FAILED + 1, rank=2)], False),
        ([step(FAILED + 1, attempt=1)], False),
        # The end of its run, in the same file after it, or in another where one of them has no times.
        ([finished(FAILED + 1)], True),
        ([finished(FAILED + 1, offset=40)], False),
        ([finished(FAILED - 1, path="other.log")], False),
        ([finished(FAILED - 1, path="other.log", approximate=True)], True),
        ([finished(FAILED - MEMORY - 1, path="other.log", approximate=True)], False),
        ([finished(FAILED + MEMORY + 1)], False),
        ([finished(FAILED + 1, rank=2)], False),
        # It exited with 0, and no launcher speaks of a failure.
        ([ended(0)], True),
        ([ended(1)], False),
        ([ended(0), ended(1)], False),
        ([ended(0, alive=True)], False),
        ([ended(0), LAUNCHED], False),
        ([ended(0, time=FAILED + MEMORY + 1)], False),
    ],
)
def test_a_process_goes_on(others: list[Fact], survived: bool) -> None:
    failure = ExceptionRaised(type="ValueError", **where(FAILED, offset=50))
    window = FactWindow(("j", ""), 2 * SECOND)
    for fact in (failure, *others):
        window.add(fact)
    aftermath = Aftermath(window, ProcessFacts(window), MEMORY * SECOND, 10 * SECOND)
    assert aftermath.survived(failure) is survived


@pytest.mark.parametrize(
    ("steps", "survived"),
    [
        ([], False),
        # When one process is gone, the others may report one more step.
        ([(FAILED - 1, 7), (FAILED + 1, 8)], False),
        ([(FAILED - 1, 7), (FAILED + 1, 9)], True),
        ([(FAILED - 1, 7), (FAILED + MEMORY + 1, 9)], False),
        # Of twenty steps between two reports, two were made after the failure, or half of them.
        ([(FAILED - 9, 0), (FAILED + 1, 20)], False),
        ([(FAILED - 9, 0), (FAILED + 9, 20)], True),
        # A progress bar is drawn once more when its program ends.
        ([(FAILED + 1, 8)], False),
        ([(FAILED + 1, 8), (FAILED + 2, 8)], False),
        ([(FAILED + 1, 8), (FAILED + 2, 9)], True),
    ],
)
def test_others_go_on_where_nobody_names_a_rank(steps: list[tuple[float, int]], survived: bool) -> None:
    failure = ExceptionRaised(type="ValueError", **where(FAILED, rank=None))
    window = FactWindow(("j", ""), 2 * SECOND)
    window.add(failure)
    for time, number in steps:
        window.add(step(time, path="other.log", rank=None, step=number))
    aftermath = Aftermath(window, ProcessFacts(window), MEMORY * SECOND, 10 * SECOND)
    assert aftermath.survived(failure) is survived


@pytest.mark.parametrize(
    ("before", "after", "survived"),
    [
        # Steps are counted anew in each epoch.
        ((90, 0.0), [(1, 1.0), (2, 1.0)], True),
        ((90, 0.0), [(1, 1.0)], False),
        ((90, 0.0), [(1, 0.0), (2, 0.0)], False),
        ((90, 1.0), [(1, 0.0), (2, 0.0)], False),
        ((90, None), [(1, 1.0), (2, 1.0)], False),
        ((90, None), [(1, None), (2, None)], False),
        ((90, 0.0), [(1, None), (2, 1.0)], True),
        # Or after the last one.
        ((100, None), [(1, None), (2, None)], True),
        ((100, None), [(1, None)], False),
    ],
)
def test_others_go_on_with_the_next_epoch(
    before: tuple[int, float | None], after: list[tuple[int, float | None]], survived: bool
) -> None:
    failure = ExceptionRaised(type="ValueError", **where(FAILED, rank=None))
    window = FactWindow(("j", ""), 2 * SECOND)
    window.add(failure)
    for place, (number, epoch) in enumerate([before, *after]):
        time = FAILED - 1 if not place else FAILED + place
        window.add(step(time, path="other.log", rank=None, step=number, epoch=epoch, total_steps=100))
    aftermath = Aftermath(window, ProcessFacts(window), MEMORY * SECOND, 10 * SECOND)
    assert aftermath.survived(failure) is survived


@pytest.mark.parametrize(
    ("error", "report", "rank"),
    [
        # An error that was printed several times, and a watchdog of the same file that speaks meanwhile.
        ((0, 20, 2), (10, 10, 1), 1),
        ((0, 20, 2), (20, 20, 1), 1),
        ((0, 20, 2), (21, 21, 1), None),
        ((0, 20, 2), (-1, -1, 1), None),
        # A watchdog that spoke several times, and an error meanwhile.
        ((0, 0, 1), (-5, 5, 2), 1),
        ((0, 0, 1), (-5, 0, 2), 1),
        ((0, 0, 1), (-5, -1, 2), None),
        # Each of them once: they are of one line, or they are strangers.
        ((0, 0, 1), (0, 0, 1), None),
    ],
)
def test_a_folded_error_is_of_the_rank_whose_watchdog_speaks_meanwhile(
    error: tuple[int, int, int], report: tuple[int, int, int], rank: int | None
) -> None:
    def folded(begin: int, end: int, count: int) -> dict[str, int | None]:
        return {"last_time": (FAILED + end) * SECOND if count > 1 else None, "count": count}

    failure = CudaError(error="launch_failure", **where(FAILED + error[0], rank=None), **folded(*error))
    window = FactWindow(("j", ""), 2 * SECOND)
    window.add(failure)
    window.add(WatchdogReport(report="exception", **where(FAILED + report[0], offset=90), **folded(*report)))
    aftermath = Aftermath(window, ProcessFacts(window), MEMORY * SECOND, 10 * SECOND)
    assert aftermath.rank(failure) == rank


@pytest.mark.parametrize(("others", "rank"), [(LOOKED_AT - 1, 1), (LOOKED_AT, None)])
def test_so_many_reports_before_a_folded_error_are_looked_at(others: int, rank: int | None) -> None:
    failure = CudaError(error="launch_failure", **where(FAILED, rank=None))
    window = FactWindow(("j", ""), 2 * SECOND)
    window.add(failure)
    until = (FAILED + 5) * SECOND
    window.add(WatchdogReport(report="exception", **where(FAILED - 9, offset=90), last_time=until, count=2))
    for number in range(others):
        window.add(WatchdogReport(report="exception", **where(FAILED - 5, offset=100 + number)))
    aftermath = Aftermath(window, ProcessFacts(window), MEMORY * SECOND, 10 * SECOND)
    assert aftermath.rank(failure) == rank
