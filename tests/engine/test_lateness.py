"""All patterns at once, on facts that come late, out of order, in portions and twice."""

from __future__ import annotations

import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.mixture import mixed  # noqa: E402

from tracecore.engine.emission import Emission, standing  # noqa: E402
from tracecore.engine.engine import Engine  # noqa: E402
from tracecore.patterns import catalogue  # noqa: E402
from tracecore.patterns.config import MINUTE, SECOND  # noqa: E402


def test_all_patterns_end_the_same_whether_facts_come_at_once_or_late_and_in_portions() -> None:
    facts = list(mixed(2500, 900 * SECOND))
    until = facts[-1].time + MINUTE
    offline = standing(Engine(catalogue()).replay(facts, until=until))
    rng = random.Random(11)
    arrivals = sorted((fact.time + rng.randrange(25 * SECOND), place) for place, fact in enumerate(facts))
    engine = Engine(catalogue())
    said: list[Emission] = []
    now = facts[0].time
    while arrivals:
        now += rng.randrange(1, 12 * SECOND)
        ready = [facts[place] for at_, place in arrivals if at_ <= now]
        arrivals = arrivals[len(ready) :]
        engine.add(ready + rng.sample(ready, len(ready) // 8))
        said += engine.advance(now)
    said += engine.close(until)
    assert len(offline) > 100
    assert {e.id: e.verdict.document() for e in standing(said)} == {e.id: e.verdict.document() for e in offline}


def test_all_patterns_end_the_same_whether_timers_fire_in_time_or_together() -> None:
    facts = list(mixed(2500, 900 * SECOND))
    until = facts[-1].time + 30 * MINUTE
    exact, tardy = (Engine(catalogue(), lateness=600 * SECOND, tardiness=each) for each in (0, 600 * SECOND))
    found = [
        {e.id: e.verdict.document() for e in standing(engine.replay(facts, until=until))} for engine in (exact, tardy)
    ]
    assert len(found[0]) > 100
    assert found[0] == found[1]
    assert tardy.stats.evaluations < exact.stats.evaluations
