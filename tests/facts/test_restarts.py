"""Attempts in one file: steps that fall back after a failure are another start, steps that are counted anew are not."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.process import ExceptionRaised
from tracecore.facts.restarts import numbered
from tracecore.facts.training import Progress
from tracecore.signals.record import Source


def said(kind: type[Fact], place: int, path: str = "train.log", **fields: Any) -> Fact:
    return kind(time=1, source=Source(path, place), approximate=True, **fields)


def story(*steps: int | None, **fields: Any) -> list[Fact]:
    """Return a log with these steps; None is an exception."""
    return [
        said(ExceptionRaised, place, type="ValueError") if step is None else said(Progress, place, step=step, **fields)
        for place, step in enumerate(steps)
    ]


@pytest.mark.parametrize(
    ("steps", "attempts"),
    [
        ((1, 2, 3, None, 0, 1), [0, 0, 0, 0, 1, 1]),
        ((5, 6, None, 2, None, 1), [0, 0, 0, 1, 1, 1]),  # one step less may be another process
        ((5, 6, None, 3, 4, None, 1), [0, 0, 0, 1, 1, 1, 2]),
        ((1, 2, 3, None, 4, 5), [0] * 6),
        ((1, 2, 3, None, 3, 4), [0] * 6),
        ((1, 2, 3, None, 2, 3), [0] * 6),
        ((1, 2, 9, 0, 1), [0] * 5),
    ],
)
def test_steps_that_fall_back_after_a_failure(steps: tuple[int | None, ...], attempts: list[int]) -> None:
    assert [fact.attempt for fact in numbered(story(*steps))] == attempts


def test_a_full_bar_and_another_epoch_are_no_restart() -> None:
    full = [said(Progress, 0, step=9, total_steps=9), *story(None, 1, 2)]
    assert {fact.attempt for fact in numbered(full)} == {0}
    epochs = [
        said(Progress, 0, step=9, epoch=1.0),
        said(ExceptionRaised, 1, type="E"),
        said(Progress, 2, step=0, epoch=2.0),
    ]
    assert {fact.attempt for fact in numbered(epochs)} == {0}
    again = [
        said(Progress, 0, step=9, epoch=1.0),
        said(ExceptionRaised, 1, type="E"),
        said(Progress, 2, step=0, epoch=0.0),
    ]
    assert [fact.attempt for fact in numbered(again)] == [0, 0, 1]


def test_files_of_several_ranks_and_those_that_count_themselves_stay_as_they_are() -> None:
    ranks = [
        said(Progress, 0, step=9, rank=0),
        said(ExceptionRaised, 1, type="E", rank=1),
        said(Progress, 2, step=0, rank=0),
    ]
    assert {fact.attempt for fact in numbered(ranks)} == {0}
    counted = [said(Progress, 0, step=9), said(ExceptionRaised, 1, type="E"), said(Progress, 2, step=0, attempt=4)]
    assert [fact.attempt for fact in numbered(counted)] == [0, 0, 4]


def test_a_bar_of_an_epoch_beside_a_count_of_all_steps_is_no_restart() -> None:
    facts: list[Fact] = []
    for place in range(60):
        facts.append(said(Progress, 10 * place, step=63_000 + place))
        facts.append(said(Progress, 10 * place + 1, step=place % 20, total_steps=25))  # its last reports are not kept
        if place % 7 == 3:
            facts.append(said(ExceptionRaised, 10 * place + 2, type="ValueError"))
    assert {fact.attempt for fact in numbered(facts)} == {0}


def test_both_counters_of_a_program_that_was_started_again_fall_back_once() -> None:
    facts: list[Fact] = []
    for start in (0, 100):
        for place in range(start, start + 9):
            facts.append(said(Progress, 10 * place, step=500 + place - start))
            facts.append(said(Progress, 10 * place + 1, step=7 + place - start, total_steps=781))
        facts.append(said(ExceptionRaised, 10 * start + 95, type="ValueError"))
    assert [fact.attempt for fact in numbered(facts) if isinstance(fact, ExceptionRaised)] == [0, 1]
