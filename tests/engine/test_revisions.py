"""A verdict is revised when anything that a reader sees of it changes, and never otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tracecore.engine.engine import Engine
from tracecore.facts.fact import Fact
from tracecore.patterns.contract import Suspects, Verdict, Window

sys.path.insert(0, str(Path(__file__).resolve().parent))
from fire import Fire, FirePattern, Smoke, at, smoke, spark


class Told(Fire, frozen=True, kw_only=True):
    """A verdict of which each visible part is given."""

    pattern_id: ClassVar[str] = "902"
    pattern_name: ClassVar[str] = "told"

    words: str = ""
    number: Any = 0
    rank: int = 0
    hidden: int = 0

    def headline(self) -> str:
        return self.words

    def fields(self) -> dict[str, Any]:
        return {"number": self.number}

    def suspects(self) -> Suspects:
        return Suspects(ranks=(self.rank,))


class ToldPattern(FirePattern):
    """Says of each spark what the number of its smokes calls for."""

    id, name = "902", "told"
    parts: ClassVar[list[dict[str, Any]]] = []

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        (first, *_), said = window.of(Smoke), self.parts[len(window.of(Smoke)) - 1]
        base = Told(key=window.key, episode="e", time=first.time, spark=spark(0), smokes=(first,))
        return [msgspec.structs.replace(base, **said)] if said.get("time") != -1 else []


def revisions(monkeypatch: pytest.MonkeyPatch, *parts: dict[str, Any]) -> list[tuple[int, str]]:
    """Return revisions and statuses after each of these verdicts in turn."""
    monkeypatch.setattr(ToldPattern, "parts", list(parts))
    engine = Engine([ToldPattern()])
    said = []
    for number in range(len(parts)):
        engine.add([smoke(number)])
        said += engine.advance(at(number))
    return [(emission.revision, emission.status) for emission in said]


@pytest.mark.parametrize(
    "change",
    [
        {"confidence": "partial"},
        {"words": "another headline"},
        {"number": 1},
        {"number": False, "hidden": 1},  # equal to 0, and written differently
        {"rank": 1},
        {"spark": spark(0, uid="another")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_visible_change_is_a_revision(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    assert revisions(monkeypatch, {}, change, {}) == [(1, "active"), (2, "active"), (3, "active")]


def test_a_change_that_nobody_sees_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert revisions(monkeypatch, {}, {"hidden": 1}, {"hidden": 2}, {"hidden": 2}) == [(1, "active")]


def test_a_verdict_that_comes_back_counts_on_from_its_retraction(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"time": -1}
    assert revisions(monkeypatch, {}, gone, {}, gone) == [(1, "active"), (2, "cleared"), (3, "active"), (4, "cleared")]


def test_new_episodes_leave_those_before_them_alone() -> None:
    engine = Engine([FirePattern()])
    facts: list[Fact] = []
    for number in range(4):
        facts = [spark(100 * number), smoke(100 * number + 1)]
        engine.add(facts)
        (emission,) = engine.advance(at(100 * number + 2))
        assert (emission.revision, emission.verdict.episode) == (1, facts[0].uid)
    assert (engine.stats.emitted, engine.stats.cleared) == (4, 0)


class Impatient(FirePattern):
    """Joins over a minute and says that a second is enough."""

    @property
    def horizon(self) -> int:
        return 1_000_000_000


def test_a_verdict_beyond_the_horizon_is_counted_and_does_not_hide_the_next() -> None:
    engine = Engine([Impatient()], lateness=0)
    engine.add([spark(0, uid="old")])
    engine.advance(at(1))
    engine.add([spark(11.5, uid="new"), smoke(12)])
    (emission,) = engine.advance(at(12))
    assert emission.verdict.evidence()[0].uid == spark(11.5, uid="new").uid
    assert engine.stats.beyond_horizon == 1
