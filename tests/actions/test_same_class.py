"""The same evidence has the same failure class in `diagnose`, `classify` and the agent."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tracecore.actions.classify import classify
from tracecore.actions.incident_failure import failure_of, failure_of_facts
from tracecore.diagnose import offline

if TYPE_CHECKING:
    from pathlib import Path

    from tracecore.incidents.incident import Incident
    from tracecore.incidents.run import JobAttempt
    from tracecore.signals.bundle.discovery import Bundle

RECORDED = (
    "lock_is_held",
    "loader_worker_leaves",
    "shard_is_missing",
    "loader_times_out",
    "gradient_norm_raises",
    "background_thread_keeps_it",
    "too_many_files",
    "not_positive",
    "damaged_safetensors",
    "over_quota",
)
#: An Ascend watchdog is quoted inside an exception; `classify` sees the hang, `diagnose` the rank that raised.
KNOWN = {"ft198"}


@pytest.mark.parametrize("name", RECORDED)
def test_the_agent_gives_the_class_of_diagnose(
    name: str, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes: list[tuple[str, str]] = []

    def both(incident: Incident, attempt: JobAttempt | None, bundle: Bundle, *, last: bool = True) -> dict[str, Any]:
        live = failure_of_facts(incident, attempt)
        found = failure_of(incident, attempt, bundle, last=last)
        classes.append((live["class"], found["class"]))
        return found

    monkeypatch.setattr(offline, "failure_of", both)
    offline.diagnose([pytestconfig.rootpath / "examples" / "incidents-2" / name])
    assert classes
    assert classes[0][0] == classes[0][1]


def test_classify_gives_the_class_of_diagnose(shared_data: Path, tmp_path: Path) -> None:
    """With the exit status, as `supervise` has it."""
    rows = [json.loads(line) for line in (shared_data / "issue_logs_2.jsonl").read_text().splitlines()]
    texts = [row for row in rows if row["file"].endswith(".log") and not row["benign"] and row["id"] not in KNOWN]
    differ = []
    for row in texts[::2]:
        folder = tmp_path / row["id"]
        folder.mkdir()
        (folder / "rank0.log").write_text(row["text"])
        (folder / "exit_codes.json").write_text('{"0": 1}')
        incidents = offline.diagnose([folder]).document()["incidents"]
        found = incidents[0]["failure"]["class"] if incidents else "none"
        told = classify(1, None, row["text"]).failure_class
        if found != told:
            differ.append((row["id"], found, told))
    assert differ == []
