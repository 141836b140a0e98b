"""A server that gives the recorded answers of a real API server, and can be told to misbehave."""

from __future__ import annotations

import http.server
import json
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

DATA = Path(__file__).resolve().parents[2] / "data" / "kubernetes"


def recorded(name: str) -> bytes:
    return (DATA / name).read_bytes()


def lines(name: str) -> list[bytes]:
    return [line + b"\n" for line in recorded(name).splitlines() if line]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of a condition; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s")


class Replay:
    """Answers from what was recorded; a watch gives what is put on its queue, as chunks, until None."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.headers: list[dict[str, str]] = []
        #: Answers to the next requests of a verb, before the recorded ones: (status, body).
        self.next: dict[str, list[tuple[int, bytes]]] = {"list": [], "watch": []}
        #: Verbs that are forbidden.
        self.forbidden: set[str] = set()
        #: Paths that are.
        self.closed: set[str] = set()
        #: Lists by path, where they are not the recorded ones.
        self.lists: dict[str, bytes] = {}
        self.watches: queue.Queue[list[bytes] | None] = queue.Queue()
        self.open = 0
        self._down = threading.Event()
        replay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                replay.asked.append((parts.path, query))
                replay.headers.append(dict(self.headers.items()))
                verb = "watch" if query.get("watch") else "list"
                if verb in replay.forbidden or parts.path in replay.closed:
                    self._answer(403, recorded("forbidden.json"))
                elif replay.next[verb]:
                    self._answer(*replay.next[verb].pop(0))
                elif verb == "watch":
                    self._watch()
                else:
                    self._answer(*replay.listed(parts.path))

            def _answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _watch(self) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                replay.open += 1
                try:
                    while not replay._down.is_set():
                        try:
                            some = replay.watches.get(timeout=0.05)
                        except queue.Empty:
                            continue
                        if some is None:
                            break
                        for line in some:
                            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    pass  # the client has gone
                finally:
                    replay.open -= 1

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._handler = Handler
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._serve()

    def _serve(self) -> None:
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def listed(self, path: str) -> tuple[int, bytes]:
        if path in self.lists:
            return 200, self.lists[path]
        known = {
            "/api/v1/pods": "pods.list.json", "/api/v1/nodes": "nodes.list.json", "/api/v1/events": "events.list.json",
            "/apis": "groups.json", "/apis/coordination.k8s.io/v1": "leases.resources.json",
            "/api/v1": "core.resources.json",
        }  # fmt: skip
        if path in known:
            return 200, recorded(known[path])
        if path.startswith("/apis/"):
            return 200, b'{"kind":"APIResourceList","resources":[]}'
        return 404, b'{"kind":"Status","message":"the server could not find the requested resource","code":404}'

    def versions(self) -> list[str | None]:
        """Where the watches began."""
        return [query.get("resourceVersion") for _, query in self.asked if query.get("watch")]

    def die(self) -> None:
        """End every connection and take no more."""
        self._down.set()
        self._server.shutdown()
        self._server.server_close()

    def rise(self) -> None:
        self._down = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._serve()

    def close(self) -> None:
        self._down.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Iterator[Replay]:
    one = Replay()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(one.port))
    monkeypatch.setattr("tracecore.signals.kubernetes.watch.POLL", 0.05)
    yield one
    one.close()


@pytest.fixture(name="recorded")
def recorded_fixture() -> Callable[[str], bytes]:
    return recorded


@pytest.fixture(name="lines")
def lines_fixture() -> Callable[[str], list[bytes]]:
    return lines


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


@pytest.fixture
def change() -> Callable[..., bytes]:
    """A line of a watch: kind of change, name, version, and more of the object."""

    def make(kind: str, name: str, version: int, **more: Any) -> bytes:
        metadata = {"name": name, "namespace": "ml", "uid": f"uid-{name}", "resourceVersion": str(version)}
        metadata |= more.pop("metadata", {})
        body = {"kind": more.pop("kind", "Pod"), "apiVersion": "v1", "metadata": metadata, **more}
        return json.dumps({"type": kind, "object": body}).encode() + b"\n"

    return make


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
