"""Charts: the right points at the right places, and axes that people can read."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.training import Progress
from tracecore.incidents.drawings import _amount, _thin, line_chart, progress_charts, ticks
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
import drawn_stories
from made_verdicts import SECOND, T0


def report(at: float, step: int, rank: int = 0, **more: Any) -> Progress:
    return Progress(time=T0 + int(at * SECOND), source=Source(f"{rank}.log", step), rank=rank, step=step, **more)


def points(svg: str) -> list[list[tuple[float, float]]]:
    """Return the points of each line."""
    lines = re.findall(r'points="([^"]*)"', svg)
    return [[(float(x), float(y)) for x, y in (pair.split(",") for pair in line.split())] for line in lines]


def labels(svg: str) -> list[str]:
    return re.findall(r">([^<>]+)</text>", svg)


def test_a_line_spans_the_chart_from_its_lowest_to_its_highest_point() -> None:
    svg = "".join(line_chart("Loss", "", {0: [(10, 1.0), (20, 3.0), (30, 2.0)]}, ()))
    assert points(svg) == [[(70.0, 150.0), (255.0, 26.0), (440.0, 88.0)]]
    assert labels(svg) == ["Loss", "1", "2", "3", "step 10", "step 30"]
    assert 'x="70.0" y="166" text-anchor="start"' in svg
    assert 'x="440.0" y="166" text-anchor="end"' in svg


def test_an_amount_with_a_unit_begins_at_zero() -> None:
    svg = "".join(line_chart("Time of a step", "s", {0: [(0, 2.0), (1, 4.0)]}, ()))
    assert labels(svg)[:4] == ["Time of a step (s)", "0", "2", "4"]
    assert points(svg) == [[(70.0, 88.0), (440.0, 26.0)]]


def test_a_constant_lies_in_the_middle() -> None:
    svg = "".join(line_chart("Loss", "", {0: [(0, 5.0), (1, 5.0)]}, ()))
    assert points(svg) == [[(70.0, 88.0), (440.0, 88.0)]]
    assert labels(svg)[1:4] == ["4.5", "5", "5.5"]


@pytest.mark.parametrize(("highest", "logarithmic"), [(1000.0, False), (1001.0, True)])
def test_what_explodes_is_drawn_logarithmically(highest: float, logarithmic: bool) -> None:
    svg = "".join(line_chart("Loss", "", {0: [(0, 1.0), (1, highest)]}, ()))
    assert ("logarithmic" in svg) is logarithmic


def test_values_that_are_not_positive_are_never_logarithmic() -> None:
    assert "logarithmic" not in "".join(line_chart("Loss", "", {0: [(0, -1.0), (1, 5000.0)]}, ()))
    assert "logarithmic" not in "".join(line_chart("Loss", "", {0: [(0, 0.0), (1, 5000.0)]}, ()))


def test_suspects_come_first_and_stand_out() -> None:
    svg = "".join(line_chart("Loss", "", {rank: [(0, 1.0), (1, 2.0)] for rank in (None, 0, 1, 2)}, (2,)))
    assert re.findall(r"<title>([^<]*)</title>", svg) == ["rank 2", "rank 0", "rank 1", "job"]
    assert re.findall(r'polyline class="(\w+)"', svg) == ["bad", "line1", "line2", "line3"]


def test_steps_are_timed_by_the_clock_only_where_both_times_are_known() -> None:
    told = [report(0, 1), report(2, 2), report(8, 4), report(9, 4), report(10, 3), report(20, 5)]
    svg = "".join(progress_charts(told, ()))
    assert "from step 2 to step 5" in svg
    assert labels(svg)[1:4] == ["0", "2.5", "5"]
    for change in ({"approximate": True}, {"iter_time_s": 7.0}):
        other = [report(0, 1), report(2, 2), report(4, 3, **change), report(6, 4), report(8, 5)]
        drawn = "".join(progress_charts(other, ()))
        assert ("from step 2 to step 5" in drawn, "7</text>" in drawn) == (True, "iter_time_s" in change)
        assert len(points(drawn)[0]) == (4 if "iter_time_s" in change else 2)


def test_only_training_with_two_points_is_drawn() -> None:
    assert list(progress_charts([report(0, 1, loss=1.0)], ())) == []
    assert list(progress_charts([report(0, 1, loss=1.0, phase="eval"), report(1, 2, loss=2.0, phase="eval")], ())) == []
    losses = [report(0, 1, loss=1.0), report(0, 2, loss=float("nan")), report(0, 3, loss=3.0)]
    (drawn,) = points("".join(progress_charts(losses, ())))
    assert len(drawn) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.001, "0.001"),
        (0.00099, "9.9e-4"),
        (999.4, "999"),
        (1000, "1,000"),
        (999_999, "999,999"),
        (1e6, "1.0e6"),
    ],
)
def test_amounts_are_short(value: float, text: str) -> None:
    assert _amount(value) == text


def test_a_spike_survives_when_points_are_thinned() -> None:
    many = [(float(x), 1000.0 if x == 777 else x % 7.0) for x in range(5000)]
    kept = _thin(many)
    assert len(kept) < 1000
    assert (777.0, 1000.0) in kept
    assert kept == sorted(kept)


@pytest.mark.parametrize(
    ("span", "last"), [(0.4, "+400 ms"), (10, "+10 s"), (3600, "+1 h"), (5400, "+1 h 30 min"), (86_400 * 2, "+2 d")]
)
def test_ticks_are_round(span: float, last: str) -> None:
    marks = ticks(span)
    assert marks[0] == (0, "+0")
    assert 2 <= len(marks) <= 6
    assert marks[-1][0] <= span
    assert last in [label for _, label in marks]


def test_drawings_of_made_up_runs_stay_as_they_are_recorded() -> None:
    before = drawn_stories.recorded()
    assert len(before) == drawn_stories.FIRST
    changed = [name for name, digest in before.items() if drawn_stories.outcome(name) != digest]
    assert not changed, f"{changed}: if this is meant: python tests/incidents/drawn_stories.py"
