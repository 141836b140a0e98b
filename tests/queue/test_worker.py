"""Workers that run real commands, and are killed while they do."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from sqlalchemy import Engine

from tracecore.actions.supervisor import process
from tracecore.queue.database import connect, ident
from tracecore.queue.store import Queue
from tracecore.queue.task import Dataset, Spec
from tracecore.queue.worker import QueueWorker


def worker(queue: Queue, engine: Engine, folder: Path, **settings: Any) -> QueueWorker:
    return QueueWorker(queue, ident(engine), name="w", host="h", logs=folder / "logs", **settings)


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def output(queue: Queue, task: int, attempt: int = -1) -> str:
    return (Path(queue.attempts(task)[attempt].log) / "evidence" / "output.log").read_text()


@pytest.fixture
def sqlite(tmp_path: Path) -> Engine:
    return connect(str(tmp_path / "queue.db"), durable=False)


def test_a_task_runs_with_what_it_was_given(tmp_path: Path, engine: Engine) -> None:
    queue = Queue(engine)
    (tmp_path / "data.bin").write_bytes(b"rows")
    spec = Spec(
        name="job",
        command=("sh", "-c", 'pwd; echo "$COLOUR $WANDB_PROJECT $MLFLOW_TRACKING_URI $TENSORBOARD_LOGDIR"; '
                 'cat "$TRACECORE_DATASET_ROWS"; echo; echo "$TRACECORE_QUEUE_TASK $TRACECORE_QUEUE_TOKEN" >&2'),
        cwd=str(tmp_path),
        env={"COLOUR": "blue"},
        datasets=(Dataset(f"{tmp_path}/data.bin", "sha256:" + hashlib.sha256(b"rows").hexdigest(), "rows"),
                  Dataset("s3://bucket/more")),
        tracking={"wandb": {"project": "p"}, "mlflow": {"tracking_uri": "http://m"}, "tensorboard": {"logdir": "tb"}},
    )  # fmt: skip
    task = queue.submit(spec)
    assert worker(queue, engine, tmp_path).run(drain=True) == 1
    assert queue.get(task).status == "completed"
    assert output(queue, task) == f"{tmp_path}\nblue p http://m tb\nrows\n{task} 1\n"


@pytest.mark.parametrize("wrong", ["missing", "changed", "changed folder"])
def test_data_that_is_not_what_it_should_be_stops_the_task_before_it_starts(
    tmp_path: Path, sqlite: Engine, wrong: str
) -> None:
    queue = Queue(sqlite)
    data = tmp_path / "data"
    if wrong == "changed":
        data.write_bytes(b"x")
    elif wrong == "changed folder":
        (data / "sub").mkdir(parents=True)
        (data / "sub" / "part").write_bytes(b"x")
    task = queue.submit(
        Spec(name="t", command=("touch", f"{tmp_path}/ran"), datasets=(Dataset(str(data), "md5:" + "0" * 32),))
    )
    worker(queue, sqlite, tmp_path).run(drain=True)
    found = queue.get(task)
    assert (found.status, found.failure_class) == ("failed", "data")
    assert ("dataset not found" if wrong == "missing" else "checksum failed") in found.reason
    assert not (tmp_path / "ran").exists()


def test_a_folders_checksum_is_that_of_its_listing(tmp_path: Path) -> None:
    from tracecore.queue.datasets import digest

    for name in ("b/2", "a", "b/10", "ü"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    shell = "find . -type f | cut -c3- | LC_ALL=C sort | xargs -d'\\n' sha256sum | sha256sum | cut -d' ' -f1"
    expected = subprocess.run(
        shell, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout.strip()
    assert digest(str(tmp_path), "sha256") == expected


def test_failures_are_retried_by_class_and_die_in_the_end(tmp_path: Path, sqlite: Engine) -> None:
    queue = Queue(sqlite)
    killed = queue.submit(Spec(name="killed", command=("sh", "-c", "echo working; kill -9 $$")))
    bug = queue.submit(Spec(name="bug", command=(sys.executable, "-c", "raise KeyError('x')")))
    lucky = queue.submit(Spec(name="lucky", command=("sh", "-c", "[ $TRACECORE_ATTEMPT = 2 ] || kill -9 $$")))
    worker(queue, sqlite, tmp_path).run(drain=True, idle_s=0.05)
    assert {t.spec.name: (t.status, t.failure_class, t.attempts) for t in queue.tasks()} == {
        "killed": ("dead", "infrastructure", 4),
        "bug": ("failed", "code", 1),
        "lucky": ("completed", "", 2),
    }
    attempts = queue.attempts(killed)
    assert [a.retried for a in attempts] == [True, True, True, False]
    assert all(a.signal == "SIGKILL" and a.failure is not None for a in attempts)
    last = attempts[-1].failure
    assert last is not None
    assert (last["class"], last["retry_count"], last["log_tail"]) == ("infrastructure", 3, "working")
    assert json.loads((Path(attempts[-1].log) / "failure.json").read_text()) == last
    error = queue.attempts(bug)[0].failure
    assert error is not None
    assert "KeyError" in error["evidence"]["line"]
    # From the dead letters it begins with a clean slate.
    queue.retry(killed)
    worker(queue, sqlite, tmp_path).run(limit=1)
    assert queue.get(killed).status == "queued"
    assert queue.get(lucky).status == "completed"


def test_what_takes_too_long_is_ended(tmp_path: Path, sqlite: Engine) -> None:
    queue = Queue(sqlite)
    task = queue.submit(Spec(name="t", command=("sleep", "600"), timeout_s=0.5, grace_s=0.5, max_restarts=0))
    worker(queue, sqlite, tmp_path).run(drain=True)
    found = queue.get(task)
    assert (found.status, found.failure_class) == ("failed", "resource")
    assert "deadline exceeded" in found.reason


WORK = (sys.executable, "-m", "tracecore", "queue", "--db")


Work: TypeAlias = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def work() -> Iterator[Work]:
    """Starts workers; none outlives the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(place: str | Path, *options: str) -> subprocess.Popen[bytes]:
        command = [*WORK, str(place), "work", "--no-diagnose", *options]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.wait()


