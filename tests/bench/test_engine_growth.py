"""The work for a fact does not grow with the number of facts, counted in calls: clocks depend on the machine."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.engine import BASE, RATE, SECOND  # noqa: E402
from bench.mixture import mixed  # noqa: E402

from tracecore.engine.engine import Engine  # noqa: E402
from tracecore.patterns import catalogue  # noqa: E402

#: Measured: 1.33; 1.44 when detectors looked at whole windows for questions that kept groups answer.
MOST = 1.4


def calls(number: int) -> float:
    """Return the calls for each fact, 1,000 facts in a second and a look every second."""
    made = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    facts, engine = mixed(number, number * SECOND // RATE), Engine(catalogue())
    while batch := list(islice(facts, RATE)):
        sys.setprofile(count)
        engine.add(batch)
        engine.advance(batch[-1].time)
        sys.setprofile(None)
    return made / number


@pytest.mark.heavy
def test_a_fact_among_sixteen_times_as_many_takes_little_more_work() -> None:
    assert calls(16 * BASE) <= MOST * calls(BASE)
