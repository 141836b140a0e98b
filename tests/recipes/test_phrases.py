"""The table of loader errors in docs/attributes.md: each phrase stamps its class, the last only where no other does."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tracecore.diagnose.facts import processors

#: In the order in which they are tried.
PHRASES = {
    "DataLoader worker killed": ("DataLoader worker (pid 4242) is killed by signal: Killed.",),
    "FUSE transport error": ("Transport endpoint is not connected", "Software caused connection abort"),
    "S3 throttle": ("SlowDown", "503 Service Unavailable", "Please reduce your request rate"),
    "Stale file handle": ("Stale file handle",),
    "DataLoader queue empty": ("queue.Empty", "_queue.Empty", "multiprocessing.queues.Empty"),
    "Connection reset by peer": ("Connection reset by peer",),
}
WAYS = ("{}", "OSError: [Errno 5] {}", "[rank3]: RuntimeError: {}", "2026-01-01 00:00:05 ERROR loader: {}")


def stamped(body: str) -> dict[str, Any]:
    record: dict[str, Any] = {
        "resource": {"attributes": {}},
        "log": {"body": body, "attributes": {}, "time_unix_nano": 1_794_700_800_000_000_000},
    }
    for processor in processors("stdout"):
        processor.process_signals([record])
    found: dict[str, Any] = record["log"]["attributes"]
    return found


@pytest.mark.parametrize(("kind", "phrase"), [(kind, one) for kind, many in PHRASES.items() for one in many])
def test_a_phrase_gives_its_class(kind: str, phrase: str) -> None:
    for way in WAYS[:1] if phrase.endswith("Empty") else WAYS:
        assert stamped(way.format(phrase)).get("dataloader.error_class") == kind, way


#: An empty queue is the name of an exception, which stands alone on its line.
ONES = [(kind, many[0]) for kind, many in PHRASES.items() if kind != "DataLoader queue empty"]


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(ONES, 2)))
def test_of_two_phrases_the_more_specific_decides(first: tuple[str, str], second: tuple[str, str]) -> None:
    for body in (f"{first[1]}: {second[1]}", f"{second[1]}; {first[1]}"):
        assert stamped(f"OSError: {body}").get("dataloader.error_class") == first[0]


def test_the_pid_is_read_whatever_the_class() -> None:
    assert stamped("DataLoader worker (pid 4242) is killed by signal: Killed.")["dataloader.worker_pid"] == 4242
    assert "dataloader.worker_pid" not in stamped("DataLoader worker (pid many) is killed by signal: Killed.")


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 ms",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Killed.",
        "MemoryError: Unable to allocate 2.00 GiB for an array",
    ],
)
def test_other_errors_are_no_out_of_memory(line: str) -> None:
    assert not [name for name in stamped(line) if name.startswith("cuda_oom.")]
