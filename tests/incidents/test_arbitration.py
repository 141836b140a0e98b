"""Cause before symptom, earliest first, shared entity: arbitration on verdicts made for the purpose."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tracecore.engine.emission import Emission
from tracecore.facts.fact import Fact
from tracecore.facts.nccl import NcclError, WatchdogReport
from tracecore.facts.process import ExceptionRaised, FatalSignal
from tracecore.facts.training import Progress, RunFinished, StepStalled
from tracecore.incidents import run as runs
from tracecore.incidents.arbitration import EPISODE, OVER, Finding, arbitrate
from tracecore.signals.record import LAYERS, Source

sys.path.insert(0, str(Path(__file__).resolve().parent))
from made_verdicts import SECOND, T0, Hung, Seen, ended, place, seen, steps, verdict, watchdog


def judge(verdicts: Sequence[Emission], facts: Sequence[Fact] = (), layers: Sequence[str] = ("stdout",)) -> Finding:
    run = runs.look(facts, T0 + 3600 * SECOND)
    return arbitrate(verdicts, run, {layer: int(layer in layers) for layer in LAYERS})


def roots(finding: Finding) -> list[str | None]:
    return [i.root.verdict.pattern_name if i.root else None for i in finding.incidents]


FAILED = ended({0: -6, 1: -6, 2: -6, 3: 1})


def test_a_crash_explains_the_hang_of_those_that_waited_for_it() -> None:
    crash = verdict("worker_crash", 10, seen(10, rank=3), ranks=[3])
    hang = verdict("nccl_hang", 5, watchdog(40, 0), watchdog(40, 1), ranks=[3], hanging_ranks=[0, 1, 2])
    finding = judge([hang, crash], FAILED)
    assert roots(finding) == ["worker_crash"]
    incident = finding.incidents[0]
    assert [e.id for e in incident.symptoms] == [hang.id]
    assert incident.edges[0].reason == "rank 3 had failed, so the next collective could not complete"
    assert incident.suspects.ranks == (3,)


@pytest.mark.parametrize(("one", "other"), [(10, 10.0), (10.0, 10)])
def test_of_two_alike_the_one_that_names_its_machine_is_first(one: float, other: float) -> None:
    """Whichever id is the smaller: a fabric manager tells of its switch what the kernel tells with the node."""
    known = verdict("gpu_fault", one, seen(10, node="dgx-08"))
    nameless = verdict("gpu_fault", other, seen(10, path="fabricmanager.log"))
    (incident, *_) = judge([nameless, known], FAILED).incidents
    assert incident.root is not None
    assert incident.root.id == known.id


def test_a_rank_killed_after_the_others_had_given_up_is_not_why_they_hung() -> None:
    hang = verdict("nccl_hang", 5, watchdog(40, 0), watchdog(40, 1), ranks=[3], hanging_ranks=[0, 1, 2])
    crash = verdict("worker_crash", 90, seen(90, rank=3), ranks=[3], tracecore__process__signal="SIGKILL")
    finding = judge([hang, crash], FAILED)
    assert roots(finding) == ["nccl_hang"]
    assert [other.reason for other in finding.incidents[0].alternatives] == ["it began 50 s after nccl_hang"]


def test_an_error_of_the_rank_that_did_not_come_says_why_although_it_is_late() -> None:
    hang = verdict("nccl_hang", 5, watchdog(40, 0), watchdog(40, 1), ranks=[3], hanging_ranks=[0, 1, 2])
    crash = verdict("worker_crash", 90, seen(90, rank=3), ranks=[3], exception__type="TimeoutError")
    assert roots(judge([hang, crash], FAILED)) == ["worker_crash"]


def test_the_abort_of_ranks_that_hung_is_explained_by_the_hang() -> None:
    hang = verdict("nccl_hang", 5, watchdog(40, 0), watchdog(40, 1), ranks=[3], hanging_ranks=[0, 1, 2])
    crash = verdict("worker_crash", 41, seen(41, rank=0), ranks=[0])
    finding = judge([hang, crash], FAILED)
    assert roots(finding) == ["nccl_hang"]
    assert finding.incidents[0].suspects.ranks == (3,)


def test_of_one_exception_the_pattern_that_knows_more_is_the_root() -> None:
    line = seen(10, path="rank2.log", line=7, rank=2)
    for specific in ("cuda_oom", "storage_failure", "gpu_app_fault", "training_divergence"):
        crash = verdict("worker_crash", 10, line, ranks=[2])
        finding = judge([crash, verdict(specific, 10, line)], FAILED)
        assert roots(finding) == [specific]
        assert finding.incidents[0].edges[0].reason == "it is the same exception"
        assert finding.incidents[0].suspects.ranks == (2,)


def test_an_exception_of_another_rank_is_not_the_same_event() -> None:
    crash = verdict("worker_crash", 10, seen(10, path="rank3.log", rank=3), ranks=[3])
    storage = verdict("storage_failure", 1000, seen(1000, path="rank0.log", rank=0), ranks=[0])
    finding = judge([crash, storage], FAILED)
    assert roots(finding) == ["worker_crash"]
    assert [other.pattern for other in finding.incidents[0].alternatives] == ["storage_failure"]


def test_a_mismatch_explains_the_hang_in_its_group() -> None:
    mismatch = verdict("collective_mismatch", 20, ranks=[1], nccl__fr__pg_id="0", nccl__fr__collective_seq_id=7)
    hang = verdict("nccl_hang", 20, ranks=[1], hanging_ranks=[0, 2], nccl__fr__pg_id="0", nccl__fr__collective_seq_id=7)
    assert roots(judge([hang, mismatch], ended({0: None, 1: None, 2: None}))) == ["collective_mismatch"]


def test_a_hang_before_the_mismatch_is_not_explained_by_it() -> None:
    mismatch = verdict("collective_mismatch", 20, ranks=[1], nccl__fr__pg_id="0", nccl__fr__collective_seq_id=9)
    hang = verdict("nccl_hang", 10, ranks=[2], hanging_ranks=[0, 1], nccl__fr__pg_id="0", nccl__fr__collective_seq_id=7)
    finding = judge([hang, mismatch], ended({0: None, 1: None, 2: None}))
    assert not any(edge.effect == hang.id for incident in finding.incidents for edge in incident.edges)


def test_the_killed_process_is_known_by_its_pid() -> None:
    kill = verdict("host_oom", 10, seen(10, pid=77, node="n1"))
    crash = verdict("worker_crash", 11, seen(11, path="rank0.log", rank=0, pid=77), ranks=[0])
    loader = verdict("dataloader_hang", 200, seen(200, pid=77))
    finding = judge([crash, loader, kill], FAILED)
    assert roots(finding) == ["host_oom"]
    assert {e.effect for e in finding.incidents[0].edges} == {crash.id, loader.id}


def test_a_memory_kill_does_not_explain_a_programs_own_exception_elsewhere() -> None:
    kill = verdict("host_oom", 10, seen(10, pid=77, node="n1"))
    crash = verdict("worker_crash", 500, seen(500, rank=0, pid=99, node="n2"), ranks=[0], exception__type="KeyError")
    finding = judge([crash, kill], FAILED)
    assert not any(edge.effect == crash.id for incident in finding.incidents for edge in incident.edges)


def test_a_planned_stop_explains_deaths_by_its_signal_only() -> None:
    stop = verdict("planned_stop", 10)
    told = verdict("worker_crash", 12, seen(12, rank=0), ranks=[0], tracecore__process__signal="SIGTERM")
    own = verdict("worker_crash", 12, seen(12, rank=0), ranks=[0], exception__type="KeyError")
    assert roots(judge([stop, told], FAILED)) == ["planned_stop"]
    assert not judge([stop, own], FAILED).incidents[0].edges


def test_a_stop_after_a_failure_does_not_outrank_it() -> None:
    crash = verdict("worker_crash", 10, seen(10, rank=3), ranks=[3], exception__type="ValueError")
    finding = judge([verdict("planned_stop", 60), crash], FAILED)
    assert roots(finding) == ["worker_crash"]
    assert finding.incidents[0].edges[0].reason == "the stop came after the failure"


def test_nobody_is_blamed_when_everybody_is_named() -> None:
    divergence = verdict("training_divergence", 10, seen(10), ranks=[0, 1, 2, 3])
    assert judge([divergence], FAILED).incidents[0].suspects.ranks == ()


def test_a_run_that_ended_well_has_no_incident_but_a_note() -> None:
    crash = verdict("worker_crash", 10, seen(10, rank=3), ranks=[3])
    finding = judge([crash], ended({0: 0, 3: 0}))
    assert finding.incidents == []
    assert finding.notes == ["Not fatal, the run finished: worker_crash of [3]"]


def test_what_stands_by_itself_is_said_of_a_healthy_run_too() -> None:
    finding = judge([verdict("straggler", 10, ranks=[2])], ended({0: 0, 1: 0, 2: 0}))
    assert roots(finding) == ["straggler"]


def test_an_attempt_that_failed_before_one_that_finished_is_a_note() -> None:
    crash = verdict("worker_crash", 10, seen(10, rank=3, attempt=0), ranks=[3])
    facts = [*steps(1, 2, rank=3), *steps(100, 101, attempt=1), *ended({0: 0, 3: 0})]
    finding = judge([crash], facts)
    assert finding.incidents == []
    assert finding.notes == ["Attempt 1 failed and a later one finished: worker_crash of [3]"]


def test_each_attempt_is_an_incident_and_the_last_comes_first() -> None:
    first = verdict("worker_crash", 10, seen(10, rank=3), ranks=[3])
    second = verdict("cuda_oom", 200, seen(200, rank=1, attempt=1), ranks=[1])
    facts = [*steps(1, 2), *steps(100, 150, attempt=1), *FAILED]
    finding = judge([first, second], facts)
    assert roots(finding) == ["cuda_oom", "worker_crash"]
    assert [incident.attempt for incident in finding.incidents] == [1, 0]


def test_a_restart_that_never_made_a_step_comes_after_what_it_restarted_from() -> None:
    first = verdict("worker_crash", 10, seen(10, rank=3), ranks=[3])
    second = verdict("nccl_bootstrap", 200, seen(200, rank=1, attempt=1), ranks=[1])
    finding = judge([first, second], [*steps(1, 2), *FAILED])
    assert roots(finding) == ["worker_crash", "nccl_bootstrap"]


def test_causes_hours_apart_with_steps_between_are_two_episodes() -> None:
    early = verdict("storage_failure", 10, seen(10, rank=0), ranks=[0])
    late = verdict("cuda_oom", 3000, seen(3000, rank=2), ranks=[2])
    facts = [*steps(*range(0, 3000, 50)), *FAILED]
    finding = judge([early, late], facts)
    assert roots(finding) == ["cuda_oom", "storage_failure"]


def test_failure_without_a_verdict_is_insufficient_evidence_and_says_what_to_collect() -> None:
    finding = judge([], ended({0: -6, 1: -6, 2: 7}))
    incident = finding.incidents[0]
    assert incident.status == "insufficient_evidence"
    assert incident.root is None
    assert incident.suspects.ranks == (2,)
    assert {gap.layer for gap in incident.gaps} == set(LAYERS) - {"stdout"}
    assert "dmesg" in incident.advice


def test_processes_still_alive_are_not_called_failed() -> None:
    finding = judge([], [*steps(1, 2), *ended({0: None})])
    assert finding.incidents[0].status == "insufficient_evidence"
    assert "still running" in finding.incidents[0].headline


def test_a_run_that_says_it_is_complete_is_healthy_although_alive() -> None:
    done = RunFinished(time=T0 + 5 * SECOND, source=place())
    assert judge([], [*steps(1, 2), done, *ended({0: None})]).incidents == []


def test_a_traceback_that_was_survived_is_no_failure() -> None:
    raised = ExceptionRaised(time=T0 + SECOND, source=place("b.log"), rank=0, type="ValueError")
    assert judge([], [raised, *steps(2, 3)]).incidents == []


def test_a_traceback_that_is_the_last_word_is_a_failure() -> None:
    raised = ExceptionRaised(time=T0 + 9 * SECOND, source=place("b.log"), rank=0, type="ValueError")
    assert roots(judge([], [raised, *steps(2, 3)])) == [None]


def test_a_straggler_does_not_explain_a_hang_that_ended_the_run() -> None:
    slow = verdict("straggler", 10, seen(10, rank=2), ranks=[2])
    hang = verdict("nccl_hang", 40, seen(40, rank=2), ranks=[2])
    assert roots(judge([slow, hang], ended({0: -6, 1: -6, 2: 1}))) == ["nccl_hang", "straggler"]


def test_a_straggler_does_not_explain_why_a_process_ended() -> None:
    finding = judge([verdict("straggler", 10, ranks=[2])], ended({0: 1, 1: 0, 2: 0}))
    assert roots(finding) == [None, "straggler"]
    assert [a.pattern for a in finding.incidents[0].alternatives] == ["straggler"]


def test_two_jobs_are_two_stories() -> None:
    one = verdict("worker_crash", 10, seen(10, job="a", rank=0), ranks=[0])
    other = verdict("cuda_oom", 20, seen(20, job="b", rank=5), ranks=[5])
    facts = [
        *(Progress(time=T0, source=place(f"{job}{r}.log"), step=1, rank=r, job=job) for job in "ab" for r in (0, 1, 5)),
    ]
    finding = judge([one, other], facts)
    assert [(incident.job, roots(finding)[n]) for n, incident in enumerate(finding.incidents)] == [
        ("a", "worker_crash"),
        ("b", "cuda_oom"),
    ]


def test_circles_leave_a_root() -> None:
    """Whatever the table says, something is the root."""
    hangs = [
        verdict("nccl_hang", 5 + n, seen(5 + n), ranks=[(n + 1) % 3], hanging_ranks=[n], culprit_ranks=[(n + 1) % 3])
        for n in range(3)
    ]
    finding = judge(hangs, ended({0: None, 1: None, 2: None}))
    assert len(finding.incidents) >= 1
    assert finding.incidents[0].root is not None


def test_order_of_verdicts_does_not_matter() -> None:
    made = [
        verdict("worker_crash", 10, seen(10, rank=3), ranks=[3]),
        verdict("nccl_hang", 5, watchdog(40, 0), ranks=[3], hanging_ranks=[0, 1]),
        verdict("planned_stop", 60),
        verdict("thermal_throttle", 1, seen(1, node="n1")),
        verdict("straggler", 2, seen(2, rank=3), ranks=[3]),
    ]
    documents = [[i.document() for i in judge(order, FAILED).incidents] for order in (made, made[::-1])]
    assert documents[0] == documents[1]


def test_third_party_symptoms_belong_to_the_cause_before_them() -> None:
    crash = verdict("worker_crash", 10, seen(10, rank=3), ranks=[3])
    strange = verdict("acme_slow_disk", 30, role="symptom")
    finding = judge([strange, crash], FAILED)
    assert roots(finding) == ["worker_crash"]
    assert [e.id for e in finding.incidents[0].symptoms] == [strange.id]


def test_a_dump_belongs_to_the_attempt_that_ran_when_it_was_written() -> None:
    class Dumped(Hung, frozen=True, kw_only=True):
        layer: ClassVar[str] = "flight_recorder"

    facts = [Dumped(time=T0 + 160 * SECOND, source=place(f"fr{rank}"), rank=rank) for rank in (0, 1)]
    hang = verdict("nccl_hang", 160, *facts, ranks=[3], hanging_ranks=[0, 1])
    finding = judge([hang], [*steps(1, 2), *steps(100, 150, attempt=1), *FAILED])
    assert [(i.root is not None, i.attempt) for i in finding.incidents] == [(True, 1), (False, 0)]


def test_ranks_of_a_pod_that_was_evicted_are_known_from_their_own_logs() -> None:
    said = [seen(rank, rank=rank, pod=f"ml/train-{rank // 2}", node=f"n{rank // 2}") for rank in range(6)]
    evicted = verdict("pod_evicted", 50, seen(50, pod="ml/train-1", node="n1"))
    assert judge([evicted], [*said, *ended(dict.fromkeys(range(6), 1))]).incidents[0].suspects.ranks == (2, 3)
    lost = verdict("host_lost", 50, seen(50, node="n2"))
    assert judge([lost], [*said, *ended(dict.fromkeys(range(6), 1))]).incidents[0].suspects.ranks == (4, 5)


def untimed(line: int, path: str = "out.log", **identity: Any) -> Seen:
    """A fact of a file without times: only its place is known."""
    return Seen(time=T0 + line, source=place(path, line), approximate=True, **identity)


def test_a_kill_further_down_the_same_file_than_a_stop_is_part_of_it() -> None:
    stop = verdict("planned_stop", 1, untimed(3))
    kill = verdict("worker_crash", 2, untimed(4, rank=0), tracecore__process__signal="SIGKILL")
    assert roots(judge([kill, stop])) == ["planned_stop"]
    before = verdict("worker_crash", 2, untimed(2, rank=0), tracecore__process__signal="SIGKILL")
    assert roots(judge([before, stop])) == ["worker_crash"]


def test_later_errors_of_one_storage_belong_to_the_first() -> None:
    first = verdict("storage_failure", 10, seen(10, node="n1"), tracecore__storage__device="fs1-OST0004")
    later = verdict("storage_failure", 30, seen(30, node="n1"), tracecore__storage__device="fs1-OST0004")
    other = verdict("storage_failure", 31, seen(31, node="n1"), tracecore__storage__device="nvme1n1")
    finding = judge([later, other, first], FAILED)
    assert roots(finding) == ["storage_failure"]
    assert [e.id for e in finding.incidents[0].symptoms] == [later.id]
    assert [a.verdict for a in finding.incidents[0].alternatives] == [other.id]


def stalled(since: float, length: float, step: int) -> StepStalled:
    return StepStalled(
        time=T0 + int((since + 60) * SECOND),
        last_time=T0 + int((since + length) * SECOND),
        source=Source("steps.log", 100, 1, 50, "stall"),
        rank=0,
        no_progress_s=length,
        step=step,
    )


def test_a_stall_that_a_step_ended_was_only_slow() -> None:
    assert roots(judge([], [*steps(0, 120), stalled(0, 110, 0)])) == []
    assert roots(judge([], [*steps(0, 1), stalled(1, 110, 1)])) == [None]


def test_a_traceback_without_times_was_survived_where_steps_follow_it_in_the_file() -> None:
    raised = ExceptionRaised(time=T0 + 5, source=place("out.log", 5), type="gaierror", approximate=True)
    after = [Progress(time=T0 + line, source=place("out.log", line), step=line, approximate=True) for line in (1, 6, 7)]
    assert roots(judge([], [raised, *after])) == []
    assert roots(judge([], [raised, *after[:1]])) == [None]


def test_watchdogs_that_ended_the_ranks_that_waited_are_no_reason() -> None:
    report = WatchdogReport(
        time=T0 + 5, source=place("out.log", 1), rank=1, report="timeout", op="ALLREDUCE", seq=7, approximate=True
    )
    abort = FatalSignal(time=T0 + 6, source=place("out.log", 2), rank=1, signal="SIGABRT", approximate=True)
    (incident,) = judge([], [report, abort]).incidents
    assert incident.headline == "Rank 1 waited too long in ALLREDUCE seq 7; the logs do not show for which rank"
    assert incident.suspects.ranks == ()


def test_a_rank_that_only_lost_somebody_says_whom() -> None:
    abort = WatchdogReport(time=T0, source=place("out.log", 1), rank=5, report="abort")
    lost = NcclError(time=T0, source=place("out.log", 2), rank=5, error="remote_error", peer="10.1.2.3<49901>")
    (incident,) = judge([], [abort, lost]).incidents
    assert incident.headline.startswith("Rank 5 lost its connection to 10.1.2.3<49901>; the logs do not show why")
    assert incident.suspects.ranks == ()
    waits = NcclError(time=T0, source=place("out.log", 3), rank=0, error="horovod_stall", peer="rank 1, 3")
    (incident,) = judge([], [waits]).incidents
    assert incident.headline == "Ranks wait in Horovod for ranks 1 and 3; the logs do not show why"
    assert incident.suspects.ranks == (1, 3)


def test_whom_one_rank_alone_says_it_waited_for_is_looked_at() -> None:
    waited = WatchdogReport(time=T0, source=place("out.log", 1), report="timeout", missing=(5,))
    (incident,) = judge([], [waited, *steps(-700, -690), *ended({0: 1})]).incidents
    assert incident.headline == "Rank 5 did not reach the point where the others waited; the logs do not show why"
    assert incident.suspects.ranks == (5,)


def test_memory_that_ran_out_for_somebody_else_is_told_beside_a_run_that_goes_on() -> None:
    kill = verdict("host_oom", 30, seen(30, pid=77, node="n1"))
    finding = judge([kill], steps(*range(0, 300, 10)))
    assert roots(finding) == []
    assert finding.notes == ["Not fatal, the run went on: host_oom of []"]
    # Who made no step since then may have been the one.
    assert roots(judge([kill], steps(0, 10, 20))) == ["host_oom"]
    assert roots(judge([verdict("host_oom", 30, seen(30, rank=0))], steps(*range(0, 300, 10)))) == ["host_oom"]


def test_a_slow_rank_of_a_run_that_has_not_ended_is_what_is_told() -> None:
    slow = verdict("straggler", 100, seen(100, rank=2), ranks=[2])
    finding = judge([slow], [*steps(*range(0, 300, 10)), *ended({0: None, 1: None, 2: None})])
    assert roots(finding) == ["straggler"]
    assert "still running when this was recorded" in finding.notes[0]


def test_an_error_of_a_library_that_steps_follow_is_no_failure() -> None:
    error = NcclError(time=T0, source=place("steps.log", 1), error="ib_port_error", rank=0, approximate=True)
    later = [Progress(time=T0, source=place("steps.log", n + 2), step=n, rank=0, approximate=True) for n in range(5)]
    assert roots(judge([], [error, *later])) == []
    assert roots(judge([], [error])) == [None]


def test_a_stop_that_the_job_resumed_from_in_the_same_file_is_no_incident() -> None:
    stop = verdict("planned_stop", 1, untimed(3, path="rank0.log", rank=0))

    def went(line: int) -> Progress:
        return Progress(time=T0 + line, source=place("rank0.log", line), step=line, rank=0, approximate=True)

    assert roots(judge([stop], [went(1), went(2), *ended({0: 0})])) == ["planned_stop"]
    resumed = judge([stop], [went(1), went(2), went(5), went(6), *ended({0: 0})])
    assert roots(resumed) == []
    assert resumed.notes == ["Not fatal, the run finished: planned_stop of []"]


def test_a_storm_of_verdicts_is_bounded_and_says_so() -> None:
    from tracecore.incidents.arbitration import WEIGHED

    first = verdict("gpu_fault", 1, seen(1, node="n0", gpu="0000:3b:00.0"))
    storm = [verdict("worker_crash", 10 + n, seen(10 + n, rank=n), ranks=[n]) for n in range(WEIGHED + 200)]
    finding = judge([*storm, first], FAILED)
    assert roots(finding) == ["gpu_fault"]
    assert "201 of 1201 verdicts came too late to be weighed with the others" in finding.notes


def test_a_verdict_that_names_all_ranks_suspects_nobody() -> None:
    for ranks, suspects in (((0, 1, 2, 3), ()), ((1, 2, 3), (1, 2, 3)), ((0, 1, 2), (0, 1, 2))):
        crash = verdict("worker_crash", 10, *(seen(10, path=f"r{r}", rank=r) for r in ranks), ranks=ranks)
        (incident,) = judge([crash], FAILED).incidents
        assert incident.suspects.ranks == suspects


@pytest.mark.parametrize(
    ("times", "together"),
    [((20, 40), True), ((5, 10), True), ((100, 110), True), ((101, 110), False), ((5, 9), False)],
)
def test_ranks_that_are_slow_at_the_same_time_are_one_incident(times: tuple[int, int], together: bool) -> None:
    first = verdict("straggler", 10, seen(10, rank=2), seen(100, rank=2), ranks=[2])
    second = verdict("straggler", times[0], seen(times[0], rank=5), seen(times[1], rank=5), ranks=[5])
    finding = judge([first, second], ended(dict.fromkeys(range(8), 0)))
    if together:
        (incident,) = finding.incidents
        assert incident.suspects.ranks == (2, 5)
        assert "so, too" in incident.headline
    else:
        assert sorted(incident.suspects.ranks for incident in finding.incidents) == [(2,), (5,)]


def heat(at: float = 10) -> Emission:
    return verdict("thermal_throttle", at, seen(at, node="dgx-4", path="dcgm.csv"))


def slow_end(message: str | None, too_slow: bool, at: int = 300) -> Emission:
    fact = ExceptionRaised(
        time=T0 + at * SECOND, source=place("train.log", at), type="RuntimeError", message=message, too_slow=too_slow
    )
    return verdict("worker_crash", at, fact, exception__type="RuntimeError")


def status(at: float = 300, *, followed: int = 0, **fields: Any) -> Emission:
    fields = {"tracecore__process__exit_code": 3, "followed": followed, **fields}
    return verdict(
        "worker_crash", at, seen(at, path="srun.err"), fields={k.replace("__", "."): v for k, v in fields.items()}
    )


@pytest.mark.parametrize(
    ("crash", "root"),
    [
        (status(), "thermal_throttle"),
        (slow_end("throughput below the floor", True), "thermal_throttle"),
        (slow_end("shapes differ", False), "worker_crash"),
        (status(followed=3), "worker_crash"),
        (status(tracecore__process__signal="SIGSEGV"), "worker_crash"),
        (status(1), "worker_crash"),
        (status(10 + OVER // SECOND), "thermal_throttle"),
        (status(11 + OVER // SECOND), "worker_crash"),
    ],
)
def test_a_machine_that_became_slow_is_why_a_run_ended_that_gives_no_other_reason(crash: Emission, root: str) -> None:
    finding = judge([heat(), crash], ended({0: 3, 1: 3}))
    assert roots(finding)[0] == root
    assert len(finding.incidents) == (1 if root == "thermal_throttle" else 2)


def stopped(reason: str) -> Emission:
    return verdict("planned_stop", 300, seen(300, path="out.log"), reason=reason)


@pytest.mark.parametrize(
    ("end", "root"),
    [
        (stopped("interrupt"), "straggler"),
        (stopped("preempted"), "planned_stop"),
        (slow_end("step time 7.1 s over 3x baseline", True), "straggler"),
        (status(), "worker_crash"),
        (slow_end("exit 3", False), "worker_crash"),
    ],
)
def test_a_slow_rank_is_why_somebody_ended_the_run_at_the_keyboard(end: Emission, root: str) -> None:
    slow = verdict("straggler", 10, seen(10, rank=9, path="times.log"), ranks=[9])
    assert roots(judge([slow, end], ended({0: 3, 1: 3})))[0] == root


@pytest.mark.parametrize(
    ("reason", "ranks", "at", "root"),
    [
        ("cancelled", (9,), 300, "thermal_throttle"),
        ("cancelled", (9,), 20 + EPISODE // SECOND, "thermal_throttle"),
        ("cancelled", (9,), 21 + EPISODE // SECOND, "planned_stop"),
        ("cancelled", (), 300, "planned_stop"),
        ("time_limit", (9,), 300, "planned_stop"),
    ],
)
def test_heat_that_makes_a_rank_late_is_why_somebody_cancelled_the_job(
    reason: str, ranks: tuple[int, ...], at: int, root: str
) -> None:
    late = [verdict("straggler", 20, seen(20, rank=9, node="dgx-4", path="times.log"), ranks=[9]) for _ in ranks]
    end = verdict("planned_stop", at, seen(at, path="out.log"), reason=reason)
    assert roots(judge([heat(20), *late, end], ended({0: 3, 1: 3})))[0] == root


def test_the_last_words_of_a_log_do_not_outrank_a_machine_that_was_slow() -> None:
    fact = ExceptionRaised(time=T0 + 300 * SECOND, source=place("train.log", 9), type="LastWords", message="giving up")
    last = verdict("worker_crash", 300, fact, exception__type="LastWords")
    assert roots(judge([heat(), last]))[0] == "thermal_throttle"


def test_heat_does_not_explain_the_end_of_a_run_with_another_cause() -> None:
    finding = judge([heat(), status(), verdict("cuda_oom", 290, seen(290, rank=1))], ended({0: 3, 1: 3}))
    assert roots(finding) == ["cuda_oom", "thermal_throttle"]
