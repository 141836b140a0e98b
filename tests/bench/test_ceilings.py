"""The gate of the benchmarks: it must fail when it should."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.__main__ import main  # noqa: E402
from bench.ceilings import Ceiling, failures, read  # noqa: E402
from bench.detectors import SHAPES, allocations  # noqa: E402

from bench import Measurement, ceilings  # noqa: E402
from tracecore.patterns import PATTERNS  # noqa: E402

KINDS = {kind.name: kind for kind in PATTERNS}


def test_a_measurement_above_below_or_risen_fails() -> None:
    measured = [Measurement("a", 1.9, "x")]
    assert failures(measured, {"a": Ceiling(most=2.0)}) == []
    assert failures(measured, {"a": Ceiling(most=1.8)}) != []
    assert failures(measured, {"a": Ceiling(least=2.0)}) != []
    assert failures(measured, {"a": Ceiling(most=2.0, baseline=1.73)}) == []
    assert failures(measured, {"a": Ceiling(most=2.0, baseline=1.72)}) != []
    assert failures(measured, {"b": Ceiling(most=0.0)}) == []


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_detectors_stay_under_their_ceilings(name: str) -> None:
    make, verdicts = SHAPES[name]
    count, size = allocations(KINDS[name](), make(), verdicts)
    assert count <= 2.0
    assert size <= 510
    committed = read()
    assert committed[f"detectors.{name}.allocations"].most is not None
    assert count <= (committed[f"detectors.{name}.allocations"].baseline or 0) * ceilings.RISE


def test_lowering_a_baseline_makes_the_run_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["detectors"]) == 0
    lowered = read()
    lowered["detectors.hbm_ecc.allocations"] = Ceiling(most=2.0, baseline=1.0)
    path = tmp_path / "ceilings.json"
    path.write_bytes(msgspec.json.encode(lowered))
    monkeypatch.setattr("bench.__main__.read", lambda: read(path))
    assert main(["detectors"]) == 1
