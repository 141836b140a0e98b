"""Trouble of the storage that belongs to a save, and when it is too early to say that a save hangs."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase
from tracecore.patterns.checkpointer_hang.detector import CheckpointerHang, _is_theirs, backend_of
from tracecore.patterns.config import HOUR
from tracecore.signals.record import Source

PATTERN = CheckpointerHang()
CONFIG = PATTERN.config
START = 1000 * HOUR


def trouble(at: int, last: int | None = None, **fields: Any) -> StorageError:
    end = None if last is None else START + last
    return StorageError(time=START + at, source=Source("kern.log", 1), last_time=end, error="io_error", **fields)


@pytest.mark.parametrize(
    ("fact", "off", "around"),
    [
        (trouble(0), 0, True),
        (trouble(-CONFIG.before), 0, True),
        (trouble(-CONFIG.before - 1), 0, False),
        (trouble(-CONFIG.before - 1), 1, True),
        (trouble(-CONFIG.before - 9, -CONFIG.before), 0, True),
        (trouble(CONFIG.after), 0, True),
        (trouble(CONFIG.after + 1), 0, False),
        (trouble(CONFIG.after + 1), 1, True),
        (trouble(CONFIG.after, CONFIG.after + 9), 0, True),
    ],
)
def test_trouble_around_the_start_of_a_stall(fact: StorageError, off: int, around: bool) -> None:
    assert PATTERN._around(fact, START, off) is around


@pytest.mark.parametrize(
    ("fact", "nodes", "theirs"),
    [
        (trouble(0, job="j"), {}, True),
        (trouble(0, job="k"), {}, False),
        (trouble(0, job="k", node="n1"), {"n1": {"a/p"}}, True),
        (trouble(0, job="k", node="n2"), {"n1": {"a/p"}}, False),
        (trouble(0, job="k", node="n1", pod="a/p"), {"n1": {"a/p"}}, True),
        (trouble(0, job="k", node="n1", pod="a/q"), {"n1": {"a/p"}}, False),
        (trouble(0, job="k", node="n1", pod="a/q"), {"n1": {None}}, True),
    ],
)
def test_whose_trouble_it_is(fact: StorageError, nodes: dict[str | None, set[str | None]], theirs: bool) -> None:
    (key,) = PATTERN.keys(trouble(0, job="j"))
    assert _is_theirs(FactWindow(key, 0), fact, nodes) is theirs


@pytest.mark.parametrize(
    ("now", "reported", "early"),
    [
        (CONFIG.stall - 1, None, True),
        (CONFIG.stall, None, False),
        (1, 0, False),
        (1, -1, True),
    ],
)
def test_a_save_may_hang_after_so_long_or_when_a_collective_gave_up(
    now: int, reported: int | None, early: bool
) -> None:
    begin = CheckpointPhase(time=START, source=Source("a.log"), phase="write", event="begin")
    reports = [
        WatchdogReport(time=START + at, source=Source("w", 1), report="timeout")
        for at in (-9, reported)
        if at is not None
    ]
    assert PATTERN._early(begin, reports, START + now) is early


def test_the_kind_of_storage_is_known_by_a_word_of_its_name() -> None:
    assert backend_of(None) is None
    assert backend_of("/mnt/unheard_of") is None
    assert backend_of("S3://bucket/x") == backend_of("s3") is not None
