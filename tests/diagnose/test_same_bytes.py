"""The same directory gives the same bytes: in any order of files, with any number of processes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.page import page
from tracecore.incidents.text import report

INCIDENTS = Path(__file__).resolve().parents[2] / "examples" / "incidents"
SOME = ["mesh_hang", "checkpoint_full", "elastic_gives_up", "cgroup_oom_loader"]


def printed(path: Path | list[Path], jobs: int = 1) -> tuple[bytes, str, str]:
    diagnosis = diagnose(path if isinstance(path, list) else [path], jobs=jobs)
    return msgspec.json.encode(diagnosis.document()), report(diagnosis), page(diagnosis)


@pytest.mark.parametrize("scenario", SOME)
def test_order_of_files_on_disk_does_not_matter(scenario: str, tmp_path: Path) -> None:
    source = INCIDENTS / scenario
    files = sorted(path for path in source.rglob("*") if path.is_file())
    results = []
    for order in (files, files[::-1]):
        target = tmp_path / "bundle"
        shutil.rmtree(target, ignore_errors=True)
        for number, path in enumerate(order):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            os.utime(copy, (number, number))
        results.append(printed(target))
    assert results[0] == results[1]


@pytest.mark.parametrize("scenario", SOME)
def test_order_of_arguments_does_not_matter(scenario: str) -> None:
    files = sorted((INCIDENTS / scenario).iterdir())
    assert printed(files) == printed(files[::-1])


def test_number_of_processes_does_not_matter(tmp_path: Path) -> None:
    # More files than one process is given at once.
    for copy in range(20):
        shutil.copytree(
            INCIDENTS / "mesh_hang", tmp_path / f"{copy:02d}", ignore=shutil.ignore_patterns("fr", "truth.json")
        )
    assert printed(tmp_path) == printed(tmp_path, jobs=2)
