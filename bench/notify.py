"""How soon people are told: an incident stored → its message at a receiver, singly and in a storm; what is not told.

The receiver is a local HTTP server; the store is SQLite with every commit on disk; nothing waits for a group
(`group_wait: 0s`) but the storm, whose messages may leave after five seconds.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench import Measurement
from tracecore.notify.config import read
from tracecore.notify.notifier import Notifier
from tracecore.store.store import Store

INCIDENTS = 200
#: Seconds between two of them.
PAUSE = 0.05
STORM = 150
GROUP_WAIT = 5
#: Incidents in which nothing failed any more: most of what a fleet reports needs no action.
NOISE = 2_000
CONFIG = """
receivers: [{{name: programs, webhook_configs: [{{url: "${{env:BENCH_HOOK}}"}}]}}]
route: {{receiver: programs, group_by: [{by}], group_wait: {wait}s}}
"""


class Receiver:
    """Keeps when it first heard of each incident."""

    def __init__(self) -> None:
        self.heard: dict[str, float] = {}
        self.messages = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                now = time.monotonic()
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.messages += 1
                for name in body["new"]:
                    outer.heard.setdefault(name, now)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        os.environ["BENCH_HOOK"] = f"http://127.0.0.1:{self.server.server_port}"


def measure() -> list[Measurement]:
    single, storm, noise = _single(), _storm(), _noise()
    note = f"load {os.getloadavg()[0]:.1f}"
    return [
        Measurement("notify.single.p50", single[len(single) // 2] * 1000, "ms", "", f"{INCIDENTS} incidents, {note}"),
        Measurement("notify.single.p99", single[int(len(single) * 0.99)] * 1000, "ms", "≤ 1000", note),
        Measurement(
            "notify.storm.last", storm[0], "s", f"≤ {GROUP_WAIT + 2}", f"{STORM} incidents in a second, {note}"
        ),
        Measurement("notify.storm.lost", storm[1], "incidents", "≤ 0", "of the storm"),
        Measurement("notify.storm.messages", storm[2], "messages", "≤ 2", "of the storm"),
        Measurement("notify.noise.pages", noise, "messages", "≤ 0", f"{NOISE} incidents that are over or old"),
    ]


def _run(by: str, wait: int, work: Any) -> Any:
    receiver = Receiver()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notify.yaml"
        path.write_text(CONFIG.format(by=by, wait=wait))
        store = Store.open(f"{folder}/store.db")
        notifier = Notifier(store, read(path), time.time_ns)
        notifier.start()
        try:
            return work(store, receiver)
        finally:
            notifier.stop()
            store.close()
            receiver.server.shutdown()
            receiver.server.server_close()


def _put(store: Store, name: str, **more: Any) -> None:
    store.put_incident(
        {
            "id": f"incident-{name}", "headline": f"Rank 2 never entered all_reduce ({name})", "job": f"job-{name}",
            "root_cause": {"pattern": "nccl_hang"}, "suspects": {"nodes": [f"node-{name}"], "ranks": [2]},
            "failure": {"class": "infrastructure"}, "remediation": "Look at rank 2.", **more,
        },
        time.time_ns(),
    )  # fmt: skip


def _wait(receiver: Receiver, count: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    while len(receiver.heard) < count and time.monotonic() < until:
        time.sleep(0.01)


def _single() -> list[float]:
    def work(store: Store, receiver: Receiver) -> list[float]:
        stored = {}
        for number in range(INCIDENTS):
            _put(store, str(number))
            stored[f"incident-{number}"] = time.monotonic()
            time.sleep(PAUSE)
        _wait(receiver, INCIDENTS, 60)
        late = time.monotonic()
        return sorted(receiver.heard.get(name, late) - at for name, at in stored.items())

    found: list[float] = _run("job", 0, work)
    return found


def _storm() -> tuple[float, int, int]:
    def work(store: Store, receiver: Receiver) -> tuple[float, int, int]:
        begin = time.monotonic()
        for number in range(STORM):
            _put(store, str(number))
        _wait(receiver, STORM, 60)
        return max(receiver.heard.values(), default=begin) - begin, STORM - len(receiver.heard), receiver.messages

    found: tuple[float, int, int] = _run("class", GROUP_WAIT, work)
    return found


def _noise() -> int:
    def work(store: Store, receiver: Receiver) -> int:
        for number in range(NOISE):
            old = number % 2 == 0
            more = {"last_seen": "2020-01-01T00:00:00Z", "first_seen": "2020-01-01T00:00:00Z"} if old else {}
            _put(store, str(number), **more, **({} if old else {"state": "resolved"}))
        time.sleep(2)
        return receiver.messages

    found: int = _run("job", 0, work)
    return found
