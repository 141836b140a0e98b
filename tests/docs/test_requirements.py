"""docs/requirements.md names files, tests and cases that exist, and every statement has a test."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tracecore.patterns import types
from tracecore.patterns.cases import cases_of, folder

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "requirements.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| statement")
]
KINDS = {kind.name: kind for kind in types()}


@cache
def source(path: str) -> str:
    return (ROOT / path).read_text()


@cache
def case_names(pattern: str) -> frozenset[str]:
    return frozenset(case.name for case in cases_of(KINDS[pattern]))


def missing(row: list[str]) -> list[str]:
    """What a row names that does not exist."""
    statement, places, tests = row
    wrong = [] if statement else ["no statement"]
    paths = re.findall(r"`([^`]+)`", places)
    wrong += [path for path in paths if not (ROOT / path).exists()]
    if not paths:
        wrong.append("no place")
    named = 0
    for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests):
        named += 1
        if not (ROOT / path).is_file() or not re.search(rf"^(?:async )?def {test}\(", source(path), re.M):
            wrong.append(f"{path}::{test}")
    for pattern, case in re.findall(r"(?<!recipe )case `(\w+)/(\w+)`", tests):
        named += 1
        if pattern not in KINDS or case not in case_names(pattern):
            wrong.append(f"case {pattern}/{case}")
    for pattern, name in re.findall(r"falsifier `(\w+): ([^`]+)`", tests):
        named += 1
        if f"name: {name}," not in (folder(KINDS[pattern]) / "cases" / "falsifiers.yaml").read_text():
            wrong.append(f"falsifier {pattern}: {name}")
    for recipe, name in re.findall(r"recipe case `(\w+): ([^`]+)`", tests):
        named += 1
        if f"- name: {name}\n" not in source(f"src/tracecore/recipes/{recipe}.cases.yaml"):
            wrong.append(f"recipe case {recipe}: {name}")
    if not named:
        wrong.append("no test")
    return wrong


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "_", row[0])[:60])
def test_everything_that_is_named_exists(row: list[str]) -> None:
    assert len(row) == 3, row
    assert missing(row) == []


def test_every_document_is_there_and_nothing_is_left_empty() -> None:
    sections = re.findall(r"^## (\d{3}): ", TEXT, re.M)
    assert sections == ["000", "001", "002", "003", "004"]
    assert len(ROWS) > 90


def test_what_does_not_exist_is_found() -> None:
    assert missing(["a", "`docs/nowhere.md`", "`tests/docs/test_requirements.py::test_nothing`"]) == [
        "docs/nowhere.md",
        "tests/docs/test_requirements.py::test_nothing",
    ]
    assert missing(["a", "`docs`", "case `cuda_oom/no_such_case` falsifier `cuda_oom: none`"]) == [
        "case cuda_oom/no_such_case",
        "falsifier cuda_oom: none",
    ]
    assert missing(["a", "`docs`", "recipe case `container: none`"]) == ["recipe case container: none"]
    assert missing(["a", "", ""]) == ["no place", "no test"]
