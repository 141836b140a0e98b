"""What a newcomer's mistakes get: one line that says what and where, never a stack of ours."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tracecore.cli.main import main

CASE = """case: a
pattern: hbm_ecc
kind: canonical
why: x
facts: []
expect_none_at: [t]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a new pattern."""
    assert main(["patterns", "new", "fan_stopped", "--into", str(tmp_path), "--id", "acme-1"]) == 0
    return tmp_path / "fan_stopped"


def _said(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str]:
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    return status, capsys.readouterr().err


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_detector_that_is_no_python(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(home / "detector.py", "class Config", "clas Config")
    status, said = _said(capsys, "patterns", "test", home)
    assert status == 1
    assert said.startswith(f"Error: {home / 'detector.py'}:")
    assert "invalid syntax" in said


def test_a_detector_that_cannot_be_imported(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(home / "detector.py", "from typing import", "import nothing_of_this_name\nfrom typing import")
    status, said = _said(capsys, "patterns", "show", home)
    assert status == 1
    assert f"{home / 'detector.py'}:5: ModuleNotFoundError: No module named 'nothing_of_this_name'" in said


def test_a_detector_that_raises(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(home / "detector.py", "        return []", '        raise KeyError("gpu")')
    status, said = _said(capsys, "patterns", "test", home)
    assert status == 1
    assert f"the detector raises KeyError: 'gpu' ({home / 'detector.py'}:" in said
    assert "5 cases of 1 pattern, 5 failed" in said


@pytest.mark.parametrize(
    ("gone", "command"), [("verdict.schema.json", "test"), ("verdict.schema.json", "schema"), ("runbook.md", "show")]
)
def test_a_file_that_is_not_there(home: Path, gone: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    (home / gone).unlink()
    status, said = _said(capsys, "patterns", command, home)
    assert (status, said) == (1, f"Error: {home / gone}:1: there is no such file\n")


def test_a_schema_that_is_no_json(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "verdict.schema.json").write_text("{\n  'title'")
    status, said = _said(capsys, "patterns", "schema", home)
    assert status == 1
    assert f"{home / 'verdict.schema.json'}:2: " in said


def test_a_runbook_that_names_a_setting_that_is_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _edit(home / "runbook.md", "{{window}}", "{{windo}}")
    status, said = _said(capsys, "patterns", "show", home)
    assert status == 1
    assert "`{{windo}}` is no setting" in said


def test_no_cases_are_no_success(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(home / "cases")
    assert _said(capsys, "patterns", "test", home) == (1, f"Error: no cases in {home / 'cases'}\n")


@pytest.mark.parametrize("arguments", [("class",), ("fine", "--id", ""), ("fine", "--id", 'a"b')])
def test_names_and_ids_that_python_cannot_take(
    arguments: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _ = _said(capsys, "patterns", "new", *arguments, "--into", tmp_path)
    assert status == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (CASE.replace("[t]", "[t,\n  1s]"), 7, "`1s` is not a time"),
        (CASE.replace("[t]", "t+1s"), 6, "`expect_none_at` is a list of times"),
        (CASE.replace("hbm_ecc", "hbm_eccc"), 1, "did you mean hbm_ecc?"),
        (CASE.replace("pattern: hbm_ecc\n", ""), 1, "which pattern?"),
        ("a: " + "[" * 5000, 1, "nested too deeply"),
        (CASE + "# " + "x" * (1 << 20), 1, "larger than 1 MiB"),
    ],
)
def test_a_case_that_cannot_be_read(
    text: str, line: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    status, said = _said(capsys, "replay", path)
    assert status == 1
    assert said.startswith(f"Error: {path}:{line}: ")
    assert message in said


def test_bytes_that_are_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(bytes(range(256)))
    assert _said(capsys, "replay", path) == (1, f"Error: {path}:1: this is no YAML text\n")


@pytest.mark.parametrize(
    ("group", "value", "why"),
    [
        ("patterns", "nothing_of_this_name:X", "ModuleNotFoundError"),
        pytest.param("patterns", "json:loads", "it is not a Pattern", marks=pytest.mark.heavy),
        pytest.param("projectors", "json:loads", "it is not a Projection", marks=pytest.mark.heavy),
    ],
)
def test_what_is_broken_in_another_package_is_left_out(group: str, value: str, why: str, tmp_path: Path) -> None:
    home = tmp_path / "broken-0.1.dist-info"
    home.mkdir()
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (home / "entry_points.txt").write_text(f"[tracecore.{group}]\nbroken = {value}\n")
    source = Path(main.__code__.co_filename).parents[2]
    result = subprocess.run(
        [sys.executable, "-m", "tracecore", "patterns", "test", "pod_evicted", "storage_failure"],
        env={"PYTHONPATH": f"{tmp_path}:{source}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr.count("is left out") == 1, result.stderr
    assert why in result.stderr
