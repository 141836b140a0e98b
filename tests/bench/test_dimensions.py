"""A diagnosis of four times the input costs about four times as much, whatever it is that grows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.ceilings import read  # noqa: E402
from bench.dimensions import DIMENSIONS, MOST, cost, growth, many_files, memory  # noqa: E402

from tracecore.diagnose.offline import diagnose  # noqa: E402


@pytest.mark.heavy
@pytest.mark.parametrize("name", DIMENSIONS)
def test_time_grows_with_the_input(name: str) -> None:
    assert growth(name, cost) < MOST


@pytest.mark.heavy
@pytest.mark.parametrize("name", DIMENSIONS)
def test_memory_grows_with_the_input(name: str) -> None:
    assert growth(name, memory, attempts=1) < MOST


def test_every_dimension_is_measured() -> None:
    asked = {"bytes", "line_length", "matches_per_line", "ranks", "files", "levels", "verdicts"}
    assert asked <= set(DIMENSIONS)
    ceilings = read()
    assert all(f"dimensions.{name}.{what}" in ceilings for name in DIMENSIONS for what in ("time", "memory"))
    assert "dimensions.files.10000" in ceilings
    assert "dimensions.files.100000" in ceilings


def test_a_traceback_among_very_many_files_is_found_at_a_small_cost_each() -> None:
    # 3,000 files; bench/dimensions.py has 100,000. On a busy machine a file costs up to 0.9 ms, and cost 2.2 ms before.
    assert many_files(3_000) < 2.0


@pytest.mark.parametrize("name", ["files", "bytes", "line_length", "matches_per_line", "progress_bars", "levels"])
def test_what_is_measured_is_found(name: str, tmp_path: Path) -> None:
    make, size = DIMENSIONS[name]
    make(tmp_path, size)
    assert any("ValueError" in said.verdict.headline() for said in diagnose([tmp_path]).verdicts)
