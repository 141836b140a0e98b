"""Runs the real Collector on one payload for each pipeline, and gives what it wrote."""

from __future__ import annotations

import json
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Seconds the Collector has to start, and to write.
PATIENCE = 180


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Pipeline:
    """A pipeline of transform processors with a receiver and a file of its own.

    Args:
        name: letters and digits.
        signal: `logs` or `metrics`.
        processors: their names, in order.
    """

    def __init__(self, name: str, signal: str, processors: Sequence[str]) -> None:
        self.name, self.signal, self.processors = name, signal, list(processors)
        self.port = free_port()


def transformed(
    program: Path, configs: Sequence[Path], pipelines: Sequence[Pipeline], payloads: Mapping[str, Any], place: Path
) -> dict[str, Any]:
    """What comes out of each pipeline, by its name.

    Args:
        program: the Collector.
        configs: files that define the processors, given to it as they are.
        pipelines: to run.
        payloads: one OTLP document for each pipeline.
        place: a directory for its files.
    """
    base: dict[str, Any] = {
        "receivers": {
            f"otlp/{p.name}": {"protocols": {"http": {"endpoint": f"127.0.0.1:{p.port}"}}} for p in pipelines
        },
        "exporters": {f"file/{p.name}": {"path": str(place / f"{p.name}.json")} for p in pipelines},
        "service": {
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
            "pipelines": {
                f"{p.signal}/{p.name}": {
                    "receivers": [f"otlp/{p.name}"],
                    "processors": p.processors,
                    "exporters": [f"file/{p.name}"],
                }
                for p in pipelines
            },
        },
    }
    (place / "base.yaml").write_text(json.dumps(base))
    command = [str(program), *(part for path in (place / "base.yaml", *configs) for part in ("--config", str(path)))]
    with (place / "collector.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for pipeline in pipelines:
                _send(pipeline, payloads[pipeline.name], process)
        finally:
            process.terminate()
            process.wait(PATIENCE)
    problems = (place / "collector.log").read_text(errors="replace")
    found = {}
    for pipeline in pipelines:
        lines = (place / f"{pipeline.name}.json").read_text().splitlines()
        assert len(lines) == 1, f"{pipeline.name}: {len(lines)} documents\n{problems[-2000:]}"
        found[pipeline.name] = json.loads(lines[0])
    return found


def _send(pipeline: Pipeline, payload: Any, process: subprocess.Popen[bytes]) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{pipeline.port}/v1/{pipeline.signal}",
        json.dumps(payload).encode(),
        {"Content-Type": "application/json"},
    )
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                assert answer.status == 200
            return
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            assert process.poll() is None, "the Collector ended; see collector.log"
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
