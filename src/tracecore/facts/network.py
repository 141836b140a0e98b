"""Network ports."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence

STATES = {1: "Down", 2: "Initialize", 3: "Armed", 4: "Active"}


class PortState(Fact, frozen=True, kw_only=True):
    """State of an InfiniBand or RoCE port at a moment, from a driver line or a scrape.

    Args:
        device: `mlx5_0` and the like.
        port: port number; 1 where the source names none and the device has one.
        state: 1 Down, 2 Initialize, 3 Armed, 4 Active.
    """

    kind: ClassVar[str] = "port_state"
    layer: ClassVar[str] = "kernel"

    device: str
    port: int
    state: int

    def describe(self) -> str:
        return sentence(self, f"port {self.device}/{self.port} is {STATES.get(self.state, f'in state {self.state}')}")
