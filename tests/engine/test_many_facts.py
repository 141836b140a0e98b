"""What many facts cost: what is kept from one look to the next, and what starts none."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from tracecore.engine.emission import Emission
from tracecore.engine.engine import Engine, Limits
from tracecore.engine.routes import Shelf
from tracecore.engine.windows import FactWindow
from tracecore.facts.fact import Fact
from tracecore.patterns.contract import Key, Verdict, Window

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fire import Fire, FirePattern, Smoke, Spark, at, smoke, spark


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
    # Of sparks one counts, and only it is asked about.
    assert len(SteadyPattern.asked) == 2 * 4
    assert [emission.verdict.key for emission in found] == [("n2",), ("n2",)]
    assert engine.stats.unneeded == 1


class SiftingPattern(SteadyToo):
    """The same, asked once for all that came together."""

    name = "sifting"
    sifted: ClassVar[list[int]] = []

    def counts(self, fact: Fact) -> bool:
        raise AssertionError("asked about a single fact")

    def sift(self, facts: Sequence[Fact]) -> list[Fact]:
        self.sifted.append(len(facts))
        return [fact for fact in facts if isinstance(fact, Smoke) or fact.count > 1]


@pytest.mark.parametrize("others", [(), (SteadyPattern(),), (FirePattern(),)])
def test_facts_that_came_together_are_sifted_together(others: tuple[FirePattern, ...]) -> None:
    SiftingPattern.sifted.clear()
    facts = [smoke(i / 10, f"n{i % 3}") for i in range(90)]
    facts += [spark(0, "n1"), spark(0.5, "n2", count=2, last_time=at(1)), spark(99, "n2")]
    engine = Engine([SiftingPattern(), *others])
    said = engine.replay(facts)
    mine = [emission for emission in said if emission.verdict.key == ("n2",)]
    assert [emission.document() for emission in mine[:1]] == [
        emission.document() for emission in Engine([SteadyPattern()]).replay(facts)
    ]
    assert max(SiftingPattern.sifted) >= 30
    assert engine.stats.unneeded == (0 if others and type(others[0]) is FirePattern else 2)


def test_an_engine_leaves_nothing_behind() -> None:
    def shelves() -> int:
        gc.collect()
        return sum(isinstance(thing, Shelf) for thing in gc.get_objects())

    before = shelves()
    engine = Engine([SteadyPattern(), SteadyToo(), FirePattern()])
    engine.replay([spark(0), smoke(1), spark(2)])
    assert shelves() == before + 3
    del engine
    assert shelves() == before


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


class SteadyDigest(DigestPattern):
    """The same for types of which many come."""

    name = "steady_digest"
    steady = (Smoke,)


def test_facts_of_one_second_come_into_their_order_however_they_are_portioned() -> None:
    rng = random.Random(5)
    uids = [f"u{number:03d}" for number in range(300)]
    facts = [smoke(number // 100, uid=uid) for number, uid in enumerate(uids)]
    for _ in range(20):
        rng.shuffle(facts)
        engine = Engine([SteadyDigest()])
        said: list[Emission] = []
        places = sorted(rng.choices(range(1, len(facts)), k=4))
        for begin, end in zip([0, *places], [*places, len(facts)], strict=True):
            # Some come twice, with the others or later.
            engine.add(facts[begin:end] + rng.sample(facts[:end], min(end, 5)))
            said += engine.advance(at(3))
        said += engine.close(at(5))
        assert [fact.uid for fact in said[-1].verdict.smokes] == uids  # type: ignore[attr-defined]


def test_an_offline_conclusion_keeps_the_first_exception_of_a_very_large_job() -> None:
    from tracecore.facts.process import ExceptionRaised
    from tracecore.facts.training import Progress
    from tracecore.incidents.conclusion import conclude
    from tracecore.patterns import catalogue
    from tracecore.signals.record import Source

    second, start = 1_000_000_000, 1_790_000_000 * 1_000_000_000
    place = Source("rank7.log", 10, 1, 50)
    facts: list[Fact] = [
        ExceptionRaised(time=start + second, source=place, rank=7, type="ValueError", message="x"),
        *(
            Progress(time=start + 2 * second + rank, source=Source(f"rank{rank}.log", 1, 1, 10), rank=rank, step=1)
            for rank in range(8, 90_000)
        ),
    ]
    end = start + 10 * second
    conclusion = conclude(catalogue(), facts, end=end, until=end, layers={})
    assert [said.verdict.headline() for said in conclusion.verdicts] == ["Rank 7 raised ValueError: x"]
