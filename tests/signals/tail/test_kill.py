"""Killed at random instants and started again: every line arrives, and few arrive twice."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

READER = """
import sys, time
from pathlib import Path
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.filelog import FileLog
from tracecore.signals.storage.journal import Journal

logs, state, out = sys.argv[1:]
config = FileLogConfig(include=(logs + "/*.log*",), start_at="beginning", poll_interval=10_000_000)
log = FileLog(config, Journal(Path(state)), time.time_ns)
with open(out, "a") as sink:
    while True:
        for batch in log.poll():
            sink.write("".join(str(record["body"]) + "\\n" for _, record in batch.records()))
        sink.flush()
        time.sleep(0.005)
"""


def test_killed_at_random_nothing_is_lost_and_little_is_doubled(tmp_path: Path) -> None:
    chance = random.Random(7)
    logs, out = tmp_path / "logs", tmp_path / "out"
    logs.mkdir()
    written = 0
    kills = 0
    handle = (logs / "a.log").open("a")
    process = None
    begin = time.monotonic()
    while time.monotonic() - begin < 6:
        if process is None:
            process = subprocess.Popen([sys.executable, "-c", READER, str(logs), str(tmp_path / "state"), str(out)])
            stop = time.monotonic() + chance.uniform(0.3, 0.8)
        count = chance.randint(1, 30)
        handle.write("".join(f"line {n}\n" for n in range(written, written + count)))
        handle.flush()
        written += count
        if chance.random() < 0.05:
            handle.close()
            os.rename(logs / "a.log", logs / f"a.log.{written}")
            handle = (logs / "a.log").open("a")
        if time.monotonic() > stop:
            process.send_signal(signal.SIGKILL)
            process.wait()
            process = None
            kills += 1
        time.sleep(0.002)
    handle.close()
    if process is None:
        process = subprocess.Popen([sys.executable, "-c", READER, str(logs), str(tmp_path / "state"), str(out)])
    want = {f"line {n}" for n in range(written)}
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline and not want <= set(out.read_text().split("\n")):
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    got = Counter(line for line in out.read_text().split("\n") if line in want)
    assert set(got) == want
    doubled = sum(got.values()) - len(got)
    print(f"{written} lines, {kills} kills, {doubled} doubled")
    # A quarter of a second for each kill: what was handed out and not yet written down.
    assert kills >= 4
    assert doubled <= kills * written / 6 / 4
