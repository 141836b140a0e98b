"""What holds for every pattern, whatever the facts: order, repetition, strangers, shifts in time, nonsense."""

from __future__ import annotations

import json
import os
import random
import re
import types
import typing
from datetime import datetime
from functools import cache
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import LATENESS, Engine
from tracecore.engine.window import FactWindow
from tracecore.facts.catalog import TIME_FIELDS, TYPES
from tracecore.facts.fact import Fact
from tracecore.patterns import PATTERNS
from tracecore.patterns.cases import START, cases_of
from tracecore.patterns.config import DAY, SECOND
from tracecore.patterns.contract import Pattern, rfc3339
from tracecore.patterns.schema import problems, schema_of
from tracecore.signals.record import Source

Kind = type[Pattern[Any]]
every_pattern = pytest.mark.parametrize("kind", PATTERNS, ids=lambda kind: kind.name)
# Shrinking takes minutes here and the facts are few enough to read as they are.
few = settings(max_examples=25, phases=(Phase.explicit, Phase.generate))

#: Identities are few, so that facts meet.
IDENTITY: dict[str, list[Any]] = {
    "node": ["n1", "n1", "n2", None],
    "pod": ["train/p1", "train/p2", None],
    "job": ["j1", "j1", "j2", None],
    "gpu": ["0000:3b:00.0", "0000:3b:00.0", "0000:5e:00.0", None],
    "rank": [0, 1, 2, 3, None],
    "attempt": [0, 0, 1],
}
#: How many random streams of a pattern whose looks depend on each other.
SEEDS = int(os.environ.get("TRACECORE_SEEDS", "120"))
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


@cache
def seen(kind: Kind) -> dict[type[Fact], list[Fact]]:
    """Facts of the pattern's own cases, by type: what makes random facts join."""
    facts: dict[type[Fact], list[Fact]] = {}
    for case in cases_of(kind):
        for arrival in case.arrivals[:20]:
            facts.setdefault(type(arrival.fact), []).append(arrival.fact)
    return facts


@cache
def hints(fact: type[Fact]) -> dict[str, Any]:
    return typing.get_type_hints(fact)


