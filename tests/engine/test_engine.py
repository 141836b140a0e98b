"""The engine by itself, with two facts and patterns small enough to reason about."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import ClassVar

import pytest

from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import Engine, Limits
from tracecore.engine.windows import FactWindow
from tracecore.facts.fact import Fact
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Key, Pattern, Verdict, Window, tolerance
from tracecore.signals.record import Source

T0 = 1_700_000_000 * SECOND


class Spark(Fact, frozen=True, kw_only=True):
    kind: ClassVar[str] = "spark"


class Smoke(Fact, frozen=True, kw_only=True):
    kind: ClassVar[str] = "smoke"


class Fire(Verdict, frozen=True, kw_only=True):
    pattern_id: ClassVar[str] = "900"
    pattern_name: ClassVar[str] = "fire"
    role: ClassVar[str] = "cause"  # type: ignore[assignment]

    spark: Fact
    smokes: tuple[Fact, ...]

    def headline(self) -> str:
        return f"{len(self.smokes)} smokes after a spark"

    def remediation(self) -> str:
        return "look"

    def evidence(self) -> tuple[Fact, ...]:
        return (self.spark, *self.smokes)


class FireSettings(Settings, frozen=True, kw_only=True):
    window: Duration = MINUTE


class FirePattern(Pattern[FireSettings]):
    """Smoke within a minute of a spark on the same node."""

    id = "900"
    name = "fire"
    role = "cause"
    maturity = "experimental"
    needs = (Spark, Smoke)
    triggers = (Smoke,)
    Config = FireSettings

    @property
    def horizon(self) -> int:
        return self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.node,),) if fact.node else ()

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        found: list[Verdict] = []
        for spark in window.of(Spark):
            smokes = tuple(s for s in window.of(Smoke) if 0 <= s.time - spark.time <= self.config.window)
            if smokes:
                found.append(Fire(key=window.key, episode=spark.uid, time=smokes[0].time, spark=spark, smokes=smokes))
        return found


class Silence(Fire, frozen=True, kw_only=True):
    pattern_id: ClassVar[str] = "901"
    pattern_name: ClassVar[str] = "silence"


class SilencePattern(FirePattern):
    """A spark with no smoke for a minute."""

    id = "901"
    name = "silence"
    triggers = (Spark,)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        return [
            Silence(key=window.key, episode=spark.uid, time=spark.time, spark=spark, smokes=())
            for spark in window.of(Spark)
            if now >= spark.time + self.config.window
            and not any(0 <= smoke.time - spark.time <= self.config.window for smoke in window.of(Smoke))
        ]

    def due(self, window: Window, now: int) -> int | None:
        return min(
            (s.time + self.config.window for s in window.of(Spark) if s.time + self.config.window > now), default=None
        )


def spark(seconds: float, node: str = "n1", uid: str = "", **more: object) -> Spark:
    time = T0 + int(seconds * SECOND)
    return Spark(time=time, source=Source(path="spark", offset=time, ident=uid), node=node, **more)  # type: ignore[arg-type]


def smoke(seconds: float, node: str = "n1", uid: str = "", **more: object) -> Smoke:
    time = T0 + int(seconds * SECOND)
    return Smoke(time=time, source=Source(path="smoke", offset=time, ident=uid), node=node, **more)  # type: ignore[arg-type]


def at(seconds: float) -> int:
    return T0 + int(seconds * SECOND)


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
    engine = Engine([FirePattern()], limits=Limits(window=10))
    engine.add([spark(0), smoke(1)])
    assert len(engine.advance(at(1))) == 1
    engine.add([smoke(2 + i / 100) for i in range(20)])
    assert engine.advance(at(3)) == []
    assert (engine.stats.evicted_window, engine.stats.held) == (12, 10)


def test_all_windows_together_are_bounded() -> None:
    engine = Engine([FirePattern()], limits=Limits(total=100))
    engine.add([smoke(i / 10, f"n{i % 7}") for i in range(300)])
    engine.advance(at(31))
    assert engine.stats.held == 90
    assert engine.stats.evicted_total == 210
    engine.add([spark(29.95, f"n{i}") for i in range(7)])
    assert engine.advance(at(32)) == []


def test_windows_are_bounded() -> None:
    engine = Engine([FirePattern()], limits=Limits(windows=5))
    engine.add([smoke(1 + i / 10, f"n{i}") for i in range(8)])
    engine.advance(at(2))
    assert (engine.stats.windows, engine.stats.evicted_windows) == (5, 3)
    assert (engine.stats.held, engine.stats.evicted_total) == (5, 3)
    # The first three have gone: a spark finds no smoke there.
    engine.add([spark(1, node) for node in ("n0", "n1", "n2", "n7")])
    assert [emission.verdict.key for emission in engine.advance(at(2))] == [("n7",)]


class SteadyFire(FirePattern):
    """Windows of smoke are remembered by identity."""

    steady = (Smoke,)


class PodFire(FirePattern):
    """The same by pod."""

    name = "pod_fire"

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.pod,),) if fact.pod else ()


@pytest.mark.parametrize("kind", [FirePattern, SteadyFire])
def test_a_flood_of_names_drops_its_own_windows(kind: type[FirePattern]) -> None:
    engine = Engine([kind(), PodFire()], limits=Limits(windows=1000))
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


def test_a_remembered_window_that_was_dropped_is_made_anew() -> None:
    engine = Engine([SteadyFire()], limits=Limits(windows=4))
    engine.add([spark(0), smoke(1)])
    assert [emission.revision for emission in engine.advance(at(1))] == [1]
    engine.add([smoke(2, f"n{i}") for i in range(9)])
    engine.advance(at(2))
    engine.add([spark(3), smoke(4)])
    said = engine.advance(at(4))
    assert [len(emission.verdict.evidence()) for emission in said] == [2]
    assert engine.stats.held == sum(len(window) for shelf in engine._shelves for window in shelf.windows.values())


class LastingFire(SteadyFire):
    """Another key, and remembered for longer."""

    name = "lasting_fire"

    @property
    def horizon(self) -> int:
        return 10 * self.config.window

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        return ((fact.node, "lasting"),) if fact.node else ()


def test_of_the_windows_of_one_identity_some_are_forgotten_earlier() -> None:
    engine = Engine([SteadyFire(), LastingFire()])
    engine.add([smoke(0)])
    engine.advance(at(0))
    windows = []
    for second in (200, 400, 600, 2200, 2400, 5000):
        engine.advance(at(second))
        windows.append(engine.stats.windows)
        engine.add([spark(second), smoke(second + 1)])
        assert len(engine.advance(at(second + 1))) == 2
    assert windows[0] == 1
    assert engine.stats.held == sum(len(window) for shelf in engine._shelves for window in shelf.windows.values())


def test_a_fact_of_the_future_waits_for_its_time() -> None:
    engine = Engine([FirePattern()], limits=Limits(future=2))
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


def test_tolerance_is_for_two_nodes_and_the_trail_says_when_it_mattered() -> None:
    here, there = spark(0, "n1"), smoke(0, "n2")
    assert tolerance(here, spark(1, "n1"), 2 * SECOND) == 0
    assert tolerance(here, there, 2 * SECOND) == 2 * SECOND
    verdict = Fire(key=("n1",), episode="e", time=T0, spark=here, smokes=(there,), skew=2 * SECOND)
    trail = verdict.document()["evidence_trail"]
    assert "clock" not in trail[0]["description"]
    assert "n2's clock" in trail[1]["description"]
    assert "2 s" in trail[1]["description"]


# -- what many facts cost ---------------------------------------------------------------------------------------------


class Smokes:
    """A digest that counts how often it was made and how many facts it was given."""

    made = 0
    given = 0

    def __init__(self) -> None:
        Smokes.made += 1
        self.times: set[int] = set()

    def add(self, facts: Sequence[Smoke]) -> None:
        Smokes.given += len(facts)
        self.times.update(fact.time for fact in facts)


class DigestPattern(FirePattern):
    """Says how many smokes there are, as the digest and as the window know it."""

    name = "digest"

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        smokes = window.of(Smoke)
        assert window.digest(Smoke, Smokes).times == {smoke.time for smoke in smokes}
        return [Fire(key=window.key, episode="all", time=smokes[0].time, spark=smokes[0], smokes=tuple(smokes))]


def test_a_digest_is_given_each_fact_once_whatever_the_order() -> None:
    Smokes.made = Smokes.given = 0
    engine = Engine([DigestPattern()])
    rng = random.Random(3)
    for second in range(50):
        engine.add([smoke(second - rng.random() * 20, uid=f"{second}-{i}") for i in range(4)])
        engine.advance(at(second))
    assert (Smokes.made, Smokes.given) == (1, 200)


def test_a_digest_forgets_what_its_window_forgets_and_knows_what_grew() -> None:
    engine = Engine([DigestPattern()])
    for second in range(0, 2000, 7):
        engine.add([smoke(second, uid=str(second)), smoke(second, uid=str(second), count=3, last_time=at(second + 3))])
        engine.advance(at(second + 1))
    assert engine.stats.held < 60
    assert engine.stats.duplicates == 0


class KeepingPattern(FirePattern):
    """Judges sparks, and again only those that something new bears on."""

    name = "keeping"
    judged: ClassVar[list[Fact]] = []

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        known: dict[Fact, Verdict | None] = {} if window.kept is None else window.kept
        new = window.new()
        touched = dict.fromkeys(new.get(Spark, ()))
        for smoke_ in new.get(Smoke, ()):
            touched |= dict.fromkeys(s for s in window.of(Spark) if 0 <= smoke_.time - s.time <= self.config.window)
        for fact in touched:
            self.judged.append(fact)
            smokes = tuple(s for s in window.of(Smoke) if 0 <= s.time - fact.time <= self.config.window)
            known[fact] = (
                Fire(key=window.key, episode=fact.uid, time=smokes[0].time, spark=fact, smokes=smokes)
                if smokes
                else None
            )
        window.keep(known)
        return [verdict for fact in window.of(Spark) if (verdict := known[fact]) is not None]


def test_a_look_judges_again_only_what_something_new_bears_on() -> None:
    KeepingPattern.judged.clear()
    engine = Engine([KeepingPattern()])
    engine.add([spark(0), smoke(1), spark(200), smoke(201)])
    assert len(engine.advance(at(201))) == 2
    assert [fact.time for fact in KeepingPattern.judged] == [at(0), at(200)]
    engine.add([smoke(202)])
    (emission,) = engine.advance(at(202))
    assert (emission.revision, len(emission.verdict.evidence())) == (2, 3)
    # One that comes late, before others that were there, is new like any other.
    engine.add([smoke(200.5)])
    (emission,) = engine.advance(at(203))
    assert [fact.time for fact in emission.verdict.evidence()] == [at(200), at(200.5), at(201), at(202)]
    assert [fact.time for fact in KeepingPattern.judged[2:]] == [at(200), at(200)]


def test_what_was_kept_is_forgotten_when_facts_leave_the_window_or_grow() -> None:
    KeepingPattern.judged.clear()
    engine = Engine([KeepingPattern()])
    engine.add([spark(0), smoke(1), spark(100)])
    engine.advance(at(100))
    engine.add([spark(100, count=3, last_time=at(102))])
    engine.advance(at(103))
    assert [fact.time for fact in KeepingPattern.judged] == [at(0), at(100), at(0), at(100)]
    engine.advance(at(200))
    engine.add([smoke(200)])
    engine.advance(at(201))
    assert [fact.time for fact in KeepingPattern.judged[4:]] == [at(100)]


def test_a_detector_that_raised_starts_over() -> None:
    class Fragile(KeepingPattern):
        def evaluate(self, window: Window, now: int) -> list[Verdict]:
            verdicts = super().evaluate(window, now)
            if len(window.of(Smoke)) == 2:
                raise ZeroDivisionError
            return verdicts

    engine = Engine([Fragile()], strict=False)
    said = []
    for second in range(1, 4):
        engine.add([spark(0), smoke(second)])
        said += engine.advance(at(second))
    assert engine.stats.errors == {"keeping": 1}
    assert [len(emission.verdict.evidence()) for emission in said] == [2, 4]


class TwinPattern(FirePattern):
    """Says two things under one name."""

    name = "twin"

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        smokes = window.of(Smoke)
        return [Fire(key=window.key, episode="all", time=s.time, spark=s, smokes=()) for s in smokes]


def test_of_verdicts_of_one_episode_the_last_counts_and_is_said_once() -> None:
    engine = Engine([TwinPattern()])
    engine.add([smoke(1), smoke(2)])
    (emission,) = engine.advance(at(2))
    assert (emission.revision, emission.verdict.time) == (1, at(2))
    engine.add([spark(1)])
    assert engine.advance(at(3)) == []


class CarefulPattern(FirePattern):
    """Sparks matter only to smoke after them."""

    name = "careful"
    asides = (Spark,)

    def matters(self, window: Window, fact: Fact) -> bool:
        smokes = window.of(Smoke)
        return bool(smokes) and fact.time <= smokes[-1].time


def test_facts_that_cannot_matter_cost_no_look_and_are_there_when_needed() -> None:
    engine = Engine([CarefulPattern()])
    engine.add([smoke(0)])
    engine.advance(at(0))
    for second in range(1, 20):
        engine.add([spark(second)])
        assert engine.advance(at(second)) == []
    assert engine.stats.evaluations == 1
    engine.add([smoke(21)])
    assert len(engine.advance(at(21))) == 19
    engine.add([spark(20)])
    assert len(engine.advance(at(22))) == 1
    assert engine.stats.evaluations == 3


class SteadyPattern(FirePattern):
    """Asked for keys once for each identity; of sparks only those count that were folded."""

    name = "steady"
    steady = (Spark, Smoke)
    asked: ClassVar[list[Fact]] = []

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        self.asked.append(fact)
        return super().keys(fact)

    def counts(self, fact: Fact) -> bool:
        return isinstance(fact, Smoke) or fact.count > 1


class SteadyToo(SteadyPattern):
    """Another that wants the same."""

    name = "steady_too"


def test_windows_of_steady_types_that_several_want_are_remembered_by_identity() -> None:
    SteadyPattern.asked.clear()
    engine = Engine([SteadyPattern(), SteadyToo()])
    facts = [smoke(i / 10, f"n{i % 3}") for i in range(90)]
    facts += [spark(0, "n1"), spark(0.5, "n2", count=2, last_time=at(1))]
    found = engine.replay(facts)
    assert len(SteadyPattern.asked) == 2 * 5
    assert [emission.verdict.key for emission in found] == [("n2",), ("n2",)]
    assert engine.stats.unneeded == 1


class WaitingPattern(FirePattern):
    """Smoke is what it waits for; sparks that come after it change nothing."""

    name = "waiting"
    steady = asides = (Spark,)

    def matters(self, window: Window, fact: Fact) -> bool:
        raise AssertionError("asked about a fact that cannot matter")

    def heeds(self, window: Window) -> int:
        return window.of(Smoke)[-1].time


def test_facts_that_can_wait_are_put_into_no_window_and_are_there_at_the_next_look() -> None:
    engine = Engine([WaitingPattern()])
    engine.add([spark(second) for second in range(10)])
    assert engine.advance(at(10)) == []
    assert (engine.stats.windows, engine.stats.held) == (0, 10)
    engine.add([smoke(11)])
    assert len(engine.advance(at(11))) == 10
    engine.add([spark(second) for second in range(12, 20)])
    assert engine.advance(at(20)) == []
    assert engine.stats.evaluations == 1
    engine.add([smoke(21)])
    assert len(engine.advance(at(21))) == 18
    engine.advance(at(2000))
    assert (engine.stats.windows, engine.stats.held) == (0, 0)


def test_facts_that_wait_count_towards_the_limit_of_all() -> None:
    engine = Engine([WaitingPattern()], limits=Limits(total=100))
    engine.add([spark(i / 10, f"n{i % 7}") for i in range(300)])
    engine.advance(at(31))
    assert (engine.stats.held, engine.stats.evicted_total) == (90, 210)


def test_an_identity_that_was_silent_until_its_window_was_dropped_is_seen_again() -> None:
    engine = Engine([SteadyPattern()])
    for begin in (0, 5000):
        engine.add([spark(begin, count=2, last_time=at(begin + 1))])
        engine.advance(at(begin))
        engine.add([smoke(begin + 2)])
        assert len(engine.advance(at(begin + 2))) == 1
        engine.advance(at(begin + 2000))
        assert (engine.stats.held, engine.stats.windows) == (0, 0)


@pytest.mark.parametrize("tick", [0.05, 0.2, 1.0])
def test_a_verdict_of_a_large_window_waits_no_longer_than_a_second(tick: float) -> None:
    engine = Engine([FirePattern()])
    engine.add([smoke(i / 100, uid=f"s{i}") for i in range(5000)])
    engine.advance(at(50))
    engine.add([smoke(50.01)])
    engine.advance(at(50.02))
    looks = engine.stats.evaluations
    engine.add([spark(50)])
    said: list[Emission] = []
    now = 50.02
    while not said and now < 60:
        now += tick
        said = engine.advance(at(now))
    assert said
    assert now <= 51.03 + tick
    for _ in range(40):
        now += tick / 40
        engine.add([smoke(now, uid=f"t{now}")])
        engine.advance(at(now))
    assert engine.stats.evaluations - looks <= 4


def test_a_fact_at_the_lateness_bound_is_judged_at_once_however_large_the_window() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0)])
    engine.add([smoke(60 + i / 1000, uid=f"s{i}") for i in range(5000)])
    engine.advance(at(89.5))
    engine.add([smoke(89.5)])
    engine.advance(at(89.6))
    engine.add([smoke(60)])
    (emission,) = engine.advance(at(89.7))
    assert (emission.verdict.evidence()[0].time, emission.at) == (at(0), at(89.7))


def test_of_facts_of_one_time_a_full_window_drops_the_first_by_uid() -> None:
    window = FactWindow(("n1",), 0)
    for fact in [smoke(1, uid="c"), spark(1, uid="b"), smoke(1, uid="a"), spark(0, uid="z"), smoke(2, uid="d")]:
        window.add(fact)
    assert window.trim(2) == 3
    assert [fact.uid for kind in (Spark, Smoke) for fact in window.of(kind)] == ["c", "d"]
    assert window.floor == at(1) + 1
