"""An InfiniBand or RoCE port goes up and down, or fails and takes collectives with it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

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

#: Errors that a port which comes and goes can cause; a wrong argument or a lack of memory it cannot.
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
#: What NCCL says of a port or an adapter itself.
PORT = "ib_port_error"
#: Reports of a watchdog that say a collective did not end.
STUCK = frozenset({"timeout", "exception"})

Trouble: TypeAlias = "NcclError | WatchdogReport"
_time = attrgetter("time")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the transitions lie within this time; so near must a collective's error be.
        transitions: so many changes of state.
        aftermath: how long after a port has failed a collective's error still follows from it. A watchdog waits for its
            time-out, which is often half an hour.
    """

    window: Duration = 10 * MINUTE
    transitions: Count = 3
    aftermath: Duration = 40 * MINUTE


class IbLinkFlapVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: the state that the first transition led to.
        decisive: that of the transition that made it enough.
        last: that of the last transition within a window of the first.
        count: transitions from first to last.
        trouble: an error of a collective on the node at that time; None where there was none.
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
        return f"{self.decisive.device}/{self.decisive.port}"

    def headline(self) -> str:
        where = f" on {self.decisive.node}" if self.decisive.node else ""
        span = seconds((self.last.time - self.first.time) / SECOND)
        hurt = ", and a collective failed there" if self.trouble is not None else ""
        return f"Port {self.port}{where} changed state {self.count} times in {span}{hurt}"

    def remediation(self) -> str:
        node, device, port = self.decisive.node or "NODE", self.decisive.device, self.decisive.port
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
            "k8s.node.name": self.decisive.node,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            "hw.network.ib.device": self.decisive.device,
            "hw.network.ib.port.num": self.decisive.port,
            "k8s.node.name": self.decisive.node,
            "tracecore.alert.ib_link_flap.transition_count": self.count,
        }

    def suspects(self) -> Suspects:
        return Suspects(nodes=(self.decisive.node,) if self.decisive.node else ())


class PortFailureVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        first: NCCL's first word that a port or an adapter failed.
        trouble: the first error of a collective after it.
        count: how many lines said so.
        devices: adapters that they name, with their port where they do.
    """

    pattern_id: ClassVar[str] = "2"
    pattern_name: ClassVar[str] = "ib_link_flap"
    role: ClassVar[Role] = "cause"

    first: NcclError
    trouble: NcclError | WatchdogReport
    count: int = 1
    devices: tuple[str, ...] = ()

    def headline(self) -> str:
        where = f" on {self.first.node}" if self.first.node else ""
        which = f"Port {', '.join(self.devices)}" if self.devices else "A network port"
        later = (self.trouble.time - self.first.time) / SECOND
        exact = not (self.first.approximate or self.trouble.approximate)
        after = f" {seconds(round(later))} later" if exact and later >= 1 else ""
        told = f" ({self.count} times)" if self.count > 1 else ""
        return f"{which}{where} failed, as NCCL says{told}, and collectives failed{after}"

    def remediation(self) -> str:
        node, device = self.first.node or "its node", self.devices[0].partition(":")[0] if self.devices else "DEVICE"
        return (
            f"On {node}: `ibstat` and `rdma link` show which port is down, `dmesg -T | grep -i mlx5` why, "
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
        return filled({"port_errors": self.count, "devices": devices, "k8s.node.name": self.first.node})

    def promoted(self) -> dict[str, Any]:
        return {"k8s.node.name": self.first.node, "tracecore.alert.ib_link_flap.port_errors": self.count}

    def suspects(self) -> Suspects:
        return Suspects(nodes=(self.first.node,) if self.first.node else ())


class IbLinkFlap(Pattern[Config]):
    """A port changes its state again and again; full where a collective on its node failed at that time.

    Or NCCL says that a port or an adapter failed, and errors of collectives follow: partial, as nobody else saw it.

    A port that only comes up, from Down over Initialize and Armed to Active, does not flap. The state before the first
    that was seen is not known, so the first is no transition.
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
        # Errors know their node and not the port, so that ports are told apart within the node's window.
        if type(fact) is NcclError and fact.error not in BROKEN:
            return ()
        if type(fact) is WatchdogReport and fact.report not in STUCK:
            return ()
        if type(fact) is PortState and fact.state not in STATES:
            return ()
        return ((fact.node or "",),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        ports: dict[tuple[str, int], list[PortState]] = {}
        for state in window.of(PortState):
            port = (state.device, state.port)
            if port in ports:
                ports[port].append(state)
            else:
                ports[port] = [state]
        troubles: Timeline[Trouble] = Timeline(sorted((*window.of(NcclError), *window.of(WatchdogReport)), key=_time))
        found: list[Verdict] = []
        for port in sorted(ports):
            found += self._flaps(window, ports[port], troubles)
        if not found:
            found += self._failures(window, troubles.facts)
        return sorted(found, key=lambda verdict: (verdict.time, verdict.key))

    def _failures(self, window: Window, troubles: Sequence[Trouble]) -> Iterator[Verdict]:
        """One verdict for each run of port errors that errors of collectives follow."""
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
            devices = sorted({device for fact in (*own, trouble) if (device := getattr(fact, "device", None))})
            yield PortFailureVerdict(
                key=(*window.key, "port", ""),
                episode=first.source,
                time=first.time,
                confidence="partial",
                first=first,
                trouble=trouble,
                count=sum(max(fact.count, 1) for fact in own),
                devices=tuple(devices[:4]),
            )

    def _flaps(self, window: Window, states: Sequence[PortState], troubles: Timeline[Trouble]) -> Iterator[Verdict]:
        """One verdict for each episode: changes that follow each other within the window."""
        changes = [(after, after.state < before.state) for before, after in _changes(states)]
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
            # The first error of a collective near the transition that decided.
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


def _when(change: tuple[PortState, bool]) -> int:
    return change[0].time


def _place(fact: Fact) -> tuple[int, str, int]:
    """The order of lines: by time, and those of one file without times as they stand in it."""
    return fact.time, fact.source.path, fact.source.offset


def _changes(states: Sequence[PortState]) -> Iterator[tuple[PortState, PortState]]:
    before = states[0]
    for state in states:
        if state.state != before.state:
            yield before, state
            before = state
