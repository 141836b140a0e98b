"""The `nop` exporter: lets everything go. For pipelines that must name one, as one whose verdicts leave elsewhere."""

from __future__ import annotations

from tracecore.agent.batch import Batch
from tracecore.agent.component import Empty, Factory, Setting


class Discard:
    """Takes everything and keeps nothing."""

    def __init__(self, options: Empty, setting: Setting) -> None:
        self._meter = setting.meter

    def start(self) -> None:
        pass

    def stop(self, deadline: float) -> None:
        pass

    def ready(self) -> bool:
        return True

    def export(self, batch: Batch) -> None:
        self._meter.emit(batch.count)
        batch.done()


FACTORY = Factory(
    kind="exporter", type="nop", summary="Lets everything go, for pipelines that must name one.", options=Empty,
    create=Discard,
)  # fmt: skip
