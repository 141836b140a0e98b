"""The look at the extremes that spares `training_divergence` an evaluation spares none that finds something."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.training import NonFinite, Progress
from tracecore.patterns.training_divergence.course import Courses
from tracecore.patterns.training_divergence.detector import TrainingDivergence
from tracecore.signals.record import Source

SECOND = 10**9


def _window(values: list[float]) -> FactWindow:
    window = FactWindow(("job", "0"), 0)
    for number, value in enumerate(values):
        source = Source("rank0.log", number, number, 1)
        window.add(Progress(time=number * SECOND, source=source, rank=0, step=number, loss=value))
    return window


def _explodes(pattern: TrainingDivergence, window: FactWindow) -> bool:
    config = pattern.config
    courses = Courses(config.reports, config.factor, config.persist, config.gradients, config.window)
    courses.take(window.of(Progress))
    return any(course.telling for attempt in courses.attempts.values() for course in attempt.ranks.values())


@pytest.mark.parametrize("persist", [1, 2, 3, 4, 5])
def test_every_explosion_shows_in_the_extremes(persist: int) -> None:
    pattern = TrainingDivergence(TrainingDivergence.Config(persist=persist))
    dice = random.Random(persist)
    explosions = 0
    for _ in range(400):
        window = _window([dice.choice((0.1, 1.0, 2.0, 10.0, 11.0, 25.0)) for _ in range(dice.randint(2, 24))])
        if _explodes(pattern, window):
            explosions += 1
            assert pattern._possible(window)
    assert explosions > 4


def test_reports_that_come_later_are_taken_by_themselves() -> None:
    taken: list[int] = []

    class Fold:
        def take(self, facts: Iterable[Progress]) -> None:
            taken.extend(fact.step or 0 for fact in facts)

    window = _window([2.0, 2.1])
    first = window.folded((Progress, NonFinite), Fold)
    assert window.folded((Progress, NonFinite), Fold) is first
    assert sorted(taken) == [0, 1]
    bad = NonFinite(time=2 * SECOND, source=Source("rank0.log", 2, 2, 1), rank=0, step=2, what="loss")
    window.add(bad)
    assert window.folded((Progress, NonFinite), Fold) is first
    assert sorted(taken) == [0, 1, 2]
    window.add(Progress(time=1, source=Source("rank1.log", 0, 0, 1), rank=1, step=7, loss=2.0))
    assert window.folded((Progress, NonFinite), Fold) is not first
    assert sorted(taken[3:]) == [0, 1, 2, 7]
    window.prune(SECOND)
    taken.clear()
    window.folded((Progress, NonFinite), Fold)
    assert sorted(taken) == [1, 2]
