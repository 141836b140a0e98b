"""What became of a storage error: who suffered, and what shows that it was overcome."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.kubernetes import ContainerStarted, MountEvent, PodReady
from tracecore.facts.process import ExceptionRaised, ExitStatus
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled
from tracecore.patterns.storage_failure.outcome import APART, SETTLED, Outcomes
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
SECOND = 1_000_000_000
#: Seconds for which consequences are looked for.
REACH = 300
F = TypeVar("F", bound=Fact)


def made(kind: type[F], at: float, file: str = "rank0.log", line: float = -1, **fields: Any) -> F:
    """A fact of rank 0 in its log, where lines stand in order of time."""
    place = int((at if line < 0 else line) * 1000)
    return kind(time=ns(at), source=Source(file, place), **{"rank": 0, "job": "llm"} | fields)


def ns(second: float) -> int:
    return START + round(second * SECOND)


def error(at: float = 100, file: str = "rank0.log", **fields: Any) -> StorageError:
    return made(StorageError, at, file, **{"error": "io_error"} | fields)


def raised(at: float, file: str = "rank0.log", **fields: Any) -> ExceptionRaised:
    return made(ExceptionRaised, at, file, type="OSError", **fields)


def saved(at: float, event: str = "error", file: str = "rank0.log", **fields: Any) -> CheckpointPhase:
    return made(CheckpointPhase, at, file, phase="write", event=event, **fields)


def stall(at: float, **fields: Any) -> StepStalled:
    return made(StepStalled, at, "stall", no_progress_s=60.0, **fields)


def ended(at: float, code: int | None, **fields: Any) -> ExitStatus:
    return made(ExitStatus, at, "exit_codes", exit_code=code, alive=code is None, **fields)


def step(at: float, number: int | None = 1, file: str = "rank0.log", **fields: Any) -> Progress:
    return made(Progress, at, file, step=number, **fields)


def outcomes(*facts: Fact) -> Outcomes:
    window = FactWindow(("n1",), 0)
    for fact in facts:
        window.add(fact)
    return Outcomes(window, REACH * SECOND)


#: A line of the kernel names no process.
KERNEL = error(file="kern.log", rank=None, job=None, node="n1")
LASTING = error(count=2, last_time=ns(110))


@pytest.mark.parametrize(
    ("met", "facts", "harm"),
    [
        # An exception, before anything else; the first of them.
        (error(), [raised(101), raised(102)], 0),
        (error(), [ended(101, 1), stall(102), saved(103), raised(104)], 3),
        (error(), [raised(100)], 0),
        (error(), [raised(100, line=99.5)], None),
        (error(), [raised(100, line=100.5)], 0),
        (error(), [raised(100, "other.log", line=5)], 0),
        (error(), [raised(99)], None),
        (error(), [raised(100 + REACH)], 0),
        (error(), [raised(100.001 + REACH)], None),
        (error(), [raised(101, rank=1)], None),
        (error(), [raised(101, job="other")], None),
        (error(), [raised(101, pod="ml/a")], 0),
        (error(pod="ml/b"), [raised(101, pod="ml/a")], None),
        (error(), [raised(101, "other.log", rank=None)], None),
        (error(), [raised(101, rank=None)], 0),
        (error(), [raised(101, "other.log", rank=None, pod="ml/a")], 0),
        (LASTING, [raised(109)], None),
        (LASTING, [raised(110, line=1)], 0),
        (LASTING, [raised(110 + REACH)], 0),
        # A checkpoint that failed, then a stall, then an end.
        (error(), [ended(101, 1), stall(102), saved(103)], 2),
        (error(), [saved(103), saved(102)], 1),
        (error(), [saved(103, "end")], None),
        (error(), [saved(100)], 0),
        (error(), [saved(100, rank=1)], None),
        (error(), [ended(101, 1), stall(102)], 1),
        (error(), [stall(90, last_time=ns(99))], None),
        (error(), [stall(90, last_time=ns(100))], 0),
        (error(), [stall(100 + REACH)], 0),
        (error(), [stall(101 + REACH)], None),
        (LASTING, [stall(90, last_time=ns(105))], 0),
        (error(), [ended(101, 1)], 0),
        (error(), [ended(101, 0)], None),
        (error(), [ended(101, None)], None),
        (error(), [ended(99, 1)], None),
        # One that is tried again harms only by a stall.
        (error(retried=True), [raised(101), saved(102), ended(103, 1)], None),
        (error(retried=True), [raised(101), stall(102)], 1),
    ],
)
def test_the_most_telling_harm_of_an_error(met: Fact, facts: list[Fact], harm: int | None) -> None:
    assert outcomes(met, *facts).harm(met) == (None if harm is None else facts[harm])


@pytest.mark.parametrize(
    ("met", "facts", "overcome"),
    [
        (error(), [], False),
        # A step of the process itself.
        (error(), [step(101)], True),
        (error(), [step(99)], False),
        (error(), [step(100)], False),
        (error(), [step(100, line=100.5)], True),
        (error(), [step(100, line=99)], False),
        (error(), [step(100, file="other.log")], False),
        (error(), [step(101, file="other.log")], True),
        (error(), [step(101, line=99)], False),
        (error(), [step(100 + REACH)], True),
        (error(), [step(100.001 + REACH)], False),
        (error(), [step(101, None)], False),
        (error(), [step(101, None, epoch=0.5)], True),
        (error(), [step(99), step(101)], False),
        (error(), [step(99), step(101, 2)], True),
        (error(), [step(101, rank=1)], False),
        (error(), [step(101, rank=None)], True),
        (error(), [step(101, job="other")], False),
        (error(), [step(101, pod="ml/a")], True),
        (error(pod="ml/b"), [step(101, pod="ml/a")], False),
        (LASTING, [step(109)], False),
        (LASTING, [step(110)], False),
        (LASTING, [step(111, line=1)], True),
        (LASTING, [step(110 + REACH, line=1)], True),
        (LASTING, [step(111 + REACH, line=1)], False),
        (LASTING, [step(105, line=1), step(106, 2, line=2)], False),
        (LASTING, [step(105, rank=1, file="rank1.log")], False),
        # Two steps of one file.
        (error(), [step(101), step(102, 2)], True),
        (error(), [step(101, None), step(102, None)], False),
        (error(), [step(101, None, epoch=0.5), step(102, None, epoch=0.6)], True),
        (error(), [step(99), step(101), step(102)], False),
        (error(), [step(99, 0), step(101, line=1), step(102, 2, line=2)], False),
        # The kernel's errors take effect later.
        (KERNEL, [step(100 + SETTLED / SECOND)], True),
        (KERNEL, [step(99.999 + SETTLED / SECOND)], False),
        (KERNEL, [step(101), step(102, 2)], False),
        (error(rank=None, pod="ml/a"), [step(101, pod="ml/a")], True),
        # A time that was inferred.
        (error(approximate=True), [step(100 + APART / SECOND, file="other.log")], False),
        (error(approximate=True), [step(100.001 + APART / SECOND, file="other.log")], True),
        (error(approximate=True), [step(100.5)], True),
        # Two lines of one error without times: only steps that are more than these show that one is below both.
        (error(approximate=True, count=2), [step(100, n, line=100 + n) for n in (1, 2)], False),
        (error(approximate=True, count=2), [step(100, n, line=100 + n) for n in (1, 2, 3)], True),
        # A failed checkpoint needs another one that is written.
        (error(), [saved(100), step(101), step(102, 2)], False),
        (error(), [saved(100), saved(101, "end")], True),
        (error(), [saved(100), saved(101, "begin")], False),
        (error(), [saved(100), saved(99, "end")], False),
        (error(), [saved(100), saved(101, "end", rank=1)], False),
        (error(), [saved(100), saved(100.001 + REACH, "end")], False),
        (error(), [saved(100), saved(100 + REACH, "end")], True),
        # Storage says that it is well again.
        (error(device="sda"), [error(101, error="recovered", device="sda")], True),
        (error(device="sda"), [error(101, error="recovered", device="sdb")], False),
        (error(device="sda"), [error(99, error="recovered", device="sda")], False),
        (error(device="sda", last_time=ns(110)), [error(105, error="recovered", device="sda")], False),
        (error(device="sda", last_time=ns(110)), [error(110, error="recovered", device="sda")], True),
        (error(device="sda"), [error(101 + REACH, error="recovered", device="sda")], False),
        # The run ended well.
        (error(), [made(RunFinished, 101)], True),
        (error(), [made(RunFinished, 100, line=99)], False),
        (error(), [made(RunFinished, 101, rank=1)], False),
        (error(), [ended(101, 0)], True),
        (error(), [ended(101, 0), ended(102, 1)], False),
        (error(), [ended(101, 0), ended(102, None)], False),
        (error(), [ended(101, 0), ended(102, 1, rank=1)], True),
        (error(), [ended(101 + REACH, 0)], False),
        (error(), [ended(100 - REACH, 0)], True),
        (error(), [ended(99 - REACH, 0)], False),
        # One that is tried again is overcome by a step of anybody of the run.
        (error(retried=True), [step(101, rank=1, file="rank1.log")], True),
        (error(retried=True), [step(99, rank=1, file="rank1.log")], False),
        (error(retried=True), [step(101, rank=1, file="rank1.log", job="other")], False),
        (error(retried=True), [step(100, rank=1, file="rank1.log")], False),
        (error(retried=True), [step(99), step(101), step(102)], False),
        (error(retried=True, count=2, last_time=ns(110)), [step(105, rank=1, file="rank1.log")], False),
        (error(retried=True, count=2, last_time=ns(110)), [step(111, rank=1, file="rank1.log")], True),
    ],
)
def test_an_error_is_overcome_by_what_follows_it_in_its_process(met: Fact, facts: list[Fact], overcome: bool) -> None:
    assert outcomes(met, *facts).overcome(met) == overcome


@pytest.mark.parametrize(
    ("later", "overcome"),
    [
        (made(ContainerStarted, 101, "events", pod="ml/a", rank=None), True),
        (made(PodReady, 101, "events", pod="ml/a", rank=None, ready_time=0), True),
        (made(PodReady, 99, "events", pod="ml/a", rank=None, ready_time=0), False),
        (made(PodReady, 101, "events", pod="ml/b", rank=None, ready_time=0), False),
    ],
)
def test_a_mount_that_failed_is_overcome_when_its_pod_starts(later: Fact, overcome: bool) -> None:
    met = made(MountEvent, 100, "events", pod="ml/a", rank=None, reason="FailedMount")
    assert outcomes(met, later).overcome(met) == overcome


@pytest.mark.parametrize(
    ("steps", "last", "advance"),
    [
        ([], 100, 100),
        ([step(110)], 100, 110),
        ([step(100, 3), step(105, 3)], 100, 100),
        ([step(105, 3), step(109, 4), step(111, 4), step(115, 4)], 115, 109),
        ([step(99, 3)], 100, 100),
        ([step(110 + REACH, 2)], 110 + REACH, 100),
        ([step(111 + REACH, 2)], 100, 100),
        ([step(111, 2, rank=1)], 100, 100),
        ([step(105, 2, rank=1)], 100, 105),
    ],
)
def test_the_last_step_after_an_error_and_the_last_advance_while_it_repeats(
    steps: list[Fact], last: float, advance: float
) -> None:
    found = outcomes(LASTING, *steps)
    assert (found.last_step(LASTING), found.last_advance(LASTING, LASTING.end)) == (ns(last), ns(advance))


@pytest.mark.parametrize(
    ("met", "facts", "reports"),
    [
        (error(node="n1"), [step(90)], True),
        (error(node="n1"), [step(90, rank=5)], True),
        (error(node="n1"), [step(101)], False),
        (error(node="n1"), [step(100)], True),
        (error(node="n1"), [step(90, job="other")], False),
        (error(node="n1"), [stall(101, rank=7)], True),
        (error(node="n1"), [stall(101, job="other")], False),
        (error(node="n1"), [stall(90)], False),
        (error(node="n1"), [], False),
        (error(), [], True),
        (error(), [step(101)], False),
        (error(job=None, pod="ml/a"), [step(90, job=None, pod="ml/b")], False),
        (error(job=None, pod="ml/a"), [step(90, job=None, pod="ml/a")], True),
    ],
)
def test_whether_a_run_tells_how_far_it_is(met: Fact, facts: list[Fact], reports: bool) -> None:
    assert outcomes(met, *facts).reports(met) == reports
