"""A store with incidents, and receivers that are real local servers and misbehave as told."""

from __future__ import annotations

import json
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tracecore.notify.config import NotificationConfig, read
from tracecore.notify.notifier import Notifier
from tracecore.store.store import Store

SECOND = 1_000_000_000
#: The id of the channel in which everything is posted.
CHANNEL = "C0TRAIN1NG"
START = 1_794_700_000 * SECOND


class Clock:
    """A clock that tests turn."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


class Receiver:
    """An HTTP server that keeps what it is sent and can fail first.

    Attributes:
        requests: path, headers and body of each request, in order.
        faults: what to do with the next requests: a status, `hang`, `drop` (no answer), `deaf` (takes it, no answer) or
            `drip` (answers a byte at a time); bytes are the answer of a proxy that passes nothing on.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.faults: list[int | str | bytes] = []
        self.headers: dict[str, str] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                fault = outer.faults.pop(0) if outer.faults else 0
                if fault == "drop":
                    self.connection.close()
                    return
                if fault == "hang":
                    time.sleep(2)
                if isinstance(fault, bytes):
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(fault)
                    return
                if isinstance(fault, int) and fault:
                    self.send_response(fault)
                    for name, value in outer.headers.items():
                        self.send_header(name, value)
                    self.end_headers()
                    return
                is_form = self.headers.get("Content-Type") == "application/x-www-form-urlencoded"
                given = dict(parse_qsl(body.decode())) if is_form else json.loads(body)
                answer = outer.take(self.path, dict(self.headers.items()), given)
                if fault == "deaf":
                    self.connection.close()
                    return
                self.send_response(200)
                self.end_headers()
                if fault == "drip":
                    with suppress(OSError):
                        for _ in range(200):
                            self.wfile.write(b" ")
                            time.sleep(0.1)
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()

    def take(self, path: str, headers: dict[str, str], body: Any) -> dict[str, Any]:
        self.requests.append((path, headers, body))
        method = path.rpartition("/")[2]
        if method == "chat.postMessage":
            ts = f"{len(self.messages) + 1}.0"
            self.messages[ts] = body
            return {"ok": True, "ts": ts, "channel": CHANNEL}
        if method == "conversations.list":
            # Of many channels, one on each page.
            number = int(body.get("cursor", "0"))
            names = ["general", "training", "c"]
            page = [{"id": CHANNEL if names[number] != "general" else "C0000000", "name": names[number]}]
            more = str(number + 1) if number + 1 < len(names) else ""
            return {"ok": True, "channels": page, "response_metadata": {"next_cursor": more}}
        if method.startswith(("conversations.", "chat.update")) and body.get("channel") != CHANNEL:
            # As Slack: only chat.postMessage takes a name, and methods that read take forms, not JSON.
            return {"ok": False, "error": "channel_not_found"}
        if method.startswith("conversations.") and headers["Content-Type"].startswith("application/json"):
            return {"ok": False, "error": "invalid_arguments"}
        if method == "chat.update":
            if body["ts"] not in self.messages:
                return {"ok": False, "error": "message_not_found"}
            self.messages[body["ts"]] |= body
            return {"ok": True, "ts": body["ts"], "channel": body["channel"]}
        if method in ("conversations.history", "conversations.replies"):
            thread = body.get("ts")
            found = [one | {"ts": ts} for ts, one in self.messages.items() if one.get("thread_ts") == thread]
            return {"ok": True, "messages": found}
        return {"ok": True}

    def bodies(self, ends: str = "") -> list[Any]:
        return [body for path, _, body in self.requests if path.endswith(ends)]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Mailbox(socketserver.ThreadingTCPServer):
    """An SMTP server that keeps mails, and answers `fault` to the first of them."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        self.mails: list[str] = []
        self.faults: list[str] = []
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.place = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, daemon=True, kwargs={"poll_interval": 0.02}).start()


class _Smtp(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        def say(text: str) -> None:
            self.wfile.write(f"{text}\r\n".encode())

        box: Mailbox = self.server  # type: ignore[assignment]
        say("220 ready")
        while line := self.rfile.readline().decode().strip():
            verb = line.upper()
            if verb.startswith("EHLO"):
                say("250 hello")
            elif verb.startswith("RCPT") and box.faults:
                say(box.faults.pop(0))
            elif verb.startswith("DATA"):
                say("354 go on")
                lines = []
                while (text := self.rfile.readline().decode().rstrip("\r\n")) != ".":
                    lines.append(text)
                box.mails.append("\n".join(lines))
                say("250 taken")
            elif verb.startswith("QUIT"):
                say("221 bye")
                return
            else:
                say("250 ok")


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    made = Mailbox()
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store.open(str(tmp_path / "store.db"), durable=False)
    yield made
    made.close()


def incident(name: str = "1", **more: Any) -> dict[str, Any]:
    """An incident's document as the live detector makes it."""
    return {
        "id": f"incident-{name}",
        "status": "diagnosed",
        "state": "diagnosed",
        "revision": 1,
        "headline": f"Rank 2 never entered all_reduce ({name})",
        "root_cause": {"pattern": "nccl_hang", "verdict": "v"},
        "suspects": {"ranks": [2], "nodes": ["node-17"], "gpus": [], "pods": []},
        "job": "vision/train-1",
        "failure": {"class": "infrastructure", "retry": {"decision": "retry", "reason": "retry 1 of 3 at once"}},
        "remediation": "Look at rank 2.",
        "first_seen": "2026-11-14T14:26:40Z",
        "last_seen": "2026-11-14T14:26:40Z",
        **more,
    }


class World:
    """A store, a clock and a notifier that is stepped by hand."""

    def __init__(self, store: Store, clock: Clock, config: NotificationConfig) -> None:
        self.store, self.clock, self.config = store, clock, config
        self.notifier = Notifier(store, config, clock)

    def put(self, name: str = "1", **more: Any) -> None:
        from datetime import UTC, datetime

        seen = datetime.fromtimestamp(self.clock.now // SECOND, UTC).isoformat()
        self.store.put_incident(incident(name, **{"first_seen": seen, "last_seen": seen, **more}), self.clock.now)

    def run(self, seconds: float = 0, step: float = 1.0) -> None:
        """Let time pass."""
        left = seconds
        while True:
            while self.notifier.step():
                pass
            self.notifier.wait()
            if left <= 0:
                break
            self.clock.forward(min(step, left))
            left -= step

    def restart(self) -> None:
        """Go on in another process, after the lease of the first one has ended."""
        self.notifier._pool.shutdown()
        self.clock.forward(20)
        self.notifier = Notifier(self.store, self.config, self.clock)


@pytest.fixture
def world(store: Store, clock: Clock, tmp_path: Path) -> Iterator[Any]:
    made: list[World] = []

    def make(text: str) -> World:
        path = tmp_path / "notify.yaml"
        path.write_text(text)
        made.append(World(store, clock, read(path)))
        return made[-1]

    yield make
    for one in made:
        one.notifier._pool.shutdown()
