"""What is known of each rank of a group: what it entered, where it is stuck, and who was not heard."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.collective import CollectiveEntry, GroupProgress
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import WatchdogReport
from tracecore.patterns.nccl_hang.waiting import (
    CallsByRank,
    _culprit,
    _last_entered,
    _origin,
    _stuck_at,
    _unheard_ranks,
    ended,
    unfinished,
)
from tracecore.signals.record import Source


def entry(rank: int | None, seq: int, state: str = "started", time: int = 1, **fields: Any) -> CollectiveEntry:
    source = Source(f"rank{rank}", 10 * seq + time)
    return CollectiveEntry(time=time, source=source, rank=rank, pg="0", seq=seq, state=state, **fields)


def report(rank: int | None, **fields: Any) -> WatchdogReport:
    source = Source(f"rank{rank}.log", len(fields) + (fields.get("seq") or fields.get("last_enqueued") or 0))
    return WatchdogReport(time=1, source=source, rank=rank, **{"report": "timeout", "pg": "0", **fields})


def progress(rank: int, **fields: Any) -> GroupProgress:
    return GroupProgress(time=1, source=Source(f"rank{rank}.dump"), rank=rank, **{"pg": "0", **fields})


def window(*facts: Fact, pg: str = "0") -> FactWindow:
    made = FactWindow(("j", pg), 1)
    for fact in facts:
        made.add(fact)
    return made


# -- the latest word on each call --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "open_"),
    [
        ([], {}),
        ([entry(0, 5)], {5: 1}),
        ([entry(0, 5), entry(1, 5)], {5: 2}),
        ([entry(0, 5), entry(1, 6)], {5: 1, 6: 1}),
        ([entry(0, 5, "completed")], {}),
        ([entry(0, 5, completed=9)], {}),
        ([entry(None, 5)], {}),
        # Completed supersedes started in any order; otherwise nothing is counted twice.
        ([entry(0, 5), entry(0, 5, "completed", 2)], {}),
        ([entry(0, 5, "completed"), entry(0, 5, "started", 2)], {}),
        ([entry(0, 5), entry(0, 5, "started", 2)], {5: 1}),
        ([entry(0, 5), entry(1, 5), entry(0, 5, "completed", 2)], {5: 1}),
        ([entry(0, 5, "completed"), entry(1, 5)], {5: 1}),
        ([entry(0, 5, is_p2p=True)], {}),
    ],
)
def test_how_many_ranks_have_not_ended_a_collective(entries: list[CollectiveEntry], open_: dict[int, int]) -> None:
    assert CallsByRank(entries).open == open_


def test_the_latest_word_on_each_call() -> None:
    first, later, other = entry(0, 5), entry(0, 5, "scheduled", 2), entry(1, 5)
    sent, received = entry(0, 3, is_p2p=True), entry(0, 4, time=2, is_p2p=True)
    for entries in ([first, later, other, sent, received], [later, other, received, sent, first]):
        calls = CallsByRank(entries)
        assert calls.latest == {5: {0: later, 1: other}}
        assert calls.pairs == {0: received}


def test_entries_count_where_one_of_them_is_not_completed() -> None:
    assert list(unfinished(window(entry(0, 5, "completed")))) == []
    assert len(unfinished(window(entry(0, 5, "completed"), entry(1, 5)))) == 2


def test_a_rank_ended_a_collective() -> None:
    known = window(entry(0, 5, "completed"), entry(1, 5), entry(2, 5, "completed", is_p2p=True))
    assert [ended(known, rank, 5) for rank in range(3)] == [True, False, False]
    assert not ended(known, 0, 6)


@pytest.mark.parametrize(
    ("op", "found"), [("SEND", True), ("recv 2<-1", True), ("coalesced", True), ("ALLREDUCE", False)]
)
def test_sends_and_receives_are_pairwise(op: str, found: bool) -> None:
    assert report(0, op=op).is_p2p is found
    assert not report(0).is_p2p


# -- what a rank entered, where it is stuck, who is silent -------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "entered"),
    [
        ([report(1, last_enqueued=7)], {1: 7}),
        ([report(1, last_enqueued=7), report(1, last_enqueued=9)], {1: 9}),
        ([report(1, last_enqueued=0)], {1: 0}),
        ([report(1, last_enqueued=7, pg=None)], {}),
        ([report(None, last_enqueued=7)], {}),
        ([report(1)], {}),
        ([report(1, last_enqueued=7), entry(1, 8)], {1: 8}),
        ([report(1, last_enqueued=7), entry(1, 6)], {1: 7}),
        ([entry(2, 8), entry(2, 6), entry(1, 5)], {1: 5, 2: 8}),
        ([entry(None, 8), entry(1, 9, is_p2p=True)], {}),
        # A dump knows best.
        ([report(1, last_enqueued=7), progress(1, last_enqueued=4)], {1: 4}),
        ([report(1, last_enqueued=7), progress(1)], {}),
        ([progress(1)], {}),
    ],
)
def test_the_last_collective_that_a_rank_entered(facts: list[Fact], entered: dict[int, int]) -> None:
    known = window(*facts)
    assert (
        _last_entered(known, {fact.rank: fact for fact in known.of(GroupProgress) if fact.rank is not None}) == entered
    )


@pytest.mark.parametrize(
    ("facts", "stuck"),
    [
        ([report(1, seq=7)], {1: 7}),
        ([report(1, seq=7), report(1, seq=5)], {1: 5}),
        ([report(1, seq=7, report="exception")], {1: 7}),
        ([report(1, seq=7, report="heartbeat")], {}),
        ([report(None, seq=7), report(1)], {}),
        ([entry(1, 7, final=True)], {1: 7}),
        ([entry(1, 7, final=True), report(1, seq=5)], {1: 5}),
        ([entry(1, 4, final=True), report(1, seq=5)], {1: 4}),
        ([entry(1, 7)], {}),
        ([entry(1, 7, "completed", final=True)], {}),
        ([entry(None, 7, final=True)], {}),
    ],
)
def test_the_first_collective_in_which_a_rank_is_stuck(facts: list[Fact], stuck: dict[int, int]) -> None:
    assert _stuck_at(window(*facts)) == stuck


@pytest.mark.parametrize(
    ("facts", "pg", "silent"),
    [
        ([report(0), report(3), report(2)], "0", {1}),
        ([report(0), report(3), report(2)], "5", set()),
        ([report(0), entry(3, 1), report(2)], "0", {1}),
        ([entry(0, 1), entry(3, 1), entry(2, 1)], "0", set()),
        # Half of those below the highest are heard at least.
        ([report(0), report(3)], "0", {1, 2}),
        ([report(0), report(4)], "0", set()),
        ([report(None)], "0", set()),
        ([report(0), report(1)], "0", set()),
    ],
)
def test_ranks_of_which_no_watchdog_was_heard(facts: list[Fact], pg: str, silent: set[int]) -> None:
    assert _unheard_ranks(window(*facts, pg=pg)) == silent


@pytest.mark.parametrize(
    ("fields", "origin"),
    [
        ({"origin_pg": "5", "origin_seq": 9}, ("group 5", 9)),
        ({"origin_pg": "5", "origin_seq": 9, "origin_desc": "mesh_dp"}, ("mesh_dp", 9)),
        ({"origin_pg": "0", "origin_seq": 9}, None),
        ({"origin_pg": "5"}, None),
        ({"origin_seq": 9}, None),
    ],
)
def test_where_a_chain_of_waits_began(fields: dict[str, Any], origin: tuple[str, int] | None) -> None:
    assert _origin(progress(1, **fields), "0") == origin


def test_what_is_known_of_a_rank_that_did_not_come() -> None:
    class Known:
        def __init__(self, last: Fact | None = None, dump: GroupProgress | None = None) -> None:
            self.last, self.progress = last, {} if dump is None else {1: dump}

        def latest_evidence(self, rank: int) -> Fact | None:
            return self.last

    def told(known: Any, waiter: GroupProgress | None = None) -> tuple[Any, ...]:
        found = _culprit(1, known, waiter)
        return found.why, found.last_enqueued, found.frame, found.what

    dump = progress(1, last_enqueued=4, frame="a.py:3", last_op="all_reduce")
    waiter = progress(0, why="inside")
    assert told(Known()) == ("never_entered", None, None, None)
    assert told(Known(dump=dump)) == ("never_entered", 4, "a.py:3", "all_reduce")
    assert told(Known(dump=dump), waiter) == ("still_inside", 4, "a.py:3", "all_reduce")
    assert told(Known(report(1, last_enqueued=6)), waiter) == ("still_inside", None, None, None)
    assert told(Known(report(1, last_enqueued=6)), progress(0)) == ("never_entered", 6, None, None)
    assert told(Known(entry(1, 8, op="send", frame="b.py:9"))) == ("never_entered", 8, "b.py:9", "send")
