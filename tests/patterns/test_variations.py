"""Stories near the edges of what detectors decide keep their verdicts; see `case_variations`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tracecore.patterns import PATTERNS
from tracecore.patterns.contract import Pattern

sys.path.insert(0, str(Path(__file__).resolve().parent))
from case_variations import names, recorded, verdicts


@pytest.mark.parametrize("kind", PATTERNS, ids=lambda kind: kind.name)
def test_variations_of_cases_keep_their_verdicts(kind: type[Pattern[Any]]) -> None:
    before = recorded(kind)
    # A case that is new is not recorded yet, and needs not be.
    now = {name: verdicts(kind, name) for name in names(kind) if name in before}
    changed = [f"{name}:\n  {before[name]}\n  {now[name]}" for name in now if now[name] != before[name]]
    assert len(now) >= 30
    assert not changed, "\n".join([*changed, "if this is meant: python tests/patterns/case_variations.py"])
