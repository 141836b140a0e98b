"""Detection of an input pipeline that stopped because a loader worker died or a volume could not be mounted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from math import isfinite
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias, TypeVar

import msgspec

from tracecore.facts.fact import order
from tracecore.facts.kubernetes import MountEvent
from tracecore.facts.process import LoaderError, StackPrinted
from tracecore.facts.training import StepStalled
from tracecore.facts.wording import seconds
from tracecore.patterns.config import MINUTE, SECOND, Duration, Settings
from tracecore.patterns.contract import Pattern, Role, Verdict, filled
from tracecore.patterns.scope import namespace, pod_fields, pod_name
from tracecore.patterns.timeline import Timeline, grouped, repeats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import IncidentContext, Key, Window

    F = TypeVar("F", bound=Fact)
    K = TypeVar("K")

Discriminator: TypeAlias = Literal["worker_killed", "storage_event"]
#: Pod, rank (if there is no pod), and whether the fact must be joined in the window of its node.
Whom: TypeAlias = tuple[str | None, int | str | None, bool]
#: Stands for every rank.
ANY = "*"

#: Steps in which workers are still filling their queues.
WARM_UP = frozenset({0, 1})
#: Retries that follow each other are at most this far apart. Rarer ones are the noise of background readers.
BETWEEN = 3 * MINUTE
#: Retries are usual if one for so many of them was made in as long a time before the stall.
USUAL = 2
#: Events of a volume that could not be mounted.
MOUNT_REASONS = frozenset({"FailedMount", "VolumeMountFailure", "FailedAttachVolume"})
NEXT: dict[str, str] = {
    "DataLoader worker killed": (
        "Look for an OOM kill of the worker{pid} on {node} (`dmesg -T | grep -iE 'oom|killed process'`, "
        "`journalctl -u kubelet`), raise the loader's `timeout`, and check that `persistent_workers=True` does not "
        "hide the dead worker"
    ),
    "FUSE transport error": (
        "Check the FUSE mount (`mountpoint -q PATH; echo $?` in {pod}), look at `dmesg -T | grep -i fuse` on {node}, "
        "and restart the CSI driver's pod there"
    ),
    "S3 throttle": (
        "Give the endpoint more capacity or spread the shards over more prefixes, put a cache in front, and look at "
        "the gateway's rate limits; `kubectl logs` of {pod} shows the bucket"
    ),
    "Stale file handle": (
        "On {node}: `lfs check servers` (Lustre), `mmlsmount all` and `mmhealth node show` (GPFS), or `exportfs -r` on "
        "the server and a remount (NFS)"
    ),
    "DataLoader queue empty": (
        "A worker died without an error message: look in the log of {pod} for an uncaught exception of the worker "
        "function, and run once with `num_workers=0`"
    ),
    "Connection reset by peer": (
        "The shard service that {pod} dials has died: look at that service's own logs, and put a circuit breaker "
        "before it"
    ),
}
OTHER = "Look at the log of {pod} around the error, and run once with `num_workers=0` to see the worker's own exception"
STORAGE = (
    "On {node}: `kubectl describe pod {pod}` shows which volume could not be mounted; look at the CSI driver's pod "
    "there (`kubectl get pods -A -o wide --field-selector spec.nodeName={node} | grep -i csi`) and at `mount`"
)
_time = attrgetter("time")
_pod = attrgetter("pod")
_rank = attrgetter("rank")


class Config(Settings, frozen=True, kw_only=True):
    """
    Args:
        window: the reason for a stall may be this long before it.
        threshold: shorter stalls do not count.
        retrying: retried operations explain a stall if the retries went on for this long without a step.
    """

    window: Duration = 5 * MINUTE
    threshold: Duration = 120 * SECOND
    retrying: Duration = 5 * MINUTE


class DataloaderHangVerdict(Verdict, frozen=True, kw_only=True):
    """
    Args:
        stall: the stall of the training.
        error: the latest loader error of the same pod.
        event: the latest failed mount on the same node.
        stack: the printed stack of the rank.
    """

    pattern_id: ClassVar[str] = "7"
    pattern_name: ClassVar[str] = "dataloader_hang"
    role: ClassVar[Role] = "cause"

    stall: StepStalled
    error: LoaderError | None = None
    event: MountEvent | None = None
    stack: StackPrinted | None = None

    @property
    def discriminator(self) -> Discriminator:
        """Return the kind of reason; a loader error of the pod is more precise than an event of the node."""
        return "storage_event" if self.error is None else "worker_killed"

    @property
    def stall_seconds(self) -> int:
        return int(self.stall.no_progress_s)

    def headline(self) -> str:
        who = self.stall.pod or (f"rank {self.stall.rank}" if self.stall.rank is not None else "the training")
        node = f" on {self.stall.node}" if self.stall.node else ""
        step = f" past step {self.stall.step}" if self.stall.step is not None else ""
        why = self.error.error_class if self.error is not None else f"{self.event.reason}" if self.event else ""
        why += ", retried without success" if self.error is not None and self.error.retried else ""
        return f"Input of {who}{node} stopped{step} for {seconds(self.stall_seconds)}: {why}"

    def remediation(self) -> str:
        text = self._fill(STORAGE if self.error is None else NEXT.get(self.error.error_class, OTHER))
        if self.error is not None and self.event is not None:
            text += " A volume could not be mounted on that node either: see the evidence."
        if self.stack is not None:
            text += f" When its stack was last printed, rank {self.stack.rank} stood at {self.stack.frame}."
        return text

    def evidence(self) -> Sequence[Fact]:
        facts = [fact for fact in (self.error, self.event, self.stall) if fact is not None]
        return sorted(facts, key=order)

    def fields(self) -> dict[str, Any]:
        known: dict[str, Any] = {
            "discriminator": self.discriminator,
            "tracecore.alert.dataloader_hang.stall_seconds": self.stall_seconds,
            "gen_ai.training.step": self.stall.step,
            "gen_ai.training.phase": self.stall.phase,
            "gen_ai.training.rank": self.stall.rank,
            "k8s.node.name": self.stall.node,
            **pod_fields(self.stall.pod),
        }
        if self.error is not None:
            known |= {"dataloader.error_class": self.error.error_class, "dataloader.worker_pid": self.error.worker_pid}
        elif self.event is not None:
            known["k8s.event.reason"] = self.event.reason
        return filled(known)

    def promoted(self) -> dict[str, Any]:
        fields = self.fields()
        return {
            "tracecore.alert.dataloader_hang.discriminator": self.discriminator,
            **{
                name: fields.get(name)
                for name in (
                    "tracecore.alert.dataloader_hang.stall_seconds",
                    "dataloader.error_class",
                    "dataloader.worker_pid",
                    "k8s.event.reason",
                    "k8s.pod.name",
                    "k8s.namespace.name",
                    "k8s.node.name",
                )
            },
        }

    def beside(self, rest: IncidentContext) -> DataloaderHangVerdict:
        """Add the printed stack of the rank that waits for its input."""
        ranks = {fact.rank for fact in (self.stall, self.error) if fact is not None and fact.rank is not None}
        stack = next((rest.stacks[rank] for rank in sorted(ranks) if rank in rest.stacks), None)
        return self if stack is None else msgspec.structs.replace(self, stack=stack)

    def _fill(self, text: str) -> str:
        pid = f" (pid {self.error.worker_pid})" if self.error and self.error.worker_pid is not None else ""
        pod = self.stall.pod
        name = f"{pod_name(pod)} -n {namespace(pod)}" if pod and self.error is None else pod or "the trainer"
        node = self.stall.node or (f"the node of {pod}" if pod else "its node")
        return text.replace("{pid}", pid).replace("{node}", node).replace("{pod}", name) + "."


class DataloaderHang(Pattern[Config]):
    """A stall, and in the minutes before it a loader error of the same pod or a failed mount on the same node.

    A stall alone does not count. Neither does a stall in the first steps or in an evaluation, or a short one. A retried
    operation is no error, but retries that go on for minutes without a step explain a stall.
    """

    id = "7"
    name = "dataloader_hang"
    role = "cause"
    maturity = "stable"
    needs = (StepStalled, LoaderError, MountEvent)
    triggers = (StepStalled,)
    Config = Config

    @property
    def horizon(self) -> int:
        return max(self.config.window, self.config.retrying) + self.config.threshold

    def keys(self, fact: Fact) -> tuple[Key, ...]:
        if isinstance(fact, StepStalled) and (
            fact.step in WARM_UP or fact.phase == "eval" or not isfinite(fact.no_progress_s)
        ):
            return ()
        if type(fact) is MountEvent and fact.reason not in MOUNT_REASONS:
            return ()
        # A fact that knows only its pod is joined with the others in the window of the pod.
        nodes: tuple[Key, ...] = ((fact.node,),) if fact.node else ()
        return (*nodes, ("", fact.pod)) if fact.pod else nodes or (("", ""),)

    def evaluate(self, window: Window, now: int) -> list[Verdict]:
        stalls = window.of(StepStalled)
        if not stalls:
            return []
        reasons = Reasons(window, by_pod=not window.key[0])
        return list(self._join(window, stalls, reasons))

    def _join(self, window: Window, stalls: Sequence[StepStalled], reasons: Reasons) -> Iterator[Verdict]:
        long = self.config.threshold / SECOND
        stalled: dict[tuple[str | None, str | None], int] = {}
        retries: Retries | None = None
        for stall in stalls:
            if stall.no_progress_s < long:
                continue
            # A stall that is reported while it grows may have its reason until it was long enough.
            oldest, newest = stall.time - self.config.window, stall.time
            if stall.last_time is not None:
                newest = min(stall.last_time, max(newest, stall.since + self.config.threshold))
            error, event = reasons.error(stall, oldest, newest), reasons.event(stall, oldest, newest)
            if error is None and stall.no_progress_s >= self.config.retrying / SECOND:
                retries = Retries(window.of(LoaderError), not window.key[0]) if retries is None else retries
                error = retries.during(stall, self.config.retrying)
            if error is None and event is None:
                continue
            # Ranks of one pod stall together. Without a volume, all pods of a job on the node stall together.
            who = (stall.pod if error is not None or not stall.job else None, stall.job)
            repeated = who in stalled and stalled[who] >= oldest
            stalled[who] = stall.time
            if not repeated:
                yield DataloaderHangVerdict(
                    key=window.key,
                    episode=stall.source,
                    time=stall.time,
                    stall=stall,
                    error=error,
                    event=event,
                )


class Reasons:
    """The loader errors and failed mounts of a window, by the pod, rank or node that they concern.

    A loader error concerns its pod, or its rank if there are no pods. A failed mount concerns its node.

    Args:
        by_pod: this is the window of a pod. Two facts that both know their node are joined in the window of the node.
    """

    __slots__ = ("_by_pod", "_errors", "_events", "_ranks")

    def __init__(self, window: Window, by_pod: bool) -> None:
        self._by_pod = by_pod
        errors = [error for error in window.of(LoaderError) if not error.retried]
        events = window.of(MountEvent)
        # The key says whether only facts without a node count.
        self._errors = {alone: _timelines(_without_node(errors, alone), _pod) for alone in {False, by_pod}}
        self._ranks = {
            alone: _timelines([error for error in _without_node(errors, alone) if error.pod is None], _rank)
            for alone in self._errors
        }
        self._events = {
            alone: (
                Timeline([event for event in _without_node(events, alone) if event.node is not None]),
                _timelines([event for event in _without_node(events, alone) if event.node is None], _pod),
            )
            for alone in self._errors
        }

    def error(self, stall: StepStalled, oldest: int, newest: int) -> LoaderError | None:
        """Return the latest loader error that concerns this stall."""
        alone = self._by_pod and bool(stall.node)
        if stall.pod is not None or stall.rank is None:
            return _latest(self._errors[alone].get(stall.pod), None, oldest, newest)
        ranks = self._ranks[alone]
        return _latest(ranks.get(stall.rank), ranks.get(None), oldest, newest)

    def event(self, stall: StepStalled, oldest: int, newest: int) -> MountEvent | None:
        """Return the latest failed mount that concerns this stall."""
        on_node, pods = self._events[self._by_pod and bool(stall.node)]
        return _latest(on_node, pods.get(stall.pod), oldest, newest)


def _without_node(facts: Sequence[F], alone: bool) -> Sequence[F]:
    return [fact for fact in facts if not fact.node] if alone else facts


def _timelines(facts: Sequence[F], name: Callable[[F], K]) -> dict[K, Timeline[F]]:
    return {key: Timeline(group) for key, group in grouped(facts, name).items()}


def _latest(one: Timeline[F] | None, other: Timeline[F] | None, oldest: int, newest: int) -> F | None:
    """Return the later of the latest facts of both timelines."""
    mine = None if one is None else one.latest(oldest, newest)
    its = None if other is None else other.latest(oldest, newest)
    if mine is None or its is None:
        return mine or its
    return max(mine, its, key=order)


class Retries:
    """Retried loader operations by the pod or rank that they concern.

    Args:
        errors: all loader errors of a window, oldest first.
        by_pod: as in `Reasons`.
    """

    def __init__(self, errors: Sequence[LoaderError], by_pod: bool) -> None:
        self._by_pod = by_pod
        self._runs: dict[Whom, RetryRun] = {}
        for error in errors:
            if error.retried:
                known = by_pod and bool(error.node)
                for rank in {ANY, error.rank} if error.pod is None else (None,):
                    self._runs.setdefault((error.pod, rank, known), RetryRun()).add(error)

    def during(self, stall: StepStalled, enough: int) -> LoaderError | None:
        """Return the latest retry during a stall, if retries went on for `enough` since the last step."""
        at_node = (False,) if stall.node or not self._by_pod else (False, True)
        ranks: tuple[int | str | None, ...] = (None,) if stall.pod is not None else (None, stall.rank)
        if stall.pod is None and stall.rank is None:
            ranks = (ANY,)
        runs = [self._runs.get((stall.pod, rank, known)) for rank in ranks for known in at_node]
        found = [latest for run in runs if run is not None and (latest := run.during(stall, enough)) is not None]
        return max(found, key=order, default=None)


class RetryRun:
    """Retries of one pod or rank, oldest first, and the latest end among the retries up to each."""

    __slots__ = ("_errors", "_reach")

    def __init__(self) -> None:
        self._errors: list[LoaderError] = []
        self._reach: list[int] = []

    def add(self, error: LoaderError) -> None:
        self._errors.append(error)
        self._reach.append(max(error.end, self._reach[-1] if self._reach else error.end))

    def during(self, stall: StepStalled, enough: int) -> LoaderError | None:
        first = bisect_left(self._reach, stall.since)
        last = bisect_right(self._errors, stall.end, key=_time) - 1
        if last < first:
            return None
        lasted = min(self._reach[last], stall.end) - max(self._errors[first].time, stall.since)
        if lasted < enough:
            return None
        gaps = (self._errors[n].time - self._reach[n - 1] for n in range(first + 1, last + 1))
        if any(gap > BETWEEN for gap in gaps):
            return None
        # Retries that were as frequent while steps were made are no reason.
        oldest = 2 * stall.since - stall.end
        near = self._errors[bisect_left(self._reach, oldest) : last + 1]
        before = repeats(near, oldest, stall.since - 1)
        return None if USUAL * before >= repeats(near, stall.since, stall.end) else self._errors[last]
