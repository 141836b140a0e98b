"""Why memory ran out on a GPU, and which sample of its memory tells."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts.gpu import FramebufferSample
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured
from tracecore.patterns.cuda_oom.detector import CudaOomPattern, MemoryByNode, Samples
from tracecore.signals.record import Source

TOTAL = 1000


def oom(tried: int, **fields: Any) -> CudaOom:
    return CudaOom(time=1, source=Source("log"), tried_bytes=tried, **fields)


#: So much more than was tried must be free, or held and unused, for it to be split up and not used up.
MARGIN = int(CudaOomPattern().config.margin * TOTAL)


@pytest.mark.parametrize(
    ("failed", "free", "total", "kind"),
    [
        (CudaOomUnmeasured(time=1, source=Source("log"), backend="cuda"), 5, TOTAL, "unknown"),
        (oom(10), 5, None, "unknown"),
        (oom(TOTAL + 1), 5, TOTAL, "oversized_request"),
        (oom(TOTAL), 5, TOTAL, "exhaustion"),
        (oom(10, limit_bytes=500), 10, TOTAL, "memory_limit"),
        (oom(10, limit_bytes=500), 9, TOTAL, "exhaustion"),
        (oom(10, limit_bytes=500), None, TOTAL, "unknown"),
        (oom(10), None, TOTAL, "unknown"),
        (oom(10), 10 + MARGIN, TOTAL, "fragmentation"),
        (oom(10), 9 + MARGIN, TOTAL, "exhaustion"),
        # What the program holds and does not use counts like what is free, whichever is more.
        (oom(10, reserved_unallocated_bytes=10 + MARGIN), 5, TOTAL, "fragmentation"),
        (oom(10, reserved_unallocated_bytes=9 + MARGIN), 5, TOTAL, "exhaustion"),
        (oom(10, reserved_unallocated_bytes=5), 10 + MARGIN, TOTAL, "fragmentation"),
        (oom(10, reserved_unallocated_bytes=10 + MARGIN), None, TOTAL, "fragmentation"),
    ],
)
def test_why_memory_ran_out(failed: Any, free: int | None, total: int | None, kind: str) -> None:
    assert CudaOomPattern()._kind(failed, free, total) == kind


def sample(time: int, node: str | None = None) -> FramebufferSample:
    return FramebufferSample(time=time, source=Source("dcgm", time), node=node, gpu="g0", free_bytes=1, total_bytes=9)


@pytest.mark.parametrize(
    ("times", "near"),
    [
        ([], None),
        ([40], 40),
        ([39], None),
        ([50], 50),
        ([41, 45, 55], 45),
        ([39, 55], 55),
        ([60], 60),
        ([61], None),
    ],
)
def test_the_last_sample_before_a_failure_else_the_first_after_it(times: list[int], near: int | None) -> None:
    found = Samples(map(sample, times)).near(50, 40, 60)
    assert (found and found.time) == near


def test_samples_are_asked_about_later_and_later_failures() -> None:
    samples = Samples(map(sample, (40, 50, 70)))
    assert [found and found.time for found in (samples.near(at, at - 9, at + 9) for at in (45, 50, 62, 80))] == [
        40,
        50,
        70,
        None,
    ]


@pytest.mark.parametrize(
    ("nodes", "several"),
    [
        ({40: "a", 60: "b"}, True),
        ({40: "a", 60: "a"}, False),
        ({39: "b", 40: "a", 60: "a", 61: "b"}, False),
        ({40: "a", 50: None, 60: "a"}, False),
        ({}, False),
    ],
)
def test_samples_of_several_nodes_do_not_tell(nodes: dict[int, str | None], several: bool) -> None:
    assert MemoryByNode([sample(time, node) for time, node in nodes.items()]).several(40, 60) is several
