"""`tracecore classify` and `tracecore policy`, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracecore.actions import policy as policies
from tracecore.cli.main import main

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "rank0.log"
    file.write_text(OOM)
    return file


def record(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_json_has_class_suggestion_retry_and_evidence(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "--exit-code", "1", "--log", str(log), "--json"]) == 0
    document = record(capsys)
    assert document["class"] == "resource"
    assert {"suggestion", "retry", "evidence", "log_tail", "exit_code", "classified_at"} <= document.keys()


def test_text_quotes_the_line_and_says_what_to_do(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", "--exit-code", "1", "--log", str(log)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("resource: ")
    assert "line 1: RuntimeError: CUDA out of memory" in out
    assert "\nRetry 1 of 1 after 30 s.\n" in out


def test_negative_exit_codes_signals_and_reasons_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--exit-code", "-9"], ["--signal", "kill"], ["--reason", "NODE_FAIL"]):
        assert main(["classify", *arguments, "--json"]) == 0
        assert record(capsys)["class"] == "infrastructure"


def test_nothing_failed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ok.log"
    file.write_text("INFO timeout=1800\n")
    assert main(["classify", "--log", str(file)]) == 0
    assert capsys.readouterr().out.startswith("no failure: ")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--log", "no/such/file"],
        ["--signal", "SIGNOPE"],
        ["--exit-code", "1", "--policy", "no_such_policy"],
        ["--exit-code", "1", "--verdict", "no_such_pattern"],
    ],
)
def test_bad_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["classify", *arguments]) == 2
    assert "Error: " in capsys.readouterr().err


def test_a_ledger_counts_from_call_to_call_and_a_dry_run_does_not(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger.json"
    call = ["classify", "--exit-code", "1", "--log", str(log), "--ledger", str(ledger), "--json"]
    decisions = []
    for more in (["--dry-run"], [], ["--dry-run"], [], ["--step", "100"]):
        assert main([*call, *more]) == 0
        retry = record(capsys)["retry"]
        assert isinstance(retry, dict)
        decisions.append(retry["decision"])
    assert decisions == ["retry", "retry", "stop", "stop", "retry"]


def test_the_root_of_a_diagnosis_decides_and_names_what_to_leave_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diagnosis = {
        "incidents": [{
            "root_cause": {"pattern": "gpu_fault", "verdict": "gpu_fault-1"},
            "suspects": {"ranks": [3], "nodes": ["n7"], "gpus": ["0000:3b:00.0"], "pods": []},
        }],
        "verdicts": [{"verdict.id": "gpu_fault-1", "pattern.name": "gpu_fault", "headline": "x"}],
    }  # fmt: skip
    file = tmp_path / "diagnosis.json"
    file.write_text(json.dumps(diagnosis))
    assert main(["classify", "--exit-code", "1", "--verdict", str(file), "--json"]) == 0
    document = record(capsys)
    assert document["class"] == "infrastructure"
    excluded = document["exclude"]
    assert isinstance(excluded, dict)
    assert excluded["slurm"] == "--exclude=n7"


def test_policies_are_listed_shown_and_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "list"]) == 0
    assert {line.split()[0] for line in capsys.readouterr().out.splitlines()} == set(policies.names())
    assert main(["policy", "show", "default"]) == 0
    shown = capsys.readouterr().out
    assert "class resource: 1 retry, first after 30 s" in shown
    assert "when the job was cancelled: do not start it again" in shown
    assert main(["policy", "test", "default", "resilient"]) == 0
    assert "0 complaints" in capsys.readouterr().out
    broken = tmp_path / "team.yaml"
    text = (policies.directory() / "default.yaml").read_text(encoding="utf-8")
    broken.write_text(text.replace("resource: {retries: 1", "resource: {retries: 0"), encoding="utf-8")
    assert main(["policy", "test", str(broken)]) == 1
    assert f"{broken}:" in capsys.readouterr().err
    broken.write_text("name: x\n", encoding="utf-8")
    assert main(["policy", "test", str(broken)]) == 2
    assert f"{broken}:1:1: 'total' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--log", "-"], "Do not retry: the cause is in the code, and the policy allows no retry."),
        (["--reason", "CANCELLED"], "Do not retry: the job was cancelled, so it is not started again."),
        (["--reason", "PREEMPTED"], "Retry: the job was preempted, which is not a failure and uses up no retry."),
        (["--reason", "NODE_FAIL"], "Retry 1 of 3 at once."),
    ],
)
def test_the_decision_reads_as_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"ValueError: bad shape\n")))
    assert main(["classify", "--exit-code", "1", *arguments]) == 0
    assert said in capsys.readouterr().out.splitlines()
