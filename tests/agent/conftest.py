"""Real agents in processes of their own, and a real OTLP server to send to."""

from __future__ import annotations

import gzip
import http.client
import http.server
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from tracecore.signals.otlp import decoding


def until(condition: Callable[[], Any], seconds: float = 20.0) -> Any:
    """The first true value of a condition; fails when there is none in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s")


class Running:
    """An agent that runs."""

    def __init__(self, directory: Path, text: str) -> None:
        self.directory = directory
        self.path = directory / "agent.yaml"
        self.path.write_text(text)
        self._log = directory / "agent.log"
        self._from = 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Running:
        with self._log.open("ab") as file:
            self._from = file.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tracecore", "run", "--config", str(self.path)],
                stderr=file,
                stdout=file,
                cwd=self.directory,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        self.wait_log("running ")
        return self

    @property
    def log(self) -> str:
        """What it wrote since it was started last."""
        return self._log.read_bytes()[self._from :].decode()

    def wait_log(self, text: str, seconds: float = 30.0) -> str:
        def found() -> str:
            assert self.process is not None
            log = self.log
            if text not in log and self.process.poll() is not None:
                raise AssertionError(f"the agent ended:\n{log}")
            return log if text in log else ""

        return str(until(found, seconds))

    def port(self, protocol: str) -> int:
        """The port a receiver listens on; the last one it said."""
        self.wait_log(f"over {protocol} on port")
        return int(re.findall(rf"over {protocol} on port (\d+)", self.log)[-1])

    @property
    def own_port(self) -> int:
        return int(re.findall(r"own metrics and health on http://[^:]+:(\d+)", self.log)[-1])

    def get(self, page: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.own_port, timeout=10)
        connection.request("GET", page)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all series with these labels."""
        total = 0.0
        for line in self.get("/metrics")[1].splitlines():
            match = re.match(r"(\w+)\{(.*)\} (\S+)$", line)
            if match and match.group(1) == name and all(f'{k}="{v}"' in match.group(2) for k, v in labels.items()):
                total += float(match.group(3))
        return total

    def send(self, lines: list[str], **more: Any) -> tuple[int, bytes]:
        """Send lines as OTLP/HTTP JSON."""
        return post(self.port("http"), "/v1/logs", msgspec.json.encode(logs(lines, **more)), "application/json")

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def written(self, name: str = "out.json") -> list[dict[str, Any]]:
        """The log records in a file of the file exporter, as `{"body", "attributes", "resource"}`."""
        path = self.directory / name
        found = []
        # The agent may be in the middle of the last line.
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        for line in whole.splitlines():
            for entry in msgspec.json.decode(line)["resourceLogs"]:
                for scope in entry["scopeLogs"]:
                    found += [
                        {
                            "body": record.get("body", {}).get("stringValue"),
                            "attributes": plain(record.get("attributes", [])),
                            "resource": plain(entry["resource"].get("attributes", [])),
                        }
                        for record in scope["logRecords"]
                    ]
        return found


def plain(entries: list[dict[str, Any]]) -> dict[str, Any]:
    return {entry["key"]: next(iter(entry["value"].values()), None) for entry in entries}


def logs(
    lines: list[str], resource: dict[str, str] | None = None, times: list[int] | None = None, **attributes: str
) -> dict[str, Any]:
    """An OTLP JSON document."""
    now = time.time_ns()
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": [_entry(k, v) for k, v in (resource or {}).items()]},
                "scopeLogs": [
                    {
                        "logRecords": [
                            {
                                "timeUnixNano": str(times[n] if times else now + n),
                                "body": {"stringValue": line},
                                "attributes": [_entry(k, v) for k, v in attributes.items()],
                            }
                            for n, line in enumerate(lines)
                        ]
                    }
                ],
            }
        ]
    }


def _entry(key: str, value: str) -> dict[str, Any]:
    return {"key": key, "value": {"stringValue": value}}


def post(
    port: int, path: str, body: bytes, kind: str, headers: dict[str, str] | None = None, context: Any = None
) -> tuple[int, bytes]:
    if context is None:
        connection = http.client.HTTPConnection("localhost", port, timeout=20)
    else:
        connection = http.client.HTTPSConnection("localhost", port, timeout=20, context=context)
    connection.request("POST", path, body, {"Content-Type": kind, **(headers or {})})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Callable[[str], Running]]:
    """Starts agents; those that still run at the end are killed."""
    started: list[Running] = []

    def start(text: str) -> Running:
        one = Running(tmp_path, text)
        started.append(one)
        return one.start()

    yield start
    for one in started:
        if one.process is not None and one.process.poll() is None:
            one.process.kill()
            one.process.wait()


class Sink:
    """An OTLP/HTTP server that keeps what it gets and answers as it is told."""

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[str] = []
        self.requests: list[dict[str, str]] = []
        #: Answers to give before the good ones: (status, headers, body).
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.metrics: list[dict[str, Any]] = []
        sink = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                encoding = self.headers.get("Content-Encoding")
                if encoding == "gzip":
                    body = gzip.decompress(body)
                elif encoding == "zstd":
                    body = zstandard.ZstdDecompressor().decompressobj().decompress(body)
                sink.requests.append({"path": self.path, **{k.lower(): v for k, v in self.headers.items()}})
                status, headers, content = sink.answers.pop(0) if sink.answers else (200, {}, b"")
                if status == 200:
                    sink.take(self.path, body)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            self.metrics.append(decoding.decode("metrics", body))
            return
        payload = msgspec.json.decode(body) if body[:1] == b"{" else decoding.decode("logs", body)
        for entry in payload.get("resource_logs") or payload.get("resourceLogs") or ():
            for scope in entry.get("scope_logs") or entry.get("scopeLogs") or ():
                for record in scope.get("log_records") or scope.get("logRecords") or ():
                    found = record["body"]
                    self.bodies.append(found if isinstance(found, str) else found["stringValue"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def sink() -> Iterator[Sink]:
    one = Sink()
    yield one
    one.close()


@pytest.fixture
def wait_for() -> Callable[..., Any]:
    """`until`: test modules cannot import from here."""
    return until


@pytest.fixture
def request_of() -> Callable[..., dict[str, Any]]:
    """`logs`."""
    return logs


@pytest.fixture(name="post")
def post_fixture() -> Callable[..., tuple[int, bytes]]:
    """`post`."""
    return post


@pytest.fixture
def sink_kind() -> type[Sink]:
    """`Sink`, for a test that starts one later."""
    return Sink
