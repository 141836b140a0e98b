"""The `nop` receiver, to which nothing comes, and the `nop` exporter, which lets everything go.

For pipelines that must name one, such as a pipeline whose verdicts leave elsewhere.
"""

from __future__ import annotations

import threading

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Consumer, Exporter, Setting


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """No options."""


class Nothing:
    """Receives nothing."""

    def __init__(self, options: Options, setting: Setting) -> None:
        pass

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        stop.wait()


class Discard(Exporter):
    """Takes everything and keeps nothing."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._meter = setting.meter

    def export(self, batch: Batch) -> None:
        self._meter.emit(batch.count)
        batch.done()