def any_value(hint: Any, *, wild: bool) -> st.SearchStrategy[Any]:
    """Values of an annotation; wild ones include everything that the type allows."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([any_value(argument, wild=wild) for argument in arguments])
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        element = arguments[0] if arguments else str
        return st.lists(any_value(element, wild=wild), max_size=3).map(tuple)
    if origin in (list, dict, frozenset):
        return st.builds(origin)
    if hint is type(None):
        return st.none()
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(-(2**63), 2**63) if wild else st.integers(0, 8)
    if hint is float:
        return st.floats() if wild else st.floats(0, 1000)
    if hint is str:
        return st.text(max_size=12) if wild else st.sampled_from(["", "a", "Evicted", "train"])
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return st.builds(
            hint, **{name: any_value(inner, wild=wild) for name, inner in typing.get_type_hints(hint).items()}
        )
    return st.none()


@cache
def own_fields(fact: type[Fact]) -> tuple[str, ...]:
    """Fields that say what, not who or when."""
    given = {"time", "source", "count", "approximate", *IDENTITY, *TIME_FIELDS}
    return tuple(name for name in fact.__struct_fields__ if name not in given)


def times_of(fact: type[Fact], time: int) -> dict[str, st.SearchStrategy[Any]]:
    chosen: dict[str, st.SearchStrategy[Any]] = {
        "last_time": st.sampled_from([None, None, None, time, time + 20 * SECOND])
    }
    for name in TIME_FIELDS & set(fact.__struct_fields__) - {"last_time"}:
        optional = type(None) in typing.get_args(hints(fact)[name])
        chosen[name] = st.sampled_from([time, time - 40 * SECOND, None] if optional else [time, time - 40 * SECOND])
    return chosen


@st.composite
def plausible(draw: st.DrawFn, kind: Kind, time: int, uid: str) -> Fact:
    """One fact as in a case of the pattern, with another identity and time, and sometimes another field."""
    fact = draw(st.sampled_from(kind.needs))
    values: dict[str, Any] = {name: draw(st.sampled_from(options)) for name, options in IDENTITY.items()}
    for name, strategy in times_of(fact, time).items():
        values[name] = draw(strategy)
    values["count"] = 1 if values["last_time"] is None else draw(st.sampled_from([2, 500]))
    templates = seen(kind).get(fact, [])
    template = draw(st.sampled_from(templates)) if templates else None
    strange = draw(st.sampled_from((None,) * 3 + own_fields(fact)))
    for name in own_fields(fact):
        if template is None or name == strange:
            values[name] = draw(any_value(hints(fact)[name], wild=False))
        else:
            values[name] = getattr(template, name)
    # Every fact of a real stream has its own place; duplicates are a property of their own.
    return fact(time=time, source=Source(path="f", ident=uid), **values)


@st.composite
def facts_for(draw: st.DrawFn, kind: Kind, most: int = 10) -> list[Fact]:
    """Facts of the types it needs, over three horizons, on the edges of windows as often as not."""
    horizon = kind().horizon
    offsets = st.one_of(
        st.sampled_from([0, 1, SECOND, 10 * SECOND, 30 * SECOND, 60 * SECOND, horizon - 1, horizon, horizon + 1]),
        st.integers(0, min(3 * horizon, DAY)),
    )
    return [draw(plausible(kind, START + draw(offsets), f"u{number}")) for number in range(draw(st.integers(1, most)))]


@st.composite
def wild_facts(draw: st.DrawFn, kind: Kind) -> list[Fact]:
    made = []
    for number in range(draw(st.integers(1, 6))):
        fact = draw(plausible(kind, START + draw(st.integers(-DAY, DAY)), f"u{number % 4}"))
        names = [name for name in fact.__struct_fields__ if name not in ("time", "source")]
        changed = {
            name: draw(any_value(hints(type(fact))[name], wild=True))
            for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True))
        }
        made.append(msgspec.structs.replace(fact, **changed))
    return made


def documents(emissions: list[Emission]) -> dict[str, Any]:
    return {emission.id: emission.verdict.document() for emission in standing(emissions)}


def end_of(kind: Kind, facts: list[Fact]) -> int:
    return max(fact.end for fact in facts) + 2 * kind().horizon + 2 * LATENESS


def offline(kind: Kind, facts: list[Fact]) -> dict[str, Any]:
    return documents(Engine([kind()]).replay(facts, until=end_of(kind, facts)))


@every_pattern
@few
@given(data=st.data())
def test_any_order_and_batching_within_lateness_ends_the_same(kind: Kind, data: st.DataObject) -> None:
    facts = data.draw(facts_for(kind))
    delays = data.draw(st.lists(st.integers(0, LATENESS), min_size=len(facts), max_size=len(facts)))
    # A fold is told when it ends; until then nobody knows of it.
    arrivals = sorted(
        (fact.end + delay if fact.last_time is None else fact.time + delay, i)
        for i, (fact, delay) in enumerate(zip(facts, delays, strict=True))
    )
    engine = Engine([kind()])
    said: list[Emission] = []
    for at, index in arrivals:
        engine.add([facts[index]])
        if data.draw(st.booleans()):
            said += engine.advance(at)
    said += engine.close(end_of(kind, facts))
    assert documents(said) == offline(kind, facts)
    shuffled = data.draw(st.permutations(facts))
    assert offline(kind, shuffled) == offline(kind, facts)


class FreshWindow(FactWindow):
    """Makes its indexes anew for every question."""

    def grouped(self, kind: type[Fact], by: Any) -> Any:
        self.indexes = {}
        return super().grouped(kind, by)

    def distinct(self, kind: type[Fact], by: Any) -> Any:
        self.indexes = {}
        return super().distinct(kind, by)


def place_at(rng: random.Random, spread: int, path: str, uid: str) -> tuple[int, Source]:
    """A line of a file, whose lines are in order of time."""
    offset = rng.randrange(spread)
    return START + offset, Source(path=path, offset=offset, ident=uid)


def crowd(kind: Kind, rng: random.Random) -> list[Fact]:
    """Facts as in its cases, of few processes and lines and close together: everything bears on everything."""
    identity: dict[str, list[Any]] = {
        "node": ["n1"],
        "pod": ["train/p1", "train/p1", "train/p2", None],
        "job": ["j1"],
        "gpu": ["0000:3b:00.0", "0000:5e:00.0", None],
        "rank": [0, 0, 1, 1, 2, None],
        "attempt": [0, 0, 0, 1],
        "pid": [7, 8, None],
    }
    spread = rng.choice([10 * SECOND, 60 * SECOND, kind().horizon])
    lines = [place_at(rng, spread, "f", f"shared {number}") for number in range(4)]
    taken: set[tuple[type[Fact], int]] = set()
    facts: list[Fact] = []
    kinds = rng.sample(kind.needs, min(len(kind.needs), rng.choice([2, 4, 13])))
    for number in range(rng.choice([6, 12, 24])):
        fact = rng.choice(kinds)
        time, source = place_at(rng, spread, rng.choice("fg"), f"u{number}")
        # Several facts may be read from one line, but not two of a kind.
        line = rng.randrange(8)
        if line < len(lines) and (fact, line) not in taken:
            taken.add((fact, line))
            time, source = lines[line]
        if fact not in seen(kind):
            continue
        values = {name: rng.choice(some) for name, some in identity.items() if name in fact.__struct_fields__}
        last = rng.choice([None, None, None, time + 5 * SECOND])
        values |= {"time": time, "source": source, "last_time": last, "count": 1 if last is None else 3}
        facts.append(msgspec.structs.replace(rng.choice(seen(kind)[fact]), **values))
    return facts


def told(pattern: Pattern[Any], window: type[FactWindow], arrivals: list[tuple[int, Fact]]) -> list[object]:
    """All that is said when each fact is looked at as it arrives."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracecore.engine.keyed_windows.FactWindow", window)
        engine = Engine([pattern])
        said: list[Emission] = []
        for at, fact in arrivals:
            engine.add([fact])
            said += engine.advance(at)
        said += engine.close(START + 3 * pattern.horizon)
    return [(e.id, e.revision, e.status, e.at, e.verdict.document()) for e in said]


