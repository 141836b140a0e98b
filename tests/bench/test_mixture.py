"""The mixture of facts by which the engine is measured: no pattern is left out of it."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.mixture import MIXTURE, NODES, SECOND, mixed  # noqa: E402

from tracecore.engine.emission import Emission, standing  # noqa: E402
from tracecore.engine.engine import Engine  # noqa: E402
from tracecore.patterns import PATTERNS, catalogue  # noqa: E402


def test_every_kind_of_fact_that_a_pattern_needs_is_there() -> None:
    kinds = {kind for kind, _, _ in MIXTURE}
    assert {
        (pattern.name, kind.__name__) for pattern in PATTERNS for kind in pattern.needs if kind not in kinds
    } == set()


def test_every_pattern_is_evaluated_on_it() -> None:
    asked: set[str] = set()

    def counted(kind):  # type: ignore[no-untyped-def]
        class Counted(kind):  # type: ignore[misc, valid-type]
            def evaluate(self, window, now):  # type: ignore[no-untyped-def]
                asked.add(self.name)
                return super().evaluate(window, now)

        return Counted()

    engine = Engine([counted(kind) for kind in PATTERNS])
    engine.replay(mixed(10_000, 100 * SECOND))
    assert asked == {pattern.name for pattern in PATTERNS}


def test_a_look_every_second_and_one_at_the_end_conclude_the_same() -> None:
    # 20,000 facts make windows so large that they are not looked at after every fact.
    facts = list(mixed(20 * NODES, 20 * SECOND))
    engine = Engine(catalogue())
    said: list[Emission] = []
    for second in range(20):
        engine.add(facts[second * NODES : (second + 1) * NODES])
        said += engine.advance(facts[0].time + (second + 1) * SECOND)
    said += engine.close(facts[0].time + 20 * SECOND)
    whole = Engine(catalogue()).replay(facts, until=facts[0].time + 20 * SECOND)
    assert _documents(said) == _documents(whole)
    assert len(standing(whole)) > 1000


def _documents(emissions: list[Emission]) -> dict[str, object]:
    return {emission.id: emission.verdict.document() for emission in standing(emissions)}
