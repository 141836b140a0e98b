"""Collect which ranks of a job are ready, failed and joined. Without a job, the namespace takes its place."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from tracecore.facts.collective import CollectiveEntry, GroupProgress
from tracecore.facts.fact import order
from tracecore.facts.kubernetes import CniEvent, PodReady
from tracecore.facts.nccl import NcclError, RendezvousFailure, RendezvousRetry, WatchdogReport
from tracecore.facts.process import ExitStatus, RankStarted
from tracecore.facts.training import Progress
from tracecore.patterns.scope import namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tracecore.facts.fact import Fact
    from tracecore.patterns.contract import Key, Window

Said: TypeAlias = RendezvousFailure | RendezvousRetry | NcclError

NO_INTERFACE = "no_socket_interface"
#: Errors of a rank that cannot set up a communicator on its own machine. They count only if the rank also gave up:
#: otherwise the library may have continued in another way.
SETUP = frozenset({"nvls_error", "ib_setup_failed", "no_network_provider"})
GAVE_UP = frozenset(
    {"init_failed", "unhandled_cuda_error", "unhandled_system_error", "internal_error", "invalid_usage"}
)
#: Problems of a rank that could not reach the others. All other problems are of a rank that waited.
UNREACHED = frozenset({"connect_timeout", "connection_refused", "host_not_found", NO_INTERFACE})
#: Problems of a rank that had reached the rendezvous and lost it.
LOST = frozenset({"connection_reset", "closed"})
_who = attrgetter("job", "pod", "rank", "attempt")


class Cohort:
    """The ranks of one job, or of one namespace if the job is not known.

    Attributes:
        ready: ready pods by rank.
        said: problems that ranks report.
        retried: reports of attempts that were retried.
        joined: ranks with a collective.
        missed: ranks that are missing according to a process that counts.
        pods: pods with a collective.
        seen: ranks with any fact.
        alive: ranks whose process had not ended.
        stepped: a step was made, so all ranks joined.
    """

    __slots__ = ("alive", "joined", "missed", "pods", "ready", "retried", "said", "seen", "stepped")

    def __init__(self) -> None:
        self.ready: dict[int | None, PodReady] = {}
        self.said: list[Said] = []
        self.retried: list[Said] = []
        self.joined: set[int] = set()
        self.missed: set[int] = set()
        self.pods: set[str | None] = set()
        self.seen: set[int] = set()
        self.alive: set[int] = set()
        self.stepped = False


def cohorts_of(window: Window) -> dict[tuple[Key, int], Cohort]:
    """Return the cohorts in which a pod was ready or a rank failed, and no step was made."""
    ready = window.grouped(PodReady, cohort_of)
    failures = (window.grouped(RendezvousFailure, cohort_of), window.grouped(NcclError, cohort_of))
    retries = window.grouped(RendezvousRetry, cohort_of)
    stepped = window.grouped(Progress, cohort_of)
    entries = [window.grouped(kind, cohort_of) for kind in (CollectiveEntry, GroupProgress, WatchdogReport)]
    statuses = window.grouped(ExitStatus, cohort_of)
    started = window.grouped(RankStarted, cohort_of)
    cohorts: dict[tuple[Key, int], Cohort] = {}
    for name in ready.keys() | failures[0].keys() | failures[1].keys():
        if name in stepped:
            continue
        cohort = cohorts[name] = Cohort()
        for pod in sorted(ready.get(name, ()), key=order):
            # A pod that became ready again is the same rank.
            cohort.ready.setdefault(pod.rank, pod)
        told = [fact for said in failures for fact in said.get(name, ())]
        problems = {problem_of(fact) for fact in told}
        if not (problems & SETUP and problems & GAVE_UP):
            told = [fact for fact in told if problem_of(fact) not in SETUP | GAVE_UP]
        cohort.said = sorted(told, key=order)
        cohort.retried = sorted(retries.get(name, ()), key=order)
        entered = [fact for known in entries for fact in known.get(name, ())]
        cohort.joined = {fact.rank for fact in entered if fact.rank is not None}
        counted = [fact for fact in entered if isinstance(fact, WatchdogReport) and fact.reporter is not None]
        cohort.missed = {rank for fact in counted for rank in fact.missing}
        cohort.pods = {fact.pod for fact in entered}
        cohort.alive = {status.rank for status in statuses.get(name, ()) if status.alive and status.rank is not None}
        heard = (*ready.get(name, ()), *cohort.said, *statuses.get(name, ()), *started.get(name, ()))
        cohort.seen = {fact.rank for fact in heard if fact.rank is not None} | cohort.joined
        if name[0][0]:
            # A collective or step that knows its pod but no job counts for the job of the pod.
            for pod in cohort.ready.values():
                if pod.pod is not None:
                    lender = (("", namespace_of(pod) or ""), name[1])
                    cohort.stepped = cohort.stepped or _in_pod(pod, stepped.get(lender, ()))
                    if any(_in_pod(pod, known.get(lender, ())) for known in entries):
                        cohort.pods.add(pod.pod)
    return cohorts


def _in_pod(pod: PodReady, facts: Sequence[Fact]) -> bool:
    return any(fact.pod == pod.pod for fact in facts)


def failed_of(cohort: Cohort, said: tuple[Said, ...], absent: list[PodReady]) -> tuple[tuple[int, ...], int, int]:
    """Return the ranks that never joined, their number, and the expected number of ranks."""
    # A process that counts the ranks that join names the missing ones.
    missed = cohort.missed.union(*(fact.missing for fact in said if isinstance(fact, RendezvousFailure)))
    failed = {pod.rank for pod in absent if pod.rank is not None} or missed - cohort.joined
    counts = [
        (fact.expected, fact.joined)
        for fact in said
        if isinstance(fact, RendezvousFailure) and fact.expected is not None and fact.joined is not None
    ]
    expected, joined = max(counts, default=(0, 0))
    unreached: set[int] = set()
    unable: tuple[int, ...] = ()
    for fact in said:
        problem = problem_of(fact)
        if fact.rank is not None and problem in UNREACHED:
            unreached.add(fact.rank)
            # A rank without its network interface never contacts the rendezvous.
            unable += (fact.rank,) if problem == NO_INTERFACE else ()
    if counts:
        # A rank that counts the others has reached the rendezvous, whatever problem it had before.
        unreached -= {fact.rank for fact in said if isinstance(fact, RendezvousFailure) and fact.joined is not None}
    lost = any(problem_of(fact) in LOST for fact in said)
    seen = cohort.seen
    if not failed and 0 < expected <= 1 << 20 and 0 <= expected - joined == expected - len(seen):
        # All ranks with facts joined or waited, so the ranks without facts are missing.
        failed = set(range(expected)) - seen if all(rank < expected for rank in seen) else set()
    if not failed and not unreached and cohort.alive and (len(cohort.alive) == expected - joined or not counts):
        # Only the missing ranks still run. The others gave up waiting and ended.
        failed = set(cohort.alive)
    if not failed:
        # The rendezvous is at rank 0. If rank 0 has no facts, no rank could reach it. Else the others wait for a rank
        # without its interface.
        reached_for = any(rank not in unable for rank in unreached)
        # Where the machine without its interface is known and not its ranks, the others wait for that machine.
        unnamed = any(problem_of(fact) == NO_INTERFACE and fact.rank is None and fact.node for fact in said)
        if not unnamed:
            failed = {0} if (reached_for or lost) and 0 not in seen else set(unable) or unreached
    missing = max(len(failed), expected - joined, 1)
    # A rank number implies all ranks below it.
    counted = max(len(missed), *missed) + 1 if missed else 0
    counted = max(counted, max((rank for rank in unable if rank in failed), default=-1) + 1) if unable else counted
    size = max(len(cohort.ready), expected, len(seen | failed), missing, counted)
    return tuple(sorted(failed)), missing, size


def problem_of(fact: Said) -> str:
    """Return the problem in one word."""
    if isinstance(fact, RendezvousRetry):
        return fact.problem
    return fact.failure if isinstance(fact, RendezvousFailure) else fact.error


def namespace_of(fact: Fact) -> str | None:
    """Return the namespace that a fact names, else the namespace of its pod."""
    own = fact.namespace if isinstance(fact, PodReady | CniEvent) else None
    return own or (namespace(fact.pod) if fact.pod else None)


def cohort_of(fact: Fact) -> tuple[Key, int]:
    """Return the cohort of a fact, and its attempt."""
    return (fact.job, "") if fact.job else ("", namespace_of(fact) or ""), fact.attempt
