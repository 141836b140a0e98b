"""A real agent that scrapes real HTTP targets: from the text of exporters to verdicts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

EVERY = 60
STORY = 600

CONFIG = """
receivers:
  prometheus:
    config:
      global: {scrape_interval: 400ms}
      scrape_configs:
        - job_name: dcgm
          static_configs: [{targets: ["%(address)s"]}]
        - job_name: node
          metrics_path: /node
          static_configs: [{targets: ["%(address)s"]}]
  filelog:
    include: [kern.log]
    start_at: beginning
    resource: {tracecore.layer: kernel}
processors:
  patterndetector:
    evaluation_interval: 200ms
    patterns: {thermal_throttle: {active: 1s}}
exporters:
  file: {path: out.json}
  file/metrics: {path: metrics.json}
service:
  telemetry: {metrics: {readers: [{pull: {exporter: {prometheus: {host: 127.0.0.1, port: 0}}}}]}}
  pipelines:
    metrics: {receivers: [prometheus], processors: [patterndetector], exporters: [file/metrics]}
    logs: {receivers: [filelog], processors: [patterndetector], exporters: [file]}
"""


class Story:
    """Exporters that tell one scene after another, one for each time they are asked."""

    def __init__(self, pages: dict[str, Callable[[float], str]]) -> None:
        self.asked: dict[str, int] = dict.fromkeys(pages, 0)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = outer.page(self.path, pages[self.path]).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def page(self, path: str, text: Callable[[float], str]) -> str:
        # Both stories go on together, whichever is asked more often.
        self.asked[path] = min(self.asked[path] + 1, min(self.asked.values()) + 1)
        return text(min((self.asked[path] - 1) * EVERY, STORY))

    @property
    def over(self) -> bool:
        return all(count * EVERY > STORY for count in self.asked.values())

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Agent:
    def __init__(self, place: Path, address: str) -> None:
        self._place = place
        (place / "agent.yaml").write_text(CONFIG % {"address": address})
        (place / "kern.log").touch()
        self._log = (place / "agent.log").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tracecore", "run", "--config", "agent.yaml"],
            cwd=place,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def kernel(self, *lines: str) -> None:
        with (self._place / "kern.log").open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def verdicts(self) -> list[dict[str, Any]]:
        assert self.process.poll() is None, (self._place / "agent.log").read_text()
        path = self._place / "out.json"
        made = []
        for line in path.read_text().splitlines() if path.exists() else ():
            for entry in json.loads(line)["resourceLogs"]:
                for scope in entry["scopeLogs"]:
                    for record in scope["logRecords"]:
                        found = {e["key"]: next(iter(e["value"].values())) for e in record["attributes"]}
                        if "pattern.name" in found:
                            made.append(found)
        return made

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Callable[..., tuple[Story, Agent]]]:
    made: list[Any] = []

    def start(**pages: Callable[[float], str]) -> tuple[Story, Agent]:
        story = Story({f"/{name}": text for name, text in pages.items()})
        agent = Agent(tmp_path, story.address)
        made.extend((agent, story))
        return story, agent

    yield start
    for one in made:
        one.close()


def until(condition: Callable[[], Any], seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s")


def hot(second: float, gpu: int) -> bool:
    return gpu == 5 and second >= 300


def test_heat_and_flaps(play: Callable[..., tuple[Story, Agent]], exporters: SimpleNamespace) -> None:
    """A GPU that is hot, and a port that goes up and down: two verdicts, and no other."""
    changes = {
        "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": lambda t, gpu, usual: 0x48 if hot(t, gpu) else usual,
        "DCGM_FI_DEV_SM_CLOCK": lambda t, gpu, usual: 1215 if hot(t, gpu) else usual,
        "DCGM_FI_DEV_GPU_TEMP": lambda t, gpu, usual: 91 if hot(t, gpu) else usual,
    }
    story, agent = play(
        metrics=lambda t: exporters.dcgm(t, changes),
        node=lambda t: exporters.ports(t, lambda s: 1 if s in (240, 360, 480) else 4),
    )
    until(lambda: {"thermal_throttle", "ib_link_flap"} <= {one["pattern.name"] for one in agent.verdicts()})
    until(lambda: story.over)
    found = agent.verdicts()
    assert {one["pattern.name"] for one in found} == {"thermal_throttle", "ib_link_flap"}
    heat = [one for one in found if one["pattern.name"] == "thermal_throttle"]
    assert len({one["verdict.id"] for one in heat}) == 1
    assert "0000:ab:00.0" in heat[0]["pattern.verdict_json"]
    assert "node-7" in heat[0]["pattern.verdict_json"]
    flap = next(one for one in found if one["pattern.name"] == "ib_link_flap")
    assert "mlx5_0" in flap["pattern.verdict_json"]
