"""What `tracecore supervise` tells: where things are, what is missing, whom it killed, how a run stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

CRASH = "import sys; print('step 1 loss 2.0', flush=True); raise ValueError('bad batch')"


def supervise(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracecore", "supervise", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env={**os.environ, **(env or {})}
    )


def test_it_says_where_diagnosis_and_evidence_are(tmp_path: Path) -> None:
    done = supervise(tmp_path, "--state-dir", "state", "--max-restarts", "0", "--", sys.executable, "-c", CRASH)
    assert done.returncode == 1
    assert "diagnosis: state/attempts/0001/report.html" in done.stderr
    assert "evidence: state/attempts/0001/evidence" in done.stderr
    shown = (tmp_path / "state/attempts/0001/report.html").read_text()
    assert "ValueError: bad batch" in shown
    assert (tmp_path / "state/attempts/0001/report.html").stat().st_mode & 0o077 == 0


def test_the_exit_status_is_evidence(tmp_path: Path) -> None:
    supervise(tmp_path, "--state-dir", "state", "--max-restarts", "0", "--", "sh", "-c", "echo step 1; exit 7")
    place = tmp_path / "state/attempts/0001"
    assert json.loads((place / "evidence/exit_codes.json").read_text()) == {"launcher": 7}
    found = json.loads((place / "diagnosis.json").read_text())
    assert found["status"] == "incident"
    assert "7" in found["incidents"][0]["headline"]
    assert found["coverage"]["skipped"] == []


def test_processes_it_had_to_kill_are_named(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    script = f"""import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {stubborn!r}], start_new_session=True, stdout=subprocess.PIPE)
child.stdout.readline()
sys.exit(3)
"""
    done = supervise(
        tmp_path, "--state-dir", "state", "--grace", "1s", "--max-restarts", "0", "--", sys.executable, "-c", script
    )
    assert "1 process had to be killed: " in done.stderr
    assert "import sig" in done.stderr
    record = json.loads((tmp_path / "state/attempts/0001/attempt.json").read_text())
    assert len(record["killed"]) == 1


def test_that_py_spy_is_missing_is_said(tmp_path: Path) -> None:
    script = "import time; print('step 1 loss 2.0', flush=True); time.sleep(600)"
    options = ("--stall-timeout", "1s", "--grace", "1s", "--max-restarts", "0", "--no-diagnose")
    done = supervise(
        tmp_path, "--state-dir", "state", *options, "--", sys.executable, "-c", script, env={"PATH": "/usr/bin:/bin"}
    )
    if (Path(sys.executable).parent / "py-spy").exists():
        pytest.skip("py-spy is installed beside this Python")
    assert "py-spy is not installed" in done.stderr


def test_status_says_where_a_run_stands(tmp_path: Path) -> None:
    none = supervise(tmp_path, "--state-dir", "state", "status")
    assert none.returncode == 1
    assert "there is no supervised run in state" in none.stderr
    assert list(tmp_path.iterdir()) == []
    running = subprocess.Popen(
        [sys.executable, "-m", "tracecore", "supervise", "--state-dir", "state", "--", "sleep", "60"], cwd=tmp_path
    )
    try:
        end = time.monotonic() + 30
        while "running as process" not in (now := supervise(tmp_path, "--state-dir", "state", "status").stdout):
            assert time.monotonic() < end, now
        assert now.startswith("sleep 60\n")
        found = json.loads(supervise(tmp_path, "--state-dir", "state", "-o", "json", "status").stdout)
        assert found["phase"] == "running"
        assert found["attempt"] == 1
    finally:
        running.terminate()
        running.wait()
    found = json.loads(supervise(tmp_path, "--state-dir", "state", "-o", "json", "status").stdout)
    assert (found["phase"], found["outcome"]) == ("ended", "stopped")


def test_status_of_a_failed_run_names_the_failure(tmp_path: Path) -> None:
    supervise(tmp_path, "--state-dir", "state", "--max-restarts", "0", "--", sys.executable, "-c", CRASH)
    shown = supervise(tmp_path, "--state-dir", "state", "status").stdout
    assert "ended: failed (exit status 1)" in shown
    assert "ValueError: bad batch" in shown
    assert "report: state/attempts/0001/report.html" in shown
