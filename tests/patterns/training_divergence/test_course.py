"""Where the values of a rank went wrong: edges of streaks, surges and comparisons between ranks."""

from __future__ import annotations

import pytest

from tracecore.facts.training import NonFinite, Progress
from tracecore.patterns.training_divergence.course import HISTORY, Course, Courses, Report, Streak, Surge
from tracecore.patterns.training_divergence.detector import TrainingDivergenceVerdict, _order
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000


def good(
    at: int, loss: float | None = 1.0, *, rank: int | None = 0, step: int | None = None, norm: float | None = None,
    line: int = 0, attempt: int = 0,
) -> Progress:  # fmt: skip
    return Progress(
        time=START + at, source=Source(f"rank{rank}.log", at * 100 + line), rank=rank, loss=loss, step=step,
        grad_norm=norm, attempt=attempt,
    )  # fmt: skip


def bad(
    at: int, what: str = "loss", *, rank: int | None = 0, step: int | None = None, explicit: bool = False,
    line: int = 0, attempt: int = 0,
) -> NonFinite:  # fmt: skip
    return NonFinite(
        time=START + at, source=Source(f"rank{rank}.log", at * 100 + line), rank=rank, what=what,
        step=step, explicit=explicit, attempt=attempt,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        ([bad(1), bad(2), bad(3)], [1, 2, 3]),
        ([bad(1), bad(2)], None),
        ([bad(1), good(2), bad(3), bad(4)], None),
        ([bad(1), good(2), bad(3), bad(4), bad(5)], [3, 4, 5]),
        ([bad(1), bad(2), bad(11)], [1, 2, 11]),
        ([bad(1), bad(2), bad(12)], None),
        ([bad(1), bad(2), bad(3), bad(4)], [1, 2, 3]),
    ],
)
def test_a_streak_is_the_first_three_bad_reports_in_a_row_within_the_window(
    reports: list[Report], found: list[int] | None
) -> None:
    streak = Streak(3, 10)
    for report in reports:
        streak.add(report)
    assert (streak.found and [fact.time - START for fact in streak.found[0]]) == found


@pytest.mark.parametrize(("at", "named"), [(1, False), (2, True), (11, True)])
def test_the_last_good_report_before_a_streak_is_one_within_the_window(at: int, named: bool) -> None:
    streak = Streak(1, 10)
    streak.add(good(at))
    streak.add(bad(12))
    streak.add(good(13))
    assert streak.found == ([bad(12)], good(at) if named else None)


def surge(*values: float | None, window: int = 100, persist: int = 3, apart: int = 1, steps: bool = True) -> Surge:
    found = Surge("loss", 10.0, persist, window)
    for number, value in enumerate(values):
        found.add(good(number * apart, value, step=number if steps else None))
    return found


@pytest.mark.parametrize(
    ("values", "usual"),
    [
        ((1, 1, 1, 10, 10, 10), 1.0),
        ((1, 1, 1, 9.99, 10, 10), None),
        ((1, 1, 10, 10, 10), None),
        ((1, 1, 1, 10, 10), None),
        ((1, 1, 1, 10, 1, 10, 10), None),
        ((1, 1, 1, 10, 1, 10, 10, 10), 1.0),
        ((1, 2, 4, 3, 25, 25, 25), 2.5),
        ((1, 2, 4, 20, 20, 20), 2.0),
        ((1, 2, 4, 19, 20, 20), None),
        ((0, 0, 0, 10, 10, 10), None),
        ((-1, 1, -1, 10, 10, 10), 1.0),
        ((1, 1, None, 1, 10, None, 10, 10), 1.0),
        # Those that were not high for long enough count among the usual ones.
        ((1, 1, 1, 10, 10, 1, 20, 20, 20), 1.0),
        ((1, 1, 1, 10, 10, 2, 20, 20, 20), 1.5),
    ],
)
def test_a_surge_is_far_above_the_median_of_the_reports_before_it(
    values: tuple[float | None, ...], usual: float | None
) -> None:
    found = surge(*values).found
    assert (found and found[1]) == usual
    if found:
        assert len(found[0]) == 3


