"""What many facts cost: indexes that are kept, evaluations that wait, and nothing that stays behind."""

from __future__ import annotations

import gc
import random
import sys
from operator import attrgetter
from pathlib import Path

import pytest

from tracecore.engine.emission import Emission
from tracecore.engine.engine import GROWTH, LONGEST_PAUSE, PATIENCE, RATE, SMALL, Engine, _pause
from tracecore.engine.keyed_windows import PatternWindows
from tracecore.engine.window import CHANGED, TRIGGERED, FactWindow
from tracecore.facts.fact import Fact, order
from tracecore.patterns.contract import Verdict, Window
from tracecore.patterns.timeline import grouped

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fire import Fire, FirePattern, Smoke, Spark, at, smoke, spark

SECOND = 1_000_000_000
_rank = attrgetter("rank")


class Asked:
    """Says the rank of a fact and counts how often it was asked."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, fact: Fact) -> int | None:
        self.number += 1
        return fact.rank


def test_an_index_asks_about_each_fact_once() -> None:
    window, by = FactWindow(("n1",), 0), Asked()
    for number in range(30):
        window.add(smoke(number, rank=number % 3))
        assert sum(map(len, window.grouped(Smoke, by).values())) == number + 1
    assert by.number == 30


def test_distinct_values_ask_about_each_fact_once() -> None:
    window, by = FactWindow(("n1",), 0), Asked()
    for number in range(30):
        window.add(smoke(number, rank=number // 10))
        assert window.distinct(Smoke, by) == set(range(number // 10 + 1))
    assert by.number == 30
    # Groups by the same function are another index.
    assert set(window.grouped(Smoke, by)) == {0, 1, 2}


@pytest.mark.parametrize("seed", range(20))
def test_an_index_is_the_same_whatever_came_first_grew_or_went(seed: int) -> None:
    rng = random.Random(seed)
    facts: list[Smoke] = [
        smoke(rng.randrange(20), uid=f"u{n:02d}", rank=rng.choice([0, 1, 2, None])) for n in range(40)
    ]
    window = FactWindow(("n1",), 0)
    for fact in facts:
        window.add(fact)
        if rng.random() < 0.3:
            window.grouped(Smoke, _rank)
            window.distinct(Smoke, _rank)
        if rng.random() < 0.1:
            window.add(
                smoke(
                    (fact.time - at(0)) / SECOND,
                    uid=fact.source.ident,
                    rank=fact.rank,
                    count=3,
                    last_time=fact.time + 1,
                )
            )
        if rng.random() < 0.05:
            window.prune(at(rng.randrange(10)))
        if rng.random() < 0.05:
            window.trim(20)
        known = window.grouped(Smoke, _rank)
        assert list(known.items()) == list(grouped(window.of(Smoke), _rank).items())
        assert window.distinct(Smoke, _rank) == known.keys()
        assert list(window.of(Smoke)) == sorted(window.of(Smoke), key=order)


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


def test_an_engine_leaves_nothing_behind() -> None:
    def owners() -> int:
        gc.collect()
        return sum(isinstance(thing, PatternWindows) for thing in gc.get_objects())

    before = owners()
    engine = Engine([FirePattern(), TwinPattern()])
    engine.replay([spark(0), smoke(1), spark(2)])
    assert owners() == before + 2
    del engine
    assert owners() == before


class EagerPattern(FirePattern):
    """Looks at all facts, whatever comes."""

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        assert len(window.of(Spark)) + len(window.of(Smoke)) > 0
        return super().evaluate(window, now)


def test_a_fact_of_a_type_that_the_last_evaluation_did_not_read_starts_none() -> None:
    engine = Engine([FirePattern()])
    engine.add([smoke(0)])
    engine.advance(at(0))
    engine.add([smoke(1)])
    engine.advance(at(1))
    # Without a spark nobody asks about smoke.
    assert engine.stats.evaluations == 1
    engine.add([spark(0.5)])
    (emission,) = engine.advance(at(2))
    assert [fact.time for fact in emission.verdict.evidence()] == [at(0.5), at(1)]


def test_after_an_exception_every_fact_starts_an_evaluation() -> None:
    class Broken(FirePattern):
        def evaluate(self, window: Window, now: int) -> list[Verdict]:
            if len(self.read(window)) == 1:
                raise ZeroDivisionError
            return super().evaluate(window, now)

        def read(self, window: Window) -> list[Fact]:
            return [*window.of(Smoke)]

    engine = Engine([Broken()], strict=False)
    engine.add([smoke(5)])
    engine.advance(at(5))
    engine.add([spark(4), smoke(6)])
    assert len(engine.advance(at(6))) == 1
    assert engine.stats.errors == {"fire": 1}


@pytest.mark.parametrize(
    ("size", "new", "state", "unchanged", "seconds"),
    [
        (SMALL, 1, TRIGGERED, 99, 0),
        (SMALL, 1, CHANGED, PATIENCE - 1, 0),
        (SMALL, 1, CHANGED, PATIENCE, 1),
        (SMALL, 1, CHANGED, PATIENCE + 1, 2),
        (SMALL, 1, CHANGED, PATIENCE + 3, 8),
        (SMALL, 1, CHANGED, 99, 10),
        (SMALL + 1, 1, CHANGED, 0, 10),
        (4 * RATE, 1, TRIGGERED, 0, 4),
        (4 * RATE, RATE, TRIGGERED, 0, 0),
        (4 * RATE, RATE - 1, TRIGGERED, 0, 4),
        (4 * RATE, 1, TRIGGERED, PATIENCE + 3, 8),
        (99 * RATE, 1, TRIGGERED, 0, 10),
    ],
)
def test_how_long_a_changed_window_waits(size: int, new: int, state: int, unchanged: int, seconds: int) -> None:
    window = FactWindow(("n1",), 0, size=size, state=state, unchanged=unchanged, evaluated_size=size - new)
    assert _pause(window) == seconds * SECOND


def large() -> Engine:
    """An engine with a large window that was evaluated at 50 s and at 50.02 s."""
    engine = Engine([EagerPattern()])
    engine.add([smoke(i / 100, uid=f"s{i}") for i in range(5000)])
    engine.advance(at(50))
    engine.add([smoke(50.01)])
    engine.advance(at(50.02))
    return engine


def waited(engine: Engine, tick: float) -> float:
    """The seconds after 50.02 s until something is said."""
    said: list[Emission] = []
    now = 50.02
    while not said and now < 90:
        now += tick
        said = engine.advance(at(now))
    assert said
    return now - 50.02


@pytest.mark.parametrize("tick", [0.05, 0.2, 1.0, 30.0])
def test_other_facts_of_a_large_window_wait_no_longer_than_they_may(tick: float) -> None:
    engine = large()
    engine.add([spark(50)])
    assert waited(engine, tick) <= LONGEST_PAUSE / SECOND + tick


def test_a_trigger_of_a_large_window_waits_for_less() -> None:
    engine = large()
    engine.add([spark(50), smoke(50.02)])
    assert waited(engine, 0.2) <= 5


def test_a_large_window_is_evaluated_seldom_until_it_has_grown() -> None:
    engine = large()
    before = engine.stats.evaluations
    for number in range(100):
        engine.add([smoke(50.03 + number / 1000, uid=f"t{number}")])
        engine.advance(at(50.03 + number / 1000))
    assert engine.stats.evaluations == before
    engine.add([smoke(50.2 + number / 10_000, uid=f"v{number}") for number in range(5200 // (GROWTH - 1))])
    engine.advance(at(50.3))
    assert engine.stats.evaluations == before + 1


def test_a_small_window_is_evaluated_at_once_for_every_trigger() -> None:
    engine = Engine([EagerPattern()])
    for second in range(40):
        engine.add([smoke(second)])
        engine.advance(at(second))
    assert engine.stats.evaluations == 40


def test_facts_that_change_nothing_are_evaluated_less_and_less_often() -> None:
    engine = Engine([FirePattern()])
    engine.add([smoke(0)])
    engine.advance(at(0))
    for second in range(1, 41):
        engine.add([spark(second)])
        assert engine.advance(at(second)) == []
    assert PATIENCE < engine.stats.evaluations < 12
    engine.add([smoke(41)])
    assert len(engine.advance(at(41))) == 40


def test_a_window_that_waits_is_evaluated_at_the_end() -> None:
    engine = large()
    engine.add([spark(50)])
    assert engine.advance(at(50.03)) == []
    assert len(engine.close(at(50.04))) == 1


def idle() -> Engine:
    """Return an engine whose small window waits because facts have changed nothing for a while."""
    engine = Engine([FirePattern()])
    engine.add([smoke(0)])
    for second in range(40):
        engine.add([spark(second + 0.5)])
        engine.advance(at(second + 0.6))
    return engine


def test_a_small_window_that_waits_is_looked_at_only_when_its_timer_fires(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, looked = idle(), []
    monkeypatch.setattr("tracecore.engine.engine._pause", lambda window: looked.append(window) or _pause(window))
    for tick in range(1, 50):
        engine.advance(at(39.6 + tick / 100))
    assert looked == []


def test_a_trigger_reaches_a_small_window_that_waits_at_once() -> None:
    engine = idle()
    engine.add([smoke(39.7)])
    before = engine.stats.evaluations
    assert engine.advance(at(39.7))
    assert engine.stats.evaluations == before + 1


def test_the_end_reaches_a_small_window_that_waits() -> None:
    engine = idle()
    before = engine.stats.evaluations
    engine.close(at(39.7))
    assert engine.stats.evaluations == before + 1


def test_a_fact_at_the_lateness_bound_counts_however_large_the_window() -> None:
    engine = Engine([FirePattern()])
    engine.add([spark(0)])
    engine.add([smoke(60 + i / 1000, uid=f"s{i}") for i in range(5000)])
    engine.advance(at(89.5))
    engine.add([smoke(89.5)])
    engine.advance(at(89.6))
    engine.add([smoke(60)])
    said = engine.advance(at(89.7)) + engine.advance(at(101))
    (emission,) = said
    assert emission.verdict.evidence()[0].time == at(0)
    assert emission.at <= at(99.7)


def test_of_facts_of_one_time_a_full_window_drops_the_first_by_uid() -> None:
    window = FactWindow(("n1",), 0)
    for fact in [smoke(1, uid="c"), spark(1, uid="b"), smoke(1, uid="a"), spark(0, uid="z"), smoke(2, uid="d")]:
        window.add(fact)
    assert window.trim(2) == 3
    assert [fact.uid for kind in (Spark, Smoke) for fact in window.of(kind)] == ["c", "d"]
    assert window.floor == at(1) + 1


class AllSmokes(FirePattern):
    """Says which smokes there are."""

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        smokes = window.of(Smoke)
        return [Fire(key=window.key, episode="all", time=smokes[0].time, spark=smokes[0], smokes=tuple(smokes))]


def test_facts_of_one_second_come_into_their_order_however_they_are_portioned() -> None:
    rng = random.Random(5)
    uids = [f"u{number:03d}" for number in range(300)]
    facts = [smoke(number // 100, uid=uid) for number, uid in enumerate(uids)]
    for _ in range(20):
        rng.shuffle(facts)
        engine = Engine([AllSmokes()])
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
