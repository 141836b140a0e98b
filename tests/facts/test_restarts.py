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
