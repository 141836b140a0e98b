"""The `nop` receiver: nothing comes. For pipelines that must name one."""

from __future__ import annotations

import threading

from tracecore.agent.component import Consumer, Empty, Factory, Setting


class Nothing:
    """Receives nothing."""

    def __init__(self, options: Empty, setting: Setting) -> None:
        pass

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        stop.wait()


FACTORY = Factory(
    kind="receiver",
    type="nop",
    summary="Receives nothing, for pipelines that must name one.",
    options=Empty,
    create=Nothing,
)
