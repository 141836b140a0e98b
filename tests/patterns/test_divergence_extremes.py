"""The look at the extremes that spares `training_divergence` an evaluation spares none that finds something."""

from __future__ import annotations

import random

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.training import Progress
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


def test_one_odd_value_is_no_reason_to_evaluate() -> None:
    pattern = TrainingDivergence(TrainingDivergence.Config())
    assert not pattern._possible(_window([2.0] * 20 + [1e9] + [2.0] * 20 + [1e-9]))
