"""kill -9 of a worker and of the command: each bundle has one result in the end, and no process is left behind."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

from tracecore.archive.dataset import Archive, Result
from tracecore.archive.tasks import Diagnose, TaskLimits
from tracecore.archive.workers import LocalProcesses

pytestmark = pytest.mark.integration

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECORDED = sorted(path.parent for path in EXAMPLES.glob("incidents*/*/truth.json"))
SEED = int(os.environ.get("TRACECORE_ARCHIVE_SEED", "1"))


def test_a_killed_worker_is_replaced_and_its_task_done_again() -> None:
    workers = LocalProcesses(1, TaskLimits())
    try:
        for key in range(3):
            workers.submit(key, Diagnose(str(RECORDED[key]), ""))
        workers._assign()
        (process,) = workers._busy.values()
        os.kill(process._process.pid, signal.SIGKILL)
        outcomes = dict(workers.finished())
    finally:
        workers.close()
    assert sorted(outcomes) == [0, 1, 2]
    assert all(isinstance(outcome, Result) for outcome in outcomes.values())


def test_a_killed_command_goes_on_and_leaves_no_process(tmp_path: Path) -> None:
    chosen = random.Random(SEED)
    bundles, out = tmp_path / "bundles", tmp_path / "archive"
    for number in range(120):
        shutil.copytree(RECORDED[number * 2], bundles / f"{number:03d}")
    # Small batches, so that a kill finds some committed, one half written, and some not begun.
    start = (
        "import tracecore.archive.running as r, sys; r.BATCH = 4; from tracecore.cli.main import main; sys.exit(main())"
    )
    words = [
        sys.executable,
        "-c",
        start,
        "archive",
        "diagnose",
        "--each",
        str(bundles),
        "--out",
        str(out),
        "--jobs",
        "2",
    ]
    for _ in range(3):
        command = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
        before = len(list((out / "bundles").glob("*"))) if out.exists() else 0
        give_up = time.monotonic() + 120
        while command.poll() is None and time.monotonic() < give_up:
            if out.exists() and len(list((out / "bundles").glob("*"))) > before:
                break
            time.sleep(0.02)
        time.sleep(chosen.random() * 0.5)
        command.kill()
        command.wait()
        deadline = time.monotonic() + 30
        while _left(command.pid) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert _left(command.pid) == []
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    committed = int(done.stdout.split(" diagnosed now, ")[1].split()[0])
    assert committed > 0
    rows = [row for path in Archive(out).files("bundles") for row in parquet.read_table(path).to_pylist()]
    assert sorted(row["bundle"] for row in rows) == sorted(str(path) for path in bundles.iterdir())
    facts = sum(parquet.read_metadata(path).num_rows for path in (out / "facts").iterdir())
    assert facts == sum(row["fact_count"] for row in rows)


def _left(session: int) -> list[int]:
    """Processes of a session that still run."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(stat[3]) == session and stat[0] != "Z":
                found.append(int(entry))
    return found
