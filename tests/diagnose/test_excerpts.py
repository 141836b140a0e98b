"""Excerpts of other people's logs, one at a time, as somebody would paste them into a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracecore.diagnose.offline import diagnose


@pytest.fixture(scope="module")
def excerpts(shared_data: Path) -> list[dict[str, str]]:
    path = shared_data / "issue_logs.jsonl"
    if not path.exists():
        pytest.skip(f"no excerpts at {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def test_lines_that_only_look_like_failures_are_no_incident(excerpts: list[dict[str, str]], tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    wrong = []
    for excerpt in excerpts:
        if excerpt["class"] == "benign":
            log.write_text(excerpt["text"], encoding="utf-8")
            wrong += [(excerpt["id"], incident.headline) for incident in diagnose([log]).incidents]
    assert wrong == []


def test_most_failures_are_seen_to_be_failures(excerpts: list[dict[str, str]], tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    failed = [excerpt for excerpt in excerpts if excerpt["class"] != "benign"]
    found = right = 0
    for excerpt in failed:
        log.write_text(excerpt["text"], encoding="utf-8")
        incidents = diagnose([log]).incidents
        found += bool(incidents)
        right += bool(incidents) and (incidents[0].failure or {}).get("class") == excerpt["class"]
    print(f"{found} of {len(failed)} excerpts give an incident, {right} of them with the labelled class")
    assert found >= 0.8 * len(failed)
    assert right >= 0.55 * len(failed)
