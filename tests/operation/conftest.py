"""One agent with a part of everything, and servers around it that misbehave."""

from __future__ import annotations

import http.client
import http.server
import importlib.util
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _agent_harness() -> Any:
    """The agents and servers of the agent's tests, which are real processes and real servers."""
    name = "tracecore_agent_conftest"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "agent" / "conftest.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


harness = _agent_harness()
agent, wait_for = harness.agent, harness.wait_for

NODE = """\
receivers:
  otlp:
    protocols:
      http: {{endpoint: "localhost:0", max_connections: 8, read_timeout: 3s}}
  filelog:
    include: [{pods}/*/*/*.log]
    start_at: beginning
    include_file_path: true
    poll_interval: 50ms
    storage: file_storage
    operators: [{{type: container}}]
  filelog/json:
    include: [{directory}/json/*/*/*.log]
    start_at: beginning
    poll_interval: 50ms
    operators:
      - {{type: container}}
      - {{type: json_parser, parse_from: body}}
      - {{type: move, from: attributes.message, to: body}}
  filelog/unmounted:
    include: [{directory}/not/mounted/pods/*/*/*.log]
processors:
  memory_limiter: {{limit_mib: 8000}}
  k8sattributes: {{auth_type: none}}
  patterndetector:
exporters:
  file: {{path: out.json}}
  debug: {{verbosity: detailed}}
  otlphttp:
    endpoint: http://127.0.0.1:{evil}
    headers: {{Authorization: "Bearer s3cr3t-of-the-operator"}}
    sending_queue: {{num_consumers: 1}}
    retry_on_failure: {{initial_interval: 100ms, max_interval: 200ms}}
extensions:
  file_storage: {{directory: {directory}/state, create_directory: true}}
service:
  extensions: [file_storage]
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs:
      receivers: [otlp, filelog, filelog/json, filelog/unmounted]
      processors: [memory_limiter, k8sattributes, patterndetector]
      exporters: [file, debug]
    logs/out:
      receivers: [otlp]
      processors: [memory_limiter]
      exporters: [otlphttp]
"""


class Peer:
    """A server that answers all requests with the same."""

    def __init__(self, status: int, body: bytes, kind: str = "application/json", **headers: str) -> None:
        self.requests: list[tuple[str, dict[str, str]]] = []
        peer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                peer.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="session")
def peer_kind() -> type[Peer]:
    return Peer


class Node:
    """A node: an agent, its pods, an API server that gives it no rights, an endpoint that answers with evil."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pods = directory / "pods"
        forbidden = (
            b'{"kind":"Status","status":"Failure","reason":"Forbidden","code":403,"message":"pods is forbidden"}'
        )
        self.api = Peer(403, forbidden)
        # It says back what it was sent, colours it, and forges a line.
        said = b'{"message": "bad Bearer s3cr3t-of-the-operator \\u001b[31m\\nINFO all is well"}'
        self.evil = Peer(400, said)
        self.write("ml", "w-0", "main", "0.log", ["hello"])
        text = NODE.format(pods=self.pods, directory=directory, evil=self.evil.port)
        self.agent = harness.Running(directory, text)
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        os.environ |= {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.api.port)}
        try:
            self.agent.start()
        finally:
            for name, value in (("KUBERNETES_SERVICE_HOST", host), ("KUBERNETES_SERVICE_PORT", port)):
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)

    def write(
        self, namespace: str, pod: str, container: str, name: str, lines: list[str], uid: str = "u", tree: str = "pods"
    ) -> Path:
        """Lines of a container, as containerd writes them."""
        path = self.directory / tree / f"{namespace}_{pod}_{uid}" / container / name
        path.parent.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000000000Z", time.gmtime())
        with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{stamp} stdout F {line}\n" for line in lines)
        return path

    def written(self) -> list[dict[str, Any]]:
        """The records that were written; of lines of JSON, only a line feed ends one."""
        path: Path = self.directory / "out.json"
        whole = path.read_bytes().decode().rpartition("\n")[0] if path.exists() else ""
        return [
            {
                "body": record.get("body", {}).get("stringValue"),
                "attributes": harness.plain(record.get("attributes", [])),
                "resource": harness.plain(entry["resource"].get("attributes", [])),
            }
            for line in filter(None, whole.split("\n"))
            for entry in harness.msgspec.json.decode(line)["resourceLogs"]
            for scope in entry["scopeLogs"]
            for record in scope["logRecords"]
        ]

    def send(self, lines: list[str]) -> int:
        """Send lines by OTLP; the status, 0 where the agent hangs up."""
        body = harness.msgspec.json.encode(harness.logs(lines))
        connection = http.client.HTTPConnection("localhost", self.agent.port("http"), timeout=20)
        try:
            connection.request("POST", "/v1/logs", body, {"Content-Type": "application/json"})
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def degraded(self) -> dict[str, str]:
        found: dict[str, str] = harness.msgspec.json.decode(self.agent.get("/readyz")[1])["degraded"]
        return found

    def close(self) -> None:
        process = self.agent.process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        self.api.close()
        self.evil.close()


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    one = Node(tmp_path_factory.mktemp("node"))
    yield one
    one.close()


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """The first true value of a condition, within a minute."""
    return lambda condition, seconds=60.0: harness.until(condition, seconds)


@pytest.fixture(scope="session")
def post() -> Callable[..., tuple[int, bytes]]:
    found: Callable[..., tuple[int, bytes]] = harness.post
    return found


@pytest.fixture(scope="session")
def logs() -> Callable[..., dict[str, Any]]:
    found: Callable[..., dict[str, Any]] = harness.logs
    return found


class Backend(harness.Sink):  # type: ignore[misc]
    """An OTLP/HTTP backend that keeps whole records with their resources."""

    def __init__(self) -> None:
        self.records: list[tuple[dict[str, Any], dict[str, Any]]] = []
        super().__init__()

    def take(self, path: str, body: bytes) -> None:
        for entry in harness.decoding.decode("logs", body).get("resource_logs") or ():
            for scope in entry.get("scope_logs") or ():
                for record in scope.get("log_records") or ():
                    self.records.append((entry["resource"].get("attributes") or {}, record))


@pytest.fixture
def backend() -> Iterator[Backend]:
    one = Backend()
    yield one
    one.close()