def test_a_running_task_is_cancelled(tmp_path: Path, place: str, engine: Engine, work: Work) -> None:
    queue = Queue(engine)
    task = queue.submit(Spec(name="t", command=("sleep", "600"), grace_s=0.5))
    running = work(place, "--lease", "2s", "--logs", str(tmp_path / "logs"), "--drain")
    assert eventually(lambda: queue.get(task).status == "running")
    queue.cancel(task)
    assert eventually(lambda: queue.get(task).status == "cancelled")
    assert running.wait(20) == 0
    assert process.marked(f"queue/{ident(engine)}/{task}/1") == []


def test_a_worker_that_is_told_to_stop_gives_its_task_back(tmp_path: Path, sqlite: Engine, work: Work) -> None:
    queue = Queue(sqlite)
    code = (
        "import signal, sys, time\n"
        "signal.signal(15, lambda *_: (print('saved', flush=True), sys.exit(143)))\n"
        "print('up', flush=True)\ntime.sleep(60)"
    )
    task = queue.submit(Spec(name="t", command=(sys.executable, "-c", code)))
    running = work(tmp_path / "queue.db")
    log = tmp_path / "queue.tasks" / f"task-{task}" / "attempt-1" / "evidence" / "output.log"
    assert eventually(lambda: log.exists() and log.read_text() == "up\n")
    running.terminate()
    assert running.wait(20) == 0
    assert queue.get(task).status == "queued"
    assert [a.status for a in queue.attempts(task)] == ["preempted"]
    assert log.read_text() == "up\nsaved\n"


def test_a_worker_that_hangs_loses_its_task_and_what_it_runs(tmp_path: Path, sqlite: Engine, work: Work) -> None:
    """A stopped worker cannot renew; the keeper ends the command in time, before another may take the task."""
    queue = Queue(sqlite)
    task = queue.submit(Spec(name="t", command=("sh", "-c", "echo pid $$; [ $TRACECORE_ATTEMPT = 2 ] || sleep 600")))
    running = work(tmp_path / "queue.db", "--lease", "1s")
    log = tmp_path / "queue.tasks" / f"task-{task}" / "attempt-1" / "evidence" / "output.log"
    assert eventually(lambda: log.exists() and log.read_text())
    running.send_signal(signal.SIGSTOP)
    assert eventually(lambda: process.marked(f"queue/{ident(sqlite)}/{task}/1") == [], 60)
    assert queue.get(task).status == "running"
    other = work(tmp_path / "queue.db", "--lease", "1s", "--drain")
    assert other.wait(40) == 0
    running.send_signal(signal.SIGCONT)
    time.sleep(1)
    running.terminate()
    assert running.wait(20) == 0
    assert [a.status for a in queue.attempts(task)] == ["lost", "completed"]
    assert queue.get(task).status == "completed"


TASK = """
import fcntl, os, sys, time
log, task = sys.argv[1:]
lock = open(f"{log}.{task}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    alone = "alone"
except BlockingIOError:
    alone = "TWICE"
with open(log, "a") as file:
    file.write(f"{task} {alone} begin\\n")
    file.flush()
    time.sleep(0.15)
    file.write(f"{task} {alone} end\\n")
"""


@pytest.mark.heavy
@pytest.mark.parametrize("kills", [12])
def test_workers_killed_at_random_lose_nothing_and_double_nothing(
    tmp_path: Path, sqlite: Engine, work: Work, kills: int
) -> None:
    queue = Queue(sqlite)
    chance = random.Random(5)
    journal = tmp_path / "journal"
    tasks = [
        queue.submit(Spec(name="t", command=(sys.executable, "-S", "-c", TASK, str(journal), str(n))))
        for n in range(30)
    ]
    options = ("--lease", "1s", "--drain")
    workers = [work(tmp_path / "queue.db", *options) for _ in range(3)]
    for _ in range(kills):
        time.sleep(chance.uniform(0.05, 0.6))
        victim = chance.randrange(3)
        workers[victim].kill()
        workers[victim].wait()
        workers[victim] = work(tmp_path / "queue.db", *options)
    for one in workers:
        assert one.wait(120) == 0
    assert queue.counts()["completed"] == len(tasks)
    lines = Counter(line for line in journal.read_text().splitlines())
    assert not [line for line in lines if "TWICE" in line]
    for number, task in enumerate(tasks):
        attempts = queue.attempts(task)
        # One success each, and every other attempt was lost with its worker; whatever was begun was known.
        assert Counter(a.status for a in attempts)["completed"] == 1
        assert {a.status for a in attempts} <= {"completed", "lost"}
        assert 1 <= lines[f"{number} alone end"] <= lines[f"{number} alone begin"] <= len(attempts)
