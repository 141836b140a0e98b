"""Every detector is measured, stays under its ceilings, and costs no more for each fact of a larger window."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.detector_shapes import EVENTS, SECOND, SHAPES, Shape, nccl_hang_cohorts  # noqa: E402
from bench.detectors import ALLOCATIONS, BYTES, EXEMPT, allocations, window_of  # noqa: E402

from bench import ceilings  # noqa: E402
from tracecore.patterns import PATTERNS  # noqa: E402
from tracecore.patterns.contract import Verdict  # noqa: E402

KINDS = {kind.name: kind for kind in PATTERNS}
#: (name of the rows, pattern, window, verdicts)
WINDOWS = [(name, name, window, verdicts) for name, (verdicts, window, _) in sorted(SHAPES.items())]
WINDOWS.append(("nccl_hang.cohorts", "nccl_hang", nccl_hang_cohorts, 64))


def test_every_pattern_is_measured_and_has_both_ceilings() -> None:
    assert SHAPES.keys() == KINDS.keys()
    committed = ceilings.read()
    for name, pattern, _, _ in WINDOWS:
        for what, bar in (("allocations", ALLOCATIONS), ("bytes", BYTES)):
            ceiling = committed[f"detectors.{name}.{what}"]
            assert ceiling.most is not None
            assert ceiling.baseline is not None
            assert ceiling.most <= bar or pattern in EXEMPT, f"{name}: {what} {ceiling.most}, and no exemption"


def test_nobody_is_exempt_without_need() -> None:
    committed = ceilings.read()
    idle = {name for name in EXEMPT if (committed[f"detectors.{name}.allocations"].most or 0) <= ALLOCATIONS}
    assert idle == set()


@pytest.mark.parametrize(("name", "pattern", "window", "verdicts"), WINDOWS, ids=[row[0] for row in WINDOWS])
def test_detectors_stay_under_both_ceilings(name: str, pattern: str, window: Shape, verdicts: int) -> None:
    facts = window(EVENTS)
    assert len(facts) == EVENTS
    committed = ceilings.read()
    for last in (False, True):
        counted = dict(zip(("allocations", "bytes"), allocations(KINDS[pattern](), facts, verdicts), strict=True))
        over = [what for what, value in counted.items() if value > _most(committed[f"detectors.{name}.{what}"])]
        # A second time where it is too much: what is made once for a process is not the detector's.
        assert not (over and last), counted
        if not over:
            break


def _most(ceiling: ceilings.Ceiling) -> float:
    return min(ceiling.most or 0, (ceiling.baseline or 0) * ceilings.RISE)


def every_shape() -> Iterator[tuple[str, Shape]]:
    for name, (_, window, crowds) in sorted(SHAPES.items()):
        for shape in (window, *crowds):
            yield name, shape


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "shape"), [pytest.param(*row, id=row[1].__name__) for row in every_shape()])
def test_a_window_of_twice_the_facts_costs_about_twice_as_much(name: str, shape: Shape) -> None:
    # Two doublings tell a square (16 times) from a line (4 times) however busy the machine is.
    least = 9e9
    for _ in range(4):
        least = min(least, _seconds(name, shape, 8 * EVENTS // 2) / _seconds(name, shape, EVENTS))
        if least < 6.5:
            break
    assert least < 6.5


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_crowds_are_judged_at_all(name: str) -> None:
    # A crowd whose facts have no key would measure nothing.
    for shape in SHAPES[name][2]:
        lost = {type(fact).__name__ for fact in shape(64) if not KINDS[name]().keys(fact)}
        assert lost == set(), shape.__name__


def _seconds(name: str, shape: Shape, number: int) -> float:
    """Processor time of one look at so many facts."""
    pattern, facts = KINDS[name](), shape(number)
    now = max(fact.end for fact in facts) + 86_400 * SECOND
    window = window_of(pattern, facts)
    gc.collect()
    gc.disable()
    try:
        begin = time.process_time()
        found: list[Verdict] = pattern.evaluate(window, now)
        took = time.process_time() - begin
    finally:
        gc.enable()
    del found
    return max(took, 1e-4)
