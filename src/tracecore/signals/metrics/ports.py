"""InfiniBand and RoCE ports: changes of state, and errors that come fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tracecore.signals.metrics.bridge import STALE, BridgeLimits, BridgeMemory, record
from tracecore.signals.metrics.point import Sample
from tracecore.signals.metrics.rises import CounterMemory, Rise
from tracecore.signals.record import Attributes, LogSignal, Source
from tracecore.signals.stamps import SECOND

ACTIVE: Final = 4
DOWN: Final = 1
#: A state that does not change is stated again after so long, so that a window always holds where a port came from.
AGAIN: Final = STALE
#: Times a port is taken to have gone down between two scrapes, at most.
MOST_DOWNS: Final = 16
#: Errors of the cable, the plugs and the port, not of those who use them.
PHYSICAL: Final = frozenset(
    {
        "symbol_error", "link_error_recovery", "link_downed", "local_link_integrity_errors",
        "excessive_buffer_overrun_errors", "port_receive_errors", "port_errors_received",
        "port_receive_remote_physical_errors",
    }
)  # fmt: skip


class _PortLife(msgspec.Struct):
    """
    Args:
        state: as last seen.
        sample: where.
        told: time of the last record about it.
    """

    state: int
    sample: Sample
    told: int


class PortBridge:
    """States of ports where they change, and what `link_downed` counted while nobody looked.

    A port that goes down and comes back between two scrapes is Active in both; its counter tells. Such times are
    inferred, spread evenly over the interval.
    """

    names: Final = frozenset({"hw.network.ib.port.state", "hw.errors"})

    def __init__(self, limits: BridgeLimits | None = None) -> None:
        limits = limits or BridgeLimits()
        self._ports: BridgeMemory[_PortLife] = BridgeMemory(limits)
        self._counters = CounterMemory(limits)
        self._states: dict[tuple[str, str], Sample] = {}
        self._downs: dict[tuple[str, str], tuple[Rise, Sample]] = {}

    @property
    def dropped(self) -> int:
        return self._ports.dropped + self._counters.dropped

    def observe(self, sample: Sample) -> Sequence[LogSignal]:
        series = sample.series
        if "hw.network.ib.device" not in series.attributes:
            return ()
        if series.name == "hw.network.ib.port.state":
            if sample.value in (1, 2, 3, 4):  # 0 is "no change", 5 "active, deferred"
                self._states.setdefault(series.unit, sample)
            return ()
        kind = series.attributes.get("error.type")
        rise = self._counters.rise(sample) if kind in PHYSICAL else None
        if rise is None:
            return ()
        if kind == "link_downed":
            self._downs[series.unit] = rise, sample
        elapsed = max(sample.time - rise.since, 1) / SECOND
        stamped: Attributes = {
            **_port(sample),
            "error.type": kind,
            "hw.errors.delta": rise.delta,
            "hw.errors.rate": rise.delta / elapsed,
        }
        return (record(sample, "hw.errors.rise", stamped),)

    def settle(self, time: int) -> Sequence[LogSignal]:
        if not self._states and not self._downs:
            return ()
        out: list[LogSignal] = []
        for unit, sample in self._states.items():
            out += self._look(unit, sample, self._downs.pop(unit, None))
        for rise, sample in self._downs.values():  # no state is measured: that it went down is known all the same
            out += _unseen(sample, rise, rise.delta)
        self._states, self._downs = {}, {}
        return out

    def _look(self, unit: tuple[str, str], sample: Sample, downs: tuple[Rise, Sample] | None) -> list[LogSignal]:
        state, port = int(sample.value), self._ports.get(unit)
        if port is None:
            self._ports.put(unit, _PortLife(state, sample, sample.time), sample.time)
            return [_stated(sample, state)]
        out: list[LogSignal] = []
        changed = state != port.state
        if changed and port.told < port.sample.time:
            out.append(_stated(port.sample, port.state))  # until when it was as before
        if downs is not None:
            seen = port.state == ACTIVE and state != ACTIVE
            out += _unseen(downs[1], downs[0], downs[0].delta - seen)
        told = port.told
        if changed or downs is not None or sample.time - told >= AGAIN:
            out.append(_stated(sample, state))
            told = sample.time
        self._ports.put(unit, _PortLife(state, sample, told), sample.time)
        return out


def _port(sample: Sample) -> Attributes:
    return {
        name: value
        for name in ("hw.network.ib.device", "hw.network.ib.port.num")
        if (value := sample.series.attributes.get(name)) is not None
    }


def _stated(sample: Sample, state: int) -> LogSignal:
    return record(sample, "hw.network.ib.port.state", {**_port(sample), "hw.network.ib.port.state": state})


def _unseen(sample: Sample, rise: Rise, downs: int) -> list[LogSignal]:
    """So many times down and up again between two scrapes."""
    downs = min(downs, MOST_DOWNS)
    out: list[LogSignal] = []
    step = (sample.time - rise.since) // (2 * downs + 1) if downs > 0 else 0
    for place in range(2 * downs):
        made = record(
            sample,
            "hw.network.ib.port.state",
            {
                **_port(sample),
                "hw.network.ib.port.state": ACTIVE if place % 2 else DOWN,
                "tracecore.time.inferred": True,
            },
            rise.since + (place + 1) * step,
        )
        source = sample.source
        made["source"] = Source(source.path, source.offset, source.line, source.length, f"{source.uid}#{place + 1}")
        out.append(made)
    return out
