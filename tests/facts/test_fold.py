"""A storm of one statement is one fact."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tracecore.facts.fact import Fact
from tracecore.facts.fold import GAP, Fold, fold
from tracecore.facts.gpu import EccDelta, Xid
from tracecore.facts.process import LoaderError
from tracecore.facts.training import Progress
from tracecore.signals.record import Source

S = 1_000_000_000
T0 = 1_700_000_000 * S


def xid(at: int, line: int = 0, node: str = "n", code: int = 31, detail: str | None = None) -> Xid:
    return Xid(time=T0 + at, source=Source("k", line or at), node=node, code=code, detail=detail)


def test_a_storm_is_one_fact_with_its_first_and_last() -> None:
    (fact,) = fold(xid(n * 1000, line=n + 1, detail=f"address {n}") for n in range(800_000))
    assert isinstance(fact, Xid)
    assert (fact.count, fact.time, fact.last_time) == (800_000, T0, T0 + 799_999_000)
    assert fact.detail == "address 0"
    assert "800000 times" in fact.describe()


def test_what_differs_is_kept_apart() -> None:
    facts = [xid(0), xid(1), xid(2, node="other"), xid(3, code=13)]
    assert [(f.count, f.node) for f in fold(facts)] == [(2, "n"), (1, "other"), (1, "n")]


def test_the_gap_on_both_sides() -> None:
    assert [f.count for f in fold([xid(1), xid(1 + GAP)])] == [2]
    assert [f.count for f in fold([xid(1), xid(2 + GAP)])] == [1, 1]
    assert [f.count for f in fold([xid(1), xid(6)], gap=4)] == [1, 1]


def test_samples_and_steps_are_never_folded() -> None:
    source = Source("m", 1)
    samples: list[Fact] = [EccDelta(time=T0, source=source, gpu="0000:3b:00.0", delta=1)] * 2
    steps: list[Fact] = [Progress(time=T0 + 1, source=source, step=1)] * 2
    assert fold([*samples, *steps]) == [*samples, *steps]


def test_a_late_fact_joins_two_runs_and_names_what_it_replaces() -> None:
    folder = Fold(gap=10)
    for at in (0, 20):
        folder.add(xid(at, line=at + 1))
    before = [change.fact for change in folder.changes()]
    folder.add(xid(10, line=11))
    (change,) = folder.changes()
    assert (change.fact.count, change.fact.time, change.fact.end) == (3, T0, T0 + 20)
    assert set(change.replaces) == set(before)
    assert folder.changes() == []


def test_a_growing_run_keeps_its_uid() -> None:
    folder = Fold()
    uids = set()
    for at in range(1, 50):
        folder.add(xid(at))
        (change,) = folder.changes()
        uids.add(change.fact.uid)
        assert change.fact.count == at
    assert len(uids) == 1


def test_the_same_line_read_twice_counts_once() -> None:
    assert [f.count for f in fold([xid(1), xid(2), xid(2), xid(1)])] == [2]


def test_memory_is_bounded_and_what_is_dropped_is_counted() -> None:
    folder = Fold(capacity=10)
    for node in range(25):
        folder.add(xid(1, node=f"n{node}"))
    assert (len(folder), folder.evicted) == (10, 15)
    assert len(folder.changes()) == 25
    folder.expire(T0 + 2 + GAP)
    assert len(folder) == 0


FACTS = st.lists(
    st.builds(
        lambda at, line, node, code, loader: (
            LoaderError(time=T0 + at, source=Source("w", line), node=node, error_class="x")
            if loader
            else Xid(time=T0 + at, source=Source("k", line), node=node, code=code, detail=f"{line}")
        ),
        at=st.integers(0, 60),
        line=st.integers(1, 10_000),
        node=st.sampled_from(["a", "b"]),
        code=st.sampled_from([13, 31]),
        loader=st.booleans(),
    ),
    max_size=40,
    unique_by=lambda fact: fact.source.offset,
)


@given(facts=FACTS, seed=st.integers(0, 1000), gap=st.integers(0, 12))
def test_order_does_not_matter_and_folding_twice_changes_nothing(facts: list[Fact], seed: int, gap: int) -> None:
    once = fold(facts, gap)
    assert sum(f.count for f in once) == len(facts)
    shuffled = random.Random(seed).sample(facts, len(facts))
    assert fold(shuffled, gap) == once
    assert fold(once, gap) == once
    assert fold([*facts, *facts], gap) == once


@given(facts=FACTS, seed=st.integers(0, 1000), batch=st.integers(1, 7))
def test_live_changes_lead_to_the_same_facts(facts: list[Fact], seed: int, batch: int) -> None:
    folder = Fold(gap=5)
    held: set[Fact] = set()
    shuffled = random.Random(seed).sample(facts, len(facts))
    for start in range(0, len(shuffled), batch):
        for fact in shuffled[start : start + batch]:
            folder.add(fact)
        for change in folder.changes():
            assert set(change.replaces) <= held
            held -= set(change.replaces)
            held.add(change.fact)
    assert held == set(fold(facts, gap=5))
