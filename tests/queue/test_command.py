"""`tracecore queue` as people use it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest


def queue(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tracecore", "queue", "--db", str(folder / "queue.db"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)


def test_from_submit_to_metrics(tmp_path: Path) -> None:
    options = ("--name", "good", "-e", "A=b=c", "--track", "wandb.project=p")
    assert queue(tmp_path, "submit", *options, "--", "sh", "-c", "seq 5; pwd").stdout == "1\n"
    bad = queue(tmp_path, "submit", "--json", "--priority", "3", "--", sys.executable, "-c", "raise ValueError('no')")
    assert json.loads(bad.stdout)["priority"] == 3
    done = queue(tmp_path, "work", "--drain", "--no-diagnose")
    assert done.returncode == 0
    assert done.stdout == ""
    listed = json.loads(queue(tmp_path, "list", "--json").stdout)
    assert listed["counts"] == {"queued": 0, "running": 0, "completed": 1, "failed": 1, "dead": 0, "cancelled": 0}
    assert {task["id"]: task["status"] for task in listed["tasks"]} == {1: "completed", 2: "failed"}
    assert "completed" in queue(tmp_path, "list").stdout
    assert queue(tmp_path, "logs", "1").stdout == f"1\n2\n3\n4\n5\n{tmp_path}\n"
    assert queue(tmp_path, "logs", "1", "-n", "2").stdout == f"5\n{tmp_path}\n"
    shown = queue(tmp_path, "show", "1").stdout
    assert "A=b=c" in shown
    failed = json.loads(queue(tmp_path, "show", "2", "--json").stdout)
    assert failed["attempts"][0]["failure"]["class"] == "code"
    metrics = queue(tmp_path, "metrics").stdout
    assert 'tracecore_queue_tasks{status="failed"} 1.0' in metrics
    assert 'tracecore_queue_failures_total{class="code"} 1.0' in metrics
    assert "tracecore_queue_run_seconds_count 2.0" in metrics
    assert queue(tmp_path, "metrics", "--output", str(tmp_path / "q.prom")).stdout == ""
    assert "tracecore_queue_depth 0.0" in (tmp_path / "q.prom").read_text()
    assert queue(tmp_path, "retry", "2").returncode == 0
    assert queue(tmp_path, "cancel", "2").stderr == "task 2: cancelled\n"


def test_a_dead_letter_is_shown_with_its_record_and_raised(tmp_path: Path) -> None:
    queue(tmp_path, "submit", "--", "sh", "-c", "kill -9 $$")
    queue(tmp_path, "work", "--drain", "--no-diagnose")
    dead = json.loads(queue(tmp_path, "dead", "--json").stdout)["tasks"]
    assert [(task["id"], task["failure"]["class"], task["attempts"]) for task in dead] == [(1, "infrastructure", 4)]
    assert queue(tmp_path, "retry", "--dead").stderr == "task 1: queued\n"
    assert json.loads(queue(tmp_path, "dead", "--json").stdout)["tasks"] == []


def test_watching_goes_on_until_told(tmp_path: Path) -> None:
    queue(tmp_path, "submit", "--", "true")
    command = [sys.executable, "-m", "tracecore", "queue", "--db", str(tmp_path / "queue.db")]
    with subprocess.Popen(
        [*command, "list", "--watch", "--every", "0.2s", "--json"], stdout=subprocess.PIPE, text=True
    ) as watch:
        assert watch.stdout is not None
        assert json.loads(watch.stdout.readline())["counts"]["queued"] == 1
        queue(tmp_path, "cancel", "1")
        end = time.monotonic() + 20
        while json.loads(watch.stdout.readline())["counts"]["cancelled"] != 1:
            assert time.monotonic() < end
        watch.kill()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("show", "7"), 1, "no task 7"),
        (("logs", "7"), 1, "no task 7"),
        (("retry",), 2, "which task"),
        (("submit",), 2, "Missing argument"),
        (("submit", "--env", "A", "--", "true"), 2, "NAME=VALUE"),
        (("submit", "--policy", "nonesuch", "--", "true"), 2, "no such policy"),
        (("submit", "--track", "wandb.api_key=x", "--", "true"), 2, "where the worker runs"),
        (("submit", "--timeout", "soon", "--", "true"), 2, "no duration"),
        (("submit", "--dataset", "x@sha256:12", "--", "true"), 2, "64 hexadecimal digits"),
        (("work", "--lease", "0s"), 2, "at least 1s"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, arguments: tuple[str, ...], status: int, message: str) -> None:
    queue(tmp_path, "submit", "--", "true")
    done = queue(tmp_path, *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
