"""Trouble of machines: what counts as such, what is told together, and when it is near an incident."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, AerRecovery, GpuCondition, GpuDriverError, Sxid, XidGauge
from tracecore.facts.host import HostEvent
from tracecore.facts.network import LinkState, NicError, PortState
from tracecore.facts.storage import StorageError
from tracecore.incidents.incident import Incident
from tracecore.incidents.node_trouble import EVENTS, MOST, NEAR, _hang_note, attach, notes, uncited
from tracecore.incidents.run import JobAttempt, JobRun
from tracecore.patterns.contract import Suspects
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, seen, verdict

F = TypeVar("F", bound=Fact)
DOWN = 1


def made(kind: type[F], at: float = 10, **fields: Any) -> F:
    return kind(time=T0 + int(at * SECOND), source=Source("kern.log", int(at * 10)), **{"node": "n1"} | fields)


def hung(at: float = 10, **fields: Any) -> HostEvent:
    return made(HostEvent, at, **{"event": "hung_task"} | fields)


def storage(at: float = 10, **fields: Any) -> StorageError:
    return made(StorageError, at, **{"error": "io_error"} | fields)


def port(state: int, at: float = 10, number: int = 1) -> PortState:
    return made(PortState, at, device="mlx5_0", port=number, state=state)


@pytest.mark.parametrize(
    ("fact", "trouble"),
    [
        *[(hung(event=event), True) for event in sorted(EVENTS)], (hung(event="boot"), False),
        (hung(event="segfault", process="python3", training=True), True),
        (hung(event="segfault", process="gnome-shell"), False),
        (hung(event="gpf", process="pt_data_worker", training=True), True), (hung(event="segfault"), False),
        (made(NicError, error="x"), True), (storage(), True), (storage(error="recovered"), False),
        (storage(error="not_found"), False), (storage(retried=True), False), (storage(rank=1), False),
        (storage(pod="p"), False), (made(GpuDriverError, error="x"), True), (made(Sxid, code=1), True),
        (made(AerError, severity="fatal"), True), (made(AerError, severity="nonfatal"), True),
        (made(AerError, severity="corrected"), False), (made(AerRecovery, succeeded=False), True),
        (made(AerRecovery, succeeded=True), False), (port(DOWN), True), (port(2), True), (port(4), False),
        (made(LinkState, interface="eth0", up=False), True), (made(LinkState, interface="eth0", up=True), False),
        (made(XidGauge, code=79), True), (made(XidGauge, code=31), False), (made(XidGauge, code=9999), False),
        (made(GpuCondition, condition="x"), True), (seen(1), False),
    ],
)  # fmt: skip
def test_what_counts_as_trouble_of_a_machine(fact: Fact, trouble: bool) -> None:
    assert uncited([fact], []) == ([fact] if trouble else [])


def test_storage_is_the_machines_where_the_kernel_said_so() -> None:
    assert uncited([storage(rank=1)], [], kernel=("kern.log",)) == [storage(rank=1)]
    assert uncited([storage()], [], kernel=("other.log",)) == []


def test_a_port_that_came_up_again_is_no_trouble() -> None:
    assert uncited([port(DOWN, 1), port(4, 2)], []) == []
    assert uncited([port(4, 1), port(DOWN, 2)], []) == [port(DOWN, 2)]
    assert uncited([port(DOWN, 1), port(4, 2, number=2)], []) == [port(DOWN, 1)]
    assert uncited([hung(), port(4, 2)], []) == [hung()]


def test_storage_that_answers_again_is_no_trouble() -> None:
    silent, again = storage(1, error="not_responding", device="nas"), storage(2, error="recovered", device="nas")
    assert uncited([silent, again], []) == []
    assert uncited([silent, storage(2, error="recovered", device="other")], []) == [silent]
    assert uncited([again, storage(3, error="not_responding", device="nas")], []) != []


def test_a_link_is_told_once() -> None:
    link = made(LinkState, 1, interface="mlx5_0", up=False)
    assert uncited([link, port(DOWN, 2)], []) == [port(DOWN, 2)]
    assert uncited([link, made(LinkState, 2, interface="mlx5_0", up=True)], []) == []
    assert uncited([link, made(LinkState, 2, interface="eth1", up=True)], []) == [link]


def test_a_port_that_a_verdict_tells_of_is_not_told_again() -> None:
    flap = verdict("ib_link_flap", 10, port(DOWN, 1))
    assert uncited([port(DOWN, 1), port(4, 2), port(DOWN, 3)], [flap]) == []
    assert uncited([port(DOWN, 1), port(DOWN, 3, number=2)], [flap]) == [port(DOWN, 3, number=2)]
    assert uncited([made(LinkState, 2, interface="mlx5_0", up=False)], [flap]) == []


def test_what_an_incident_rests_on_is_not_told_beside_it() -> None:
    one = incident()
    one.evidence = (hung(),)
    attach(one, [hung()])
    assert one.advice == "do this"
    attach(one, [hung(11)])
    assert one.advice.startswith("Look first at the machine")


def test_what_a_verdict_rests_on_is_not_told_again() -> None:
    said = verdict("storage_failure", 10, storage())
    assert uncited([storage(), storage(11)], [said]) == [storage(11)]


@pytest.mark.parametrize(
    "other",
    [
        {"node": "n2"}, {"event": "oops"}, {"process": "python"}, {"rank": 1}, {"gpu": "g"},
    ],
)  # fmt: skip
def test_trouble_of_one_kind_and_machine_is_told_once(other: dict[str, Any]) -> None:
    one, again = hung(10, last_time=T0 + 30 * SECOND, count=2), hung(20, count=3)
    (together,) = uncited([one, again], [])
    assert (together.time, together.count, together.end) == (one.time, 5, T0 + 30 * SECOND)
    assert len(uncited([one, hung(20, **other)], [])) == 2


def run(*begun: int, timed: bool = True) -> JobRun:
    attempts = {("", n): JobAttempt(job="", number=n, first=first, timed=timed) for n, first in enumerate(begun)}
    return JobRun(attempts=attempts, end=0)


@pytest.mark.parametrize(
    ("begun", "fact", "told"),
    [
        (24 * NEAR, hung(0), True), (24 * NEAR + 1, hung(0), False), (24 * NEAR + 1, hung(0, approximate=True), True),
        (24 * NEAR + 1, hung(0, last_time=T0 + 1), True),
    ],
)  # fmt: skip
def test_trouble_long_before_the_run_is_not_told(begun: int, fact: Fact, told: bool) -> None:
    assert bool(notes([fact], run(T0 + 99 * NEAR, T0 + begun))) == told
    assert notes([fact], run(T0 + begun, timed=False))
    assert notes([fact], run())


def test_so_many_kinds_are_told_in_order_of_time() -> None:
    troubles = [hung(at, process=f"p{at}") for at in range(MOST)]
    assert len(notes(troubles, run())) == MOST
    told = notes([*reversed(troubles), hung(99)], run())
    assert (len(told), told[-1]) == (MOST + 1, "1 more kinds of trouble of machines are in what was read")
    assert "p0" in told[0]
    assert told[0][0].isupper()
    assert ", at 20" in told[0]
    assert ", at 20" not in notes([hung(1, approximate=True)], run())[0]


def incident(root: str = "", role: Any = None, nodes: tuple[str, ...] = (), timed: bool = True) -> Incident:
    return Incident(
        status="diagnosed", headline="it failed", advice="do this", root=verdict(root, 1, role=role) if root else None,
        symptoms=[], edges=[], alternatives=[], gaps=[], suspects=Suspects(nodes=nodes), first=T0 + 10 * SECOND,
        last=T0 + 20 * SECOND, timed=timed,
    )  # fmt: skip


HOUR = NEAR // SECOND


@pytest.mark.parametrize(
    ("given", "fact", "near"),
    [
        (incident(), hung(15), True), (incident(), hung(20 + HOUR), True), (incident(), hung(21 + HOUR), False),
        (incident(), hung(10 - HOUR), True), (incident(), hung(9 - HOUR), False),
        (incident(), hung(9 - HOUR, last_time=T0), True), (incident(), hung(21 + HOUR, approximate=True), True),
        (incident(timed=False), hung(21 + HOUR), True), (incident(nodes=("n1",)), hung(15), True),
        (incident(nodes=("n2",)), hung(15), False), (incident(nodes=("n2",)), hung(15, node=None), True),
        (incident(), made(GpuCondition, 15, condition="x"), False), (incident("nccl_hang"), hung(15), True),
        (incident("worker_crash"), hung(15), False),
    ],
)  # fmt: skip
def test_trouble_near_an_incident_without_a_cause_may_be_why(given: Incident, fact: Fact, near: bool) -> None:
    attach(given, [fact])
    assert given.advice.startswith("Look first at the machine") == near
    assert (given.headline != "it failed") == (near and given.root is None)
    assert given.evidence == ((fact,) if near and given.root is None else ())


def test_the_first_trouble_is_named_and_three_are_shown() -> None:
    given, facts = incident(), [hung(at, process=f"p{at}") for at in (14, 13, 12, 11)]
    attach(given, facts)
    assert "p11" in given.headline
    assert given.advice.startswith("Look first at the machine of n1: ")
    assert len(given.evidence) == 3


def test_a_monitor_that_names_a_rank_of_seven_digits_costs_nothing() -> None:
    hangs = [made(GpuCondition, condition="hang", rank=rank) for rank in (0, 9_999_999)]
    assert _hang_note(hangs) == "A monitor reports a hang at 2 ranks, up to rank 9999999"
    hangs = [made(GpuCondition, condition="hang", rank=rank) for rank in (0, 1, 2, 4, 5)]
    assert _hang_note(hangs) == "A monitor reports a hang at 5 ranks, up to rank 5; only rank 3 reports none"