def test_one_step_that_is_said_again_is_one_report_and_reports_without_a_step_are_several() -> None:
    again = Surge("loss", 10.0, 3, 100)
    for number, (value, step) in enumerate([(1, 0), (1, 1), (1, 2), (10, 3), (10, 3), (10, 4)]):
        again.add(good(number, value, step=step))
    assert again.found is None
    again.add(good(9, 10, step=5))
    assert again.found is not None
    assert surge(1, 1, 1, 10, 10, 10, steps=False).found is not None


@pytest.mark.parametrize(("window", "found"), [(30, True), (29, False)])
def test_the_median_looks_back_as_far_as_the_window(window: int, found: bool) -> None:
    assert (surge(1, 1, 1, 10, 10, 10, apart=10, window=window).found is not None) == found


@pytest.mark.parametrize(("second", "found"), [(12, [3, 12, 13]), (14, [3, 12, 14]), (23, None)])
def test_high_reports_that_are_too_far_apart_are_no_surge(second: int, found: list[int] | None) -> None:
    loss = Surge("loss", 10.0, 3, 11)
    for number in range(3):
        loss.add(good(number, 1))
    for at in (3, 12, 13 if second == 12 else second):
        loss.add(good(at, 10))
    assert (loss.found and [fact.time - START for fact in loss.found[0]]) == found
    if found is None:
        loss.add(good(23, 10, line=1))
        assert loss.found is not None, "the first of them is left out, and the others go on"


def test_a_surge_is_found_once_and_norms_are_measured_apart_from_losses() -> None:
    norm = Surge("grad_norm", 10.0, 1, 100)
    for number, value in enumerate((1.0, 10.0, 200.0)):
        norm.add(good(number, 1.0, norm=value))
    assert norm.found == ([good(1, 1.0, norm=10.0)], 1.0)


def test_only_so_many_reports_count_for_the_median() -> None:
    found = surge(*[1.0] * 20, *[3.0] * HISTORY, 30, 30, 30, window=1000)
    assert found.found is not None
    assert found.found[1] == 3.0


def course(*reports: Report) -> Course:
    made = Course(2, 10.0, 3, 3, 100)
    for report in reports:
        made.add(report)
    return made


@pytest.mark.parametrize(
    ("reports", "telling"),
    [
        ([bad(1), bad(2)], True),
        ([bad(1)], False),
        ([bad(1, explicit=True)], True),
        ([bad(1, "gradient"), bad(2, "grad_norm")], False),
        ([bad(1, "gradient"), bad(2, "grad_norm"), bad(3, "gradient")], True),
        ([bad(1), good(2, None, norm=1.0), bad(3)], True),
        ([bad(1, "gradient"), bad(2, "gradient"), good(3, norm=None), bad(4, "gradient")], True),
        ([bad(1, "gradient"), bad(2, "gradient"), good(3, norm=2.0), bad(4, "gradient")], False),
        ([good(n, 1.0) for n in range(3)] + [good(n, 10.0) for n in range(3, 6)], True),
        ([good(n, None, norm=1.0) for n in range(3)] + [good(n, None, norm=10.0) for n in range(3, 6)], True),
        ([good(1), good(2)], False),
    ],
)
def test_a_course_tells_of_streaks_surges_and_complaints(reports: list[Report], telling: bool) -> None:
    assert course(*reports).telling == telling


def test_good_losses_after_a_complaint_are_those_behind_it_up_to_a_time() -> None:
    complaint = bad(5, explicit=True, line=5)
    told = course(good(5, line=4), complaint, good(5, line=6), bad(6), good(7), good(8), good(9))
    counts = [
        told.good_after(complaint, START + until, most) for until, most in ((4, 9), (5, 9), (7, 9), (8, 9), (8, 2))
    ]
    assert counts == [0, 1, 2, 3, 2]


