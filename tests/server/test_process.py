"""The real command: facts in, an incident out, told to viewers; killed in the middle, nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from test_ingest import facts, lost_gpu

SEED = int(os.environ.get("KILL_SEED", "5"))
JOBS = 3


class Server:
    """`tracecore serve` on one database, which can be killed and started again."""

    def __init__(self, place: str, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._command = [
            sys.executable, "-m", "tracecore", "serve", "-q", "--database", place, "--listen", f"127.0.0.1:{self.port}",
            "--data", str(folder / "uploads"),
        ]  # fmt: skip
        self.errors = folder / "errors"
        self.start()

    def start(self) -> None:
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(self._command, stderr=errors)
        for _ in range(600):
            try:
                if httpx.get(f"{self.address}/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, self.errors.read_text()
                time.sleep(0.1)
        raise AssertionError(self.errors.read_text())

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.mark.integration
def test_facts_become_incidents_although_the_server_is_killed(place: str, tmp_path: Path) -> None:
    chance = random.Random(SEED)
    server = Server(place, tmp_path)
    began = time.time_ns() - 20 * 10**9
    requests = [facts(fact) for job in range(JOBS) for fact in lost_gpu(began, f"job-{job}", f"node-{job}")]
    chance.shuffle(requests)
    kills = {chance.randrange(len(requests)) for _ in range(2)}
    headers = {"Content-Type": "application/x-protobuf"}
    for number, request in enumerate(requests):
        if number in kills:
            threading.Timer(chance.uniform(0, 0.3), server.kill).start()
        while True:
            try:
                if httpx.post(f"{server.address}/v1/logs", content=request, headers=headers).status_code == 200:
                    break
            except httpx.TransportError:
                if server.process.poll() is not None:
                    server.start()
        time.sleep(0.05)
    if server.process.poll() is not None:
        server.start()
    seen: list[str] = []

    def watch() -> None:
        try:
            with httpx.stream("GET", f"{server.address}/api/v1/events", timeout=60) as stream:
                for line in stream.iter_lines():
                    seen.append(line)  # noqa: PERF402  # as they come, not at the end
        except httpx.TransportError:
            pass

    viewer = threading.Thread(target=watch, daemon=True)
    viewer.start()
    for _ in range(120):
        rows = httpx.get(f"{server.address}/api/v1/incidents").json()["incidents"]
        if len(rows) == JOBS and all(row["pattern"] == "gpu_fault" for row in rows):
            break
        time.sleep(0.5)
    httpx.post(f"{server.address}/api/v1/incidents/{rows[0]['id']}/acknowledge")
    for _ in range(100):
        if any(rows[0]["id"] in line for line in seen):
            break
        time.sleep(0.1)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    viewer.join(10)
    assert sorted((row["job"], row["nodes"]) for row in rows) == [(f"job-{n}", [f"node-{n}"]) for n in range(JOBS)]
    assert any(rows[0]["id"] in line for line in seen)
    assert "Traceback" not in server.errors.read_text()
