"""The queue: operations for each second with four workers on one SQLite file; workers killed at 200 random instants.

An operation is one transaction: submit, claim, renew, finish. In the kill test every task writes down its begin and
end under a lock of its own, so that two runs of one task at the same time would be seen.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench import Measurement
from tracecore.queue.database import connect
from tracecore.queue.store import Queue
from tracecore.queue.task import Spec

WORKERS = 4
ROUNDS = 1000
#: Of the default run, and of `--full`.
KILLS, MANY = 40, 200

OPERATIONS = """
import json, sys, time
from tracecore.queue.database import connect
from tracecore.queue.store import AttemptOutcome, Queue
from tracecore.queue.task import Spec
place, name, rounds, durable = sys.argv[1:]
queue = Queue(connect(place, durable=durable == "1"))
queue.tasks()
print("ready", flush=True)
sys.stdin.read(1)
begun, slowest = time.perf_counter(), 0.0
for _ in range(int(rounds)):
    before = time.perf_counter()
    queue.submit(Spec(name="t", command=("true",)))
    slowest = max(slowest, time.perf_counter() - before)
    claim = queue.claim(name, "h", 30.0)
    queue.renew(claim)
    queue.finish(claim, AttemptOutcome(status="completed", exit_code=0))
print(json.dumps([time.perf_counter() - begun, slowest]))
"""

TASK = """
import fcntl, sys, time
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
    time.sleep(0.2)
    file.write(f"{task} {alone} end\\n")
"""


def measure() -> list[Measurement]:
    rows = []
    for name, durable in (("operations", False), ("operations.durable", True)):
        with tempfile.TemporaryDirectory() as folder:
            rate, slowest = _operations(f"{folder}/queue.db", durable)
        how = "every commit on the disk" if durable else "as workers do it"
        note = f"{WORKERS} processes, one SQLite file, {how}; slowest submit {slowest * 1000:.0f} ms"
        rows.append(Measurement(f"queue.{name}", rate, "per second", "" if durable else "≥ 1,000", note))
    return rows + _killed(KILLS)


def measure_full() -> list[Measurement]:
    """Many more kills."""
    return _killed(MANY)


def _killed(kills: int) -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        lost, doubled, tasks, attempts = _kills(Path(folder), kills)
    note = f"{kills} kills of {WORKERS} workers, {tasks} tasks, {attempts} attempts"
    return [
        Measurement("queue.kills.lost", lost, "tasks", "≤ 0", note),
        Measurement("queue.kills.doubled", doubled, "runs", "≤ 0", note),
    ]


def _busy(queue: Queue, workers: list[subprocess.Popen[bytes]]) -> list[int]:
    holding = {int(task.worker.rpartition(":")[2]) for task in queue.tasks(("running",))}
    return [number for number, worker in enumerate(workers) if worker.pid in holding]


def _operations(place: str, durable: bool) -> tuple[float, float]:
    connect(place)
    command = [sys.executable, "-c", OPERATIONS, place]
    workers = [
        subprocess.Popen(
            [*command, f"w{number}", str(ROUNDS), str(int(durable))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for number in range(WORKERS)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()
    begun = time.perf_counter()
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("g")
        worker.stdin.flush()
    results = [json.loads(worker.communicate()[0]) for worker in workers]
    seconds = time.perf_counter() - begun
    return WORKERS * ROUNDS * 4 / seconds, max(slowest for _, slowest in results)


def _kills(folder: Path, kills: int) -> tuple[int, int, int, int]:
    place, journal = folder / "queue.db", folder / "journal"
    queue = Queue(connect(str(place)))
    chance = random.Random(int(os.environ.get("BENCH_SEED", "1")))
    tasks: list[int] = []

    def submit() -> None:
        command = (sys.executable, "-S", "-c", TASK, str(journal), str(len(tasks)))
        tasks.append(queue.submit(Spec(name="t", command=command)))

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tracecore", "queue", "--db", str(place), "work", "--no-diagnose"]
        return subprocess.Popen([*command, "--lease", "1s", "--drain"], stderr=subprocess.DEVNULL)

    for _ in range(40):
        submit()
    workers = [start() for _ in range(WORKERS)]
    for _ in range(kills):
        submit()
        # One that holds a task, at any moment from its claim to a little after its end.
        while not (busy := _busy(queue, workers)):
            time.sleep(0.005)
        victim = chance.choice(busy)
        time.sleep(chance.uniform(0.0, 0.3))
        workers[victim].kill()
        workers[victim].wait()
        workers[victim] = start()
    for worker in workers:
        worker.wait()
    lines: Counter[str] = Counter(journal.read_text().splitlines())
    doubled = sum(count for line, count in lines.items() if "TWICE" in line)
    lost = attempts = 0
    for number, task in enumerate(tasks):
        found = queue.attempts(task)
        attempts += len(found)
        completed = sum(attempt.status == "completed" for attempt in found)
        doubled += max(0, completed - 1)
        lost += completed == 0 or lines[f"{number} alone end"] == 0
    return lost, doubled, len(tasks), attempts
