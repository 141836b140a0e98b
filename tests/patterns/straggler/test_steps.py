"""Where a step begins among the collectives of a group, and how long it took."""

from __future__ import annotations

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.collective import Arrival
from tracecore.patterns.config import SECOND
from tracecore.patterns.straggler import detector
from tracecore.patterns.straggler.detector import Straggler
from tracecore.signals.record import Source


def steps(*arrivals: tuple[int, int]) -> list[tuple[int, int]]:
    """Return when the last rank came to the first collective of each step, and how long that took."""
    told = [
        Arrival(time=time, source=Source("fr", time), rank=1, pg="0", seq=seq, lateness=lateness, ranks=8)
        for seq, (time, lateness) in enumerate(arrivals)
    ]
    return [(arrival.time, took) for arrival, took in detector._steps(told)]


@pytest.mark.parametrize(
    ("arrivals", "found"),
    [
        ([], []),
        ([(100, 0)], []),
        # The middle rank comes as everybody had come to the one before, and 1 ns later.
        ([(100, 0), (130, 30)], []),
        ([(100, 0), (130, 29)], [(130, 30)]),
        # The next of one burst, and the next step.
        ([(100, 0), (130, 20), (131, 20), (161, 20)], [(130, 30), (161, 30)]),
        # One whose time is before the one before it.
        ([(100, 0), (90, 0), (101, 0)], [(101, 1)]),
    ],
)
def test_a_step_begins_after_everybody_had_come_to_the_collective_before(
    arrivals: list[tuple[int, int]], found: list[tuple[int, int]]
) -> None:
    assert steps(*arrivals) == found


@pytest.mark.parametrize(("after", "told"), [(0, 1), (1, 0)])
def test_the_steps_in_which_a_rank_is_late_lie_within_the_window(after: int, told: int) -> None:
    config = Straggler().config
    first = 100 * SECOND
    last = first + config.window + after
    times = [first - 50 * SECOND, first, *(last - 2 * n * config.late for n in range(config.steps - 1))]
    window = FactWindow(("llm", ""), 0)
    for seq, time in enumerate(sorted(times)):
        window.add(
            Arrival(
                time=time, source=Source("fr", seq), job="llm", rank=3, pg="0", seq=seq, lateness=config.late, ranks=8
            )
        )
    assert len(Straggler().evaluate(window, last)) == told
