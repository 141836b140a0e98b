"""Which values of a run are a divergence: complaints that were survived, gradients of the first steps, windows."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.training import NonFinite, Progress
from tracecore.patterns.training_divergence.course import Report
from tracecore.patterns.training_divergence.detector import FIRST_STEPS, TrainingDivergence, TrainingDivergenceVerdict
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
CONFIG = TrainingDivergence().config


def good(at: int, loss: float | None = 1.0, **fields: Any) -> Progress:
    rank = fields.setdefault("rank", 0)
    return Progress(time=START + at, source=Source(f"rank{rank}.log", at), loss=loss, **fields)


def bad(at: int, what: str = "loss", **fields: Any) -> NonFinite:
    rank = fields.setdefault("rank", 0)
    return NonFinite(time=START + at, source=Source(f"rank{rank}.log", at), what=what, **fields)


def judged(*reports: Report, gradients: int = CONFIG.gradients) -> list[TrainingDivergenceVerdict]:
    window = FactWindow(("j", ""), 0)
    for report in sorted(reports, key=lambda report: report.time):
        window.add(report)
    kind = TrainingDivergence(TrainingDivergence.Config(gradients=gradients))
    found = kind.evaluate(window, START + 10 * CONFIG.window)
    return [verdict for verdict in found if isinstance(verdict, TrainingDivergenceVerdict)]


def after(complaint: int, count: int, last: int | None = None, **fields: Any) -> list[Progress]:
    """Return so many finite losses after a complaint, the last of them at a time of its own."""
    times = [complaint + n for n in range(1, count + 1)]
    return [good(at, **fields) for at in (times if last is None else [*times[:-1], last])]


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        ([bad(0, explicit=True)], True),
        ([bad(0, explicit=True), *after(0, CONFIG.persist - 1)], True),
        ([bad(0, explicit=True), *after(0, CONFIG.persist)], False),
        ([bad(0, explicit=True), *after(0, CONFIG.persist, CONFIG.window)], False),
        ([bad(0, explicit=True), *after(0, CONFIG.persist, CONFIG.window + 1)], True),
        # Others' losses say nothing of a rank that is known, and something of one that is not.
        ([bad(0, explicit=True), *after(0, CONFIG.persist, rank=1)], True),
        ([bad(0, explicit=True, rank=None), *after(0, CONFIG.persist, rank=1)], False),
        ([bad(0, explicit=True, rank=None), *after(0, 3, rank=1), *after(0, CONFIG.persist - 4, rank=2)], True),
        ([bad(0, explicit=True, rank=None), *after(0, 3, rank=1), *after(0, CONFIG.persist - 3, rank=2)], False),
    ],
)
def test_a_complaint_is_survived_by_finite_losses(reports: list[Report], told: bool) -> None:
    assert [verdict.kind for verdict in judged(*reports)] == (["explicit"] if told else [])


def test_a_complaint_after_one_that_was_survived_is_told() -> None:
    (said,) = judged(bad(0, explicit=True), *after(0, CONFIG.persist), bad(20, explicit=True), bad(30, explicit=True))
    assert said.first.time == START + 20


@pytest.mark.parametrize(("before", "finite"), [(CONFIG.window, True), (CONFIG.window + 1, False)])
def test_the_last_finite_loss_before_a_complaint_is_near_it(before: int, finite: bool) -> None:
    (said,) = judged(good(-before), bad(0, explicit=True))
    assert (said.finite is not None) is finite


def gradients(count: int, step: int | None = None) -> list[NonFinite]:
    return [bad(n, "grad_norm", step=step if step is None else step + n) for n in range(count)]


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        (gradients(4, 100), True),
        # A finite one that follows: a loss scaler at work.
        ([*gradients(4, 100), good(50, None, grad_norm=1.0)], False),
        # The first steps, before any finite one.
        (gradients(4, FIRST_STEPS), True),
        (gradients(4, FIRST_STEPS - 1), False),
        ([good(-1, None, grad_norm=1.0, step=1), *gradients(4, 2)], True),
        (gradients(4), True),
    ],
)
def test_few_gradients_that_are_not_finite(reports: list[Report], told: bool) -> None:
    assert [verdict.kind for verdict in judged(*reports, gradients=4)] == (["non_finite"] if told else [])
    assert [verdict.what for verdict in judged(*reports, gradients=4)] == (["grad_norm"] if told else [])


@pytest.mark.parametrize(
    ("step", "recovered", "told"),
    [
        (0, False, True),
        (0, True, False),
        (FIRST_STEPS - 1, True, False),
        (FIRST_STEPS, True, True),
        (None, True, True),
    ],
)
def test_many_gradients_that_are_not_finite_count_unless_a_scaler_found_its_scale(
    step: int | None, recovered: bool, told: bool
) -> None:
    last = [good(50, None, grad_norm=1.0)] if recovered else []
    said = judged(*gradients(CONFIG.persist, step), *last)
    assert [(verdict.kind, verdict.confidence) for verdict in said] == ([("non_finite", "partial")] if told else [])


def test_the_surest_finding_of_an_attempt_is_told() -> None:
    jump = [good(n, 1.0, step=n) for n in range(CONFIG.persist)]
    jump += [good(n, 10.0, step=n) for n in range(CONFIG.persist, 2 * CONFIG.persist)]
    (said,) = judged(*jump)
    assert (said.kind, said.confidence, said.usual) == ("exploding", "partial", 1.0)
    (said,) = judged(*jump, bad(100), bad(101))
    assert (said.kind, said.confidence, said.first.time) == ("non_finite", "full", START + 100)
    both = judged(bad(0), bad(1), bad(2, attempt=1), bad(3, attempt=1))
    assert [verdict.episode for verdict in both] == ["attempt 0", "attempt 1"]
