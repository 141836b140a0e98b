"""Looks that go on where the last one ended."""

from __future__ import annotations

from collections.abc import Sequence

from tracecore.engine.engine import Engine
from tracecore.engine.windows import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.kubernetes import NodePressure, PodEvicted
from tracecore.patterns.judged import MANY
from tracecore.patterns.pod_evicted.detector import Joined, PodEvictedPattern
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def evicted(second: int, pod: str) -> PodEvicted:
    return PodEvicted(
        time=START + second * SECOND, source=Source("k8s:events", offset=second), node="n1", pod=pod, reason="Evicted"
    )


def pressure(second: int) -> NodePressure:
    return NodePressure(
        time=START + second * SECOND, source=Source("k8s:nodes", offset=second), node="n1", condition="MemoryPressure"
    )


def looks(*portions: Sequence[Fact]) -> tuple[FactWindow, list[list[int]]]:
    """The window, and for each look by verdict the time of the pressure, or -1."""
    pattern, window = PodEvictedPattern(), FactWindow(("n1",), 0)
    found = []
    for portion in portions:
        for fact in portion:
            window.add(fact)
        verdicts = pattern.evaluate(window, START)
        found.append([-1 if v.condition is None else (v.condition.time - START) // SECOND for v in verdicts])  # type: ignore[attr-defined]
    return window, found


def test_a_look_gives_earlier_verdicts_as_the_same_objects_and_goes_on() -> None:
    pattern, window = PodEvictedPattern(), FactWindow(("n1",), 0)
    for second in range(MANY):
        window.add(evicted(second, f"train/p{second}"))
    before = pattern.evaluate(window, START)
    assert isinstance(window.kept, Joined)
    window.add(pressure(10))
    window.add(evicted(11, "train/late"))
    after = pattern.evaluate(window, START)
    assert len(before) == MANY
    assert all(one is other for one, other in zip(before, after, strict=False))
    assert [verdict.confidence for verdict in after] == ["partial"] * MANY + ["full"]


def test_few_verdicts_are_judged_anew() -> None:
    window, found = looks([evicted(0, "train/p0")])
    assert window.kept is None
    assert found == [[-1]]


def test_what_comes_late_is_joined_with_what_was_judged_before_it() -> None:
    evictions = [evicted(second, f"train/p{second}") for second in range(10, 10 + MANY)]
    _, found = looks(evictions, [pressure(11)], [evicted(30, "train/last")])
    assert found == [[-1] * MANY, [-1] + [11] * (MANY - 1), [-1] + [11] * (MANY - 1) + [11]]


def test_a_pod_that_is_evicted_again_is_told_once_across_looks() -> None:
    evictions = [evicted(second, f"train/p{second}") for second in range(MANY)]
    _, found = looks(evictions, [evicted(20, "train/p0")], [evicted(40, "train/p0")])
    assert [len(verdicts) for verdicts in found] == [MANY] * 3


def test_an_engine_that_forgets_judges_what_is_left() -> None:
    engine = Engine([PodEvictedPattern()])
    said = 0
    for second in range(0, 4000, 50):
        engine.add([evicted(second, f"train/p{second}")])
        said += len(engine.advance(START + second * SECOND))
    assert said == engine.stats.emitted == 80
    assert engine.stats.held < 40
