"""The decisions inside arbitration, each comparison on its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.fact import Fact
from tracecore.facts.gpu import Xid
from tracecore.facts.kubernetes import SLURM_DOWN, NodeReadiness
from tracecore.facts.memory import CudaOom
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import ExitStatus, FatalSignal
from tracecore.facts.training import Progress
from tracecore.incidents import arbitration as parts
from tracecore.incidents import set_aside
from tracecore.incidents.arbitration import EPISODE, HISTORY
from tracecore.incidents.footprint import Footprint, footprint_of
from tracecore.incidents.incident import Edge, Incident
from tracecore.incidents.rule_conditions import SLACK
from tracecore.incidents.run import JobAttempt, JobRun
from tracecore.incidents.set_aside import WENT_ON
from tracecore.patterns.contract import Suspects
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, Seen, place, seen, verdict


def touch(
    *facts: Fact, name: str = "worker_crash", ranks: tuple[int, ...] = (), role: Any = None, **own: Any
) -> Footprint:
    given = facts or (seen(10),)
    made = verdict(name, (given[0].time - T0) / SECOND, *given, ranks=ranks, role=role, fields=own)
    return footprint_of(made, "", 0)


def attempt(**fields: Any) -> JobAttempt:
    return JobAttempt(**{"job": "", "number": 0, "timed": True, "first": T0} | fields)


def run(*attempts: JobAttempt) -> JobRun:
    return JobRun(attempts={(one.job, one.number): one for one in attempts}, end=T0 + 999 * SECOND)


def xid(at: float, **fields: Any) -> Xid:
    return Xid(time=T0 + int(at * SECOND), source=Source("kern.log", int(at)), node="n1", code=79, **fields)


def step(at: float, path: str = "a.log", line: int = 1) -> Progress:
    return Progress(time=T0 + int(at * SECOND), source=place(path, line), step=1)


# -- to which attempt and time a verdict belongs -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "attempts", "history"),
    [
        ([seen(0)], [attempt(first=T0 + HISTORY)], False),
        ([seen(0)], [attempt(first=T0 + HISTORY + 1)], True),
        ([seen(0, last_time=T0 + 1)], [attempt(first=T0 + HISTORY + 1)], False),
        ([seen(0)], [attempt(first=T0 + HISTORY + 1, timed=False)], False),
        ([seen(0)], [attempt(first=T0 + 2 * HISTORY), attempt(number=1, first=T0 + HISTORY)], False),
        ([seen(0)], [attempt(job="other", first=T0 + 2 * HISTORY)], False),
        ([seen(0, approximate=True)], [attempt(first=T0 + 2 * HISTORY)], False),
        ([xid(0, approximate=True)], [attempt(first=T0 + 2 * HISTORY)], True),
        ([xid(0, approximate=True), seen(0, approximate=True)], [attempt(first=T0 + 2 * HISTORY)], False),
    ],
)
def test_what_was_over_long_before_the_run_is_history(
    facts: list[Fact], attempts: list[JobAttempt], history: bool
) -> None:
    assert parts._is_history(touch(*facts), run(*attempts)) == history


@pytest.mark.parametrize(
    ("at", "number"), [(T0 - 1, 1), (T0, 1), (T0 + 9, 1), (T0 + 10, 2), (T0 + 19, 2), (T0 + 20, 2), (T0 + 30, 4)]
)
def test_a_verdict_without_lines_is_of_the_attempt_that_ran_then(at: int, number: int) -> None:
    attempts = [
        attempt(number=1), attempt(number=2, first=T0 + 10), attempt(number=3, first=T0 + 20, timed=False),
        attempt(number=4, first=T0 + 30),
    ]  # fmt: skip
    assert parts._attempt_at(attempts, at) == number
    assert parts._attempt_at([], at) == 0


@pytest.mark.parametrize(
    ("facts", "ranks", "jobs", "belongs"),
    [
        ([seen(1, job="b")], (), "ab", "b"), ([seen(1)], (), "a", "a"), ([seen(1)], (), "", ""),
        ([seen(1)], (7,), "ab", "b"), ([seen(1)], (7, 8), "ab", "a"), ([seen(1)], (1,), "ab", "a"),
        ([seen(1)], (), "ab", "a"),
    ],
)  # fmt: skip
def test_a_verdict_is_of_the_job_it_names_or_whose_ranks_it_names(
    facts: list[Fact], ranks: tuple[int, ...], jobs: str, belongs: str
) -> None:
    known = {"a": {1, 2}, "b": {1, 7}}
    course = run(*(attempt(job=job, ranks=known[job]) for job in jobs))
    (found,) = parts._belonging([verdict("worker_crash", 1, *facts, ranks=ranks)], course)
    assert found.job == belongs


def test_a_verdict_is_of_the_last_attempt_that_its_lines_name() -> None:
    course = run(attempt(), attempt(number=1, first=T0 + 5 * SECOND))
    said = [
        verdict("worker_crash", 1, seen(1), seen(2, attempt=1)), verdict("gpu_fault", 9, xid(9)),
        verdict("gpu_fault", 4, xid(4)),
    ]  # fmt: skip
    assert {t.first - T0: t.attempt for t in parts._belonging(said, course)} == {
        SECOND: 1,
        9 * SECOND: 1,
        4 * SECOND: 0,
    }


# -- what a run survived -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "given", "stands"),
    [
        ("worker_crash", {}, False), ("straggler", {}, True), ("planned_stop", {}, True), ("planned_stop", None, True),
        ("planned_stop", {"finished": True}, False), ("planned_stop", {"completed": True}, False),
        ("planned_stop", {"last_steps": {0: step(99, "10.log", 3)}}, False),
    ],
)  # fmt: skip
def test_some_verdicts_are_worth_an_incident_of_a_run_that_ended_well(
    name: str, given: dict[str, Any] | None, stands: bool
) -> None:
    assert set_aside.stands(touch(name=name), None if given is None else attempt(**given)) == stands


@pytest.mark.parametrize(
    ("steps", "resumed"),
    [
        ([step(9, "a.log", 2)], True), ([step(9, "a.log", 1)], False), ([step(9, "b.log", 9)], False), ([], False),
        ([step(9, "a.log", 2), step(9, "c.log", 2)], True), ([step(9, "a.log", 2), step(9, "c.log", 1)], False),
    ],
)  # fmt: skip
def test_a_stop_was_resumed_where_steps_follow_in_all_its_files(steps: list[Progress], resumed: bool) -> None:
    stop = touch(seen(1, path="a.log"), seen(1, path="c.log"), name="planned_stop")
    assert set_aside._resumed(stop, attempt(last_steps=dict(enumerate(steps)))) == resumed


def test_a_step_that_begins_where_the_stop_ends_does_not_follow_it() -> None:
    stop = touch(Seen(time=T0, source=Source("a.log", 100, 1, 50)))
    for offset, resumed in ((150, False), (151, True)):
        after = Progress(time=T0, source=Source("a.log", offset), step=1)
        assert set_aside._resumed(stop, attempt(last_steps={0: after})) == resumed


LATE = T0 + 10 * SECOND + WENT_ON


@pytest.mark.parametrize(
    ("changes", "given", "anothers"),
    [
        ({}, {"progress": LATE + 1}, True), ({}, {"progress": LATE}, False),
        ({}, {"progress": LATE + 1, "timed": False}, False),
        ({"name": "cuda_oom"}, {"progress": LATE + 1}, False), ({"ranks": (1,)}, {"progress": LATE + 1}, False),
        ({"facts": [seen(10, approximate=True)]}, {"progress": LATE + 1}, False),
        ({}, {"progress": LATE + 1, "finished": True}, False), ({}, None, False),
        ({"facts": [seen(1, last_time=T0 + 11 * SECOND)]}, {"progress": LATE + 1}, False),
    ],
)  # fmt: skip
def test_memory_that_ran_out_long_before_the_last_step_did_so_for_others(
    changes: dict[str, Any], given: dict[str, Any] | None, anothers: bool
) -> None:
    facts = changes.pop("facts", [seen(10)])
    oom = touch(*facts, **{"name": "host_oom"} | changes)
    assert set_aside.is_anothers(oom, None if given is None else attempt(**given)) == anothers


@pytest.mark.parametrize(
    ("changes", "given", "recovered"),
    [
        ({}, {"progress": LATE + 1}, True), ({}, {"progress": LATE}, False), ({}, None, False),
        ({}, {"progress": LATE + 1, "timed": False}, False), ({"name": "gpu_fault"}, {"progress": LATE + 1}, False),
        ({"fields": {}}, {"progress": LATE + 1}, False),
        ({"facts": [seen(10, approximate=True)]}, {"progress": LATE + 1}, False),
        ({"facts": [seen(10, last_time=T0 + 99 * SECOND)]}, {"progress": LATE + 1}, True),
    ],
)  # fmt: skip
def test_a_port_that_failed_long_before_the_last_step_was_not_needed(
    changes: dict[str, Any], given: dict[str, Any] | None, recovered: bool
) -> None:
    facts, own = changes.get("facts", [seen(10)]), changes.get("fields", {"port_errors": 1})
    flap = touch(*facts, name=changes.get("name", "ib_link_flap"), **own)
    assert set_aside.recovered(flap, None if given is None else attempt(**given)) == recovered


def out_of_memory(at: float, path: str = "w.log", **fields: Any) -> CudaOom:
    return CudaOom(time=T0 + int(at * SECOND), source=place(path, 3), tried_bytes=1 << 30, **fields)


@pytest.mark.parametrize(
    ("failed", "given", "recovered"),
    [
        (out_of_memory(10), {"last_steps": {-1: step(71, "w.log", 9)}}, True),
        (out_of_memory(10), {"last_steps": {-1: step(70, "w.log", 9)}}, False),
        (out_of_memory(10), {"last_steps": {-1: step(99, "x.log", 9)}}, False),
        (out_of_memory(10), {"last_steps": {0: step(99, "w.log", 9)}}, False),
        (out_of_memory(10, rank=2), {"last_steps": {2: step(99, "w.log", 9)}}, True),
        (out_of_memory(10, rank=2), {"last_steps": {1: step(99, "w.log", 9)}}, False),
        (out_of_memory(10), {"last_steps": {}}, False),
        (out_of_memory(10), {"last_steps": {-1: step(99, "w.log", 9)}, "timed": False}, False),
        (out_of_memory(10, approximate=True), {"last_steps": {-1: step(99, "w.log", 9)}}, False),
        (out_of_memory(10), None, False),
    ],
)  # fmt: skip
def test_a_process_that_makes_steps_long_after_it_had_no_memory_went_on(
    failed: CudaOom, given: dict[str, Any] | None, recovered: bool
) -> None:
    assert set_aside.recovered(touch(failed, name="cuda_oom"), None if given is None else attempt(**given)) == recovered


def told(at: float, reporter: str | None = "ray", line: int = 5, **fields: Any) -> WatchdogReport:
    return WatchdogReport(
        time=T0 + int(at * SECOND), source=place("w.log", line), report="timeout", reporter=reporter, **fields
    )


@pytest.mark.parametrize(
    ("facts", "given", "slow"),
    [
        ([told(10)], {"progress": T0 + 10 * SECOND + 1}, True), ([told(10)], {"progress": T0 + 10 * SECOND}, False),
        ([told(10, None)], {"progress": T0 + 99 * SECOND}, False),
        ([told(10), seen(9)], {"progress": T0 + 99 * SECOND}, False),
        ([told(10)], None, False), ([told(10)], {"progress": T0 + 99 * SECOND, "timed": False}, False),
        ([told(10, approximate=True)], {"progress": T0 + 99 * SECOND}, False),
        ([told(10)], {"last_steps": {0: step(1, "w.log", 6)}}, True),
        ([told(10)], {"last_steps": {0: step(1, "w.log", 5)}}, False),
        ([told(10)], {"last_steps": {0: step(1, "x.log", 6)}}, False),
        ([told(10, last_time=T0 + 50 * SECOND)], {"progress": T0 + 40 * SECOND}, False),
    ],
)  # fmt: skip
def test_a_hang_that_a_step_followed_was_only_slow(facts: list[Fact], given: dict[str, Any] | None, slow: bool) -> None:
    hang = touch(*facts, name="nccl_hang")
    assert set_aside.was_slow(hang, None if given is None else attempt(**given)) == slow


def dead(kind: type[Fact] = ExitStatus, **fields: Any) -> Any:
    return kind(time=T0, source=Source("exit"), **fields)


@pytest.mark.parametrize(
    ("kill", "others", "given", "unrelated"),
    [
        ([xid(1)], [touch(name="cuda_oom")], {}, True),
        ([xid(1)], [], {}, False),
        ([xid(1)], [touch(name="host_oom")], {}, False),
        ([xid(1)], [touch(name="straggler", role="cause")], {}, False),
        ([xid(1)], [touch(name="nccl_hang")], {}, False),
        ([xid(1)], [touch(name="cuda_oom")], None, False),
        ([xid(1, rank=1)], [touch(name="cuda_oom")], {}, False),
        ([xid(1, job="a")], [touch(name="cuda_oom")], {}, False),
        ([xid(1, job="a"), xid(2)], [touch(name="cuda_oom")], {}, False),
        ([xid(1), xid(2, rank=1)], [touch(name="cuda_oom")], {}, False),
        ([seen(1)], [touch(name="cuda_oom")], {}, False),
        ([xid(1), seen(1)], [touch(name="cuda_oom")], {}, False),
        ([xid(1, pod="p")], [touch(name="cuda_oom")], {"places": {"p": {1}}}, False),
        ([xid(1, pod="p")], [touch(name="cuda_oom")], {"places": {"q": {1}}}, True),
        ([xid(1)], [touch(name="cuda_oom")], {"ended": {0: dead(exit_code=-9)}}, False),
        ([xid(1)], [touch(name="cuda_oom")], {"ended": {0: dead(exit_code=-11)}}, True),
        ([xid(1)], [touch(name="cuda_oom")], {"bad": [dead(FatalSignal, signal="SIGKILL")]}, False),
        ([xid(1)], [touch(name="worker_crash", signal="SIGKILL")], {}, False),
        ([xid(1)], [touch(name="worker_crash", signal="SIGSEGV")], {}, True),
    ],
)
def test_a_kill_for_memory_is_unrelated_where_nothing_ties_it_to_the_job(
    kill: list[Fact], others: list[Footprint], given: dict[str, Any] | None, unrelated: bool
) -> None:
    oom = touch(*kill, name="host_oom", ranks=tuple(f.rank for f in kill if f.rank is not None))
    found = set_aside.is_unrelated_kill(
        oom, [oom, *others], None if given is None else attempt(**given), JobRun(attempts={}, end=0)
    )
    assert found == unrelated


# -- the order of verdicts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("touches", "order"),
    [
        ([touch(seen(5)), touch(seen(4), name="nccl_hang")], [0, 1]),
        # Older than every cause.
        ([touch(seen(20)), touch(seen(20 - SLACK / SECOND), name="nccl_hang")], [0, 1]),
        ([touch(seen(20)), touch(seen(19 - SLACK / SECOND), name="nccl_hang")], [1, 0]),
        ([touch(seen(20)), touch(seen(1), name="straggler")], [0, 1]),
        ([touch(seen(20)), touch(seen(1), name="planned_stop")], [1, 0]),
        ([touch(seen(5)), touch(seen(6), name="gpu_fault")], [0, 1]),
        # Where one time was inferred, the table.
        ([touch(seen(5)), touch(seen(6, approximate=True), name="gpu_fault")], [1, 0]),
        ([touch(seen(5)), touch(seen(5), name="gpu_fault")], [1, 0]),
        ([touch(seen(6, approximate=True)), touch(seen(5, approximate=True))], [1, 0]),
        ([touch(seen(5), name="third_party", role="cause"), touch(seen(5))], [1, 0]),
    ],
)
def test_the_order_in_which_verdicts_explain(touches: list[Footprint], order: list[int]) -> None:
    assert parts._ordered(touches) == [touches[number] for number in order]


def test_without_a_cause_symptoms_come_before_outcomes() -> None:
    late, early = touch(seen(9), name="nccl_hang"), touch(seen(1), name="planned_stop")
    assert parts._ordered([early, late]) == [late, early]


@pytest.mark.parametrize(
    ("primary", "later", "given", "another"),
    [
        (seen(0), EPISODE + 1, EPISODE // 10 + 1, True), (seen(0), EPISODE, EPISODE, False),
        (seen(0), EPISODE + 1, EPISODE // 10, False), (seen(0, last_time=T0 + 1), EPISODE + 1, EPISODE, False),
        (seen(0, approximate=True), EPISODE + 1, EPISODE, False), (seen(0), EPISODE + 1, None, False),
    ],
)  # fmt: skip
def test_another_episode_begins_where_the_run_went_on_between(
    primary: Fact, later: int, given: int | None, another: bool
) -> None:
    second = touch(Seen(time=T0 + later, source=place("z.log")))
    course = None if given is None else attempt(progress=T0 + given)
    assert parts._another_episode(touch(primary), second, course) == another


@pytest.mark.parametrize(
    ("root", "primary", "why"),
    [
        (touch(name="nccl_hang"), touch(), "it is a symptom, and worker_crash is a cause in the same job"),
        (touch(seen(12)), touch(seen(10)), "it began 2 s after worker_crash"),
        (touch(seen(10)), touch(seen(10)),
         "nothing links it to the failure, and worker_crash takes precedence when times do not decide"),
        (touch(seen(12, approximate=True)), touch(seen(10)),
         "nothing links it to the failure, and worker_crash takes precedence when times do not decide"),
        (touch(), touch(name="nccl_hang"),
         "nothing links it to the failure, and nccl_hang takes precedence when times do not decide"),
    ],
)  # fmt: skip
def test_why_a_verdict_is_not_the_cause(root: Footprint, primary: Footprint, why: str) -> None:
    assert parts._why_not(root, primary) == why


@pytest.mark.parametrize(
    ("root", "causes", "adopted"),
    [
        (touch(seen(10), name="mine", role="symptom"), [touch(seen(10 + SLACK / SECOND))], True),
        (touch(seen(10), name="mine", role="symptom"), [touch(seen(11 + SLACK / SECOND))], False),
        (touch(seen(10, approximate=True), name="mine", role="symptom"), [touch(seen(99))], True),
        (touch(seen(10), name="mine", role="cause"), [touch(seen(1))], False),
        (touch(seen(10), name="nccl_hang"), [touch(seen(1))], False),
        (touch(seen(10), name="mine", role="symptom"), [touch(seen(1), name="straggler", role="cause")], False),
        (touch(seen(10), name="mine", role="outcome"), [touch(seen(9)), touch(seen(5))], True),
    ],
)
def test_what_no_rule_knows_belongs_to_the_earliest_cause(
    root: Footprint, causes: list[Footprint], adopted: bool
) -> None:
    edges: list[Edge] = []
    parts._adopt([root, *causes], edges)
    earliest = min(causes, key=lambda t: t.first)
    assert [(edge.cause, edge.effect) for edge in edges] == ([(earliest.id, root.id)] if adopted else [])


def test_the_first_of_a_circle_is_a_root() -> None:
    edges = {pair: Edge(*pair, "") for pair in (("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"))}
    parts._break_circles(edges, {"a": 2, "b": 0, "c": 1, "d": 3})
    assert [*edges] == [("b", "c"), ("c", "a"), ("c", "d")]


# -- incidents ---------------------------------------------------------------------------------------------------------


def incident(name: str = "straggler", ranks: tuple[int, ...] = (1,), first: float = 10, last: float = 20) -> Incident:
    return Incident(
        status="diagnosed", headline="slow", advice="", root=verdict(name, 10) if name else None, symptoms=[],
        edges=[], alternatives=[], gaps=[], suspects=Suspects(ranks=ranks, nodes=("n1",)),
        first=T0 + int(first * SECOND), last=T0 + int(last * SECOND),
    )  # fmt: skip


def slow(first: float, last: float, ranks: tuple[int, ...] = (2,), name: str = "straggler") -> Footprint:
    return touch(seen(first, node="n2"), seen(last, node="n2", path="b.log"), name=name, ranks=ranks)


@pytest.mark.parametrize(
    ("root", "beside", "together"),
    [
        (slow(20, 30), incident(), True), (slow(20.5, 30), incident(), False), (slow(1, 10), incident(), True),
        (slow(1, 9.5), incident(), False), (slow(10, 20, ranks=(1,)), incident(), False),
        (slow(10, 20, ranks=()), incident(), False), (slow(10, 20), incident(ranks=()), False),
        (slow(10, 20, name="thermal_throttle"), incident("thermal_throttle"), False),
        (slow(10, 20), incident("worker_crash"), False), (slow(10, 20), incident(""), False),
    ],
)  # fmt: skip
def test_ranks_that_are_slow_at_the_same_time_are_one_incident(
    root: Footprint, beside: Incident, together: bool
) -> None:
    assert parts._slow_together(root, [beside]) == together
    assert (len(beside.alternatives) == 1) == together
    if together:
        assert beside.suspects == Suspects(ranks=(1, 2), nodes=("n1", "n2"))
        assert (beside.first, beside.last) == (min(root.first, T0 + 10 * SECOND), max(root.last, T0 + 20 * SECOND))
        assert beside.headline == "slow; rank 2 does so, too"


@pytest.mark.parametrize(
    ("fields", "together"),
    [
        ({"hanging_ranks": [5, 6]}, True),
        ({"hanging_ranks": [4, 5]}, False),
        ({"hanging_ranks": [5, 6], "not_measured_ranks": [7]}, False),
        ({"hanging_ranks": [5, 6], "origin": {"group": "dp"}}, False),
    ],
)
def test_hangs_without_a_common_rank_are_one_incident(fields: dict[str, Any], together: bool) -> None:
    first = touch(seen(10), name="nccl_hang", ranks=(1,), hanging_ranks=[3, 4])
    other = touch(seen(12), name="nccl_hang", ranks=(2,), pg_desc="tp1", **fields)
    beside = incident("nccl_hang", first=10, last=10)
    beside.root = first.emission
    assert parts._hung_together(other, first, [first, other], [], [beside]) == together


def held_up(*culprits: int) -> Footprint:
    return touch(seen(30), name="nccl_hang", culprit_ranks=list(culprits))


@pytest.mark.parametrize(
    ("other", "behind", "linked", "together"),
    [
        (touch(seen(12, node="n2"), name="nccl_hang", ranks=(2,), pg_desc="tp1"), held_up(1, 2), True, True),
        (touch(seen(12, node="n2"), name="nccl_hang", ranks=(2,), pg_desc="tp1"), held_up(1, 2), False, False),
        (touch(seen(12, node="n2"), name="nccl_hang", ranks=(2,), pg_desc="tp1"), held_up(1), True, False),
        (touch(seen(12, node="n2"), name="nccl_hang", ranks=(1, 2), pg_desc="tp1"), held_up(1, 2), True, False),
        (touch(seen(12, node="n2"), name="nccl_hang", pg_desc="tp1"), held_up(1, 2), True, False),
        (touch(seen(12, node="n2"), name="worker_crash", ranks=(2,)), held_up(1, 2), True, False),
    ],
)
def test_hangs_that_hold_up_the_same_ranks_are_one_incident(
    other: Footprint, behind: Footprint, linked: bool, together: bool
) -> None:
    first = touch(seen(10, node="n1"), name="nccl_hang", ranks=(1,))
    beside = incident("nccl_hang", first=10, last=10)
    beside.root = first.emission
    edges = [Edge(first.id, behind.id, "")] if linked else []
    assert parts._hung_together(other, first, [first, other, behind], edges, [beside]) == together
    assert (len(beside.alternatives) == 1) == together
    if together:
        assert beside.suspects == Suspects(ranks=(1, 2), nodes=("n1", "n2"))
        assert beside.headline == "slow; rank 2 of tp1 is waited for, too"
        assert (beside.first, beside.last) == (T0 + 10 * SECOND, T0 + 12 * SECOND)


@pytest.mark.parametrize(
    ("progress", "between"), [(EPISODE // 10, False), (EPISODE // 10 + 1, True), (EPISODE, True), (EPISODE + 1, False)]
)
def test_steps_between_two_failures_of_one_log(progress: int, between: bool) -> None:
    earlier, later = touch(seen(0)), touch(Seen(time=T0 + EPISODE, source=place("a.log")))
    assert parts._went_on_between(earlier, later, attempt(progress=T0 + progress)) == between
    assert not parts._went_on_between(earlier, later, None)


def test_what_ended_the_run_comes_first() -> None:
    crash, hang, lost, unknown, slowed = (
        incident(name) for name in ("worker_crash", "nccl_hang", "nccl_hang", "", "straggler")
    )
    for number, one in enumerate((crash, hang, lost, unknown, slowed)):
        one.attempt = number
    started = run(*(attempt(number=number, progress=0 if number == 2 else 1) for number in range(5)))
    assert parts._worst_first([slowed, unknown, lost, hang, crash], started) == [hang, crash, unknown, lost, slowed]
    never = run(*(attempt(number=number) for number in range(5)))
    assert parts._worst_first([unknown, lost, hang, crash, slowed], never) == [crash, lost, hang, unknown, slowed]


def row(node: str = "n9", **fields: Any) -> NodeReadiness:
    given = {"ready": False, "approximate": True, "node": node} | fields
    return NodeReadiness(time=T0, source=Source("nodes.txt", 1), **given)


CAUSE, SYMPTOM = touch(name="cuda_oom"), touch(seen(11), name="nccl_hang")
SLOW, OTHER_LOSS = touch(seen(12), name="straggler"), touch(row("n8"), name="host_lost")
FAILED = {0: ExitStatus(time=T0, source=Source("exit"), exit_code=1)}


@pytest.mark.parametrize(
    ("lost", "others", "given", "listed"),
    [
        ((row(),), [CAUSE], {}, True),
        ((row(),), [CAUSE, SYMPTOM], {}, True),
        ((row(),), [SYMPTOM], {}, False),
        # Nothing else, and nothing failed.
        ((row(),), [], {}, True),
        ((row(),), [], {"ended": FAILED}, False),
        ((row(),), [SLOW, OTHER_LOSS], {"ended": FAILED}, False),
        ((row(),), [SLOW, OTHER_LOSS], {}, True),
        # It is one of the job's, or somebody saw it happen.
        ((row(),), [CAUSE], {"places": {"n9": {0}}}, False),
        ((row(),), [CAUSE], {"nodes": {"n9"}}, False),
        ((row(approximate=False),), [CAUSE], {}, False),
        ((row(reason="KubeletStopped"),), [CAUSE], {}, False),
        ((row(reason=SLURM_DOWN),), [CAUSE], {}, True),
        ((row(), row("n8", approximate=False)), [CAUSE], {}, False),
    ],
)
def test_a_node_that_a_list_shows_need_not_be_the_jobs(
    lost: tuple[Fact, ...], others: list[Footprint], given: dict[str, Any], listed: bool
) -> None:
    one = touch(*lost, name="host_lost")
    assert set_aside.is_only_listed(one, [one, *others], attempt(**given)) is listed
    assert not set_aside.is_only_listed(touch(*lost, name="gpu_fault"), others, attempt(**given))
