"""The engine by itself, with two facts and patterns small enough to reason about."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tracecore.engine.emission import standing
from tracecore.engine.engine import Engine, EngineLimits
from tracecore.facts.fact import Fact
from tracecore.patterns.config import SECOND
from tracecore.patterns.contract import Key, Verdict, Window, tolerance
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fire import T0, Fire, FirePattern, SilencePattern, Smoke, at, smoke, spark


def held_by(engine: Engine) -> int:
    """How many facts are in windows, counted one by one."""
    windows = [window for owner in engine._windows.patterns for window in owner.windows.values()]
    assert all(window.size == sum(map(len, window.facts.values())) for window in windows)
    return sum(window.size for window in windows)


def test_a_verdict_is_emitted_once_and_revised_when_its_document_changes() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0)])
    assert engine.advance(at(1)) == []
    engine.add([smoke(2)])
    (first,) = engine.advance(at(3))
    assert (first.revision, first.status, first.at) == (1, "active", at(3))
    assert engine.advance(at(4)) == []
    engine.add([smoke(5)])
    (second,) = engine.advance(at(6))
    assert (second.id, second.revision) == (first.id, 2)
    engine.add([smoke(2), smoke(5), spark(0)])
    assert engine.advance(at(7)) == []
    assert engine.stats.duplicates == 3


def test_facts_of_another_key_do_not_meet() -> None:
    engine = Engine([FirePattern()])
    assert engine.replay([spark(0, "n1"), smoke(1, "n2")]) == []


@pytest.mark.parametrize(("gap", "joins"), [(60.0, True), (60.000000001, False), (0.0, True), (-0.000000001, False)])
def test_edges_of_a_window_are_inclusive(gap: float, joins: bool) -> None:
    at_gap = spark(0).time + round(gap * SECOND)
    late = Smoke(time=at_gap, source=Source(path="smoke"), node="n1")
    assert bool(Engine([FirePattern()]).replay([spark(0), late])) is joins


def test_a_late_fact_joins_as_if_it_had_come_in_time() -> None:
    engine = Engine([FirePattern()])
    engine.add([smoke(60)])
    engine.advance(at(60))
    engine.add([spark(0.5)])
    assert engine.advance(at(89)) != []
    assert engine.stats.late == 1


def test_a_late_fact_is_judged_before_the_clock_leaves_its_evidence_behind() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0)])
    engine.advance(at(80))
    engine.add([smoke(60)])
    (emission,) = engine.advance(at(500))
    assert emission.at == at(90)


def test_a_fact_past_lateness_and_both_horizons_is_counted_and_dropped() -> None:
    engine = Engine([FirePattern()])
    engine.advance(at(200))
    engine.add([spark(0), smoke(1)])
    assert engine.advance(at(201)) == []
    assert (engine.stats.expired, engine.stats.held) == (2, 0)


def test_ageing_out_ends_in_silence_and_a_contradiction_clears() -> None:
    engine = Engine([FirePattern(), SilencePattern()])
    engine.add([spark(0)])
    (silent,) = engine.advance(at(70))
    assert (silent.verdict.pattern_name, silent.at) == ("silence", at(60))
    engine.add([smoke(59)])
    fire, cleared = engine.advance(at(71))
    assert (fire.verdict.pattern_name, fire.status) == ("fire", "active")
    assert (cleared.id, cleared.revision, cleared.status) == (silent.id, 2, "cleared")
    assert engine.advance(at(5000)) == []
    assert (engine.stats.held, engine.stats.windows) == (0, 0)


def test_an_episode_that_comes_back_goes_on_counting_its_revision() -> None:
    engine = Engine([SilencePattern()])
    engine.add([spark(0, uid="same")])
    (first,) = engine.advance(at(61))
    engine.advance(at(1000))
    engine.add([spark(1000, uid="same")])
    (again,) = engine.advance(at(1061))
    assert (again.id, first.revision, again.revision) == (first.id, 1, 2)


def test_replay_says_what_a_live_engine_said_second_by_second() -> None:
    rng = random.Random(7)
    facts: list[Fact] = []
    for number in range(300):
        node = f"n{rng.randrange(3)}"
        make = spark if rng.random() < 0.4 else smoke
        facts.append(make(rng.uniform(0, 1200), node, uid=f"u{number}"))
    offline = standing(Engine([FirePattern(), SilencePattern()]).replay(facts, until=at(1300)))
    for seed in range(4):
        rng = random.Random(seed)
        arrivals = sorted((fact.time + rng.randrange(30 * SECOND), fact.uid, fact) for fact in facts)
        engine = Engine([FirePattern(), SilencePattern()])
        said = []
        for second in range(1300):
            while arrivals and arrivals[0][0] <= at(second):
                engine.add([arrivals.pop(0)[2]])
            said += engine.advance(at(second))
        said += engine.close(at(1300))
        assert {e.id: e.verdict.document() for e in standing(said)} == {e.id: e.verdict.document() for e in offline}
    assert offline


def test_close_goes_no_further_than_somebody_looked() -> None:
    assert Engine([SilencePattern()]).replay([spark(0)]) == []
    assert len(Engine([SilencePattern()]).replay([spark(0)], until=at(60))) == 1


def test_a_growing_fold_replaces_itself_in_any_order() -> None:
    small, large = spark(0), spark(0, count=9, last_time=at(5))
    for order in ([small, large], [large, small]):
        engine = Engine([FirePattern()])
        engine.add(order)
        engine.add([smoke(1)])
        (emission,) = engine.advance(at(2))
        assert emission.verdict.evidence()[0].count == 9


def test_one_window_keeps_its_newest_facts_and_never_clears_for_want_of_the_others() -> None:
    engine = Engine([FirePattern()], limits=EngineLimits(window=10))
    engine.add([spark(0), smoke(1)])
    assert len(engine.advance(at(1))) == 1
    engine.add([smoke(2 + i / 100) for i in range(20)])
    assert engine.advance(at(3)) == []
    assert (engine.stats.evicted_window, engine.stats.held) == (12, 10)


def test_all_windows_together_are_bounded() -> None:
    engine = Engine([FirePattern()], limits=EngineLimits(total=100))
    engine.add([smoke(i / 10, f"n{i % 7}") for i in range(300)])
    engine.advance(at(31))
    assert engine.stats.held == 90
    assert engine.stats.evicted_total == 210
    engine.add([spark(29.95, f"n{i}") for i in range(7)])
    assert engine.advance(at(32)) == []


def test_windows_are_bounded() -> None:
    engine = Engine([FirePattern()], limits=EngineLimits(windows=5))
    engine.add([smoke(1 + i / 10, f"n{i}") for i in range(8)])
    engine.advance(at(2))
    assert (engine.stats.windows, engine.stats.evicted_windows) == (5, 3)
    assert (engine.stats.held, engine.stats.evicted_total) == (5, 3)
    # The first three have gone: a spark finds no smoke there.
    engine.add([spark(1, node) for node in ("n0", "n1", "n2", "n7")])
    assert [emission.verdict.key for emission in engine.advance(at(2))] == [("n7",)]


class PodFire(FirePattern):
    """The same by pod."""

    name = "pod_fire"

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.pod,),) if fact.pod else ()


def test_a_flood_of_names_drops_its_own_windows() -> None:
    engine = Engine([FirePattern(), PodFire()], limits=EngineLimits(windows=1000))
    engine.add([spark(0, f"n{i}") for i in range(100)])
    engine.advance(at(1))
    for second in range(1, 6):
        engine.add(
            [Smoke(time=at(second), source=Source(path="f", offset=i), pod=f"ns/{second}-{i}") for i in range(9999)]
        )
        engine.advance(at(second))
        assert engine.stats.windows <= 1000
    assert engine.stats.evicted_windows > 48_000
    engine.add([smoke(6, f"n{i}") for i in range(100)])
    assert len(engine.advance(at(6))) == 100


def test_a_window_that_was_dropped_is_made_anew() -> None:
    engine = Engine([FirePattern()], limits=EngineLimits(windows=4))
    engine.add([spark(0), smoke(1)])
    assert [emission.revision for emission in engine.advance(at(1))] == [1]
    engine.add([smoke(2, f"n{i}") for i in range(9)])
    engine.advance(at(2))
    engine.add([spark(3), smoke(4)])
    said = engine.advance(at(4))
    assert [len(emission.verdict.evidence()) for emission in said] == [2]
    assert engine.stats.held == held_by(engine)


class LastingFire(FirePattern):
    """Another key, and remembered for longer."""

    name = "lasting_fire"

    @property
    def horizon(self) -> int:
        return 10 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.node, "lasting"),) if fact.node else ()


def test_of_the_windows_of_one_fact_some_are_forgotten_earlier() -> None:
    engine = Engine([FirePattern(), LastingFire()])
    engine.add([smoke(0)])
    engine.advance(at(0))
    windows = []
    for second in (200, 400, 600, 2200, 2400, 5000):
        engine.advance(at(second))
        windows.append(engine.stats.windows)
        engine.add([spark(second), smoke(second + 1)])
        assert len(engine.advance(at(second + 1))) == 2
    assert windows[0] == 1
    assert engine.stats.held == held_by(engine)


def test_a_fact_of_the_future_waits_for_its_time() -> None:
    engine = Engine([FirePattern()], limits=EngineLimits(future=2))
    engine.advance(at(0))
    engine.add([spark(10), smoke(11), smoke(500), smoke(600)])
    assert engine.advance(at(1)) == []
    assert engine.stats.future == 2
    assert len(engine.advance(at(20))) == 1


def test_a_clock_ahead_within_the_skew_is_believed_at_once() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0), smoke(3)])
    assert len(engine.advance(at(1))) == 1


def test_a_failing_detector_is_counted_and_the_others_go_on() -> None:
    class Broken(FirePattern):
        name = "broken"

        def evaluate(self, window: Window, now: int) -> list[Verdict]:
            raise ZeroDivisionError

    facts = [spark(0), smoke(1)]
    with pytest.raises(ZeroDivisionError):
        Engine([Broken(), FirePattern()]).replay(facts)
    engine = Engine([Broken(), FirePattern()], strict=False)
    assert len(engine.replay(facts)) == 1
    assert engine.stats.errors == {"broken": 1}


def test_windows_without_a_trigger_are_not_evaluated() -> None:
    engine = Engine([FirePattern()])
    engine.replay([spark(i) for i in range(10)])
    assert engine.stats.evaluations == 0


@pytest.mark.parametrize("before", [0, 1])
def test_a_timer_that_is_not_in_the_future_is_none(before: int) -> None:
    class Impatient(SilencePattern):
        def due(self, window: Window, now: int) -> int | None:
            return now - before

    engine = Engine([Impatient()])
    engine.add([spark(0)])
    for second in range(1, 5):
        engine.advance(at(second))
    assert engine.stats.evaluations == 1


def test_tolerance_is_for_two_nodes_and_the_trail_says_when_it_mattered() -> None:
    here, there = spark(0, "n1"), smoke(0, "n2")
    assert tolerance(here, spark(1, "n1"), 2 * SECOND) == 0
    assert tolerance(here, there, 2 * SECOND) == 2 * SECOND
    verdict = Fire(key=("n1",), episode="e", time=T0, spark=here, smokes=(there,), skew=2 * SECOND)
    trail = verdict.document()["evidence_trail"]
    assert "clock" not in trail[0]["description"]
    assert "n2's clock" in trail[1]["description"]
    assert "2 s" in trail[1]["description"]


def test_what_is_far_too_late_expires_also_where_nothing_newer_ever_came() -> None:
    engine = Engine([FirePattern()])
    engine.advance(at(1000))
    engine.add([spark(10), smoke(11)])
    assert engine.advance(at(1001)) == []
    assert (engine.stats.expired, engine.stats.held) == (2, 0)
