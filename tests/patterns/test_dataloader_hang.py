"""Where the rank stood that waits for its input, where that was printed."""

from __future__ import annotations

from tracecore.engine.engine import Engine
from tracecore.facts.process import LoaderError, StackPrinted
from tracecore.facts.training import StepStalled
from tracecore.patterns.contract import SECOND, IncidentContext, Verdict
from tracecore.patterns.dataloader_hang.detector import DataloaderHang
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
