"""A dictionary that forgets what was set longest ago."""

from __future__ import annotations

from tracecore.recent import Recent


def test_the_entry_set_longest_ago_is_forgotten() -> None:
    held: Recent[str, int] = Recent(2)
    held.update(a=1, b=2)
    held["a"] = 3
    held["c"] = 4
    assert list(held.items()) == [("a", 3), ("c", 4)]


def test_a_look_changes_nothing() -> None:
    held: Recent[str, int] = Recent(2)
    held.update(a=1, b=2)
    assert held.get("a") == 1
    held["c"] = 3
    assert list(held) == ["b", "c"]
