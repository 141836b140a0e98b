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

from bench import Measurement  # noqa: E402
from tracecore.patterns import PATTERNS  # noqa: E402


def test_a_measurement_above_below_or_risen_fails() -> None:
    measured = [Measurement("a", 1.9, "x")]
    assert failures(measured, {"a": Ceiling(most=2.0)}) == []
    assert failures(measured, {"a": Ceiling(most=1.8)}) != []
    assert failures(measured, {"a": Ceiling(least=2.0)}) != []
    assert failures(measured, {"a": Ceiling(most=2.0, baseline=1.73)}) == []
    assert failures(measured, {"a": Ceiling(most=2.0, baseline=1.72)}) != []
    assert failures(measured, {"b": Ceiling(most=0.0)}) == []


@pytest.mark.parametrize("what", ["allocations", "bytes"])
def test_lowering_a_baseline_makes_the_run_fail(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = read()
    name = f"detectors.hbm_ecc.{what}"
    committed = lowered[name]
    assert committed.baseline is not None
    lowered[name] = Ceiling(most=committed.most, baseline=committed.baseline * 0.8)
    path = tmp_path / "ceilings.json"
    path.write_bytes(msgspec.json.encode(lowered))
    monkeypatch.setattr("bench.__main__.read", lambda: read(path))
    # One of the detectors is measured, so that nothing else can fail the run.
    monkeypatch.setattr("bench.detectors.PATTERNS", [kind for kind in PATTERNS if kind.name == "hbm_ecc"])
    assert main(["detectors"]) == 1
    monkeypatch.setattr("bench.__main__.read", read)
    assert main(["detectors"]) == 0
