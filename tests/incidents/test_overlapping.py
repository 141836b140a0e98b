"""Arbitration between two patterns of one run stays as it is recorded; see `overlapping_stories`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tracecore.patterns import PATTERNS

sys.path.insert(0, str(Path(__file__).resolve().parent))
from overlapping_stories import judged, recorded


@pytest.mark.parametrize("pattern", [kind.name for kind in PATTERNS])
def test_overlapping_stories_keep_their_incidents(pattern: str) -> None:
    before = {name: found for name, found in recorded().items() if name.startswith(f"{pattern}/")}
    now = {name: found for name in before if (found := judged(name)) is not None}
    changed = [f"{name}:\n  {before[name]}\n  {now[name]}" for name in now if now[name] != before[name]]
    assert len(now) > 20, f"few stories of {pattern}: python tests/incidents/overlapping_stories.py records them"
    assert not changed, "\n".join([*changed, "if this is meant: python tests/incidents/overlapping_stories.py"])
