"""Where the rank stood that waits for its input, where that was printed."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.engine import Engine
from tracecore.facts.process import LoaderError, StackPrinted
from tracecore.facts.training import StepStalled
from tracecore.patterns.contract import SECOND, IncidentContext, Verdict
from tracecore.patterns.dataloader_hang.detector import DataloaderHang, Retries
from tracecore.patterns.schema import problems, schema_of
from tracecore.signals.record import Source

START = 1_767_225_600 * SECOND


def _verdict() -> Verdict:
    error = LoaderError(time=START, source=Source("rank3.log", 1), node="n1", rank=3, error_class="Stale file handle")
    stall = StepStalled(
        time=START + 60 * SECOND, source=Source("progress", 1), node="n1", rank=3, no_progress_s=180.0, step=41
    )
    (said,) = Engine([DataloaderHang()]).replay([error, stall])
    return said.verdict


def _stack(rank: int) -> StackPrinted:
    source = Source(f"rank{rank}.log", 9)
    return StackPrinted(
        time=START, source=source, rank=rank, inner="get", file="data/shards.py", line=88, function="next_shard"
    )


def test_the_stack_of_the_rank_that_stalls_is_told() -> None:
    said = _verdict().beside(IncidentContext(stacks={3: _stack(3)}))
    assert "rank 3 stood at data/shards.py:88 in next_shard, which called get" in said.remediation()
    assert said.id == _verdict().id
    assert problems(schema_of(DataloaderHang), said.document()) == []


def test_another_ranks_stack_says_nothing() -> None:
    assert _verdict().beside(IncidentContext(stacks={2: _stack(2)})) == _verdict()


def _stall(since: int, time: int, last: int | None = None, **fields: Any) -> StepStalled:
    ends = None if last is None else START + last * SECOND
    return StepStalled(
        time=START + time * SECOND, source=Source("progress", time), last_time=ends, step=41,
        no_progress_s=float((last or time) - since), **fields,
    )  # fmt: skip


def _retry(at: int, node: str | None = None, **fields: Any) -> LoaderError:
    return LoaderError(
        time=START + at * SECOND, source=Source("r.log", at), node=node, error_class="Stale file handle", retried=True,
        **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("by_pod", "retry_node", "stall_node", "found"),
    [
        (True, None, None, True),
        (True, "n1", None, True),
        (True, None, "n1", True),
        # Both know their node: they meet in the window of that node.
        (True, "n1", "n1", False),
        (False, "n1", "n1", True),
        (False, "n1", None, True),
    ],
)
def test_two_that_know_their_node_do_not_meet_in_the_window_of_a_pod(
    by_pod: bool, retry_node: str | None, stall_node: str | None, found: bool
) -> None:
    errors = [_retry(at, retry_node, pod="ml/p") for at in (0, 100, 200, 300)]
    stall = _stall(0, 300, node=stall_node, pod="ml/p")
    assert (Retries(errors, by_pod).during(stall, 300 * SECOND) is not None) is found


@pytest.mark.parametrize(
    ("retries", "stall", "latest"),
    [
        ((0, 100, 200, 300), _stall(0, 300), 300),
        ((0, 100, 200, 299), _stall(0, 300), None),
        # A stall that was stated again while it grew.
        ((0, 100, 200, 300), _stall(0, 200, 300), 300),
        ((0, 100, 200, 301), _stall(0, 200, 300), None),
        # Only from the last step on.
        ((0, 50, 150, 250, 349), _stall(50, 400), None),
        ((0, 50, 150, 250, 350), _stall(50, 400), 350),
        # Background readers try again now and then.
        ((0, 110, 300), _stall(0, 300), None),
    ],
)
def test_retries_explain_a_stall_where_they_went_on_for_so_long(
    retries: tuple[int, ...], stall: StepStalled, latest: int | None
) -> None:
    run = Retries([_retry(at) for at in retries], by_pod=False)
    found = run.during(stall, 300 * SECOND)
    assert (found and (found.time - START) // SECOND) == latest


def test_a_long_stall_counts_after_a_short_one() -> None:
    error = LoaderError(time=START, source=Source("r.log", 1), node="n1", rank=3, error_class="Stale file handle")
    stalls = [_stall(0, at, node="n1", rank=3) for at in (60, 119, 120)]
    (said,) = Engine([DataloaderHang()]).replay([error, *stalls])
    assert said.verdict.fields()["tracecore.alert.dataloader_hang.stall_seconds"] == 120
