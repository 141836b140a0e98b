"""Facts about NCCL, its watchdog and the rendezvous from the output of workers."""

from __future__ import annotations

from typing import ClassVar, Final

from tracecore.facts.fact import Fact
from tracecore.facts.wording import seconds, sentence

#: Group name in reports about collectives over gloo, which name no group.
GLOO = "gloo"


class WatchdogReport(Fact, frozen=True, kw_only=True):
    """A line of PyTorch's NCCL watchdog, or of a rank that gave up waiting in a collective over gloo.

    Args:
        report: the kind of line: timeout, exception, dump_signal, heartbeat, abort or stuck.
        op: the collective as printed (`ALLREDUCE`).
        seq: its sequence number in the group.
        timeout_ms: its timeout.
        elapsed_ms: the time it had run.
        last_enqueued: the last sequence number that this rank enqueued.
        last_started: the last that started.
        last_completed: the last that completed.
        pg: process group as printed.
        pg_desc: its description (`default_pg`, `mesh_dp`).
        numel_in: elements sent.
        numel_out: elements received.
        from_rank: the rank whose signal made this one write a dump.
        missing: ranks that did not come, if the line names them.
        missing_in_group: numbers of such ranks in the group, if the line does not name its members.
        frame: the line of the program at which it waited, from a traceback.
        group_rank: its number in its group, if its rank is another number or not known.
        reporter: the process that speaks for all ranks (Horovod, JAX, a barrier, a launcher).
        sign: the indirect sign that the others wait for the missing ranks, if no line says it.
    """

    kind: ClassVar[str] = "nccl_watchdog"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"elapsed_ms"})

    report: str
    op: str | None = None
    seq: int | None = None
    timeout_ms: int | None = None
    elapsed_ms: int | None = None
    last_enqueued: int | None = None
    last_started: int | None = None
    last_completed: int | None = None
    pg: str | None = None
    pg_desc: str | None = None
    numel_in: int | None = None
    numel_out: int | None = None
    from_rank: int | None = None
    missing: tuple[int, ...] = ()
    missing_in_group: tuple[int, ...] = ()
    frame: str | None = None
    group_rank: int | None = None
    reporter: str | None = None
    sign: str | None = None

    @property
    def awaits(self) -> bool:
        """Return whether the line names the ranks that did not come."""
        return bool(self.missing or self.missing_in_group)

    @property
    def is_p2p(self) -> bool:
        """Return whether the report is about a send, a receive or a batch of them; these have their own counter."""
        return (self.op or "").upper().startswith(("SEND", "RECV", "COALESCED"))

    def describe(self) -> str:
        parts = [f"NCCL watchdog {self.report.replace('_', ' ')}"]
        if self.reporter is not None and self.missing:
            ranks = f"rank{'s' if len(self.missing) > 1 else ''} {', '.join(map(str, self.missing))}"
            if self.sign is not None:
                return sentence(self, f"the others wait for {ranks}: {self.sign}")
            return sentence(self, f"{self.reporter} says that the others wait for {ranks}")
        if self.pg == GLOO:
            parts = ["waited too long in a collective over gloo"]
            if self.missing:
                parts.append(f"for rank{'s' if len(self.missing) > 1 else ''} {', '.join(map(str, self.missing))},")
        if self.op is not None:
            parts.append(self.op)
        if self.seq is not None:
            parts.append(f"seq {self.seq}")
        if self.pg != GLOO and (self.pg_desc or self.pg):
            parts.append(f"of group {self.pg_desc or self.pg}")
        if self.elapsed_ms is not None:
            parts.append(f"after {seconds(self.elapsed_ms / 1000)}")
        elif self.timeout_ms is not None:
            parts.append(f"past its limit of {seconds(self.timeout_ms / 1000)}")
        if self.last_enqueued is not None:
            parts.append(f"(last enqueued {self.last_enqueued}")
            parts[-1] += f", last completed {self.last_completed})" if self.last_completed is not None else ")"
        if self.from_rank is not None:
            parts.append(f"(signalled by rank {self.from_rank})")
        return sentence(self, " ".join(parts))


#: Value of `NcclError.error`: no library says it, but the ranks' steps came apart, so their calls did not match.
DRIFTED: Final = "drifted_steps"


class NcclError(Fact, frozen=True, kw_only=True):
    """An error or warning of NCCL, gloo or MPI.

    Args:
        error: a value of `nccl.error`.
        peer: address or rank of the other side as printed.
        detail: the rest of the line.
        device: the network adapter, with its port if the line has it.
        host: the machine or container as the library names it, for errors of the setup or of a port.
    """

    kind: ClassVar[str] = "nccl_error"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    error: str
    peer: str | None = None
    detail: str | None = None
    device: str | None = None
    host: str | None = None

    def describe(self) -> str:
        if self.error == DRIFTED:
            return self.detail or "ranks came apart in their steps"
        peer = f" with peer {self.peer}" if self.peer else ""
        return sentence(self, f"collective library error {self.error.replace('_', ' ')}{peer}", self.detail)


class RendezvousFailure(Fact, frozen=True, kw_only=True):
    """A rank could not join the others.

    Args:
        failure: a value of `tracecore.rendezvous.failure`.
        joined: number of clients that had joined.
        expected: number of clients that should join.
        endpoint: the endpoint that it tried.
        interface: the socket interface that it looked for.
        claimed: the rank that two processes have.
        missing: ranks that did not come, if the line names them.
        detail: the reason as printed.
        refused: the reason for which a scheduler refused: `credential`, `layout`.
    """

    kind: ClassVar[str] = "rendezvous_failure"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    failure: str
    joined: int | None = None
    expected: int | None = None
    endpoint: str | None = None
    interface: str | None = None
    claimed: int | None = None
    missing: tuple[int, ...] = ()
    detail: str | None = None
    refused: str | None = None

    def describe(self) -> str:
        parts = [f"rendezvous failed: {self.failure.replace('_', ' ')}"]
        if self.joined is not None and self.expected is not None:
            parts.append(f"{self.joined} of {self.expected} ranks joined")
        if self.endpoint:
            parts.append(f"endpoint {self.endpoint}")
        if self.interface:
            parts.append(f"interface {self.interface}")
        return sentence(self, ", ".join(parts))


class RendezvousRetry(Fact, frozen=True, kw_only=True):
    """A rank could not reach the others yet, and tries again.

    Args:
        problem: a value of `tracecore.rendezvous.failure`.
        endpoint: the endpoint that it tries.
    """

    kind: ClassVar[str] = "rendezvous_retry"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    problem: str
    endpoint: str | None = None

    def describe(self) -> str:
        at = f" at {self.endpoint}" if self.endpoint else ""
        return sentence(self, f"{self.problem.replace('_', ' ')}{at}, tries again")
