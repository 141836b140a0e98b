"""A receiver that fails again each time says so, and never that it works."""

from __future__ import annotations

import logging
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.agent import graph
from tracecore.agent.telemetry import Meter


class Waiting:
    """Waits for a lock that another agent has, and fails; the fourth time it gets it."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, consume: Any, stop: threading.Event) -> None:
        self.runs += 1
        if self.runs < 4:
            time.sleep(0.15)
            raise OSError("another agent has the directory")
        stop.wait(30)


def test_a_receiver_that_fails_after_waiting_never_works_in_between(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graph, "BACK_OFF", (0.1, 1.0))
    inlet: Any = SimpleNamespace(meter=Meter("receiver", "filelog"))
    receiver = Waiting()
    with caplog.at_level(logging.INFO, "tracecore"):
        intake = graph.Intake("filelog", receiver, inlet)
        intake.start()
        deadline = time.monotonic() + 20
        while (receiver.runs < 4 or inlet.meter.degraded) and time.monotonic() < deadline:
            time.sleep(0.02)
        intake.stop()
        intake.join(time.monotonic() + 5)
    told = ["failed" if "failed" in record.getMessage() else "works" for record in caplog.records]
    assert told == ["failed", "failed", "failed", "works"]
