"""Detection of a checkpoint save that began and does not end while training makes no step."""

from __future__ import annotations

from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import msgspec

from tracecore.facts.collective import named
from tracecore.facts.fact import order
from tracecore.facts.kubernetes import MountEvent
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import ExceptionRaised, ExitStatus, FatalSignal, StackPrinted
from tracecore.facts.stop import PlannedStop
from tracecore.facts.storage import StorageError
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, SaveAwaited, StepStalled
from tracecore.facts.wording import seconds
from tracecore.patterns.checkpointer_hang.saving import open_phases, unfinished
from tracecore.patterns.checkpointer_hang.watched import WatchedSaves
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Suspects, Verdict, filled
from tracecore.patterns.scope import job_keys, slack

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import IncidentContext, Key, Window

Storage: TypeAlias = StorageError | MountEvent

PHASES = frozenset({"plan", "write", "barrier"})
#: (word of a path or backend name in lower case, kind of storage). The first word that occurs decides.
BACKENDS = (("fsx", "fsx"), ("lustre", "lustre"), ("weka", "weka"), ("nfs", "nfs"), ("s3", "s3"))
#: Storage errors that do not make a process wait.
HARMLESS = frozenset({"recovered", "not_found", "corrupt", "checksum_mismatch"})
LOOK = {
    "lustre": "`lfs check servers` and `dmesg -T | grep -i lustre`",
    "fsx": "`lfs check servers` and the file system's metrics",
    "weka": "`weka status` and `weka alerts`",
    "nfs": "`nfsstat -m` and `dmesg -T | grep 'nfs: server'`",
    "s3": "the bucket's request metrics and its throttling",
    "unknown": "`df -h`, `mount` and `dmesg -T`",
}
SHOWN = 16
#: A rank that looks for the missing parts of others names each in a line of its own, all within this time.
SAME_LOOK = 5 * SECOND
PREFIX = "tracecore.alert.checkpointer_hang."
_time = attrgetter("time")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        stall: a phase of saving hangs when it lasts this long without a step.
        before: storage errors this long before the start of the stall may explain it.
        after: storage errors this long after the start of the stall may explain it.
    """

    stall: Duration = 5 * MINUTE
    before: Duration = 60 * SECOND
    after: Duration = 5 * MINUTE


class CheckpointerHangVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        begun: phases that began and did not end, oldest first.
        everyone: all known ranks are in such a phase.
        stalled_ns: observed duration of the hang.
        stall: the longest stall since the save began.
        storage: the first storage error near the start of the stall.
        timeout: a watchdog's report of a collective that timed out.
        alive: the exit status of a process that still ran at the end.
        awaited: the ranks that the others wait for, according to a collective, a barrier or the log of another rank.
        report: the last line in which a rank names others without whose parts the save is not complete.
        stack: the printed stack of a rank to look at.
    """

    pattern_id: ClassVar[str] = "11"
    pattern_name: ClassVar[str] = "checkpointer_hang"
    role: ClassVar[Role] = "cause"

    begun: tuple[CheckpointPhase, ...]
    everyone: bool = False
    stalled_ns: int = 0
    stall: StepStalled | None = None
    storage: Storage | None = None
    timeout: WatchdogReport | None = None
    alive: ExitStatus | None = None
    awaited: tuple[int, ...] = ()
    report: SaveAwaited | None = None
    stack: StackPrinted | None = None

    @property
    def first(self) -> CheckpointPhase:
        return self.begun[0]

    @property
    def backend(self) -> str:
        """Return the kind of storage, from the storage error or from the path."""
        own = self.storage.backend if isinstance(self.storage, StorageError) else None
        said = self.storage.path if isinstance(self.storage, StorageError) else None
        return backend_of(own) or backend_of(self.first.path) or backend_of(said) or "unknown"

    def headline(self) -> str:
        path = f" to {self.first.path}" if self.first.path else ""
        step = f" of step {self.first.step}" if self.first.step is not None else ""
        ranks = self._ranks()
        watched = self.stalled_ns // SECOND
        lasted = f", {seconds(watched)}" if watched else ""
        text = f"Saving the checkpoint{step}{path} does not end ({self.first.phase}{lasted})"
        if self.awaited:
            many = f"{len(ranks)} ranks began it, and wait"
            others = (many if len(ranks) > 1 else f"rank {ranks[0]} waits") if ranks else "the others wait"
            return f"{text}: {others} for {named(self.awaited)}"
        if self.everyone and len(ranks) > 1:
            return f"{text}: all {len(ranks)} ranks began it" + (", rank 0 coordinates it" if 0 in ranks else "")
        if ranks:
            return f"{text}: rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:SHOWN]))} began it"
        return text

    def remediation(self) -> str:
        ranks = self.suspects().ranks
        who = f"rank {', '.join(map(str, ranks[:SHOWN]))}" if ranks else "the process that saves"
        node = f" on {self.first.node}" if self.first.node else ""
        path = f" Try `timeout 10 ls {self.first.path}` there." if (self.first.path or "").startswith("/") else ""
        see = f"See where {who}{node} stands: `py-spy dump --pid PID`"
        if self.stack is not None:
            see = f"When its stack was last printed, rank {self.stack.rank}{node} stood at {self.stack.frame}"
        return (
            f"{see}; a process in state D (`ps -o pid,stat,wchan -C "
            f"python`) waits for storage. Look at {LOOK[self.backend]}.{path} Then end the job and restart it from the "
            f"checkpoint before this one."
        )

    def evidence(self) -> Sequence[Fact]:
        others = (self.stall, self.storage, self.timeout, self.alive, self.report, self.stack)
        facts: list[Fact] = [*self.begun[:SHOWN], *(fact for fact in others if fact is not None)]
        return sorted(facts, key=order)

    def missing_layers(self) -> tuple[str, ...]:
        return ("storage",) if self.storage is None else ()

    def fields(self) -> dict[str, Any]:
        fields = {
            "phase": self.first.phase,
            "storage_backend": self.backend,
            "stall_seconds": self.stalled_ns // SECOND,
            "ranks": self._ranks() or None,
            "tracecore.training.checkpoint.path": self.first.path,
            "gen_ai.training.checkpoint.step": self.first.step,
            "gen_ai.training.job_id": self.first.job,
        }
        return filled(fields)

    def promoted(self) -> dict[str, Any]:
        return {
            PREFIX + "stall_seconds": self.stalled_ns // SECOND,
            PREFIX + "phase": self.first.phase,
            PREFIX + "storage_backend": self.backend,
            "gen_ai.training.job_id": self.first.job,
        }

    def suspects(self) -> Suspects:
        """Return the ranks that began and did not end. If all ranks did, return rank 0, which coordinates a save."""
        found = Suspects.of(self.begun)
        if self.awaited:
            own = Suspects.of([begin for begin in self.begun if begin.rank in self.awaited])
            return msgspec.structs.replace(own, ranks=self.awaited)
        if not self.everyone or len(found.ranks) < 2 or 0 not in found.ranks:
            return found
        return Suspects.of([begin for begin in self.begun if begin.rank == 0])

    def beside(self, rest: IncidentContext) -> CheckpointerHangVerdict:
        """Add the stack, and narrow the stuck ranks to those that a collective waits for."""
        stuck = set(self._ranks()).intersection(rest.awaited)
        said = self
        if stuck and len(stuck) < len(self._ranks()):
            said = msgspec.structs.replace(self, awaited=tuple(sorted(stuck)))
        stack = next((rest.stacks[rank] for rank in said.suspects().ranks if rank in rest.stacks), None)
        return said if stack is None else msgspec.structs.replace(said, stack=stack)

    def _ranks(self) -> list[int]:
        return sorted({begin.rank for begin in self.begun if begin.rank is not None})


