"""The order of evidence for clean cases: one thing in the log, and the class the contract gives it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tracecore.actions.classify import classify

DOCS = Path(__file__).resolve().parents[2] / "docs" / "classify.md"

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


#: The contract's phrases in its order: the first class one of whose phrases stands in the log.
PHRASES = {
    "CUDA out of memory": "resource",
    "CUDA error": "resource",
    "GPU OOM": "resource",
    "out of memory": "infrastructure",
    "OOM": "infrastructure",
    "cannot allocate memory": "infrastructure",
    "hash mismatch": "data",
    "checksum failed": "data",
    "dataset not found": "data",
    "dataset unreachable": "data",
    "no space left": "resource",
    "disk full": "resource",
    "disk quota exceeded": "resource",
    "timeout": "resource",
    "deadline exceeded": "resource",
    "context deadline": "resource",
    "connection refused": "infrastructure",
    "connection reset": "infrastructure",
    "no route to host": "infrastructure",
    "network unreachable": "infrastructure",
}


def contract(exit_code: int | None, log: str) -> str:
    """The contract to the letter, for a process that no signal ended."""
    text = log.lower()
    return next(
        (known for words, known in PHRASES.items() if words.lower() in text), "code" if exit_code else "unknown"
    )


#: (log, exit status) to the class given here, where it is not the contract's. The docs say why.
_KNOWN_LINE = (
    *(
        (words, "hash mismatch")
        for words in ("CUDA error", "GPU OOM", "out of memory", "OOM", "cannot allocate memory")
    ),
    *(("hash mismatch", words) for words in ("CUDA error", "GPU OOM")),
    *(("hash mismatch", words) for words in ("out of memory", "OOM", "cannot allocate memory")),
)
_NO_COMPLAINT = (
    "GPU OOM", "out of memory", "OOM", "no space left", "disk full", "timeout", "context deadline", "connection reset",
    "no route to host",
)  # fmt: skip
DIFFERENCES: dict[tuple[str, int | None], str] = {
    **{(f"{first}\n{second}", 1): "data" for first, second in _KNOWN_LINE},
    **{(words, 0): "unknown" for words in PHRASES},
    **{(words, None): "unknown" for words in _NO_COMPLAINT},
}


@pytest.mark.parametrize("first", PHRASES)
@pytest.mark.parametrize("between", [" ", ": ", "\n"], ids=["one line", "colon", "two lines"])
def test_two_phrases_follow_the_order_of_evidence(first: str, between: str) -> None:
    wrong = {}
    for second in PHRASES:
        log = f"{first}{between}{second}"
        wanted = DIFFERENCES.get((log, 1), contract(1, log))
        if second != first and (got := classify(1, None, log).failure_class) != wanted:
            wrong[log] = got
    assert wrong == {}


@pytest.mark.parametrize("exit_code", [1, 0, None])
@pytest.mark.parametrize("written", [str, str.lower, str.upper], ids=["as is", "lower", "upper"])
@pytest.mark.parametrize("words", PHRASES)
def test_a_phrase_in_any_case(words: str, written: type[str], exit_code: int | None) -> None:
    wanted = DIFFERENCES.get((words, exit_code), contract(exit_code, words))
    assert classify(exit_code, None, written(words)).failure_class == wanted


@pytest.mark.parametrize("later", ["connection refused", "Connection reset by peer", "ConnectionError: gone"])
@pytest.mark.parametrize("words", ["CUDA out of memory", "cuda out of memory", "error: CUDA OUT OF MEMORY"])
def test_bare_cuda_memory_is_a_cause_whatever_is_said_of_connections_later(words: str, later: str) -> None:
    assert classify(1, None, f"{words}\n{later}").failure_class == "resource"


def test_every_difference_is_a_difference_and_holds() -> None:
    for (log, exit_code), given in DIFFERENCES.items():
        assert classify(exit_code, None, log).failure_class == given != contract(exit_code, log), (log, exit_code)


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading of docs/classify.md, without their backticks."""
    section = DOCS.read_text(encoding="utf-8").partition(f"\n### {heading}\n")[2].partition("\n#")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip().replace("`", "") for cell in row] for row in rows[1:]]


def test_the_docs_list_the_same_differences() -> None:
    told: dict[tuple[str, int | None], str] = {}
    for logs, status, wanted, given, why in table("Differences from the contract"):
        assert why
        for log in PHRASES if logs == "any phrase" else re.split(r", (?=\S)", logs):
            exit_code = None if status == "none" else int(status)
            log = log.replace(" ⏎ ", "\n")
            assert wanted in (contract(exit_code, log), "as with status 1")
            told[log, exit_code] = given
    assert told == DIFFERENCES


def test_the_docs_list_what_is_suggested() -> None:
    told = {}
    for phrases, theirs, ours in table("Suggestions"):
        assert theirs != ours
        told.update(dict.fromkeys(re.split(r", ", phrases), ours))
    given = {words: classify(1, None, words).suggestion for words in PHRASES}
    given["any other non-zero exit"] = classify(1, None, "").suggestion
    given["killed by SIGKILL"] = classify(None, "SIGKILL", "").suggestion
    assert told == {words: text.replace("`", "") for words, text in given.items()}
