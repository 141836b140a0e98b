"""A diagnosis of four times the input costs about four times as much, whatever it is that grows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.dimensions import DIMENSIONS, MOST, cost, growth, memory  # noqa: E402

from tracecore.diagnose.offline import diagnose  # noqa: E402


@pytest.mark.parametrize("name", DIMENSIONS)
def test_time_grows_with_the_input(name: str) -> None:
    assert growth(name, cost) < MOST


@pytest.mark.parametrize("name", DIMENSIONS)
def test_memory_grows_with_the_input(name: str) -> None:
    assert growth(name, memory, attempts=1) < MOST


@pytest.mark.parametrize("name", ["files", "lines", "line_length", "levels"])
def test_what_is_measured_is_found(name: str, tmp_path: Path) -> None:
    make, size = DIMENSIONS[name]
    make(tmp_path, size)
    assert any("ValueError" in said.verdict.headline() for said in diagnose([tmp_path]).verdicts)
