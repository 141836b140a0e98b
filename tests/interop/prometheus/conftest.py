"""A target whose answers are written down, and other people's programs that scrape it."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracecore.agent.receivers.prometheus.options import ScrapeConfig, StaticConfig
from tracecore.agent.receivers.prometheus.target import Scraper, target
from tracecore.agent.telemetry import Meter

SECOND = 1_000_000_000


def _programs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("programs", Path(__file__).with_name("programs.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _wanted(found: Path | str) -> Path:
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def node_exporter() -> Path:
    return _wanted(_programs().debian("prometheus-node-exporter"))


@pytest.fixture(scope="session")
def prometheus() -> Path:
    return _wanted(_programs().debian("prometheus"))


@pytest.fixture(scope="session")
def collector() -> Path:
    return _wanted(_programs().collector())


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


class Exporter:
    """Answers with what it was given."""

    def __init__(self) -> None:
        self.text = ""
        self.kind = "text/plain; version=0.0.4"
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer.text.encode()
                self.send_response(outer.status)
                self.send_header("Content-Type", outer.kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    one = Exporter()
    yield one
    one.close()


class Ours:
    """Our own scraper of a target; each scrape gives its payload."""

    def __init__(self, address: str, **more: Any) -> None:
        self.payloads: list[dict[str, Any]] = []
        config = ScrapeConfig(
            job_name="job",
            static_configs=[StaticConfig(targets=[address])],
            **{"scrape_interval": 30 * SECOND, "scrape_timeout": 30 * SECOND, **more},
        )
        one = target(config, {"__address__": address})
        assert one is not None
        self._scraper = Scraper(one, {}, self._take, Meter("receiver", "prometheus"), time.time_ns)

    def _take(self, batch: Any) -> None:
        self.payloads.append(batch.payload)

    def scrape(self) -> dict[str, Any]:
        self._scraper.scrape()
        return self.payloads[-1]

    def close(self) -> None:
        self._scraper.hang_up()


@pytest.fixture
def ours() -> Iterator[Callable[..., Ours]]:
    made: list[Ours] = []

    def make(address: str, **more: Any) -> Ours:
        made.append(Ours(address, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Server:
    """A running Prometheus."""

    def __init__(self, program: Path, jobs: list[dict[str, Any]], place: Path) -> None:
        config = place / "prometheus.json"  # JSON is YAML
        config.write_text(
            json.dumps({"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs})
        )
        self._port = free_port()
        self._log = (place / "prometheus.log").open("wb")
        self._process = subprocess.Popen(
            [str(program), f"--config.file={config}", f"--storage.tsdb.path={place / 'data'}",
             f"--web.listen-address=127.0.0.1:{self._port}", "--log.level=warn"],
            stdout=self._log,
            stderr=self._log,
        )  # fmt: skip

    def query(self, text: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Values by labels."""
        url = f"http://127.0.0.1:{self._port}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)["data"]["result"]
        except (OSError, ValueError):
            assert self._process.poll() is None, "Prometheus ended"
            return {}
        return {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in found}

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self._log.close()


@pytest.fixture
def server(prometheus: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    made: list[Server] = []

    def start(*jobs: dict[str, Any]) -> Server:
        made.append(Server(prometheus, list(jobs), tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def nodes(node_exporter: Path, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts node_exporters, and gives their addresses."""
    made: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> str:
        address = f"127.0.0.1:{free_port()}"
        with (tmp_path / "node_exporter.log").open("ab") as log:
            made.append(
                subprocess.Popen(
                    [str(node_exporter), f"--web.listen-address={address}", *arguments], stdout=log, stderr=log
                )
            )

        def answers() -> bool:
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
                    return bool(answer.read())
            except OSError:
                assert made[-1].poll() is None, "node_exporter ended"
                return False

        until(answers)
        return address

    yield start
    for one in made:
        one.terminate()
        one.wait(30)
