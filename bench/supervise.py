"""What supervision costs: the processor time of supervisor and keeper while a command writes 10,000 lines a second.

The lines are a training log's: steps among chatter, 110 bytes each. Progress is tracked, output is kept and passed on
into a pipe. Starting is not counted: what is measured is a stretch in the middle.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench import Measurement

LINES = 10_000
# Long enough for the first look at the progress, which compiles the recipes.
WARM_S = 18.0
MEASURED_S = 30.0

WRITER = """
import os, sys, time
rate, seconds = int(sys.argv[1]), float(sys.argv[2])
begun, written = time.monotonic(), 0
while (now := time.monotonic() - begun) < seconds:
    lines = []
    while written < now * rate:
        if written % 100 == 0:
            lines.append(f"[rank0]: step {written // 100} | loss {2.5 - written * 1e-7:.4f} | lr 3.0e-04 | tps 51234")
        else:
            lines.append(f"2026-01-01 00:00:00,{written % 1000:03d} INFO worker {written % 8} fetched shard {written} "
                         f"of bucket train-{written % 64:04d} in 12 ms")
        written += 1
    os.write(1, ("\\n".join(lines) + "\\n").encode() if lines else b"")
    time.sleep(0.01)
"""


def measure() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as folder:
        share, passed, kept = _share(Path(folder))
    assert passed == kept, f"{kept} bytes were written and {passed} passed on"
    return [
        Measurement(
            "supervise.processor", share * 100, "% of a core", "≤ 1", f"{LINES:,} lines/s for {MEASURED_S:.0f} s"
        ),
    ]


def _share(folder: Path) -> tuple[float, int, int]:
    command = [
        *(sys.executable, "-m", "tracecore", "supervise", "--quiet", "--state-dir", str(folder / "state")),
        *("--stall-timeout", "5m", "--", sys.executable, "-c", WRITER, str(LINES), str(WARM_S + MEASURED_S + 2)),
    ]
    supervisor = subprocess.Popen(command, stdout=subprocess.PIPE)
    count = 0

    def drain() -> None:
        nonlocal count
        assert supervisor.stdout is not None
        while data := os.read(supervisor.stdout.fileno(), 1 << 16):
            count += len(data)

    reader = threading.Thread(target=drain)
    reader.start()
    attempt = folder / "state" / "attempts" / "0001"
    while not (attempt / "pid.json").exists():
        time.sleep(0.05)
    keeper = json.loads((attempt / "pid.json").read_text())["keeper"]
    time.sleep(WARM_S)
    before, begun = _used(supervisor.pid) + _used(keeper), time.monotonic()
    time.sleep(MEASURED_S)
    used = _used(supervisor.pid) + _used(keeper) - before
    share = used / (time.monotonic() - begun)
    supervisor.wait()
    reader.join()
    return share, count, (attempt / "evidence" / "stdout.log").stat().st_size


def _used(pid: int) -> float:
    """Seconds of processor time so far, in the scheduler's own count, which is finer than ticks."""
    nanoseconds = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9
