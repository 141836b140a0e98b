"""The engine says what is recorded; see `engine_stories`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from engine_stories import FIRST, outcome, recorded


def test_stories_keep_their_emissions_and_counters() -> None:
    before = recorded()
    now = {name: outcome(name) for name in before}
    changed = [f"{name}:\n  {before[name]}\n  {now[name]}" for name in now if now[name] != before[name]]
    assert len(now) >= FIRST
    assert not changed, "\n".join([*changed, "if this is meant: python tests/engine/engine_stories.py"])
