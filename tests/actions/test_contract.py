"""The order of evidence for clean cases: one thing in the log, and the class the contract gives it."""

from __future__ import annotations

import pytest

from tracecore.actions.classify import classify

#: (exit code, signal, log, class), in the order of the contract.
TABLE = [
    (137, "SIGKILL", "", "infrastructure"),
    (-9, None, "", "infrastructure"),
    (137, None, "", "infrastructure"),
    (None, "SIGKILL", "", "infrastructure"),
    (1, 9, "training\n", "infrastructure"),
    (137, "SIGKILL", "RuntimeError: CUDA out of memory", "infrastructure"),
    (137, "SIGKILL", "hash mismatch", "infrastructure"),
    (1, None, "CUDA out of memory", "resource"),
    (1, None, "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB", "resource"),
    (1, None, "cuda out of memory", "resource"),
    (1, None, "CUDA error", "resource"),
    (1, None, "RuntimeError: CUDA error: operation not permitted", "resource"),
    (1, None, "GPU OOM", "resource"),
    (1, None, "fatal: gpu oom on device 3", "resource"),
    (1, None, "out of memory", "infrastructure"),
    (1, None, "fork: Cannot allocate memory", "infrastructure"),
    (1, None, "cannot allocate memory", "infrastructure"),
    (1, None, "worker was OOM killed", "infrastructure"),
    (1, None, "OOM", "infrastructure"),
    (1, None, "hash mismatch", "data"),
    (1, None, "RuntimeError: dataset hash mismatch: expected ab12, got cd34", "data"),
    (1, None, "checksum failed", "data"),
    (1, None, "error: checksum failed for part-7", "data"),
    (1, None, "dataset not found", "data"),
    (1, None, "FileNotFoundError: dataset not found: imagenet", "data"),
    (1, None, "dataset unreachable", "data"),
    (1, None, "no space left on device", "resource"),
    (1, None, "OSError: [Errno 28] No space left on device", "resource"),
    (1, None, "disk full", "resource"),
    (1, None, "disk quota exceeded", "resource"),
    (1, None, "timeout", "resource"),
    (1, None, "request timeout", "resource"),
    (1, None, "operation timed out", "resource"),
    (1, None, "context deadline exceeded", "resource"),
    (1, None, "rpc error: code = DeadlineExceeded desc = deadline exceeded", "resource"),
    (1, None, "connection refused", "infrastructure"),
    (1, None, "dial tcp 10.0.0.1:443: connect: connection refused", "infrastructure"),
    (1, None, "connection reset by peer", "infrastructure"),
    (1, None, "connect: no route to host", "infrastructure"),
    (1, None, "network unreachable", "infrastructure"),
    (1, None, "Network is unreachable", "infrastructure"),
    (1, None, "", "code"),
    (2, None, "usage: train.py", "code"),
    (1, None, "ValueError: bad shape", "code"),
    (255, None, "", "code"),
    (127, None, "bash: trainn: command not found", "code"),
    (126, None, "bash: ./train: Permission denied", "code"),
    (139, None, "", "code"),
    (-11, "SIGSEGV", "", "code"),
    (134, None, "", "code"),
    (0, None, "", "unknown"),
    (None, None, "", "unknown"),
]  # fmt: skip


@pytest.mark.parametrize(("exit_code", "signal", "log", "expected"), TABLE)
def test_clean_cases_follow_the_order_of_evidence(
    exit_code: int | None, signal: str | int | None, log: str, expected: str
) -> None:
    assert classify(exit_code, signal, log).failure_class == expected


@pytest.mark.parametrize(
    ("expected", "exit_code", "log", "decision", "delay", "cap"),
    [
        ("infrastructure", 1, "connection refused", "retry", 0, 3),
        ("resource", 1, "CUDA out of memory", "retry", 30, 1),
        ("unknown", None, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated.", "retry", 0, 1),
        ("code", 1, "ValueError: bad shape", "stop", 0, 0),
        ("data", 1, "checksum failed", "stop", 0, 0),
    ],
)
def test_retries_follow_the_class(
    expected: str, exit_code: int | None, log: str, decision: str, delay: int, cap: int
) -> None:
    info = classify(exit_code, None, log)
    assert info.failure_class == expected
    assert (info.retry.decision, info.retry.delay_s, info.retry.cap) == (decision, delay, cap)


#: What the plain substring reading of the same order gets wrong.
FIELD = [
    (1, "loading zoom and room features\nValueError: bad shape", "code"),
    (1, "timeout=1800\nValueError: bad shape", "code"),
    (1, "Namespace(ddp_timeout=1800, lr=0.1)\nKeyError: 'model'", "code"),
    (1, "For debugging consider passing CUDA_LAUNCH_BLOCKING=1\nAssertionError", "code"),
    (1, "WARNING connection refused, retrying (1/5)\nconnected\nIndexError: list index out of range", "code"),
    (1, "NCCL INFO NCCL_IB_TIMEOUT set by environment to 22\nTypeError: forward() missing 1 argument", "code"),
    (0, "timeout=1800", "unknown"),
    (None, "timeout: 1800", "unknown"),
    (None, "bloom-7b1: zoom level 3", "unknown"),
    (None, "INFO: no timeouts and 0 OOM events so far", "unknown"),
]


@pytest.mark.parametrize(("exit_code", "log", "expected"), FIELD)
def test_words_are_read_not_fragments(exit_code: int | None, log: str, expected: str) -> None:
    assert classify(exit_code, None, log).failure_class == expected
