"""One failure class and one retry decision, whoever is asked; and advice that agrees with them."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tracecore.actions import policy as policies
from tracecore.actions.classify import classify
from tracecore.actions.failure import CLASSES
from tracecore.actions.incident_failure import failure_of_facts
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.rules import standard
from tracecore.actions.supervisor.judgement import Ended, judge
from tracecore.actions.supervisor.process import Exit
from tracecore.actions.tail import MAX_BYTES
from tracecore.diagnose.offline import diagnose
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.incidents.incident import Incident
from tracecore.incidents.page import page
from tracecore.incidents.text import class_and_decision
from tracecore.patterns import types

ROOT = Path(__file__).resolve().parents[2]
INCIDENTS = sorted(path.parent for path in (ROOT / "examples" / "incidents").glob("*/truth.json"))
GOLDENS = sorted((ROOT / "src" / "tracecore" / "patterns").glob("*/cases/golden/*.json"))

#: What advice must not say beside a decision.
CONTRADICTS = {
    "retry": re.compile(
        r"(?i)\bfix (?:the )?(?:code|data|program|it\b)|\bdo(?:es)? not (?:retry|help to)|\bnot retry"
        r"|before (?:you )?(?:re)?start|\bbefore you submit again|will fail again|raises it again"
    ),
    "stop": re.compile(
        r"(?i)\bretry\b(?! (?:helps )?only)|\btry (?:it )?again\b|\bworth a retry\b|start again elsewhere"
    ),
}


def contradictions(advice: str, decision: str) -> list[str]:
    return CONTRADICTS[decision].findall(advice) if decision in CONTRADICTS else []


def default_classes() -> dict[str, str]:
    """The table of docs/classify.md."""
    text = (ROOT / "docs" / "classify.md").read_text(encoding="utf-8")
    section = text.partition("\n## The class of a pattern\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return {name.strip("`"): row[1].strip() for row in rows for name in row[0].split(", ")}


def test_every_pattern_has_one_default_class_and_the_docs_name_it() -> None:
    rules = standard()
    found = {kind.name: rules.for_verdict(kind.name, {}) for kind in types()}
    assert [name for name, rule in found.items() if rule is None] == []
    assert {name: rule.failure_class for name, rule in found.items() if rule is not None} == default_classes()


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda path: f"{path.parents[2].name}/{path.stem}")
def test_advice_of_a_verdict_agrees_with_its_class(golden: Path) -> None:
    for verdict in json.loads(golden.read_text(encoding="utf-8")):
        info = classify(None, None, b"", verdict)
        assert info.failure_class in CLASSES
        assert contradictions(verdict["remediation"], info.retry.decision) == []
        assert contradictions(info.suggestion, info.retry.decision) == []


def test_suggestions_agree_with_what_the_default_policy_does() -> None:
    policy = policies.standard()
    for rule in standard().rules:
        if rule.role in ("chatter", "stop") or rule.stop:
            continue
        for kind in {rule.failure_class, rule.ended or rule.failure_class}:
            decision = "retry" if policy.classes[kind].retries else "stop"
            assert contradictions(rule.suggestion, decision) == [], rule.name


@pytest.fixture(scope="module", params=INCIDENTS, ids=lambda folder: folder.name)
def recorded(request: pytest.FixtureRequest) -> Diagnosis:
    return diagnose([request.param])


def incidents(said: Diagnosis) -> list[tuple[Incident, Mapping[str, Any]]]:
    return [(incident, incident.failure or {}) for incident in said.incidents]


def test_recorded_incidents_have_advice_that_agrees(recorded: Diagnosis) -> None:
    for incident, failure in incidents(recorded):
        assert contradictions(incident.advice, failure["retry"]["decision"]) == [], incident.headline
        assert contradictions(failure.get("suggestion", ""), failure["retry"]["decision"]) == [], incident.headline


def test_recorded_incidents_have_one_class(recorded: Diagnosis, tmp_path: Path) -> None:
    """By `diagnose`, on its page, by the agent, by `supervise`, and by `classify` with the diagnosis."""
    document = recorded.document()
    shown = page(recorded)
    for number, (incident, failure) in enumerate(incidents(recorded)):
        wanted = failure["class"], failure["retry"]["decision"]
        words = class_and_decision(failure)
        assert words.replace("'", "&#x27;") in shown or words in shown
        if incident.root is None or failure["class"] == "none":
            continue
        live = failure_of_facts(incident, recorded.run.attempts.get((incident.job, incident.attempt)))
        # The agent has facts, not lines: what no recipe knows it does not see.
        if failure["evidence"]["rule"] != "limits":
            assert (live["class"], live["retry"]["decision"]) == wanted, ("agent", incident.headline)
        one = {**document, "incidents": [document["incidents"][number]]}
        ended = Ended(folder=tmp_path, logs=(), exit=Exit(exit_code=1), env={}, since=0)
        judged = judge(ended, policies.standard(), FailureLedger(), 0, diagnose=lambda _, one=one: one)  # type: ignore[misc]
        assert (judged.failure.failure_class, judged.failure.retry.decision) == wanted, ("supervise", incident.headline)


def test_a_hang_is_infrastructure_for_supervise_and_diagnose(tmp_path: Path) -> None:
    log = tmp_path / "rank0.log"
    steps = "".join(f"2026-01-01 00:00:{second:02} step: {second} loss: 2.1\n" for second in range(50))
    log.write_text(steps + "2026-01-01 00:20:00 still here\n")
    (incident,) = diagnose([log]).incidents
    assert incident.root is None
    assert (incident.failure or {})["class"] == "infrastructure"
    ended = Ended(
        folder=tmp_path, logs=(log,), exit=None, env={}, since=0, said="no progress for 1140 s", reason="Stalled"
    )
    judged = judge(ended, policies.standard(), FailureLedger(), 0)
    assert judged.failure.failure_class == "infrastructure"


def test_memory_of_a_cgroup_is_infrastructure_for_everybody(tmp_path: Path) -> None:
    line = "Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:8kB, file-rss:0kB"
    (tmp_path / "dmesg.log").write_text(f"[ 7063.247407] {line}, shmem-rss:0kB, UID:0 pgtables:1kB oom_score_adj:0\n")
    said = {(incident.failure or {})["class"] for incident in diagnose([tmp_path]).incidents}
    assert said <= {"infrastructure"}
    for info in (classify(137, None, line), classify(1, None, line), classify(137, None, "", reason="OOMKilled")):
        assert (info.failure_class, info.retry.decision) == ("infrastructure", "retry")
        assert "a retry helps only with a higher limit or less memory" in info.suggestion


@pytest.mark.parametrize(
    ("exit_code", "log", "said"),
    [
        (1, "ValueError: bad shape", "the cause is in the code, and the policy allows no retry"),
        (1, "checksum failed", "the cause is in the data, and the policy allows no retry"),
        (1, "connection refused", "retry 1 of 3 at once"),
        (1, "CUDA out of memory", "retry 1 of 1 after 30 s"),
    ],
)
def test_decisions_read_as_sentences(exit_code: int, log: str, said: str) -> None:
    assert classify(exit_code, None, log).retry.reason == said


@pytest.mark.parametrize(
    ("stop", "retry", "said"),
    [
        ("preempted", True, "the job was preempted, which is not a failure and uses up no retry"),
        ("cancelled", False, "the job was cancelled, so it is not started again"),
    ],
)
def test_stops_read_as_sentences(stop: str, retry: bool, said: str) -> None:
    decision = policies.standard().decide(policies.failure_of({"stop": stop}), FailureLedger(), 0)
    assert (decision.retry, decision.reason) == (retry, said)


def single_logs() -> list[Path]:
    """Logs of recorded failures of which there is only one: what `supervise` and `classify` have of them."""
    found = []
    for truth in sorted((ROOT / "examples").glob("incidents*/*/truth.json")):
        logs = [path for path in truth.parent.glob("*.[lo][ou][gt]") if "dmesg" not in path.name]
        if len(logs) == 1 and json.loads(truth.read_text())["failure_classes"] != ["none"]:
            found.append(logs[0])
    return found


#: Where `classify` on the tail still says something else, and why.
TAIL_DIFFERS = {
    "double_free": "the abort of one rank is known by its label; the end of the log has the watchdogs of the others",
    "lone_receive": "that one rank called something else is told by lines of all ranks together",
    "waits_for_a_queue": "an empty queue may follow from a loader that ended; the diagnosis blames the rank",
    "bincount_fr": "that ranks gave different sizes is told by lines of all ranks together",
    "helpers_complain": "without ranks a deadline of a helper comes before the exception of the trainer",
    "virtual_call_on_nothing": "another line of the journal tells which rank the process that aborted is",
}


@pytest.mark.parametrize("log", single_logs(), ids=lambda path: path.parent.name)
def test_a_single_log_has_one_class(log: Path, tmp_path: Path) -> None:
    """By `diagnose`, `supervise` (with the same folder), the agent and `classify` on the log's end."""
    folder = tmp_path / "evidence"
    folder.mkdir()
    shutil.copy(log, folder / "output.log")
    (folder / "exit_codes.json").write_text('{"0": 1}')
    said = diagnose([folder])
    document = said.document()
    ended = Ended(folder=folder, logs=(folder / "output.log",), exit=Exit(exit_code=1), env={}, since=0)
    judged = judge(ended, policies.standard(), FailureLedger(), 0, diagnose=lambda _: document).failure
    (failure, *_) = [incident["failure"] for incident in document["incidents"]] or [judged.document()]
    wanted = failure["class"], failure["retry"]["decision"]
    assert (judged.failure_class, judged.retry.decision) == wanted
    if said.incidents and said.incidents[0].root is not None:
        incident = said.incidents[0]
        live = failure_of_facts(incident, said.run.attempts.get((incident.job, incident.attempt)))
        assert (live["class"], live["retry"]["decision"]) == wanted
    tail = classify(1, None, log.read_bytes()[-MAX_BYTES:], policy=policies.standard())
    assert ((tail.failure_class, tail.retry.decision) == wanted) == (log.parent.name not in TAIL_DIFFERS)


def test_there_are_single_logs() -> None:
    assert len(single_logs()) > 60
