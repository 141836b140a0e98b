"""Who of a job never joined: by pods, counts, and what the others say."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.engine.window import FactWindow
from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact
from tracecore.facts.kubernetes import PodReady
from tracecore.facts.nccl import NcclError, RendezvousFailure, RendezvousRetry, WatchdogReport
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.patterns.nccl_bootstrap.cohorts import Cohort, cohorts_of, failed_of, namespace_of, problem_of
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000
F = TypeVar("F", bound=Fact)


def made(kind: type[F], at: int = 10, **fields: Any) -> F:
    place = Source(f"{kind.__name__}{fields.get('rank')}", at)
    return kind(time=START + at, source=place, **{"job": "a"} | fields)


def pod(rank: int | None, at: int = 1, **fields: Any) -> PodReady:
    return made(PodReady, at, rank=rank, pod=f"ml/p{rank}", ready_time=START, **fields)


def failed(rank: int | None = None, failure: str = "timeout", at: int = 10, **fields: Any) -> RendezvousFailure:
    return made(RendezvousFailure, at, rank=rank, failure=failure, **fields)


def counted(expected: int, joined: int, rank: int | None = 1) -> RendezvousFailure:
    return failed(rank, expected=expected, joined=joined)


def cohort(**fields: Any) -> Cohort:
    made = Cohort()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("given", "said", "absent", "found"),
    [
        # Pods that did not join, else those that somebody who counts misses.
        (cohort(missed={5}), (), [pod(2), pod(3), pod(None)], ((2, 3), 2, 6)),
        (cohort(missed={5, 6}, joined={6}), (), [], ((5,), 1, 7)),
        # Everybody who is heard of is counted: the others are missing.
        (cohort(seen={0, 1}), (counted(4, 2),), [], ((2, 3), 2, 4)),
        (cohort(seen={0, 1}), (counted(4, 3),), [], ((), 1, 4)),
        (cohort(seen={0, 4}), (counted(4, 2),), [], ((), 2, 4)),
        (cohort(seen={0, 1, 2, 3}), (counted(4, 4),), [], ((), 1, 4)),
        (cohort(seen={0, 1}), (counted(4, 2), counted(2, 1)), [], ((2, 3), 2, 4)),
        (cohort(seen={0}), (counted(1, 1),), [], ((), 1, 1)),
        (cohort(), (counted(1, 0),), [], ((0,), 1, 1)),
        (cohort(), (counted(1 << 20, 0),), [], (tuple(range(1 << 20)), 1 << 20, 1 << 20)),
        (cohort(), (counted((1 << 20) + 1, 0),), [], ((), (1 << 20) + 1, (1 << 20) + 1)),
        # Those that still wait while the others gave up.
        (cohort(seen={0, 1, 2}, alive={2}), (counted(3, 2),), [], ((2,), 1, 3)),
        (cohort(seen={0, 1, 2}, alive={1, 2}), (counted(3, 2),), [], ((), 1, 3)),
        (cohort(seen={0, 1, 2}, alive={1, 2}), (failed(0),), [], ((1, 2), 2, 3)),
        (cohort(seen={0, 1}, alive={1}), (failed(0, "connection_refused"),), [], ((0,), 1, 2)),
        # Those that reached nobody; where rank 0 was never heard of, rank 0.
        (cohort(seen={0, 1}), (failed(1, "connect_timeout"),), [], ((1,), 1, 2)),
        (cohort(seen={1, 2}), (failed(1, "host_not_found"),), [], ((0,), 1, 3)),
        (cohort(seen={1}), (failed(1, "connection_reset"),), [], ((0,), 1, 2)),
        (cohort(seen={1}), (failed(1, "closed"),), [], ((0,), 1, 2)),
        (cohort(seen={0, 1}), (failed(1, "closed"),), [], ((), 1, 2)),
        (cohort(seen={1}), (failed(1, "timeout"),), [], ((), 1, 1)),
        (cohort(seen={0, 1}), (made(NcclError, rank=1, error="no_socket_interface"),), [], ((1,), 1, 2)),
        (
            cohort(seen={0, 1, 2}),
            (made(NcclError, rank=1, error="no_socket_interface"), failed(2, "connect_timeout")),
            [],
            ((1,), 1, 3),
        ),
        # Without its own interface a rank does not get as far as the rendezvous, wherever that is.
        (
            cohort(seen={4, 5}),
            (
                made(NcclError, rank=4, error="no_socket_interface"),
                made(NcclError, rank=5, error="no_socket_interface"),
            ),
            [],
            ((4, 5), 2, 6),
        ),
        (
            cohort(seen={4, 5}),
            (made(NcclError, rank=4, error="no_socket_interface"), failed(5, "connect_timeout")),
            [],
            ((0,), 1, 3),
        ),
        # How many there should be.
        (cohort(ready={n: pod(n) for n in range(5)}), (failed(),), [], ((), 1, 5)),
        (cohort(), (), [], ((), 1, 1)),
    ],
)
def test_the_ranks_that_never_joined(
    given: Cohort, said: tuple[Any, ...], absent: list[PodReady], found: tuple[tuple[int, ...], int, int]
) -> None:
    assert failed_of(given, said, absent) == found


def cohorts(*facts: Fact) -> dict[Any, Cohort]:
    window = FactWindow(("a",), 0)
    for fact in facts:
        window.add(fact)
    return cohorts_of(window)


def test_a_cohort_is_a_job_and_attempt_in_which_no_step_was_made() -> None:
    found = cohorts(pod(0), pod(0, 5), failed(1, attempt=1), made(NcclError, rank=2, error="x", job="b"))
    assert {(key[0][0], key[1]) for key in found} == {("a", 0), ("a", 1), ("b", 0)}
    assert found[("a", ""), 0].ready == {0: pod(0)}
    assert cohorts(pod(0), made(Progress, step=1)) == {}
    assert len(cohorts(pod(0), made(Progress, step=1, attempt=1))) == 1
    assert cohorts(made(RendezvousRetry, problem="x"), made(ExitStatus, rank=1, alive=True)) == {}


def test_who_is_heard_of_joined_missed_and_alive() -> None:
    (found,) = cohorts(
        pod(0), failed(1, at=20), failed(2, at=15), made(RendezvousRetry, 5, rank=3, problem="x"),
        made(CollectiveEntry, rank=4, pg="0", seq=1, op="x", state="started", pod="ml/p4"),
        made(WatchdogReport, rank=5, report="timeout", missing=(8,)),
        made(WatchdogReport, 11, report="timeout", reporter="ray", missing=(9,)),
        made(ExitStatus, rank=6, exit_code=1), made(ExitStatus, rank=7, alive=True), made(ExitStatus, alive=True),
    ).values()  # fmt: skip
    assert [fact.rank for fact in found.said] == [2, 1]
    assert [fact.rank for fact in found.retried] == [3]
    assert (found.joined, found.missed, found.alive) == ({4, 5}, {9}, {7})
    assert found.seen == {0, 1, 2, 4, 5, 6, 7}
    assert found.pods == {"ml/p4", None}


@pytest.mark.parametrize(("name", "stepped", "joined"), [("ml/p0", True, True), ("ml/p1", False, False)])
def test_a_step_that_knows_only_its_pod_counts_for_the_job_of_that_pod(name: str, stepped: bool, joined: bool) -> None:
    step = made(Progress, step=1, job=None, pod=name)
    entry = made(CollectiveEntry, rank=0, pg="0", seq=1, op="x", state="started", job=None, pod=name)
    found = cohorts(pod(0), step, entry)[("a", ""), 0]
    assert (found.stepped, "ml/p0" in found.pods) == (stepped, joined)


def test_problems_and_namespaces() -> None:
    assert problem_of(failed(failure="closed")) == "closed"
    assert problem_of(made(RendezvousRetry, problem="p")) == "p"
    assert problem_of(made(NcclError, error="e")) == "e"
    assert namespace_of(pod(0, namespace="own")) == "own"
    assert namespace_of(pod(0)) == "ml"
    assert namespace_of(failed()) is None