class CheckpointerHang(Pattern[Config]):
    """A phase of saving that began long ago and has not ended, while no step is made.

    Another fact must show that it hangs: a stall, a collective that timed out, or a process that still runs at the end.
    A log that merely ends with "saving" proves nothing. Full with a storage error near the start of the stall.
    """

    id = "11"
    name = "checkpointer_hang"
    role = "cause"
    maturity = "stable"
    needs = (
        CheckpointPhase,
        SaveAwaited,
        StepStalled,
        Progress,
        StorageError,
        MountEvent,
        WatchdogReport,
        ExitStatus,
        RunFinished,
        PlannedStop,
        ExceptionRaised,
        FatalSignal,
    )
    triggers = (CheckpointPhase,)
    node_scoped = (StorageError, MountEvent)
    Config = Config

    @property
    def horizon(self) -> int:
        return self.config.before + self.config.stall + self.config.after

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if type(fact) is CheckpointPhase and fact.phase not in PHASES:
            return ()
        if type(fact) is StorageError and fact.error in HARMLESS:
            return ()
        if type(fact) is WatchdogReport and fact.report != "timeout":
            return ()
        if type(fact) is StepStalled and not isfinite(fact.no_progress_s):
            return ()
        return job_keys(fact)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        reports = window.of(WatchdogReport)
        begun = open_phases(window)
        # Usually it is too early to decide and no collective has timed out.
        if not unfinished(window, [begin for begin in begun if not self._early(begin, reports, now)]):
            return []
        begun = unfinished(window, begun)
        ripe = [first for first in begun if not self._early(first, reports, now)]
        watched = WatchedSaves(window, self.config.before)
        for first in ripe:
            if self._hangs(watched, first, now):
                return [self._verdict(window, watched, first, begun)]
        return []

    def due(self, window: Window, now: int) -> int | None:
        deadlines = [begin.time + self.config.stall for begin in open_phases(window)]
        return min((deadline for deadline in deadlines if deadline > now), default=None)

    def _early(self, begin: CheckpointPhase, reports: Sequence[WatchdogReport], now: int) -> bool:
        """Return whether this phase has not lasted long enough and no collective timed out since it began."""
        return now < begin.time + self.config.stall and not (reports and reports[-1].time >= begin.time)

    def _hangs(self, watched: WatchedSaves, begin: CheckpointPhase, now: int) -> bool:
        """Return whether facts show that this phase hangs and did so before the run ended."""
        deadline = begin.time + self.config.stall
        seen = watched.stall(begin) is not None or watched.outlasts(begin)
        times = [deadline] if seen and now >= deadline else []
        if (timeout := watched.timeout(begin)) is not None:
            times.append(timeout.time)
        return bool(times) and not watched.ended(begin, min(times))

    def _verdict(
        self, window: Window, watched: WatchedSaves, first: CheckpointPhase, begun: list[CheckpointPhase]
    ) -> Verdict:
        stall, alive, timeout = watched.stall(first), watched.alive(first), watched.timeout(first)
        start = first.time if stall is None else min(first.time, max(stall.since, 0))
        storage = self._storage(window, first, start, begun)
        lasted = [fact.end - first.time for fact in (alive, timeout) if fact is not None]
        if stall is not None:
            lasted.append(int(stall.no_progress_s * SECOND))
        ranks = {begin.rank for begin in begun}
        named = () if timeout is None else timeout.missing
        reports = [] if named else _reports(window, first)
        return CheckpointerHangVerdict(
            key=window.key,
            episode=first.source,
            time=first.time,
            confidence="partial" if storage is None else "full",
            skew=window.skew if storage is not None and not self._around(storage, start) else 0,
            begun=tuple(begun),
            everyone=None not in ranks and _ranks(window) <= ranks,
            stalled_ns=max(0, *lasted) if lasted else 0,
            stall=stall,
            storage=storage,
            timeout=timeout,
            alive=alive,
            awaited=named or tuple(sorted({rank for report in reports for rank in report.missing})),
            report=reports[-1] if reports else None,
        )

    def _storage(
        self, window: Window, first: CheckpointPhase, start: int, begun: Sequence[CheckpointPhase]
    ) -> Storage | None:
        """Return the first storage error near the start of the stall, those that need the clock tolerance last."""
        nodes: dict[str | None, set[str | None]] = {}
        for one in begun:
            nodes.setdefault(one.node, set()).add(one.pod)
        found: list[Storage] = [
            fact
            for facts in (window.of(StorageError), window.of(MountEvent))
            for fact in facts
            if self._around(fact, start, slack(fact, first, window.skew)) and _is_theirs(window, fact, nodes)
        ]
        return min(found, key=lambda fact: (not self._around(fact, start), fact.time, fact.uid), default=None)

    def _around(self, fact: Storage, start: int, off: int = 0) -> bool:
        return fact.end >= start - self.config.before - off and fact.time <= start + self.config.after + off


def _reports(window: Window, first: CheckpointPhase) -> list[SaveAwaited]:
    """Return the last reports about ranks without whose parts the save is not complete."""
    said = [fact for fact in window.of(SaveAwaited) if fact.end >= first.time]
    latest = max((fact.end for fact in said), default=0)
    return [fact for fact in said if fact.end >= latest - SAME_LOOK]


def _is_theirs(window: Window, fact: Storage, nodes: Mapping[str | None, AbstractSet[str | None]]) -> bool:
    """Return whether a storage error is of this job, or of a node that saves and not of another pod there."""
    if window.key in job_keys(fact):
        return True
    pods = nodes.get(fact.node, frozenset())
    return bool(pods) and (fact.pod is None or None in pods or fact.pod in pods)


def backend_of(name: str | None) -> str | None:
    """Return the kind of storage that a path or the name of a backend contains."""
    lower = (name or "").lower()
    return next((backend for word, backend in BACKENDS if word in lower), None)


def _ranks(window: Window) -> set[int | None]:
    facts = (window.of(CheckpointPhase), window.of(Progress), window.of(ExitStatus))
    return {fact.rank for some in facts for fact in some if fact.rank is not None}
