"""Classes and decisions stay as they are recorded; see `composed_logs`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from composed_logs import outcome, recorded

PARTS = 8


@pytest.mark.parametrize("part", range(PARTS))
def test_composed_logs_keep_their_class_and_decision(part: int) -> None:
    before = dict(list(recorded().items())[part::PARTS])
    now = {name: outcome(name) for name in before}
    changed = [f"{name}:\n  {before[name]}\n  {now[name]}" for name in now if now[name] != before[name]]
    assert len(now) > 5
    assert not changed, "\n".join([*changed, "if this is meant: python tests/actions/composed_logs.py"])
