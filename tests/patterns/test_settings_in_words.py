"""Settings as runbooks show them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.patterns.config import HOUR, MINUTE, SECOND, ConfigError, Count, Duration, Fraction, Settings
from tracecore.patterns.runbook import setting


class Some(Settings, frozen=True, kw_only=True):
    wait: Duration = 5 * MINUTE
    share: float = 0.5
    small: float = 0.001
    whole: float = 1.0
    none: float = 0.0
    factor: float = 2.5
    times: int = 3
    words: frozenset[str] = frozenset({"b", "a"})
    places: tuple[int, ...] = (3, 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("wait", "5m"), ("share", "0.5 (50 %)"), ("small", "0.001 (0.1 %)"), ("whole", "1"), ("none", "0"),
        ("factor", "2.5"), ("times", "3"), ("words", "a, b"), ("places", "3, 1"),
    ],
)  # fmt: skip
def test_a_setting_is_said_as_people_would(name: str, words: str) -> None:
    pattern: Any = SimpleNamespace(config=Some())
    assert setting(pattern, name) == words


class Bounded(Settings, frozen=True, kw_only=True):
    wait: Duration = 5 * MINUTE
    times: Count = 3
    share: Fraction = 0.5


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("wait", 31 * 24 * HOUR, "wait: 31d is more than 30d"),
        ("wait", SECOND // 2, "wait: 500ms is less than 1s"),
        ("wait", -1, "wait: -1 is less than 1s"),
        ("times", 0, "times: 0 is less than 1"),
        ("share", 1.5, "share: 1.5 is more than 1"),
        ("share", 0, "share: 0 is not more than 0"),
    ],
)
def test_a_setting_out_of_bounds_is_refused_in_its_unit(name: str, value: float, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Bounded(**{name: value})
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(("name", "value"), [("wait", 30 * 24 * HOUR), ("wait", SECOND), ("times", 1), ("share", 1)])
def test_a_setting_at_its_bound_is_taken(name: str, value: float) -> None:
    assert getattr(Bounded(**{name: value}), name) == value