def test_the_last_good_loss_is_the_one_just_before() -> None:
    told = course(good(1), good(2), bad(3), bad(4, line=2))
    assert told.last_good(bad(4, line=2)) == good(2)
    assert told.last_good(bad(2)) == good(1)
    assert told.last_good(bad(1)) is None


def courses(*reports: Report) -> Courses:
    made = Courses(1, 10.0, 3, 3, 100)
    made.take(reports)
    return made


@pytest.mark.parametrize(
    ("others", "alone"),
    [
        ([good(1, rank=1, step=7)], 0),
        ([], None),
        ([good(1, rank=1, step=6)], None),
        ([good(1, None, rank=1, step=7)], None),
        ([good(1, rank=1, step=7), bad(1, rank=2, step=7)], None),
        ([good(1, rank=1, step=7), bad(1, "gradient", rank=2, step=7)], 0),
        ([good(1, rank=1, step=7), bad(1, "gradient", rank=2, step=7, explicit=True)], None),
        ([good(1, rank=1, step=7, attempt=1)], None),
    ],
)
def test_a_rank_is_alone_where_others_have_a_finite_loss_at_its_step(others: list[Report], alone: int | None) -> None:
    first = bad(1, rank=0, step=7)
    assert courses(first, *others).attempts[0].alone(first) == alone


def test_nobody_is_alone_without_a_rank_or_a_step_or_a_bad_value() -> None:
    others = good(1, rank=1, step=7)
    for first in (bad(1, rank=None, step=7), bad(1, rank=0), good(1, rank=0, step=7)):
        assert courses(first, others).attempts[0].alone(first) is None


@pytest.mark.parametrize(
    ("other", "shared"),
    [
        (bad(2, rank=1, step=8), True),
        (bad(2, rank=1, step=7), False),
        (bad(2, rank=0, step=8), False),
        (bad(2, rank=None, step=8), False),
        (bad(2, rank=1, explicit=True), True),
        (bad(2, rank=0, explicit=True), False),
        (bad(2, rank=None, explicit=True), False),
        (good(2, rank=1, step=8), False),
    ],
)
def test_a_failure_is_shared_where_other_ranks_follow(other: Report, shared: bool) -> None:
    first = bad(1, rank=0, step=7)
    assert courses(first, other).attempts[0].shared(first) == shared


def test_reports_are_taken_in_order_of_their_place_and_of_one_line_the_good_value_first() -> None:
    line = bad(2)
    taken = courses(good(3), line, good(2), good(1), bad(1, attempt=1))
    assert taken.attempts[0].ranks[0].losses == [good(1), good(2), line, good(3)]
    assert [*taken.attempts] == [0, 1]
    assert taken.attempts[0].telling == {0: taken.attempts[0].ranks[0]}
    assert courses(good(1)).attempts[0].telling == {}


def told(
    kind: str, at: int = 1, *, rank: int | None = 0, line: int = 0, confidence: str = "full"
) -> TrainingDivergenceVerdict:
    first = good(at, rank=rank, line=line)
    fields = {"key": ("j", ""), "episode": "e", "time": first.time, "what": "loss", "first": first, "last": first}
    return TrainingDivergenceVerdict(**fields, kind=kind, confidence=confidence)


def test_the_surest_and_then_the_first_verdict_comes_first() -> None:
    in_order = [
        told("explicit", rank=None),
        told("non_finite"),
        told("explicit", line=1),
        told("non_finite", rank=1),
        told("explicit", 2),
        told("non_finite", confidence="partial"),
        told("exploding"),
        told("exploding", 2),
        told("exploding", confidence="partial"),
    ]
    shuffled = in_order[::-1]
    assert sorted(shuffled, key=_order) == in_order
