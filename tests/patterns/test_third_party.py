"""A pattern of somebody else's package: installed, found, tested, linted and used."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DIAGNOSE = """
from tracecore.engine.engine import Engine
from tracecore.patterns import catalogue
from tracecore.signals.record import Source
from tracecore.facts.gpu import ThrottleSample
from tracecore.facts.projection import project
record = {
    "resource": {"attributes": {"host.name": "n1"}},
    "log": {"body": "", "attributes": {"acme.fan.stopped": "FAN1"}, "time_unix_nano": 10},
    "source": Source(path="bmc"),
}
facts = [
    *project(record),
    ThrottleSample(time=20, source=Source(path="dcgm"), node="n1", gpu="0000:3b:00.0", reason="thermal_hardware"),
]
print([emission.verdict.pattern_name for emission in Engine(catalogue()).replay(facts)])
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example package installed into it, as pip does."""
    source = tmp_path_factory.mktemp("source") / "package"
    shutil.copytree(ROOT / "examples" / "pattern-package", source)
    target = tmp_path_factory.mktemp("target")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--no-index", "--target", str(target), str(source)], check=True, timeout=120
    )
    return target


def run(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_it_is_in_the_catalogue(installed: Path) -> None:
    result = run(installed, "-m", "tracecore", "patterns", "list", "--json")
    assert result.returncode == 0, result.stderr
    row = json.loads(result.stdout)[-1]
    assert row == {
        "id": "acme-1",
        "name": "fan_failure",
        "role": "cause",
        "maturity": "experimental",
        "needs": ["FanStopped", "ThrottleSample"],
    }


def test_its_cases_pass_and_lint_is_silent(installed: Path) -> None:
    result = run(installed, "-m", "tracecore", "patterns", "test", "fan_failure")
    assert result.returncode == 0, result.stderr
    assert "11 cases of 1 pattern, 0 failed" in result.stderr
    result = run(installed, "-m", "tracecore", "patterns", "lint", "fan_failure")
    assert result.returncode == 0, result.stderr


def test_it_finds_what_it_is_for(installed: Path) -> None:
    result = run(installed, "-c", DIAGNOSE)
    assert result.returncode == 0, result.stderr
    assert "fan_failure" in result.stdout
