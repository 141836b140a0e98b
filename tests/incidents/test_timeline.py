"""The rows of an incident: their order, what is told together, and which are left out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.gpu import Xid
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.incidents.timeline import Moment, evidence_timeline, folded, runs, words
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, seen, verdict


def said(*facts: Any, suspects: tuple[int, ...] = (), others: Any = (), limit: int = 12) -> list[Moment]:
    return evidence_timeline(verdict("worker_crash", 1, *facts), others, suspects, limit)


def told(rows: list[Moment]) -> list[tuple[int, str, list[int]]]:
    return [((row.time - T0) // SECOND, row.role, row.ranks) for row in rows]


def test_evidence_about_the_suspects_is_the_cause_and_the_rest_follows() -> None:
    facts = seen(1, rank=0), seen(20, rank=1), seen(40)
    assert told(said(*facts, suspects=(1,))) == [(1, "symptom", [0]), (20, "cause", [1]), (40, "cause", [])]
    assert [row.role for row in said(*facts)] == ["cause"] * 3
    alone = evidence_timeline(None, [verdict("worker_crash", 1, seen(1))], (), 9)
    assert [row.role for row in alone] == [""]
    beside = said(seen(1), others=[verdict("nccl_hang", 2, seen(9))])
    assert [row.role for row in beside] == ["cause", "symptom"]


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        ({"rank": 0}, {"rank": 1}, [(1, "cause", [0, 1])]),
        ({"rank": 1}, {"rank": 0}, [(1, "cause", [0, 1])]),
        ({"rank": 1}, {"rank": 1}, [(1, "cause", [1])]),
        ({}, {"rank": 1}, [(1, "cause", []), (2, "cause", [1])]),
        ({"rank": 1}, {}, [(1, "cause", [1]), (2, "cause", [])]),
    ],
)
def test_ranks_that_say_the_same_at_about_the_same_time_are_one_row(
    first: dict[str, Any], second: dict[str, Any], rows: list[Any]
) -> None:
    assert told(said(seen(1, **first), seen(2, **second))) == rows


def test_the_same_words_of_another_time_or_layer_are_rows_of_their_own() -> None:
    from tracecore.incidents.timeline import _TOGETHER

    for late, rows in ((0, 1), (1, 2)):
        later = seen(1 + _TOGETHER / SECOND, rank=1)
        second = type(later)(time=T0 + SECOND + _TOGETHER + late, source=later.source, rank=1)
        assert len(said(seen(1, rank=0), second)) == rows
        guessed = seen(1, rank=0, approximate=True)
        assert len(said(guessed, second)) == 1
    xids = [Xid(time=T0, source=Source("k", n), rank=n, code=code) for n, code in enumerate((79, 48))]
    assert len(said(*xids)) == 2


def test_a_row_that_a_suspect_shares_is_the_cause() -> None:
    assert told(said(seen(1, rank=0), seen(2, rank=1), suspects=(1,))) == [(1, "cause", [0, 1])]
    assert told(said(seen(1, rank=1), seen(2, rank=0), suspects=(1,))) == [(1, "cause", [0, 1])]


def test_ends_whose_time_was_inferred_come_last() -> None:
    end = ExitStatus(time=T0, source=Source("exit"), exit_code=1, approximate=True)
    exact = ExitStatus(time=T0, source=Source("exit2"), exit_code=1)
    assert [row.timed for row in said(end, seen(5))] == [True, False]
    assert said(exact, seen(5))[0].layer == "scheduler"


def test_of_a_long_list_causes_and_the_ends_stay() -> None:
    facts = [seen(20 * n, rank=n) for n in range(9)]
    rows = said(*facts, suspects=(4,), limit=5)
    assert [row.ranks for row in rows] == [[0], [1], [4], [7], [8]]
    assert len(said(*facts, limit=9)) == 9
    assert [row.ranks for row in said(*facts, suspects=(4,), limit=4)] == [[0], [1], [4], [8]]


@pytest.mark.parametrize(
    ("row", "who"),
    [
        ({"ranks": [3]}, "rank 3"), ({"ranks": [3, 4]}, "ranks 3-4"), ({"where": "n1"}, "n1"), ({}, "job"),
        ({"layer": "scheduler"}, "launcher"), ({"layer": "kernel"}, "kernel"),
    ],
)  # fmt: skip
def test_who_says_it(row: dict[str, Any], who: str) -> None:
    base = {"time": T0, "timed": True, "layer": "stdout", "role": "", "ranks": [], "where": "", "node": "", "text": "x"}
    assert Moment(**base | row).who == who


def test_a_row_as_a_document() -> None:
    (row,) = said(seen(0, rank=2, node="n1", gpu="g", approximate=True))
    assert row.document() == {
        "time": "2026-09-21T14:13:20Z", "layer": "stdout", "role": "cause", "text": row.text, "time_inferred": True,
        "ranks": [[2, 2]], "where": "g", "node": "n1",
    }  # fmt: skip
    (plain,) = evidence_timeline(None, [verdict("x", 0, seen(0))], (), 9)
    assert plain.document() == {
        "time": "2026-09-21T14:13:20Z", "layer": "stdout", "role": "other", "text": plain.text,
    }  # fmt: skip


def test_the_last_step_is_called_so() -> None:
    step = Progress(time=T0, source=Source("a"), step=0)
    assert words(step) == "last step reported: 0"
    assert words(Progress(time=T0, source=Source("a"))) == "last report of progress"


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((), ""), ((3,), "3"), ((0, 1, 2, 5), "0-2, 5"), ((5, 1, 1, 2), "1-2, 5"),
        (tuple(range(0, 24, 2)), ", ".join(map(str, range(0, 24, 2)))),
        (tuple(range(0, 26, 2)), ", ".join(map(str, range(0, 24, 2))) + " … (13 in all)"),
    ],
)  # fmt: skip
def test_neighbours_are_folded_and_long_lists_cut(numbers: tuple[int, ...], text: str) -> None:
    assert runs(numbers) == text
    assert [number for low, high in folded(numbers) for number in range(low, high + 1)] == sorted(set(numbers))
