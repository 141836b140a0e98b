"""A stop or an eviction shortly before a kill explains it better than memory."""

from __future__ import annotations

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.kubernetes import PodEvicted
from tracecore.facts.memory import MemoryKillReport
from tracecore.facts.stop import PlannedStop
from tracecore.patterns.host_oom.detector import HostOom
from tracecore.signals.record import Source

SECOND = 1_000_000_000
WINDOW = HostOom().config.window // SECOND
KILLED = 10_000


def where(time: float, pod: str | None) -> dict[str, object]:
    return {"time": round(time * SECOND), "source": Source(path="a", offset=round(time * 10)), "pod": pod}


@pytest.mark.parametrize("kind", [PlannedStop, PodEvicted])
@pytest.mark.parametrize(
    ("before", "pod", "asked"),
    [
        ((), "a/p", False),
        ((0,), "a/p", True),
        ((-0.1,), "a/p", False),
        ((WINDOW,), "a/p", True),
        ((WINDOW + 0.1,), "a/p", False),
        # The last one before it counts, whatever came long before or after it.
        ((WINDOW + 5, 1), "a/p", True),
        ((WINDOW + 5, WINDOW + 1, -1), "a/p", False),
        ((1, -1), "a/p", True),
        ((1,), None, True),
        ((1,), "a/q", False),
    ],
)
def test_a_kill_was_asked_for(
    kind: type[PlannedStop | PodEvicted], before: tuple[float, ...], pod: str | None, asked: bool
) -> None:
    window = FactWindow(("n1",), 2 * SECOND)
    for seconds in before:
        window.add(kind(reason="preempted", **where(KILLED - seconds, pod)))
    report = MemoryKillReport(reporter="slurm", **where(KILLED, "a/p"))
    assert HostOom()._requested(window, report) is asked
