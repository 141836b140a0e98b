"""Trouble of machines that no verdict speaks of: said beside the incidents, never dropped.

A hung task, a soft lockup, a disk that times out or a hot adapter fits no pattern by itself. Beside a job that failed
or stood still on the same machine at that time it may be why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from tracecore.facts.gpu import AerError, AerRecovery, GpuCondition, GpuDriverError, Sxid, Xid, XidGauge
from tracecore.facts.host import HostEvent
from tracecore.facts.network import LinkState, NicError, PortState
from tracecore.facts.storage import PROPER, StorageError
from tracecore.facts.xid_catalog import entry as xid_entry
from tracecore.patterns.contract import to_the_second

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from tracecore.engine.emission import Emission
    from tracecore.facts.fact import Fact
    from tracecore.incidents.incident import Incident
    from tracecore.incidents.run import JobRun

#: What the kernel says of the machine as a whole; faults of processes and boots are told elsewhere.
EVENTS: Final = frozenset(
    {
        "hung_task", "soft_lockup", "hard_lockup", "machine_check", "rcu_stall", "oops", "bug", "cpu_throttled",
        "file_limit", "netdev_stuck", "power_supply", "fan", "sensor", "node_unavailable", "file_system_full",
        "memory_module", "pcie_link_down", "health_check", "disk_failing", "memory_fragmented", "storage_cluster",
        "prolog_failed", "maintenance_scheduled", "memory_failure", "gpu_missing",
    }
)  # fmt: skip
#: How a process died, by the kernel, told of processes that may be a job's.
FAULTS: Final = frozenset({"segfault", "gpf", "invalid_opcode"})
#: So many are said; then how many more there are.
MOST: Final = 12
SECOND: Final = 1_000_000_000
#: Trouble this long before a run began, or after it ended, is not told beside it.
NEAR: Final = 3600 * SECOND
#: The state of a port over which traffic goes.
ACTIVE: Final = 4


def uncited(facts: Iterable[Fact], verdicts: Iterable[Emission], kernel: Collection[str] | None = None) -> list[Fact]:
    """Return the facts of such trouble that no verdict rests on, the first of each kind on each machine.

    Args:
        verdicts: those that stand.
        kernel: files of the kernel's log; what a program says of storage is told by its own failure. None where facts
            arrive without files: then a fact that names neither rank nor pod is the kernel's.
    """
    candidates: list[tuple[Fact, tuple[object, ...]]] = []
    found: dict[tuple[Any, ...], Fact] = {}
    last: dict[tuple[str | None, str, int], bool] = {}
    well: dict[tuple[str | None, str | None, str | None], int] = {}
    for fact in facts:
        if isinstance(fact, StorageError) and fact.error == "recovered":
            well[_storage(fact)] = fact.end
        if isinstance(fact, PortState | LinkState):
            last[_port(fact)] = _is_up(fact)
        if (what := _what(fact, kernel)) is not None:
            candidates.append((fact, what))
    if not candidates:
        return []
    evidence = [fact for emission in verdicts for fact in emission.verdict.evidence()]
    cited = {(fact.source.path, fact.source.offset) for fact in evidence}
    for fact, what in candidates:
        if (fact.source.path, fact.source.offset) not in cited:
            key = (fact.node, fact.gpu, fact.rank, type(fact), *what)
            known = found.get(key)
            found[key] = fact if known is None else _together(known, fact)
    # A verdict about a port speaks of all its changes.
    last |= {_port(fact): True for fact in evidence if isinstance(fact, PortState | LinkState)}
    ports = {(f.node, f.device) for f in (*found.values(), *evidence) if isinstance(f, PortState)}
    return [
        f
        for f in found.values()
        if not (isinstance(f, PortState | LinkState) and _is_over(f, last, ports))
        and not (isinstance(f, StorageError) and well.get(_storage(f), -1) >= f.end)
    ]


def _storage(fact: StorageError) -> tuple[str | None, str | None, str | None]:
    return fact.node, fact.backend, fact.device


def _port(fact: PortState | LinkState) -> tuple[str | None, str, int]:
    return (fact.node, fact.interface, 0) if isinstance(fact, LinkState) else (fact.node, fact.device, fact.port)


def _is_up(fact: PortState | LinkState) -> bool:
    return fact.up if isinstance(fact, LinkState) else fact.state == ACTIVE


def _is_over(
    fact: PortState | LinkState, last: dict[tuple[str | None, str, int], bool], ports: set[tuple[str | None, str]]
) -> bool:
    """Whether a port came up again, or is told of by a verdict or by another name."""
    return last[_port(fact)] or (isinstance(fact, LinkState) and (fact.node, fact.interface) in ports)


def _what(fact: Fact, kernel: Collection[str] | None) -> tuple[object, ...] | None:
    """Return the name of a kind of trouble; None if the verdict is none."""
    if isinstance(fact, HostEvent):
        told = fact.event in EVENTS or (fact.event in FAULTS and fact.training)
        return (fact.event, fact.process) if told else None
    if isinstance(fact, NicError):
        return fact.error, fact.device
    if isinstance(fact, StorageError):
        spoken = fact.rank is None and fact.pod is None if kernel is None else fact.source.path in kernel
        told = fact.error not in ("recovered", "not_found") and not fact.retried and spoken
        return (fact.error, fact.backend, fact.device) if told else None
    if isinstance(fact, GpuDriverError):
        return (fact.error,)
    if isinstance(fact, Sxid):
        return fact.code, fact.switch
    if isinstance(fact, AerError):
        return (fact.severity, fact.port) if fact.severity in ("nonfatal", "fatal") else None
    if isinstance(fact, AerRecovery):
        return (fact.port,) if not fact.succeeded else None
    if isinstance(fact, PortState | LinkState):
        # What NCCL says of a port is told as its error.
        return None if _is_up(fact) or getattr(fact, "process", None) is not None else _port(fact)[1:]
    if isinstance(fact, Xid):
        # Errors of links that are not fatal end no process by themselves, and may be why something waits.
        known = xid_entry(fact.code)
        return (fact.code, fact.unit, fact.link) if known is not None and known.fault == "link" else None
    if isinstance(fact, XidGauge):
        known = xid_entry(fact.code)
        return (fact.code,) if known is not None and known.hardware else None
    return (fact.condition,) if isinstance(fact, GpuCondition) else None


def _together(one: Fact, other: Fact) -> Fact:
    end = max(one.end, other.end)
    if (
        isinstance(one, AerError)
        and isinstance(other, AerError)
        and (one.error_type is None) != (other.error_type is None)
    ):
        # The kernel says in two lines that it received a message, and what is in it.
        told = other if one.error_type is None else one
        return msgspec.structs.replace(
            told, time=min(one.time, other.time), count=max(one.count, other.count), last_time=end
        )
    return msgspec.structs.replace(one, count=max(one.count, 1) + max(other.count, 1), last_time=end)


def notes(troubles: Sequence[Fact], run: JobRun) -> list[str]:
    """A line for each, those of the time of the run where that is known."""
    told = [fact for fact in sorted(troubles, key=lambda f: (f.time, f.uid)) if not _was_long_before(fact, run)]
    hangs = [fact for fact in told if isinstance(fact, GpuCondition) and fact.condition == "hang"]
    together = _hang_note(hangs)
    if together is not None:
        told = [fact for fact in told if fact not in hangs]
    said = [_note(fact) for fact in told[:MOST]]
    if len(told) > MOST:
        said.append(f"{len(told) - MOST} more kinds of trouble of machines are in what was read")
    return said if together is None else [together, *said]


def _hang_note(hangs: Sequence[Fact]) -> str | None:
    """One line for several ranks of which a monitor says that they hang; a few between them that do not are named."""
    ranks = sorted({fact.rank for fact in hangs if fact.rank is not None})
    if len(ranks) < 2 or len(ranks) < len({fact.rank for fact in hangs}):
        return None
    said = f"A monitor reports a hang at {len(ranks)} ranks, up to rank {ranks[-1]}"
    if not 0 < 4 * (ranks[-1] + 1 - len(ranks)) <= len(ranks):
        return said
    others = sorted(set(range(ranks[-1] + 1)) - set(ranks))
    names = f"rank {others[0]} reports" if len(others) == 1 else f"ranks {', '.join(map(str, others))} report"
    return f"{said}; only {names} none"


def untold(troubles: Sequence[Fact], incidents: Iterable[Incident]) -> list[Fact]:
    """Leave out the Xids that an incident itself tells of."""
    told = {(fact.source.path, fact.source.offset) for incident in incidents for fact in incident.evidence}
    return [f for f in troubles if not (isinstance(f, Xid) and (f.source.path, f.source.offset) in told)]


def _note(fact: Fact) -> str:
    at = "" if fact.approximate else f", at {to_the_second(fact.time)}"
    text = fact.describe()
    backend = fact.backend if isinstance(fact, StorageError) and fact.backend in PROPER else None
    if backend is not None:
        return f"{PROPER[backend]}{text.removeprefix(backend)}{at}"
    return f"{text[0].upper()}{text[1:]}{at}"


def _was_long_before(fact: Fact, run: JobRun) -> bool:
    begun = [attempt.first for attempt in run.attempts.values() if attempt.timed]
    return not fact.approximate and bool(begun) and fact.end < min(begun) - 24 * NEAR


def attach(incident: Incident, troubles: Sequence[Fact]) -> None:
    """Name what may be why, where an incident has no cause of its own: trouble of its machines around its time."""
    if incident.root is not None and incident.root.verdict.role == "cause":
        return
    nodes = set(incident.suspects.nodes)
    cited = {(fact.source.path, fact.source.offset) for fact in incident.evidence}
    near = [
        fact
        for fact in troubles
        if _is_near(fact, incident, nodes) and (fact.source.path, fact.source.offset) not in cited
    ]
    if not near:
        return
    first = min(near, key=lambda fact: (fact.time, fact.uid))
    where = f" of {first.node}" if first.node else ""
    incident.advice = f"Look first at the machine{where}: {first.describe()}. {incident.advice}"
    if incident.root is None:
        incident.headline += f"; around that time: {first.describe()}"
        incident.evidence = (*incident.evidence, *near[:3])


def _is_near(fact: Fact, incident: Incident, nodes: set[str]) -> bool:
    if isinstance(fact, GpuCondition | XidGauge) or (nodes and fact.node and fact.node not in nodes):
        return False
    if fact.approximate or not incident.timed:
        return True
    return incident.first - NEAR <= fact.end and fact.time <= incident.last + NEAR
