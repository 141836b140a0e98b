"""The table of docs/identity.md names a test for each row, and every tested case has a row."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in (ROOT / "docs" / "identity.md").read_text().splitlines() if line.startswith("| ")][1:]
FILES = {
    "test_a_pod_gives": ROOT / "tests/signals/kubernetes/test_pod_identity.py",
    "test_a_process_gives": ROOT / "tests/signals/processes/test_process_identity.py",
}


def cases(path: Path) -> set[str]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return set(module.CASES)


@pytest.mark.parametrize("row", [row for row in ROWS if not row.startswith("|---")], ids=lambda row: row.split("|")[1])
def test_every_row_names_a_test(row: str) -> None:
    *_, tests, _ = row.split(" |")
    named = re.findall(r"`(test_\w+)(?:\[([^`]+)\])?`", tests)
    assert named
    for function, case in named:
        if case:
            assert case in cases(FILES[function])
        else:
            found = [p for p in (ROOT / "tests").rglob("test_*.py") if f"def {function}(" in p.read_text()]
            assert found, function


@pytest.mark.parametrize("function", FILES)
def test_every_case_has_a_row(function: str) -> None:
    named = set(re.findall(rf"`{function}\[([^`]+)\]`", "\n".join(ROWS)))
    assert named == cases(FILES[function])
