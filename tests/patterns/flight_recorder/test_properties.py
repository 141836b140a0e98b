"""What holds for any facts: order, repetition, shift in time, no exception."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tracecore.diagnose.case_runner import render
from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine
from tracecore.facts.collective import CollectiveEntry, GroupProgress
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import WatchdogReport
from tracecore.patterns.collective_mismatch.detector import CollectiveMismatch
from tracecore.patterns.nccl_hang.detector import NcclHang
from tracecore.patterns.schema import problems, schema_of
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND

times = st.integers(0, 900).map(lambda s: START + s * SECOND)
ranks = st.integers(0, 5)
seqs = st.integers(0, 3)
groups = st.sampled_from(["0", "1"])
maybe = st.none() | st.integers(0, 4)

facts = st.one_of(
    st.builds(
        lambda time, rank, pg, seq, state, signature, p2p, final, n: CollectiveEntry(
            time=time, source=Source("fr", ident=f"e{n}"), rank=rank, pg=pg, seq=seq, state=state,
            signature=signature, is_p2p=p2p, final=final, op=(signature or "x").partition("|")[0],
        ),
        times, ranks, groups, seqs, st.sampled_from(["scheduled", "started", "completed", "?"]),
        st.sampled_from([None, "all_reduce|(4,)|('Float',)", "all_reduce|(5,)|('Float',)", "barrier"]),
        st.booleans(), st.booleans(), st.integers(0, 40),
    ),
    st.builds(
        lambda time, rank, pg, last, waits, roots, absent, n: GroupProgress(
            time=time, source=Source("fr", ident=f"p{n}"), rank=rank, pg=pg, last_enqueued=last, last_completed=last,
            waits_pg=waits, waits_seq=2 if waits else None, roots=tuple(sorted(roots)), absent=tuple(sorted(absent)),
        ),
        times, ranks, groups, maybe, st.none() | groups, st.sets(ranks, max_size=2), st.sets(ranks, max_size=2),
        st.integers(0, 40),
    ),
    st.builds(
        lambda time, rank, pg, seq, report, op, last, n: WatchdogReport(
            time=time, source=Source("log", ident=f"w{n}"), rank=rank, pg=pg, seq=seq, report=report, op=op,
            last_enqueued=last,
        ),
        times, ranks, st.none() | groups, st.none() | seqs,
        st.sampled_from(["timeout", "exception", "dump_signal", "heartbeat", "abort"]),
        st.sampled_from([None, "ALLREDUCE", "RECV"]), maybe, st.integers(0, 40),
    ),
)  # fmt: skip


def unique(items: list[Fact]) -> list[Fact]:
    return list({(type(fact), fact.time, fact.uid): fact for fact in items}.values())


def said(items: list[Fact], until: int = START + 3600 * SECOND) -> str:
    engine = Engine([NcclHang(), CollectiveMismatch()])
    return render(standing(engine.replay(items, until=until)), revisions=False)


@given(st.lists(facts, max_size=14).map(unique), st.randoms(use_true_random=False))
def test_order_and_repetition_change_nothing(items: list[Fact], random: object) -> None:
    expected = said(items)
    shuffled = list(items)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert said(shuffled + shuffled[:3]) == expected


@given(st.lists(facts, max_size=14).map(unique))
def test_a_shift_in_time_changes_times_only(items: list[Fact]) -> None:
    shift = 7 * 86_400 * SECOND
    moved = [msgspec.structs.replace(fact, time=fact.time + shift) for fact in items]
    before = standing(Engine([NcclHang(), CollectiveMismatch()]).replay(items, until=START + 3600 * SECOND))
    after = standing(Engine([NcclHang(), CollectiveMismatch()]).replay(moved, until=START + shift + 3600 * SECOND))
    assert [(e.id, e.verdict.headline(), e.verdict.time + shift) for e in before] == [
        (e.id, e.verdict.headline(), e.verdict.time) for e in after
    ]


@given(st.lists(facts, max_size=14).map(unique))
def test_every_verdict_obeys_its_schema(items: list[Fact]) -> None:
    engine = Engine([NcclHang(), CollectiveMismatch()])
    for emission in engine.replay(items, until=START + 3600 * SECOND):
        kind = NcclHang if emission.verdict.pattern_id == "8" else CollectiveMismatch
        assert problems(schema_of(kind), emission.verdict.document()) == []
        assert set(emission.verdict.suspects().ranks) <= set(range(6))


@given(st.lists(facts, max_size=14).map(unique))
def test_facts_of_another_group_change_nothing(items: list[Fact]) -> None:
    other = [
        CollectiveEntry(time=START, source=Source("o", ident=f"o{r}"), rank=r, pg="9", seq=1, state="completed")
        for r in range(3)
    ]
    assert said([*items, *other]) == said(items)