@every_pattern
def test_what_is_said_does_not_depend_on_indexes_that_were_kept(kind: Kind) -> None:
    for seed in range(SEEDS // 4):
        rng = random.Random(seed)
        arrivals = [(fact.time + rng.choice([0, 0, SECOND, 20 * SECOND]), fact) for fact in crowd(kind, rng)]
        arrivals.sort(key=lambda arrival: arrival[0])
        assert told(kind(), FactWindow, arrivals) == told(kind(), FreshWindow, arrivals), f"seed {seed}"


@every_pattern
@few
@given(data=st.data())
def test_strangers_change_nothing(kind: Kind, data: st.DataObject) -> None:
    facts = data.draw(facts_for(kind))
    pattern = kind()
    taken = {key for fact in facts for key in pattern.keys(fact)}
    strangers = [fact for fact in data.draw(facts_for(kind, most=6)) if taken.isdisjoint(pattern.keys(fact))]
    strangers = [msgspec.structs.replace(f, source=Source(path="g", ident=f"s{i}")) for i, f in enumerate(strangers)]
    others = [
        fact(time=START + 1, source=Source(path="h", ident=f"h{i}"), node="n1", gpu="0000:3b:00.0", job="j1")
        for i, fact in enumerate(TYPES)
        if fact not in kind.needs and not required(fact)
    ]
    before = offline(kind, facts)
    until = end_of(kind, facts + strangers)
    after = documents(Engine([kind()]).replay([*strangers, *others, *facts], until=until))
    assert {ident: after.get(ident) for ident in before} == before


def required(fact: type[Fact]) -> bool:
    return any(field.required for field in msgspec.structs.fields(fact) if field.name not in ("time", "source"))


@every_pattern
@few
@given(data=st.data())
def test_facts_fed_twice_say_nothing_new(kind: Kind, data: st.DataObject) -> None:
    facts = data.draw(facts_for(kind))
    once = offline(kind, facts)
    assert documents(Engine([kind()]).replay(facts + facts, until=end_of(kind, facts))) == once
    engine = Engine([kind()])
    last = max(fact.end for fact in facts)
    said = engine.replay(facts, until=last)
    engine.add(facts)
    assert engine.advance(last) == []
    assert documents(said + engine.close(end_of(kind, facts))) == once


@every_pattern
@few
@given(data=st.data())
def test_a_shift_in_time_shifts_the_verdict_and_nothing_else(kind: Kind, data: st.DataObject) -> None:
    facts = data.draw(facts_for(kind))
    # Sentences tell whole seconds.
    shift = data.draw(st.sampled_from([SECOND, 86_400 * SECOND, 400 * DAY + 123 * SECOND]))
    moved = [
        msgspec.structs.replace(
            fact,
            **{
                name: getattr(fact, name) + shift
                for name in ("time", *TIME_FIELDS)
                if isinstance(getattr(fact, name, None), int)
            },
        )
        for fact in facts
    ]
    before = sorted(json.dumps(document) for document in offline(kind, facts).values())
    after = sorted(STAMP.sub(lambda m: back(m[0], shift), json.dumps(d)) for d in offline(kind, moved).values())
    assert after == before


def back(stamp: str, shift: int) -> str:
    whole, _, fraction = stamp.rstrip("Z").partition(".")
    time = int(datetime.fromisoformat(whole + "+00:00").timestamp()) * SECOND + int((fraction or "0").ljust(9, "0"))
    return rfc3339(time - shift)


@every_pattern
@few
@given(data=st.data())
def test_every_verdict_obeys_its_schema_and_renders(kind: Kind, data: st.DataObject) -> None:
    facts = data.draw(facts_for(kind))
    found = standing(Engine([kind()]).replay(facts, until=end_of(kind, facts)))
    for emission in found:
        assert problems(schema_of(kind), emission.verdict.document()) == []
        attributes = emission.verdict.attributes()
        assert all(value not in ("", None) for value in attributes.values())
        assert all(isinstance(value, str | int | float | bool) for value in attributes.values())
        times = [fact.time for fact in emission.verdict.evidence()]
        assert times == sorted(times)
        emission.verdict.suspects()


@every_pattern
@few
@given(data=st.data())
def test_nothing_makes_it_raise(kind: Kind, data: st.DataObject) -> None:
    facts = data.draw(wild_facts(kind))
    engine = Engine([kind()])
    said = engine.replay(facts, until=START + 2 * DAY)
    for emission in said:
        msgspec.json.encode(emission.document())
        emission.verdict.attributes()
    assert engine.stats.errors == {}


def joins(kind: Kind) -> int:
    """How many of some random streams end with a verdict."""
    joined = 0

    @settings(max_examples=30, database=None, phases=(Phase.generate,))
    @given(facts=facts_for(kind))
    def count(facts: list[Fact]) -> None:
        nonlocal joined
        joined += bool(offline(kind, facts))

    count()
    return joined


@pytest.mark.heavy
def test_random_facts_join_often_enough_to_mean_something() -> None:
    joined = {kind.name: joins(kind) for kind in PATTERNS}
    assert sum(number > 0 for number in joined.values()) > len(PATTERNS) / 2, joined
