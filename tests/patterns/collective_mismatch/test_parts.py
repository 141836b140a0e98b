"""Which calls differ, by entries and by reports of watchdogs, and what the headline says of them."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.collective import CollectiveEntry, GroupCrossed
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import GLOO, WatchdogReport
from tracecore.patterns.collective_mismatch.detector import (
    CollectiveMismatch,
    CollectiveMismatchVerdict,
    CrossedGroupsVerdict,
)
from tracecore.patterns.collective_mismatch.reports import calls, tells
from tracecore.patterns.config import HOUR
from tracecore.patterns.contract import Verdict
from tracecore.signals.flight_recorder.exchange import Transfer
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000


def entry(rank: int, seq: int = 5, op: str = "all_reduce", **fields: Any) -> CollectiveEntry:
    given = {"state": "completed", "job": "j", "pg": "0"} | fields
    return CollectiveEntry(time=START, source=Source(f"rank{rank}", seq), rank=rank, seq=seq, op=op, **given)


def judged(*facts: Fact) -> list[Verdict]:
    kind = CollectiveMismatch()
    (key,) = {key for fact in facts for key in kind.keys(fact)}
    window = FactWindow(key, 0)
    for fact in facts:
        window.add(fact)
    return kind.evaluate(window, START + HOUR)


OPEN = entry(0, 7, state="started")


@pytest.mark.parametrize(
    ("entries", "seq"),
    [
        ([entry(0), entry(1)], None),
        ([entry(0), entry(1, op="all_gather")], 5),
        ([entry(0, signature="a|(1,)"), entry(1, signature="a|(1,)")], None),
        ([entry(0, signature="a|(1,)"), entry(1, signature="a|(2,)")], 5),
        # What ended before a call that is open did not hang anybody, unless dumps say that nothing came after.
        ([entry(0), entry(1, op="all_gather"), OPEN], None),
        ([entry(0, final=True), entry(1, op="all_gather"), OPEN], 5),
        ([entry(0, state="started"), entry(1, op="all_gather")], 5),
        ([entry(0), entry(1, op="all_gather"), OPEN, entry(1, 7, op="broadcast")], 7),
        # One rank alone does not fit to nobody.
        ([entry(0, transfers=(Transfer(1, 2),))], None),
        ([entry(0, transfers=(Transfer(1, 2),)), entry(1)], 5),
        ([entry(0, 4), entry(1, 4), entry(0, transfers=(Transfer(1, 2),)), entry(1)], 5),
    ],
)
def test_the_first_call_that_differs(entries: list[CollectiveEntry], seq: int | None) -> None:
    found = judged(*entries)
    assert [verdict.fields()["nccl.fr.collective_seq_id"] for verdict in found] == ([] if seq is None else [seq])


def splits(*transfers: Transfer, odd: tuple[Any, ...] = (), rest: tuple[Any, ...] = (entry(0),)) -> str:
    return CollectiveMismatchVerdict(
        key=("j", "0"), episode="5", time=START, pg="0", seq=5, differs="splits", sides=(rest, odd) if odd else (rest,),
        odd=odd, transfers=transfers,
    ).headline()  # fmt: skip


PAIR, ALL = Transfer(7, 9, 1, 2), Transfer(7, 9)
REPORT = WatchdogReport(time=START, source=Source("w"), rank=3, report="timeout")


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (splits(PAIR), "Rank 1 sends 7 elements to rank 2, which expects 9, in all_reduce seq 5 of group 0"),
        (splits(Transfer(7, 9, 1, 1)), "to itself, which expects 9, in all_reduce seq 5 of group 0"),
        (splits(PAIR, ALL), "group 0; other pairs do not fit either"),
        (splits(ALL), "Ranks send 7 elements and expect 9 in all_reduce seq 5 of group 0: their splits do not add up"),
        (splits(ALL, odd=(entry(1), entry(2))), ": those of ranks 1 and 2 do not fit"),
        (splits(ALL, odd=(REPORT,)), ": those of rank 3 do not fit"),
        (splits(ALL, odd=(entry(1, sent=4),)), ": those of rank 1 do not fit"),
        (splits(ALL, odd=(entry(1, expected=4),)), ": those of rank 1 do not fit"),
        (splits(ALL, odd=(entry(1, sent=4, expected=6),)), ": rank 1 sends 4 and expects 6"),
        (splits(Transfer(9, 7), odd=(entry(1, sent=4, expected=6),)), ": rank 1 sends 4 and expects 6"),
        (
            splits(ALL, odd=(entry(1, sent=4, expected=6, state="started"),), rest=(entry(0), OPEN)),
            ": rank 1 sends 4 and expects 6, and has not completed it",
        ),
        (
            splits(ALL, odd=(entry(1, sent=4, expected=6, state="started"),), rest=(OPEN,)),
            ": rank 1 sends 4 and expects 6",
        ),
    ],
)
def test_the_headline_of_splits_that_do_not_add_up(said: str, words: str) -> None:
    assert said.endswith(words)


def test_four_places_of_calls_are_told() -> None:
    sides = tuple((entry(rank, op=f"op{rank}", frame=f"train.py:{rank}"),) for rank in range(5))
    verdict = CollectiveMismatchVerdict(
        key=("j", "0"), episode="5", time=START, pg="0", seq=5, differs="operation", sides=sides, odd=sides[1]
    )
    assert verdict.remediation().count("train.py") == 4


def crossed(rank: int, *members: int, at: int = 0, odd: bool = False) -> GroupCrossed:
    return GroupCrossed(
        time=START + at, source=Source(f"rank{rank}", at), job="j", rank=rank, pg="7", members=members, odd=odd
    )


def test_groups_that_ranks_created_in_another_order() -> None:
    assert judged(crossed(0, 0, 1), crossed(1, 0, 1, odd=True)) == []
    facts = [crossed(0, 0, 1, at=1), crossed(2, 2, 3, at=9, odd=True), crossed(1, 0, 1, at=5, odd=True)]
    (said,) = judged(*facts)
    assert isinstance(said, CrossedGroupsVerdict)
    assert (said.time - START, [fact.rank for fact in said.odd], [fact.rank for fact in said.groups]) == (
        9,
        [1, 2],
        [0, 2],
    )
    (said,) = judged(*(crossed(rank, rank) for rank in range(4)))
    assert said.headline().count(" for rank ") == 3


def report(
    rank: int | None, op: str | None = "ALLREDUCE", seq: int | None = 5, at: int = 0, **fields: Any
) -> WatchdogReport:
    given = {"report": "timeout", "job": "j", "pg": "0"} | fields
    return WatchdogReport(
        time=START + at, source=Source(f"r{rank}.log", at + (seq or 0)), rank=rank, seq=seq, op=op, **given
    )


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (report(1), True),
        (report(1, report="exception"), True),
        (report(1, report="dump_signal"), False),
        (report(None), False),
        (report(1, seq=None), False),
        (report(1, pg=GLOO), False),
        (report(1, "SEND"), False),
        (report(1, "recv"), False),
        (report(1, None), True),
    ],
)
def test_reports_that_tell_of_a_collective(one: WatchdogReport, told: bool) -> None:
    assert tells(one) is told


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([report(1)], {("0", 5): [1]}),
        # The line with the call does not name the group, and the next one does.
        ([report(1, pg=None), report(1, None, at=1)], {("0", 5): [1]}),
        ([report(1, pg=None), report(1, pg=None, at=1), report(1, None, at=2)], {}),
        ([report(1, pg=None), report(2, None, at=1)], {("0", 5): [1]}),
        ([report(1, pg=None), report(2, pg="1"), report(3, pg="2")], {("1", 5): [2], ("2", 5): [3]}),
        ([report(1, pg=None)], {("", 5): [1]}),
        # The same number in another run.
        ([report(1), report(2, at=HOUR)], {("0", 5): [1, 2]}),
        ([report(1), report(2, at=HOUR + 1)], {("0", 5): [2]}),
    ],
)
def test_the_call_of_each_rank_by_group_and_number(
    reports: list[WatchdogReport], found: dict[tuple[str, int], list[int]]
) -> None:
    assert {place: sorted(ranks) for place, ranks in calls(reports).items()} == found


def test_reports_that_agree_do_not_hide_later_ones_that_differ() -> None:
    agree = [report(0, seq=4), report(1, seq=4)]
    (said,) = judged(*agree, report(0), report(1, "ALLGATHER"), report(0, seq=6), report(1, "BROADCAST", seq=6))
    assert said.fields()["nccl.fr.collective_seq_id"] == 5


def test_ranks_of_several_minorities_are_in_order() -> None:
    few = [report(1, "BROADCAST"), report(2, "BROADCAST"), report(0, "ALLGATHER")]
    (said,) = judged(*(report(rank) for rank in (4, 5, 6)), *few)
    assert isinstance(said, CollectiveMismatchVerdict)
    assert said.odd_ranks == [0, 1, 2]
    assert [[one.rank for one in side] for side in said.sides] == [[4, 5, 6], [1, 2], [0]]
    assert said.time == START
