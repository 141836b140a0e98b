"""Alerts, runbook and metrics say the same: what an alert asks for is exposed, and what to do about it is written."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "alerts" / "tracecore.rules.yaml"
STORIES = ROOT / "deploy" / "alerts" / "tests" / "tracecore.test.yaml"
RUNBOOK = ROOT / "docs" / "operations.md"

#: Labels that Prometheus itself puts on what it scrapes, and the metric it makes.
FROM_PROMETHEUS = {"instance", "job"}
_SELECTOR = re.compile(r"\b(tracecore_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
_BY = re.compile(r"\bby \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    document = YAML(typ="safe").load(RULES)
    return [rule for group in document["groups"] for rule in group["rules"]]


def exposed(text: str) -> dict[str, list[dict[str, str]]]:
    """Every series of a page of metrics, by name."""
    found: dict[str, list[dict[str, str]]] = {}
    for line in text.splitlines():
        if match := re.match(r"(\w+)(?:\{(.*)\})? \S+$", line):
            labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match.group(2) or ""))
            found.setdefault(match.group(1), []).append(labels)
    return found


def test_there_are_enough_alerts_and_each_is_complete() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 9
    for rule in rules():
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule["alert"]
        assert re.fullmatch(r"\d+[smh]", rule["for"]), rule["alert"]
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}, rule["alert"]
        assert rule["annotations"]["runbook_url"].endswith(f"docs/operations.md#{rule['alert'].lower()}")


def test_every_alert_has_an_entry_in_the_runbook_and_every_entry_an_alert() -> None:
    text = RUNBOOK.read_text()
    section = text.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    entries = re.findall(r"^### (\w+)$", section, re.MULTILINE)
    assert sorted(entries) == sorted(rule["alert"] for rule in rules())
    for entry in entries:
        body = section.partition(f"### {entry}\n")[2].partition("\n### ")[0]
        for part in ("**Means**", "**Look**", "**Do**"):
            assert part in body, f"{entry} does not say {part}"


def test_everything_an_alert_asks_for_is_exposed_by_a_running_agent(node: Any, until: Any) -> None:
    until(lambda: node.agent.metric("tracecore_component_received_total", component="filelog"))
    series = exposed(node.agent.get("/metrics")[1])
    for rule in rules():
        for name, matchers in _selectors(rule["expr"]):
            assert name in series, f"{rule['alert']}: no metric {name}"
            for label, operator, value in matchers:
                assert _matches(series[name], label, operator, value), f"{rule['alert']}: {name} has no {label} {value}"
            for label in {name for group in _BY.findall(rule["expr"]) for name in group.split(", ")} - FROM_PROMETHEUS:
                assert any(label in labels for labels in series[name]), f"{rule['alert']}: {name} has no label {label}"


def _selectors(expression: str) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    for name, matchers in _SELECTOR.findall(expression):
        yield name, _MATCHER.findall(matchers)


def _matches(series: list[dict[str, str]], label: str, operator: str, value: str) -> bool:
    values = {labels[label] for labels in series if label in labels}
    if operator == "=":
        return value in values
    if operator == "=~":
        return any(re.fullmatch(value, one) for one in values)
    return bool(values)


def test_every_alert_has_a_story_in_which_it_fires_and_one_in_which_it_is_silent() -> None:
    stories = YAML(typ="safe").load(STORIES)["tests"]
    told = {
        (story["alert_rule_test"][0]["alertname"], bool(story["alert_rule_test"][0]["exp_alerts"])) for story in stories
    }
    assert told == {(rule["alert"], fires) for rule in rules() for fires in (True, False)}


@pytest.mark.parametrize("command", [("check", "rules", RULES), ("test", "rules", STORIES)], ids=["check", "test"])
def test_prometheus_agrees(command: tuple[str, str, Path]) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: apt-get install prometheus); the rules are not run")
    done = subprocess.run(["promtool", *map(str, command)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
