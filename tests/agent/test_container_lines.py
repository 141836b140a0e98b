"""Container lines of all kinds: few requests, a word in the log, and a stop in time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.logs.operators.chain import Chain
from tracecore.signals.logs.operators.entry import Entry
from tracecore.signals.logs.tail.config import FileLogConfig
from tracecore.signals.logs.tail.counters import TailCounters
from tracecore.signals.logs.tail.filelog import FileLog

Start = Callable[[str], Any]
Wait = Callable[..., Any]

AGENT = """\
receivers:
  filelog:
    include: ["{logs}/*/*/*"]
    start_at: beginning
    include_file_path: {path}
    operators: [{{type: container}}]
exporters:
  otlphttp: {{endpoint: "http://127.0.0.1:{port}"}}
service:
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [filelog], exporters: [otlphttp]}}
"""

POD = "ml_trainer-0_0a1b2c3d-0000-4000-8000-000000000000/worker"


def docker(number: int, attrs: Any = None) -> str:
    stamp = f"2026-01-01T00:00:{number % 60:02d}.000000001Z"
    line: dict[str, Any] = {"log": f"line {number}\n", "stream": "stdout"}
    return json.dumps({**line, **({"attrs": attrs} if attrs is not None else {}), "time": stamp})


def cri(number: int, tag: str = "F") -> str:
    return f"2026-01-01T00:00:{number % 60:02d}.000000001Z stdout {tag} line {number}"


def written(place: Path, name: str, lines: list[str]) -> Path:
    path = place / "pods" / POD / name
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(lines) + "\n")
    return place / "pods"


@pytest.mark.parametrize(
    ("name", "lines", "path"),
    [
        ("0.log", [docker(n, {"tag": "a", "n": n % 100}) for n in range(6_000)], "true"),
        ("0.log", [docker(n, {"tag": "a"}) if n % 2 else docker(n) for n in range(6_000)], "true"),
        ("0.log", ["no line of a runtime" if n % 2 else cri(n) for n in range(6_000)], "true"),
        ("0.log", [cri(n) for n in range(6_000)], "false"),
        ("0.log.1", [cri(n) for n in range(6_000)], "true"),
    ],
    ids=["many attrs", "some attrs", "plain lines between", "no path", "another name"],
)
def test_records_of_odd_lines_travel_together(
    agent: Start, sink: Any, tmp_path: Path, wait_for: Wait, name: str, lines: list[str], path: str
) -> None:
    logs = written(tmp_path, name, lines)
    agent(AGENT.format(logs=logs, port=sink.port, path=path))
    wait_for(lambda: len(sink.bodies) >= len(lines), 60)
    assert len(sink.bodies) == len(lines)
    assert len(sink.requests) < 100


@pytest.mark.parametrize(
    ("name", "path", "why"),
    [("0.log", "false", "include_file_path"), ("0.log.1", "true", "not the path of a container's log")],
)
def test_failures_of_an_operator_are_logged_and_counted(
    agent: Start, sink: Any, tmp_path: Path, wait_for: Wait, name: str, path: str, why: str
) -> None:
    logs = written(tmp_path, name, [cri(n) for n in range(100)])
    running = agent(AGENT.format(logs=logs, port=sink.port, path=path))
    log = running.wait_log("the operator container could not treat 100 entries: ")
    assert why in log
    assert "ERROR filelog: the operator container" in log
    event = {"component": "filelog", "event": "entries_failed"}
    wait_for(lambda: running.metric("tracecore_component_events_total", **event) == 100)
    assert len(wait_for(lambda: sink.bodies)) == 100


def test_quiet_failures_are_counted_only() -> None:
    counters = TailCounters()
    chain = Chain([{"type": "json_parser", "on_error": "send_quiet"}], counters)
    assert len(chain.process([Entry("no JSON")], 0)) == 1
    assert (counters.entries_failed, counters.reasons) == (1, {})


@pytest.mark.parametrize("away", [True, False])
def test_a_stop_in_the_middle_of_a_backlog_takes_no_longer_than_the_drain_time(
    agent: Start, sink: Any, tmp_path: Path, wait_for: Wait, away: bool
) -> None:
    lines = [docker(n, {"tag": f"tag{n}"}) for n in range(60_000)]
    logs = written(tmp_path, "0.log", lines)
    running = agent(AGENT.format(logs=logs, port=1 if away else sink.port, path="true"))
    running.wait_log("first data")
    began = time.monotonic()
    assert running.stop() == 0
    assert time.monotonic() - began < 10.5
    assert "stopped after" in running.log


@pytest.mark.parametrize("operator", ["json_parser", "container"])
@pytest.mark.parametrize(
    "value",
    [
        "1" + "0" * 400,
        "1e400",
        "[" * 3000,
        "[" * 90 + "]" * 90,
        '{"a":' * 300 + "1" + "}" * 300,
        '"\\ud800"',
        "-0",
        "NaN",
    ],
)
def test_one_line_that_nobody_expected_stops_no_other(tmp_path: Path, operator: str, value: str) -> None:
    lines = ['{"a":%s,"log":"x","stream":"stdout","time":"2026-01-01T00:00:00Z"}' % value, docker(1), docker(2)]  # noqa: UP031
    logs = written(tmp_path, "0.log", lines)
    config = FileLogConfig(
        include=(f"{logs}/*/*/*",), start_at="beginning", include_file_path=True, operators=({"type": operator},)
    )
    log = FileLog(config, None, lambda: 10**18)
    batches = [*log.poll(), *log.drain()]
    assert sum(batch.count for batch in batches) == 3
    assert all(batch.encoded() for batch in batches)
    log.close()
