"""Limits of the engine at their very edge: reached is allowed, exceeded is counted."""

from __future__ import annotations

import sys
from pathlib import Path

from tracecore.engine.engine import Engine, EngineLimits, EngineStats
from tracecore.facts.fact import Fact
from tracecore.patterns.config import SECOND
from tracecore.patterns.contract import Key

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fire import FirePattern, SilencePattern, Smoke, Spark, at, smoke, spark


def test_a_window_is_trimmed_only_beyond_its_slack() -> None:
    for count, dropped in ((18, 0), (19, 3)):
        engine = Engine([FirePattern()], limits=EngineLimits(window=16))
        engine.add([spark(0), *(smoke(1 + i / 100) for i in range(count - 1))])
        engine.advance(at(2))
        assert (engine.stats.evicted_window, engine.stats.held) == (dropped, count - dropped)


def test_as_many_windows_as_allowed_are_kept() -> None:
    for count, dropped in ((32, 0), (33, 3)):
        engine = Engine([FirePattern()], limits=EngineLimits(windows=32))
        engine.add([smoke(1 + i / 100, f"n{i}") for i in range(count)])
        engine.advance(at(2))
        assert (engine.stats.windows, engine.stats.evicted_windows) == (count - dropped, dropped)


class FireByPod(FirePattern):
    """Joins by pod, so that it has windows of its own."""

    name = "fire_by_pod"

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.pod,),) if fact.pod else ()


def test_the_pattern_with_most_windows_gives_way() -> None:
    engine = Engine([FirePattern(), FireByPod()], limits=EngineLimits(windows=64))
    engine.add([smoke(i / 100, f"n{i}") for i in range(20)])
    engine.add([smoke(1 + i / 100, "n0", pod=f"p{i:03d}") for i in range(200)])
    engine.advance(at(4))
    nodes, pods = (owner.windows for owner in engine._windows.patterns)
    assert len(nodes) == 20
    assert 64 - 64 // 16 <= len(nodes) + len(pods) <= 64
    assert sorted(pods) == [(f"p{i:03d}",) for i in range(200 - len(pods), 200)]
    assert engine.stats.evicted_windows == engine.stats.evicted_total == 200 - len(pods)


def test_a_fact_at_the_watermark_is_not_late() -> None:
    for before, late in ((0, 0), (1, 1)):
        engine = Engine([FirePattern()], lateness=30 * SECOND)
        engine.advance(at(100))
        engine.add([Spark(time=at(70) - before, source=spark(0).source, node="n1")])
        engine.advance(at(101))
        assert engine.stats.late == late


def test_a_fact_that_went_on_until_the_watermark_is_not_late() -> None:
    engine = Engine([FirePattern()], lateness=30 * SECOND)
    engine.advance(at(100))
    engine.add([spark(50, last_time=at(70), count=2), spark(50, "n2", last_time=at(69), count=2)])
    engine.advance(at(101))
    assert engine.stats.late == 1


def test_of_two_folds_of_one_count_the_longer_one_stays() -> None:
    short, long = spark(0, count=2, last_time=at(1)), spark(0, count=2, last_time=at(5))
    for facts in ([short, long], [long, short]):
        (emission,) = Engine([FirePattern()]).replay([*facts, smoke(1)])
        assert emission.verdict.evidence()[0].end == at(5)


def test_without_facts_a_replay_ends_where_the_clock_is() -> None:
    engine = Engine([FirePattern()])
    assert engine.replay([]) == []
    assert engine.clock == 0
    engine.advance(at(5))
    assert engine.replay([]) == []
    assert engine.clock == at(5)


def test_counters_begin_at_nothing_and_only_reached_limits_are_told() -> None:
    engine = Engine([FirePattern()])
    assert engine.stats == EngineStats()
    assert not any(value for value in vars_of(engine.stats).values())
    assert engine.stats.limits_reached() == {}
    limited = Engine([FirePattern()], limits=EngineLimits(window=4))
    limited.replay([spark(0), *(smoke(1 + i / 10) for i in range(9))])
    assert limited.stats.limits_reached() == {"evicted_window": 6}


def vars_of(stats: EngineStats) -> dict[str, object]:
    return {name: getattr(stats, name) for name in stats.__struct_fields__}


class Unmet(SilencePattern):
    """Needs both a node and a pod."""

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.node, fact.pod),) if fact.node and fact.pod else ()


def test_facts_without_the_identity_that_a_pattern_joins_on_are_counted_as_unneeded() -> None:
    engine = Engine([Unmet()])
    engine.replay([spark(0), smoke(1), spark(2, pod="train/p")])
    assert (engine.stats.facts, engine.stats.unneeded, engine.stats.held) == (3, 2, 1)


def test_a_window_is_forgotten_when_no_verdict_can_depend_on_it() -> None:
    # Horizon 60 s, lateness 30 s and a pause of 10 s: a fact counts for 160 s.
    for second, windows in ((160, 1), (161, 0)):
        engine = Engine([FirePattern()], lateness=30 * SECOND)
        engine.add([smoke(0)])
        engine.advance(at(0))
        engine.advance(at(second))
        assert engine.stats.windows == windows


def test_a_large_window_waits_for_a_second_for_each_thousand_facts() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0), *(Smoke(time=at(1) + i, source=smoke(i).source, node="n1") for i in range(2999))])
    assert len(engine.advance(at(2))) == 1
    engine.add([spark(2.5, uid="late"), smoke(2.5, uid="late")])
    assert engine.advance(at(3)) == []
    said = [(second, len(engine.advance(at(second)))) for second in (3.5, 4, 4.5, 5)]
    assert sum(count for _, count in said) == 2
    assert [second for second, count in said if count] == [4]


def test_the_oldest_revisions_of_ended_episodes_are_forgotten_first() -> None:
    engine = Engine([SilencePattern()], limits=EngineLimits(past=2))
    for number in range(3):
        engine.add([spark(1000 * number, uid=f"u{number}")])
        engine.advance(at(1000 * number + 61))
    engine.advance(at(4000))
    revisions = {}
    for number in range(3):
        engine.add([spark(5000 + 1000 * number, uid=f"u{number}")])
        for emission in engine.advance(at(5000 + 1000 * number + 61)):
            revisions[emission.verdict.episode] = emission.revision
    assert list(revisions.values()) == [1, 2, 2]


def test_by_default_a_fact_is_taken_up_to_two_seconds_ahead_of_the_clock() -> None:
    for ahead, held in ((2.0, 1), (2.000000001, 0)):
        engine = Engine([FirePattern()])
        engine.add([Smoke(time=at(10) + round(ahead * SECOND), source=smoke(0).source, node="n1")])
        engine.advance(at(10))
        assert engine.stats.held == held


def test_facts_that_change_nothing_are_looked_at_ever_more_seldom() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0), smoke(1)])
    engine.advance(at(1))
    looks = []
    for second in range(100, 140):
        engine.add([spark(second)])
        engine.advance(at(second))
        looks.append(engine.stats.evaluations)
    assert [second for second, (one, other) in enumerate(zip([1, *looks], looks, strict=False)) if other > one] == [
        0, 1, 2, 3, 5, 9, 17, 27, 37,
    ]  # fmt: skip
