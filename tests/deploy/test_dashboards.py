"""Dashboards and alert rules ask for numbers that a running agent gives."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DASHBOARDS = sorted((DEPLOY / "dashboards").glob("*.json"))
#: What Prometheus itself adds to a series, by the PodMonitor of the chart.
TARGET = {"pod", "node", "namespace", "instance", "job", "container"}
CONFIG = """
receivers:
  otlp: {protocols: {http: {endpoint: "127.0.0.1:0"}}}
  filelog: {include: [LOGS/*.log], start_at: beginning}
processors:
  memory_limiter: {limit_mib: 2048}
  patterndetector: {forward: verdicts}
exporters:
  debug: {}
  otlphttp: {endpoint: "http://127.0.0.1:1"}
service:
  telemetry: {metrics: {address: "127.0.0.1:0"}}
  pipelines:
    logs:
      receivers: [otlp, filelog]
      processors: [memory_limiter, patterndetector]
      exporters: [debug, otlphttp]
"""
_SERIES = re.compile(r"^([a-z_]+)(?:\{(.*)\})? \S+$")
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_SELECTOR = re.compile(r"\b(tracecore_[a-z_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'([a-z_]+)(=~|!~|!=|=)"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring) \(([^)]*)\)")


class Numbers:
    """What `/metrics` said."""

    def __init__(self, text: str) -> None:
        self.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
        self.series: dict[str, list[dict[str, str]]] = {}
        for line in text.splitlines():
            if match := _SERIES.match(line):
                self.series.setdefault(match.group(1), []).append(dict(_LABEL.findall(match.group(2) or "")))

    def known(self, name: str) -> bool:
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        return name in self.types or self.types.get(base) == "histogram"

    def labels(self, name: str) -> set[str]:
        return {label for series in self.series.get(name, ()) for label in series}


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Numbers:
    """Of an agent that has read a few lines."""
    place = tmp_path_factory.mktemp("agent")
    (place / "a.log").write_text("RuntimeError: boom\nstep 1\n" * 50)
    (place / "agent.yaml").write_text(CONFIG.replace("LOGS", str(place)))
    command = [sys.executable, "-c", "from tracecore.cli.main import main; import sys; sys.exit(main())"]
    command += ["run", "--config", str(place / "agent.yaml"), "--drain", "0"]
    agent = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=place)
    giving_up = threading.Timer(120, agent.kill)
    giving_up.start()
    assert agent.stderr is not None
    reading = threading.Thread(target=agent.stderr.read, daemon=True)
    try:
        said = []
        for line in agent.stderr:
            said.append(line)
            if found := re.search(r"own metrics and health on (http://\S+)", line):
                break
        else:
            pytest.fail("the agent did not start:\n" + "".join(said))
        reading.start()
        wanted = 'tracecore_component_latency_seconds_count{kind="processor",component="patterndetector"'
        text = ""
        while wanted not in text and agent.poll() is None:
            with urllib.request.urlopen(found.group(1) + "/metrics", timeout=30) as answer:
                text = answer.read().decode()
        assert wanted in text, text
        return Numbers(text)
    finally:
        giving_up.cancel()
        agent.kill()
        agent.wait()
        if reading.ident is not None:
            reading.join()
        agent.stderr.close()


def _expressions(path: Path) -> Iterator[str]:
    if path.suffix == ".json":
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()))
        yield from (one["expr"] for one in board["annotations"]["list"] if "expr" in one)
        yield from (one["definition"] for one in board["templating"]["list"] if "definition" in one)
    else:
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from (rule["expr"] for rule in group["rules"])


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_number_exists_with_the_labels_that_are_asked_for(path: Path, numbers: Numbers) -> None:
    expressions = list(_expressions(path))
    assert len(expressions) > 5
    for expression in expressions:
        selectors = _SELECTOR.findall(expression)
        assert selectors, expression
        allowed = set(TARGET) | {"le"}
        for name, matchers in selectors:
            assert numbers.known(name), f"{name} in {expression}"
            allowed |= numbers.labels(name)
            exact = {}
            for label, operator, value in _MATCHER.findall(matchers):
                assert label in numbers.labels(name) | TARGET or not numbers.series.get(name), (
                    f"{label} in {expression}"
                )
                if operator == "=" and label not in TARGET:
                    exact[label] = value
            if exact:
                assert any(exact.items() <= series.items() for series in numbers.series[name]), (
                    f"{exact} in {expression}"
                )
        for group in _GROUPING.findall(expression):
            assert {label.strip() for label in group.split(",")} <= allowed, expression


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_boards_are_whole(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, f"{panel['title']} covers another panel"
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"


def test_there_is_one_for_verdicts_one_for_the_pipeline_one_for_the_engine() -> None:
    assert [path.stem for path in DASHBOARDS] == ["tracecore-engine", "tracecore-pipeline", "tracecore-verdicts"]


def test_the_uids_are_different() -> None:
    boards: list[dict[str, Any]] = [json.loads(path.read_text()) for path in DASHBOARDS]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(boards)
