"""What a crash is called: who, of what, and what came of it."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.kubernetes import ContainerTerminated
from tracecore.facts.process import CudaError, ExceptionRaised, ExitStatus, FatalSignal, LauncherFailure, LoaderError
from tracecore.patterns.worker_crash.verdict import WorkerCrashVerdict
from tracecore.signals.record import Source


def made(kind: type[Any], **fields: Any) -> Any:
    return kind(time=1, source=Source("a.log"), **fields)


def crash(failure: Fact, **fields: Any) -> WorkerCrashVerdict:
    return WorkerCrashVerdict(key=(), episode="", time=1, failure=failure, **fields)


RAISED = made(ExceptionRaised, type="ValueError", message="bad shape")
LAUNCHED = made(LauncherFailure, launcher="torchrun", exit_code=7, local_rank=2)
GONE = made(LauncherFailure, launcher="torchrun")


@pytest.mark.parametrize(
    ("verdict", "who"),
    [
        (crash(RAISED), "The training process"),
        (crash(made(ExceptionRaised, type="X", pod="ns/p")), "Pod ns/p"),
        (crash(RAISED, rank=3), "Rank 3"),
        (crash(RAISED, rank=3, ranks=(3,)), "Rank 3"),
        (crash(RAISED, rank=3, ranks=(3, 4)), "Ranks 3, 4"),
        (crash(RAISED, rank=0, ranks=tuple(range(8))), "Ranks 0, 1, 2, 3, 4, 5, 6, 7"),
        (crash(RAISED, rank=0, ranks=tuple(range(9))), "Ranks 0, 1, 2, 3, 4, 5, 6, 7 …"),
        (crash(RAISED, everybody=True), "Every training process"),
        # The rank on its host, where nothing else is known.
        (crash(LAUNCHED), "Local rank 2"),
        (crash(RAISED, confirmation=LAUNCHED), "Local rank 2"),
        (crash(LAUNCHED, rank=5), "Rank 5"),
        (crash(LAUNCHED, everybody=True), "Every training process"),
        (crash(made(LauncherFailure, launcher="torchrun", exit_code=7, local_rank=0)), "Local rank 0"),
    ],
)
def test_whose_crash_it_is(verdict: WorkerCrashVerdict, who: str) -> None:
    assert verdict.who == who


@pytest.mark.parametrize(
    ("verdict", "headline"),
    [
        (crash(RAISED, rank=3), "Rank 3 raised ValueError: bad shape"),
        (crash(RAISED, rank=3, followed=1), "Rank 3 raised ValueError: bad shape; 1 other rank followed"),
        (crash(RAISED, rank=3, followed=2), "Rank 3 raised ValueError: bad shape; 2 other ranks followed"),
        (crash(made(ExceptionRaised, type="ValueError", node="n1"), rank=3), "Rank 3 on n1 raised ValueError"),
        (crash(made(FatalSignal, signal="SIGSEGV"), rank=3), "Rank 3 died of SIGSEGV"),
        (crash(made(ContainerTerminated, reason="Error", exit_code=139), rank=3), "Rank 3 died of SIGSEGV"),
        (crash(made(ContainerTerminated, reason="Error", exit_code=3), rank=3), "Rank 3 failed with exit status 3"),
        (crash(made(ExitStatus, exit_code=4), rank=3), "Rank 3 failed with exit status 4"),
        (crash(LAUNCHED, rank=3), "Rank 3 failed with exit status 7"),
        (crash(GONE, rank=3), "Rank 3 ended; the logs do not show why"),
        (crash(made(LoaderError, error_class="x"), rank=3), "Rank 3 lost a DataLoader worker"),
        (
            crash(made(LoaderError, error_class="x", signal="SIGBUS"), rank=3),
            "Rank 3 lost a DataLoader worker to SIGBUS",
        ),
        (crash(made(CudaError, error="launch_failure"), rank=3), "Rank 3 died of a GPU error (launch failure)"),
        (
            crash(made(CudaError, error="launch_failure", detail="CUDA error: x"), rank=3),
            "Rank 3 died of a CUDA error (launch failure)",
        ),
    ],
)
def test_the_headline_of_a_crash(verdict: WorkerCrashVerdict, headline: str) -> None:
    assert verdict.headline() == headline


@pytest.mark.parametrize(
    ("fields", "exception"),
    [
        ({"type": "A", "message": "m"}, ("A", "m")),
        ({"type": "A"}, ("A", "")),
        ({"type": "A", "message": "m", "root_type": "B", "root_message": "n"}, ("B", "n")),
        ({"type": "A", "message": "https://h", "root_type": "B", "root_message": "n"}, ("A", "https://h")),
        ({"type": "A", "message": "(host='h'", "root_type": "B", "root_message": None}, ("A", "(host='h'")),
        ({"type": "A", "message": "https://h", "root_type": "B", "root_message": "s3://b"}, ("B", "s3://b")),
        ({"type": "A", "message": "m", "root_type": "B"}, ("B", "")),
    ],
)
def test_the_exception_that_began_a_chain_is_the_reason(fields: dict[str, str], exception: tuple[str, str]) -> None:
    assert crash(made(ExceptionRaised, **fields)).exception == exception


@pytest.mark.parametrize(
    ("verdict", "code", "kind"),
    [
        (crash(RAISED), None, "exception"),
        (crash(RAISED, confirmation=made(ExitStatus, exit_code=4)), 4, "exception"),
        (crash(LAUNCHED, confirmation=made(ExitStatus, exit_code=4)), 7, "exception"),
        (crash(made(ExitStatus, exit_code=0), confirmation=made(ExitStatus, exit_code=4)), 4, "exception"),
        (crash(GONE, confirmation=made(ExitStatus, exit_code=4)), None, "signal"),
        (crash(made(FatalSignal, signal="SIGSEGV")), None, "signal"),
        (crash(made(FatalSignal, signal="unknown")), None, "exception"),
    ],
)
def test_the_status_and_the_kind_of_a_crash(verdict: WorkerCrashVerdict, code: int | None, kind: str) -> None:
    assert (verdict.exit_code, verdict.crash) == (code, kind)


@pytest.mark.parametrize(
    ("error", "detail", "hardware"),
    [("launch_failure", None, False), ("unknown_error", None, True), ("launch_failure", "a Hardware fault", True)],
)
def test_advice_says_whose_a_gpu_error_may_be(error: str, detail: str | None, hardware: bool) -> None:
    said = crash(made(CudaError, error=error, detail=detail, node="n1"), rank=3).remediation()
    assert ("hardware may be the cause: look for Xids in `dmesg -T` on n1" in said) is hardware
    assert ("The GPU itself is most likely fine" in said) is not hardware


def test_advice_names_the_log_and_the_node() -> None:
    said = crash(made(FatalSignal, signal="SIGBUS", node="n1", pod="ns/p"), rank=3).remediation()
    assert said.startswith("A mapped file or shared memory disappeared while in use")
    assert "`dmesg -T` on n1. Read the end of the log of rank 3 (`kubectl logs --previous -n ns p`). Restart" in said
    lone = crash(made(FatalSignal, signal="SIGUSR1")).remediation()
    assert lone.startswith(
        "The lines before it say what it was doing. Read the end of the log of the training process."
    )
