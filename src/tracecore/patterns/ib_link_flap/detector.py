"""Detection of an InfiniBand or RoCE port that goes up and down, or fails together with collectives."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec
import re2

from tracecore.facts.fact import order
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.network import STATES, PortState
from tracecore.facts.wording import seconds
from tracecore.patterns.config import MINUTE, SECOND, Count, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

#: Errors of collectives that an unstable port can cause.
BROKEN = frozenset(
    {
        "timeout",
        "remote_error",
        "internal_error",
        "unhandled_system_error",
        "connection_closed",
        "connection_reset",
        "connect_failed",
        "ib_completion_error",
        "ib_port_error",
        "socket_error",
        "gloo_connection_closed",
        "gloo_timeout",
        "mpi_error",
    }
)
#: NCCL's error about a port or an adapter itself.
PORT = "ib_port_error"
#: Reports of a watchdog that say a collective did not end.
STUCK = frozenset({"timeout", "exception"})
#: The state of a port without a link.
DOWN = 1

#: Host names of pods and containers. Inside them, NCCL does not know the name of the machine.
_CONTAINER = re2.compile(
    r"^[0-9a-f]{12}$|-(?:[0-9a-z]{8,10}|\d+)-[b-df-hj-np-tv-xz24-9]{5}$|-(?:worker|master|launcher|chief|replica|pod|task)-?\d*(?:-\d+)?$"
)
#: Maximum number of machines that a headline names.
_FEW = 4

Trouble: TypeAlias = "NcclError | WatchdogReport"
_time = attrgetter("time")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the transitions lie within this time, and an error of a collective must be this close.
        transitions: number of changes of state.
        aftermath: an error of a collective this soon after a port failed follows from it. A watchdog waits for its
            timeout, which is often half an hour.
    """

    window: Duration = 10 * MINUTE
    transitions: Count = 3
    aftermath: Duration = 40 * MINUTE


class IbLinkFlapVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the state after the first transition.
        decisive: the state after the transition that completed the required number.
        last: the state after the last transition within a window of the first.
        count: number of transitions from first to last.
        trouble: an error of a collective on the node at that time; None if there was none.
    """

    pattern_id: ClassVar[str] = "2"
    pattern_name: ClassVar[str] = "ib_link_flap"
    role: ClassVar[Role] = "cause"

    first: PortState
    decisive: PortState
    last: PortState
    count: int
    trouble: NcclError | WatchdogReport | None = None

    @property
    def port(self) -> str:
        return self.decisive.named

    @property
    def node(self) -> str | None:
        return _machine(self.decisive)

    def headline(self) -> str:
        host = self.decisive.node or self.decisive.host
        where = f" on {host}" if host else ""
        exact = not (self.first.approximate or self.last.approximate)
        span = f" in {seconds((self.last.time - self.first.time) / SECOND)}" if exact else ""
        hurt = ", and a collective failed there" if self.trouble is not None else ""
        told = ", according to NCCL" if self.decisive.process is not None else ""
        return f"Port {self.port}{where} changed state {self.count} times{span}{told}{hurt}"

    def remediation(self) -> str:
        node, device, port = self.node or "NODE", self.decisive.device, self.decisive.port
        return (
            f"On {node}: `ibstat {device} {port}` and `perfquery -x` (or `ethtool -S`) show its state and error "
            f"counters, `mlxlink -d {device} --show_module` its cable: temperature, power, errors. Reseat or replace "
            f"cable and transceiver, then look at the switch port on the other side (`iblinkinfo`). Until it holds, "
            f"keep work off the node (`kubectl cordon {node}`) or take the port out with `NCCL_IB_HCA=^{device}`; "
            f"restart the job from its last checkpoint."
        )

    def evidence(self) -> Sequence[Fact]:
        facts: dict[str, Fact] = {fact.uid: fact for fact in (self.first, self.decisive, self.last)}
        if self.trouble is not None:
            facts[self.trouble.uid] = self.trouble
        return sorted(facts.values(), key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("collective_error",) if self.trouble is None else ()

    def fields(self) -> dict[str, Any]:
        fields = {
            "hw.network.ib.device": self.decisive.device,
            "hw.network.ib.port.num": self.decisive.port,
            "transition_count": self.count,
            "state": STATES.get(self.last.state, "unknown"),
            "k8s.node.name": self.node,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "hw.network.ib.device": self.decisive.device,
            "hw.network.ib.port.num": self.decisive.port,
            "k8s.node.name": self.node,
            "tracecore.alert.ib_link_flap.transition_count": self.count,
        }

    def suspects(self) -> Suspects:
        return Suspects(nodes=(self.node,) if self.node else ())


class PortFailureVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: NCCL's first report that a port or an adapter failed.
        trouble: the first error of a collective after it.
        count: number of such reports.
        devices: adapters that the reports name, with the port if named.
        nodes: machines that the reports name.
        containers: pods or containers that the reports name instead.
    """

    pattern_id: ClassVar[str] = "2"
    pattern_name: ClassVar[str] = "ib_link_flap"
    role: ClassVar[Role] = "cause"

    first: NcclError
    trouble: NcclError | WatchdogReport
    count: int = 1
    devices: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    containers: tuple[str, ...] = ()

    def headline(self) -> str:
        named = self.nodes or self.containers
        more = len(named) - _FEW
        where = f" on {_and((*named[:_FEW], *([f'{more} more'] if more > 0 else [])))}" if named else ""
        which = f"Port {', '.join(self.devices)}" if self.devices else "A network port"
        if len(named) > 1:
            which = f"Ports {', '.join(self.devices)}" if self.devices else "Network ports"
        later = (self.trouble.time - self.first.time) / SECOND
        exact = not (self.first.approximate or self.trouble.approximate)
        after = f" {seconds(round(later))} later" if exact and later >= 1 else ""
        told = f" ({self.count} times)" if self.count > 1 else ""
        return f"{which}{where} failed, according to NCCL{told}, and collectives failed{after}"

    def remediation(self) -> str:
        device = self.devices[0].partition(":")[0] if self.devices else "DEVICE"
        several = len(self.nodes or self.containers) > 1
        node = self.nodes[0] if len(self.nodes) == 1 else "each of these machines" if several else "its node"
        switch = "Ports of several machines at once: look at the switch between them first. " if several else ""
        return (
            f"{switch}On {node}: `ibstat` and `rdma link` show which port is down, `dmesg -T | grep -i mlx5` why, "
            f"`mlxlink -d {device} --show_module` its cable. Reseat or replace cable and transceiver, and look at "
            f"the switch "
            f"port on the other side (`iblinkinfo`). Until it holds, keep work off the node, or leave the port "
            f"out with "
            f"`NCCL_IB_HCA=^{device}`; restart the job from its last checkpoint."
        )

    def evidence(self) -> Sequence[Fact]:
        return sorted((self.first, self.trouble), key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("port_state",)

    def fields(self) -> dict[str, Any]:
        devices = list(self.devices) or None
        return filled({"port_errors": self.count, "devices": devices, "k8s.node.name": self._node})

    def promoted(self) -> dict[str, Any]:
        return {"k8s.node.name": self._node, "tracecore.alert.ib_link_flap.port_errors": self.count}

    @property
    def _node(self) -> str | None:
        return self.nodes[0] if len(self.nodes) == 1 else None

    def suspects(self) -> Suspects:
        return Suspects(nodes=self.nodes if len(self.nodes) <= _FEW else ())


class IbLinkFlap(Pattern[Config]):
    """A port changes its state repeatedly. Full if a collective on its node failed at that time.

    Or NCCL reports that a port or an adapter failed, and errors of collectives follow. Partial, as only NCCL saw it.

    A port that only comes up, from Down over Initialize and Armed to Active, does not flap. The first observed state is
    no transition, because the state before it is not known.
    """

    id = "2"
    name = "ib_link_flap"
    role = "cause"
    maturity = "experimental"
    needs = (PortState, NcclError, WatchdogReport)
    triggers = (PortState, NcclError)
    Config = Config

    @property
    def horizon(self) -> int:
        return max(2 * self.config.window, self.config.aftermath)

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        # Errors know their node but not the port, so one window holds all ports of a node.
        if type(fact) is NcclError and fact.error not in BROKEN:
            return ()
        if type(fact) is WatchdogReport and fact.report not in STUCK:
            return ()
        if type(fact) is PortState and fact.state not in STATES:
            return ()
        return ((fact.node or "",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        ports: dict[tuple[str, int, str], list[PortState]] = {}
        for state in window.of(PortState):
            port = (state.device, state.port, state.process or "")
            if port in ports:
                ports[port].append(state)
            else:
                ports[port] = [state]
        troubles: Timeline[Trouble] = Timeline(sorted((*window.of(NcclError), *window.of(WatchdogReport)), key=_time))
        found: list[Verdict] = []
        told: set[tuple[str, int, str | None]] = set()
        for port in sorted(ports):
            states = ports[port]
            if port[2]:
                # Each process on a machine reports the same port.
                flaps = [] if (name := (*port[:2], states[0].host)) in told else self._flaps_by_nccl(window, states)
                if flaps:
                    told.add(name)
                found += flaps
            else:
                found += self._flaps(window, states, troubles)
        if not found:
            found += self._failures(window, troubles.facts)
        return sorted(found, key=lambda verdict: (verdict.time, verdict.key))

    def _failures(self, window: Window, troubles: Sequence[Trouble]) -> Iterator[Verdict]:
        """Yield a verdict for each run of port errors that errors of collectives follow."""
        runs: list[list[NcclError]] = []
        for fact in troubles:
            if isinstance(fact, NcclError) and fact.error == PORT:
                if not runs or fact.time - runs[-1][0].time > self.config.aftermath:
                    runs.append([])
                runs[-1].append(fact)
        if not runs:
            return
        others = [fact for fact in troubles if not (isinstance(fact, NcclError) and fact.error == PORT)]
        others.sort(key=_place)
        for own in runs:
            first = own[0]
            place = bisect_left(others, _place(first), key=_place)
            if place == len(others) or others[place].time - first.time > self.config.aftermath:
                continue
            trouble = others[place]
            hosts = {fact.node or fact.host for fact in own} - {None}
            nodes = {_machine(fact) for fact in own} - {None}
            devices = sorted({device for fact in (*own, trouble) if (device := getattr(fact, "device", None))})
            yield PortFailureVerdict(
                key=(*window.key, "port", ""),
                episode=first.source,
                time=first.time,
                confidence="partial",
                first=first,
                trouble=trouble,
                count=sum(max(fact.count, 1) for fact in own),
                # Some lines name the adapter without its port.
                devices=tuple(d for d in devices if not any(o.startswith(f"{d}:") for o in devices))[:4],
                nodes=tuple(sorted(filter(None, nodes))),
                containers=tuple(sorted(filter(None, hosts - nodes))),
            )

    def _flaps_by_nccl(self, window: Window, states: Sequence[PortState]) -> list[Verdict]:
        """Return the flaps of a port that NCCL reports. The error of a collective may come as late as a watchdog."""
        found: list[Verdict] = []
        others = [f for f in (*window.of(NcclError), *window.of(WatchdogReport)) if getattr(f, "error", "") != PORT]
        others.sort(key=_place)
        for flap in self._flaps(window, states, Timeline(())):
            after = [f for f in others if _place(f) >= _place(flap.first)]
            hurt = after[:1] if after and after[0].time - flap.decisive.time <= self.config.aftermath else []
            found.append(msgspec.structs.replace(flap, trouble=hurt[0], confidence="full") if hurt else flap)
        return found

    def _flaps(
        self, window: Window, states: Sequence[PortState], troubles: Timeline[Trouble]
    ) -> Iterator[IbLinkFlapVerdict]:
        """Yield a verdict for each episode of changes that follow each other within the window."""
        changes = list(_changes(states))
        enough, near = self.config.transitions - 1, self.config.window
        told: int | None = None
        for place in range(enough, len(changes)):
            decisive, first = changes[place][0], changes[place - enough][0]
            if told is not None and decisive.time - told <= near:
                told = decisive.time
                continue
            if decisive.time - first.time > near or not any(down for _, down in changes[place - enough : place + 1]):
                continue
            told = decisive.time
            last = bisect_right(changes, first.time + near, place, key=_when) - 1
            trouble = troubles.first(decisive.time - near, decisive.time + near)
            yield IbLinkFlapVerdict(
                key=(*window.key, decisive.device, str(decisive.port)),
                episode=decisive.source,
                time=decisive.time,
                confidence="partial" if trouble is None else "full",
                first=first,
                decisive=decisive,
                last=changes[last][0],
                count=self.config.transitions + last - place,
                trouble=trouble,
            )


def _machine(fact: PortState | NcclError) -> str | None:
    """Return the machine of the log, or the host that NCCL names unless that is a container."""
    host = fact.host
    return fact.node or (None if host is None or _CONTAINER.search(host) is not None else host)


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _when(change: tuple[PortState, bool]) -> int:
    return change[0].time


def _place(fact: Fact) -> tuple[int, str, int]:
    """Return the order of lines: by time, then by file and offset."""
    return fact.time, fact.source.path, fact.source.offset


def _changes(states: Sequence[PortState]) -> Iterator[tuple[PortState, bool]]:
    """Yield changes of state, and whether each led downwards. The first state counts only if NCCL reports it."""
    before = states[0]
    if before.process is not None:
        yield before, before.state == DOWN
    for state in states:
        if state.state != before.state:
            yield state, state.state < before.state
            before = state
