"""Facts about network adapters and ports."""

from __future__ import annotations

from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import sentence

STATES = {1: "Down", 2: "Initialize", 3: "Armed", 4: "Active"}


class NicError(Fact, frozen=True, kw_only=True):
    """A network adapter's driver reports an error of the adapter, its cable or its power.

    Args:
        error: a value of `kernelevents.nic.error`.
        device: the PCI bus id of the adapter.
    """

    kind: ClassVar[str] = "nic_error"
    layer: ClassVar[str] = "kernel"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    error: str
    device: str | None = None
    detail: str | None = None

    def describe(self) -> str:
        device = f" of adapter {self.device}" if self.device else ""
        return sentence(self, f"network adapter: {self.error.replace('_', ' ')}{device}", self.detail)


class LinkState(Fact, frozen=True, kw_only=True):
    """The link of a network interface went up or down."""

    kind: ClassVar[str] = "port_state"
    layer: ClassVar[str] = "kernel"

    interface: str
    up: bool

    def describe(self) -> str:
        return sentence(self, f"link of {self.interface} is {'up' if self.up else 'down'}")


class PortState(Fact, frozen=True, kw_only=True):
    """The state of an InfiniBand or RoCE port, from a line of a driver or NCCL, or from a metric.

    Args:
        device: `mlx5_0` and the like.
        port: port number; 1 if the source names none.
        state: 1 Down, 2 Initialize, 3 Armed, 4 Active.
        process: `host:pid`, if NCCL reports the state. Each of its lines is a change.
    """

    kind: ClassVar[str] = "port_state"
    layer: ClassVar[str] = "kernel"

    device: str
    port: int
    state: int
    process: str | None = None

    @property
    def host(self) -> str | None:
        """Return the machine or container that NCCL names."""
        return None if self.process is None else self.process.partition(":")[0]

    @property
    def named(self) -> str:
        """Return the name of the port: `mlx5_0/1`, or `ib0` for an interface, which has one port."""
        return f"{self.device}/{self.port}" if "_" in self.device or self.port != 1 else self.device

    def describe(self) -> str:
        return sentence(self, f"port {self.named} is {STATES.get(self.state, f'in state {self.state}')}")
