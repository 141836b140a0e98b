"""The modules that docs/architecture.md names exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_module_of_the_journeys_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {name for name in re.findall(r"`([a-z_]+/[a-z_/]+(?:\.py|\.yaml|/))`", text) if not name.startswith("src")}
    assert len(named) > 40
    package = ROOT / "src" / "tracecore"
    assert sorted(name for name in named if not (package / name).exists()) == []
