"""Silent data corruption: counters that rose while a job ran, accuracies that can be compared, drops that count."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import SdcCounter
from tracecore.facts.training import EvalAccuracy
from tracecore.patterns.silent_data_corruption.counters import CorruptionCounters, Rises, of_any_job
from tracecore.patterns.silent_data_corruption.detector import SilentDataCorruption, drop_of
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
MEMORY, SKEW = 1000, 5
WEEK = SilentDataCorruption().config.memory


def rose(at: int, delta: int = 1, **identity: Any) -> SdcCounter:
    place = Source(f"{identity.get('node')}", at)
    return SdcCounter(time=START + at, source=place, delta=delta, **{"job": "a"} | identity)


def evaluated(at: int = 100, **fields: Any) -> EvalAccuracy:
    given = {"job": "a", "node": "n1", "observed": 0.9, "job_start": START + 50} | fields
    return EvalAccuracy(time=START + at, source=Source("eval", at), **given)


@pytest.mark.parametrize(
    ("counters", "evaluation", "first", "rises", "skew"),
    [
        ([rose(50, 2), rose(100, 3)], {}, 50, 5, 0),
        ([rose(49), rose(101)], {}, None, 0, 0),
        ([rose(49, node="n1"), rose(101, node="n1")], {}, None, 0, 0),
        ([rose(110)], {"job_end": START + 110}, 110, 1, 0),
        ([rose(111)], {"job_end": START + 110}, None, 0, 0),
        ([rose(60)], {"job_start": None}, None, 0, 0),
        ([rose(60)], {"job_end": START + 49}, None, 0, 0),
        ([rose(50)], {"job_end": START + 50}, 50, 1, 0),
        ([rose(60, job="b")], {}, None, 0, 0),
        # Of any job on that node.
        ([rose(60, job=None, node="n1")], {}, 60, 1, 0),
        ([rose(60, job=None, node="n2")], {}, None, 0, 0),
        ([rose(60, job=None)], {}, 60, 1, 0),
        ([rose(60, job=None, node="n2")], {"node": None}, 60, 1, 0),
        ([rose(60, job=None, pod="ml/x", node="n1")], {}, None, 0, 0),
        # What another node says is told by another clock.
        ([rose(45, node="n2")], {}, 45, 1, SKEW),
        ([rose(44, node="n2")], {}, None, 0, 0),
        ([rose(105, node="n2")], {}, 105, 1, SKEW),
        ([rose(106, node="n2")], {}, None, 0, 0),
        ([rose(49, node="n2"), rose(50, node="n2"), rose(100, node="n2"), rose(101, node="n2")], {}, 49, 4, SKEW),
        ([rose(49, node="n2")], {"job_end": START + 49}, None, 0, 0),
        ([rose(105, node="n2")], {"node": None}, None, 0, 0),
        ([rose(45, node="n1"), rose(46, 4, node="n2"), rose(47, 8, node="n1")], {}, 46, 4, SKEW),
        ([rose(45, 2, node="n2"), rose(60, 4)], {}, 45, 6, SKEW),
        ([rose(60, 4), rose(105, 2, node="n2")], {}, 60, 6, 0),
        ([rose(45)], {}, None, 0, 0),
        # Only so far from the evaluation.
        ([rose(100)], {"at": 100 + MEMORY}, 100, 1, 0),
        ([rose(99)], {"at": 100 + MEMORY}, None, 0, 0),
        ([rose(99, node="n2")], {"at": 100 + MEMORY}, None, 0, 0),
        ([rose(100 + MEMORY)], {"job_end": START + 9 * MEMORY}, 100 + MEMORY, 1, 0),
        ([rose(101 + MEMORY)], {"job_end": START + 9 * MEMORY}, None, 0, 0),
        ([rose(101 + MEMORY, node="n2")], {"job_end": START + 100 + MEMORY}, None, 0, 0),
    ],
)
def test_counters_that_rose_while_the_job_ran(
    counters: list[SdcCounter], evaluation: dict[str, Any], first: int | None, rises: int, skew: int
) -> None:
    found, total, tolerance = CorruptionCounters(counters, SKEW).during(evaluated(**evaluation), MEMORY)
    assert (found and found.time - START, total, tolerance) == (first, rises, skew)


def test_one_clock_needs_no_tolerance() -> None:
    assert CorruptionCounters([rose(45, node="n2")], 0).during(evaluated(), MEMORY) == (None, 0, 0)


def test_rises_between_two_times() -> None:
    rises = Rises([rose(10, 1), rose(20, 2), rose(30, 4)])
    spans = {(10, 30): 7, (11, 30): 6, (10, 29): 3, (11, 19): 0, (31, 40): 0, (20, 20): 2}
    for (begin, end), total in spans.items():
        first, sum_ = rises.between(START + begin, START + end)
        assert sum_ == total
        assert (first is not None) == bool(total)


@pytest.mark.parametrize(("identity", "anybodys"), [({}, True), ({"pod": "p"}, False), ({"job": "a"}, False)])
def test_a_counter_that_names_neither_job_nor_pod_is_anybodys(identity: dict[str, str], anybodys: bool) -> None:
    assert of_any_job(rose(1, **{"job": None} | identity)) == anybodys


@pytest.mark.parametrize(
    ("baseline", "observed", "drop"),
    [
        (0.9, 0.895, 0.005), (90.0, 89.5, 0.005), (1.0, 0.5, 0.5), (1.1, 0.5, 0.006), (0.5, 1.1, -0.006),
        (None, 0.5, None), (float("inf"), 0.5, None), (0.5, float("nan"), None),
    ],
)  # fmt: skip
def test_a_drop_is_a_fraction_of_one(baseline: float | None, observed: float, drop: float | None) -> None:
    assert drop_of(evaluated(baseline=baseline, observed=observed)) == drop


def low(at: int, drop: float = 0.02, **fields: Any) -> EvalAccuracy:
    return evaluated(at, **{"baseline": 0.9, "observed": 0.9 - drop} | fields)


def verdicts(*facts: Fact) -> list[tuple[int, str]]:
    window = FactWindow(("",), 0)
    for fact in facts:
        window.add(fact)
    found = SilentDataCorruption().evaluate(window, START + 10**15)
    return [(verdict.time - START, verdict.confidence) for verdict in found]


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ([low(100, 0.005), rose(60)], [(100, "full")]),
        ([low(100, 0.0049), rose(60)], []),
        ([low(100, 0.01)], [(100, "partial")]),
        ([low(100, 0.0099)], []),
        ([low(100, 0.005)], []),
        ([low(100), rose(110)], [(100, "partial")]),
        ([low(100, job_end=START + 120), rose(110)], [(110, "full")]),
        # One episode while it stays low.
        ([low(100), low(110)], [(100, "partial")]),
        ([low(100), low(105, 0.0), low(110)], [(100, "partial"), (110, "partial")]),
        ([low(100), evaluated(105), low(110)], [(100, "partial")]),
        ([low(100), low(110, job="b")], [(100, "partial"), (110, "partial")]),
        ([low(100, 0.006), low(110)], [(110, "partial")]),
    ],
)
def test_accuracy_that_fell_is_told_once_an_episode(facts: list[Fact], found: list[tuple[int, str]]) -> None:
    assert verdicts(*facts) == found


@pytest.mark.parametrize(
    ("fields", "others", "comparable"),
    [
        ({"checksum": "x", "baseline_checksum": "x"}, [], True),
        ({"checksum": "x", "baseline_checksum": "y"}, [], False),
        ({"checksum": None, "baseline_checksum": "y"}, [], True),
        ({"checkpoint_step": 5, "baseline_step": 5}, [], True),
        ({"checkpoint_step": 5, "baseline_step": 6}, [], False),
        # The record that observed the baseline says on what.
        ({"checksum": "x"}, [evaluated(90, checksum="y")], False),
        ({"checksum": "x"}, [evaluated(90, checksum="x")], True),
        ({"checkpoint_step": 5}, [evaluated(90, checkpoint_step=6)], False),
        ({"checksum": "x", "baseline_step": 5}, [evaluated(90, checksum="y")], True),
        ({"checksum": "x"}, [evaluated(90, checksum="y", observed=0.91)], True),
        ({"checksum": "x"}, [evaluated(80, checksum="y"), evaluated(90, checksum="x")], True),
        ({"checksum": "x"}, [evaluated(101, checksum="y")], True),
        ({"checksum": "x", "at": 90 + WEEK}, [evaluated(90, checksum="y")], False),
        ({"checksum": "x", "at": 91 + WEEK}, [evaluated(90, checksum="y")], True),
    ],
)
def test_accuracies_of_different_data_or_checkpoints_are_not_compared(
    fields: dict[str, Any], others: list[Fact], comparable: bool
) -> None:
    given = {"at": 100} | fields
    assert bool(verdicts(*others, low(**given))) == comparable


@pytest.mark.parametrize(("delta", "keys"), [(0, ()), (1, (("",),))])
def test_a_counter_that_did_not_rise_says_nothing(delta: int, keys: tuple[Any, ...]) -> None:
    assert SilentDataCorruption().keys(rose(1, delta)) == keys


@pytest.mark.parametrize(
    ("observed", "baseline", "drop"),
    [
        (0.895, 0.9, 0.005),
        (0.3765432109, 0.5, 0.123456789),
        (0.37654321, 0.5, 0.12345679),
        (0.376543211, 0.5, 0.123456789),
        (1.0, 1.0, 0.0),
        (0.5, 1.0, 0.5),
        (1.5, 1.0, -0.005),
        (70.0, 90.0, 0.2),
        (0.9, 90.0, 0.891),
        (0.5, None, None),
        (float("inf"), 1.0, None),
        (0.5, float("nan"), None),
    ],
)
def test_a_drop_is_a_fraction_with_nine_digits(observed: float, baseline: float | None, drop: float | None) -> None:
    assert drop_of(evaluated(1, observed=observed, baseline=baseline)) == drop
