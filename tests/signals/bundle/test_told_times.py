"""Whole dates inside lines, where the stamps around them have no year."""

from __future__ import annotations

import pytest

from tracecore.signals import stamps
from tracecore.signals.bundle.file_times import times


@pytest.mark.parametrize(
    "line",
    [
        b"  time      : 2024-11-06_10:12:35",
        b"[default0]:  time      : 2024-11-06_10:12:35",
        b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2024-11-06T10:12:35 DUE TO TIME LIMIT ***",
    ],
)
def test_a_whole_date_is_found(line: bytes) -> None:
    first, last = times(b"E1106 10:12:36.100000 100 torch/api.py:869] failed\n" + line + b"\n", b"")
    assert first is not None
    assert first.missing == "year"
    assert [one.resolve(0) for one in last if not one.missing] == [stamps.parse("2024-11-06T10:12:35Z")]


def test_a_time_of_something_else_is_none() -> None:
    first, last = times(b"elapsed time : 2024 steps\nwall time : 10:12:35\n", b"")
    assert (first, last) == (None, [])


def test_a_time_that_a_container_runtime_wrote_is_the_lines() -> None:
    line = b"2024-11-06T10:12:%02d.123456789Z stdout F rank 3 | step 7 | loss 2.1\n"
    first, last = times(line % 1 + line % 2, b"")
    assert first is not None
    assert first.resolve(0) == stamps.parse("2024-11-06T10:12:01.123456789Z")
    assert [one.resolve(0) for one in last] == [stamps.parse("2024-11-06T10:12:02.123456789Z")]
