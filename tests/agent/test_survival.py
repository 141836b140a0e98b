"""Verdicts and what leads to them survive a stop, a kill and an output that is away."""

from __future__ import annotations

import http.server
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Start = Callable[[str], Any]
Wait = Callable[..., Any]

#: The quick start of docs/agent.md with a file to read.
AGENT = """\
receivers:
  filelog:
    include: ["{logs}/*.log"]
    start_at: beginning
    storage: file_storage
    resource: {{gen_ai.training.job_id: llm}}
processors:
  patterndetector: {{forward: verdicts, {detector}}}
exporters:
  webhook:
    url: "http://127.0.0.1:{port}/"
    retry_on_failure: {{initial_interval: 100ms, max_interval: 200ms}}
    sending_queue: {queue}
extensions:
  file_storage: {{directory: "{logs}/state", create_directory: true}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [filelog], processors: [patterndetector], exporters: [webhook]}}
"""
MEMORY, STORED = "{}", "{storage: file_storage}"
FORGETS, KEEPS = "partial_verdicts: true", "storage: file_storage"


class Webhook:
    """Takes verdicts."""

    def __init__(self, port: int) -> None:
        self.bodies: list[str] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.bodies.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        number = one.getsockname()[1]
    return number


def crash(path: Path, word: str) -> None:
    with path.open("a") as file:
        file.write(
            "[rank0]: Traceback (most recent call last):\n"
            '[rank0]:   File "/app/train.py", line 7, in <module>\n'
            "[rank0]:     run()\n"
            f"[rank0]: ValueError: {word}\n"
        )


@pytest.mark.parametrize("queue", [MEMORY, STORED], ids=["memory", "storage"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_verdict_is_told_after_a_restart_when_the_endpoint_was_away(
    agent: Start, tmp_path: Path, wait_for: Wait, port: int, queue: str, how: int
) -> None:
    text = AGENT.format(logs=tmp_path, port=port, queue=queue, detector=FORGETS)
    running = agent(text)
    crash(tmp_path / "a.log", "this word")
    running.wait_log("this word")
    running.wait_log("cannot send")
    assert running.process is not None
    running.process.send_signal(how)
    running.process.wait(30)
    hook = Webhook(port)
    try:
        running.start()
        wait_for(lambda: any("this word" in body for body in hook.bodies))
        assert running.stop() == 0
        before = len(hook.bodies)
        running.start()
        time.sleep(1.5)
        assert len(hook.bodies) == before
    finally:
        hook.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_facts_before_a_restart_count_after_it(
    agent: Start, tmp_path: Path, wait_for: Wait, port: int, how: int
) -> None:
    hook = Webhook(port)
    try:
        running = agent(AGENT.format(logs=tmp_path, port=port, queue=STORED, detector=KEEPS))
        for _ in range(2):
            crash(tmp_path / "a.log", "first word")
        wait_for(lambda: any("first word" in body for body in hook.bodies))
        time.sleep(0.5)
        told = len(hook.bodies)
        assert running.process is not None
        running.process.send_signal(how)
        running.process.wait(30)
        running.start()
        running.wait_log("facts of an earlier run")
        time.sleep(2.0)
        # What was told is not told again; the engine holds what it held.
        assert hook.bodies[told:] == []
        assert running.metric("tracecore_engine_facts") > 0
    finally:
        hook.close()
