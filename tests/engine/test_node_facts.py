"""Facts that know a node and no job come to the windows of the jobs of that node, whichever came first."""

from __future__ import annotations

from itertools import permutations

import pytest

from tracecore.engine import node_facts
from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, StepStalled
from tracecore.patterns.checkpointer_hang.detector import CheckpointerHang
from tracecore.patterns.contract import Key
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_794_700_000 * SECOND


def _trouble(second: int, node: str = "node-0", number: int = 0) -> Fact:
    source = Source("kern.log", number)
    return StorageError(time=START + second * SECOND, source=source, node=node, error="not_responding", backend="nfs")


def _save(second: int, job: str | None = "llm", node: str | None = "node-0") -> Fact:
    place = Source("rank0.log", second + 1000)
    return CheckpointPhase(
        time=START + second * SECOND, source=place, job=job, node=node, rank=0, phase="write", event="begin"
    )


def _stall(second: int, job: str | None = "llm") -> Fact:
    place = Source("stall", second)
    return StepStalled(time=START + second * SECOND, source=place, job=job, rank=0, no_progress_s=second)


def _said(parts: list[list[Fact]], end: int = 400) -> list[tuple[str | None, str]]:
    engine = Engine([CheckpointerHang()])
    said = []
    for part in parts:
        engine.add(part)
        said += engine.advance(START + 20 * SECOND)
    said += engine.close(START + end * SECOND)
    return [(str(emission.verdict.key[0]) or None, emission.verdict.confidence) for emission in standing(said)]


@pytest.mark.parametrize("moment", [-50, 10, 200])
def test_whichever_comes_first(moment: int) -> None:
    for facts in permutations([_trouble(moment), _save(0), _stall(310)]):
        assert _said([[fact] for fact in facts]) == [("llm", "full")]


def test_only_on_its_node_and_for_every_job_there() -> None:
    saves = [_save(0), _save(1, "other"), _save(2, "elsewhere", "node-1"), _save(3, "nowhere", None)]
    stalls = [_stall(340, job) for job in ("llm", "other", "elsewhere", "nowhere")]
    assert sorted(_said([[*saves, _trouble(5), *stalls]])) == [
        ("elsewhere", "partial"), ("llm", "full"), ("nowhere", "partial"), ("other", "full"),
    ]  # fmt: skip


def test_what_waits_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "MOST_FACTS", 8)
    monkeypatch.setattr(node_facts, "MOST_NODES", 4)
    engine = Engine([CheckpointerHang()])
    engine.add([_trouble(number, "node-0", number) for number in range(20)])
    engine.add([_trouble(30 + number, f"node-{number}", 100 + number) for number in range(1, 9)])
    engine.advance(START + 60 * SECOND)
    assert engine.stats.evicted_total == 12 + 8 + 4  # of the first node, then that whole node and three more
    engine.add([_save(61, node="node-8"), _save(62, "gone", "node-0")])
    engine.add([_stall(370), _stall(371, "gone")])
    said = standing(engine.close(START + 400 * SECOND))
    assert [(e.verdict.key[0], e.verdict.confidence) for e in said] == [("gone", "partial"), ("llm", "full")]


def _delivered(known: node_facts.NodeFacts, fact: Fact) -> list[tuple[Fact, Key]]:
    """Return the fact with its own windows, and what it is joined with."""
    own = CheckpointerHang().keys(fact)
    return [(fact, key) for key in own] + known.joined(fact, own)


def test_what_is_old_is_forgotten() -> None:
    known = node_facts.NodeFacts(CheckpointerHang(), Engine([]).stats)
    job = ("llm", "")
    _delivered(known, _save(0))
    trouble = _trouble(1)
    assert (trouble, job) in _delivered(known, trouble)
    known.prune(START + 2 * SECOND)
    later = _trouble(3)
    assert [key for _, key in _delivered(known, later)] == [("", "")]
    known.prune(START + 4 * SECOND)
    save = _save(5)
    assert _delivered(known, save) == [(save, job)]


def test_a_fact_at_the_time_of_the_cutoff_is_kept() -> None:
    known = node_facts.NodeFacts(CheckpointerHang(), Engine([]).stats)
    trouble, save = _trouble(1), _save(0)
    _delivered(known, trouble)
    _delivered(known, save)
    known.prune(START)
    assert (_save(2), ("llm", "")) in _delivered(known, _save(2))
    assert ("llm", "") in [key for _, key in _delivered(known, _trouble(2, number=7))]
    known.prune(START + SECOND)
    other = _save(3, "other")
    assert (trouble, ("other", "")) in _delivered(known, other)


def test_a_late_fact_that_goes_on_still_joins() -> None:
    engine = Engine([CheckpointerHang()])
    horizon = CheckpointerHang().horizon
    late = START + 2 * horizon + 100 * SECOND
    trouble = StorageError(
        time=START,
        last_time=late - SECOND,
        count=5,
        source=Source("kern.log"),
        node="node-0",
        error="eio",
        backend="nfs",
    )
    engine.advance(late)
    engine.add([trouble])
    engine.advance(late + SECOND)
    assert (engine.stats.expired, engine.stats.held) == (0, 1)


def test_a_fact_without_a_node_is_joined_with_no_job() -> None:
    nowhere = StorageError(time=START, source=Source("kern.log", 1), error="not_responding", backend="nfs")
    assert _said([[nowhere], [_save(0, node=None)], [_stall(310)]]) == [("llm", "partial")]
