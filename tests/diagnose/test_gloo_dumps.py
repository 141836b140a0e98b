"""Flight Recorder dumps of gloo, alone and packed: the truths of their README."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose

DUMPS = Path(__file__).resolve().parents[1] / "data" / "fr_gloo"


def first(path: Path) -> dict[str, Any] | None:
    incidents = diagnose([path]).document()["incidents"]
    return incidents[0] if incidents else None


@pytest.mark.parametrize(
    ("scenario", "pattern", "ranks"),
    [
        ("hang_one_rank", "nccl_hang", [2]),
        ("subgroup_hang", "nccl_hang", [3]),
        ("op_mismatch", "collective_mismatch", [1]),
    ],
)
def test_the_culprit_of_a_hang_is_named(scenario: str, pattern: str, ranks: list[int]) -> None:
    incident = first(DUMPS / scenario)
    assert incident is not None
    assert incident["root_cause"]["pattern"] == pattern
    assert incident["suspects"]["ranks"] == ranks


@pytest.mark.parametrize("scenario", ["healthy", "ring_wrap"])
def test_healthy_dumps_give_no_incident(scenario: str) -> None:
    assert first(DUMPS / scenario) is None


def test_a_rank_that_was_killed_is_named_though_it_left_no_dump() -> None:
    incident = first(DUMPS / "crash_one_rank")
    assert incident is not None
    assert incident["suspects"]["ranks"] == [2]


def test_dumps_in_an_archive_give_the_same_answer(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bundle.tar.gz", "w:gz") as tar:
        tar.add(DUMPS / "hang_one_rank", arcname="hang")
    incident = first(tmp_path / "bundle.tar.gz")
    assert incident is not None
    assert incident["suspects"]["ranks"] == [2]


def test_json_dumps_alone_name_the_culprit(tmp_path: Path) -> None:
    for dump in (DUMPS / "hang_one_rank").glob("fr_json_dump_*.json"):
        shutil.copy(dump, tmp_path)
    incident = first(tmp_path)
    assert incident is not None
    assert incident["suspects"]["ranks"] == [2]
