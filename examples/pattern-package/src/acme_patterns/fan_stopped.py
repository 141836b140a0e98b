"""What a management controller says of a fan: the fact, and the record it is made of."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.coerce import name
from tracecore.facts.fact import Fact
from tracecore.facts.identity import Stamped
from tracecore.facts.projectors.projector import Projection


class FanStopped(Fact, frozen=True, kw_only=True):
    """The machine's management controller says that a fan stands still."""

    kind: ClassVar[str] = "fan_stopped"
    layer: ClassVar[str] = "metrics"

    fan: str

    def describe(self) -> str:
        return f"fan {self.fan} of {self.node} stands still"


def fan_stopped(record: Stamped) -> FanStopped | None:
    """Node, time and source come from the record; no fact where the fan has no name."""
    fan = name(record.get("acme.fan.stopped"))
    return None if fan is None else FanStopped(**record.identity(), fan=fan)


FAN_STOPPED = Projection(fan_stopped, gate=("acme.fan.stopped",))
