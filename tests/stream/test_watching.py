"""Numbers, alerts and the dashboard of a worker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tracecore.stream.metrics import StreamTelemetry

ROOT = Path(__file__).resolve().parents[2]
STREAM = ROOT / "deploy" / "stream"
RULES = yaml.safe_load((STREAM / "tracecore-stream.rules.yaml").read_text())["groups"][0]["rules"]
BOARD = json.loads((STREAM / "tracecore-stream.json").read_text())


def numbers() -> str:
    telemetry = StreamTelemetry()
    telemetry.lag(3, 17, 2.5)
    telemetry.meter("partition", "3", "facts").took(0.1)
    telemetry.meter("worker", "group").declare(events=("poison_messages",))
    return telemetry.render()


def test_lag_is_shown_for_each_partition_until_it_moves() -> None:
    telemetry = StreamTelemetry()
    telemetry.lag(3, 17, 2.5)
    telemetry.lag(4, 0, 0.0, paused=True)
    shown = telemetry.render()
    assert 'tracecore_stream_lag_messages{partition="3"} 17\n' in shown
    assert 'tracecore_stream_lag_seconds{partition="3"} 2.5\n' in shown
    assert 'tracecore_stream_paused{partition="4"} 1\n' in shown
    assert "tracecore_stream_partitions 2\n" in shown
    telemetry.forget_lag(3)
    assert 'partition="3"' not in telemetry.render()


def test_alerts_and_dashboard_ask_for_numbers_that_there_are() -> None:
    shown = numbers()
    expressions = [rule["expr"] for rule in RULES]
    expressions += [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
    assert len(expressions) > 10
    for expression in expressions:
        for name in re.findall(r"tracecore_[a-z_]+", expression):
            assert re.search(rf"^{name}\{{?", shown, re.MULTILINE), name


def test_every_alert_has_a_runbook() -> None:
    headings = {f"#{line[4:].lower()}" for line in (ROOT / "docs" / "scale-out.md").read_text().splitlines() if line.startswith("### ")}  # fmt: skip # noqa: E501
    for rule in RULES:
        assert rule["annotations"]["runbook_url"].partition("scale-out.md")[2] in headings


def test_alerts_fire_and_are_silent() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        ["promtool", "test", "rules", str(STREAM / "tracecore-stream.test.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
