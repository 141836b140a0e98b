"""Every bound that an agent reaches is an event in `/metrics` and a line in its log."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.component import Setting
from tracecore.agent.extensions.file_storage import FileStorageExtension
from tracecore.agent.processors.numbers import EngineNumbers
from tracecore.agent.receivers.filelog import COUNTED
from tracecore.agent.telemetry import Meter
from tracecore.engine.engine import EngineStats
from tracecore.signals.storage.file_storage import FileStorageConfig
from tracecore.signals.storage.journal import Journal, JournalError

Start = Callable[[str], Any]
Wait = Callable[..., Any]

AGENT = """\
receivers:
  filelog:
    include: ["{logs}/*.log"]
    start_at: beginning
    max_log_size: 1KiB
    max_log_size_behavior: truncate
    operators: [{{type: json_parser}}]
exporters:
  debug:
service:
  telemetry: {{metrics: {{address: "127.0.0.1:0"}}}}
  pipelines:
    logs: {{receivers: [filelog], exporters: [debug]}}
"""


def test_bounds_of_files_are_shown(agent: Start, tmp_path: Path, wait_for: Wait) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "a.log").write_text("x" * 3000 + "\n" + '{"a":1}\n')
    running = agent(AGENT.format(logs=logs))
    running.wait_log("1 lines are longer than max_log_size and were cut")
    running.wait_log("1,976 bytes of lines longer than max_log_size were left out")
    running.wait_log("the operator json_parser could not treat an entry")
    pages = running.get("/metrics")[1]
    for name in COUNTED:
        assert f'event="{name}"' in pages
    counted = {"lines_capped": 1, "bytes_dropped": 1976, "entries_failed": 1}
    for event, count in counted.items():
        assert running.metric("tracecore_component_events_total", event=event) == count


def test_bounds_of_the_engine_are_shown(caplog: pytest.LogCaptureFixture) -> None:
    meter, stats = Meter("processor", "patterndetector"), EngineStats()
    numbers = EngineNumbers(meter, stats, [])
    assert meter.events["evicted_windows"] == meter.events["beyond_horizon"] == 0
    stats.evicted_windows, stats.beyond_horizon = 2, 3
    numbers.update()
    numbers.update()
    assert (meter.events["evicted_windows"], meter.events["beyond_horizon"]) == (2, 3)
    assert len([record for record in caplog.records if "too far apart" in record.getMessage()]) == 1


def test_a_storage_that_cannot_be_rewritten_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meter = Meter("extension", "file_storage")
    setting = Setting("file_storage", meter, lambda: 0, {}.__getitem__, tmp_path, lambda: (True, {}))
    one = FileStorageExtension(FileStorageConfig(directory=str(tmp_path)), setting)
    one.start()
    store = one.client("x")

    def full(self: Journal) -> None:
        raise JournalError("no room")

    monkeypatch.setattr(Journal, "compact", full)
    store.set("key", bytes(4 << 20))
    store.delete("key")
    one.tick()
    one.stop()
    assert meter.events["failed_compactions"] > 0
    assert "could not be rewritten" in caplog.text
