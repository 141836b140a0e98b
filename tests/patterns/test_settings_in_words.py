"""Settings as runbooks show them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.patterns.config import MINUTE, Duration, Settings
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
