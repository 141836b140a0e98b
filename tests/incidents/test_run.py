"""The course of a run: who took part, how each process ended, and what still speaks of a failure."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from tracecore.facts.collective import GroupProgress
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, GpuLost, Xid
from tracecore.facts.host import SlurmState
from tracecore.facts.kubernetes import ContainerTerminated, PodEvicted, WorkloadEvent
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured, MemoryKillReport, OomKill
from tracecore.facts.nccl import NcclError, RendezvousFailure, WatchdogReport
from tracecore.facts.network import LinkState, NicError, PortState
from tracecore.facts.process import (
    CudaError,
    ExceptionRaised,
    ExitStatus,
    FatalSignal,
    LauncherFailure,
    LoaderError,
    StackPrinted,
)
from tracecore.facts.training import CheckpointPhase, NonFinite, Progress, RunFinished, StepStalled
from tracecore.incidents.run import JobAttempt, _last_by, look
from tracecore.signals.bundle.placement import Placement
from tracecore.signals.record import Source

SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND
F = TypeVar("F", bound=Fact)


def made(kind: type[F], at: float = 10, *, path: str = "a.log", line: float = -1, **fields: Any) -> F:
    """A fact; lines of a file stand in order of time unless their place is given."""
    place = int((at if line < 0 else line) * 1000)
    return kind(time=T0 + int(at * SECOND), source=Source(path, place), **fields)


def step(at: float, number: int | None = 1, **fields: Any) -> Progress:
    return made(Progress, at, step=number, **fields)


def raised(at: float, **fields: Any) -> ExceptionRaised:
    return made(ExceptionRaised, at, type="ValueError", **fields)


def timeout(at: float, **fields: Any) -> WatchdogReport:
    return made(WatchdogReport, at, **{"report": "timeout", "seq": 5} | fields)


def ended(code: int | None, at: float = 50, **fields: Any) -> ExitStatus:
    return made(ExitStatus, at, path="exit", line=fields.get("rank") or 0, exit_code=code, alive=code is None, **fields)


def only(*facts: Fact, **options: Any) -> JobAttempt:
    (attempt,) = look(facts, T0 + 99 * SECOND, **options).attempts.values()
    return attempt


BAD = made(LauncherFailure, 20, launcher="torchrun")


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ([step(1)], "unknown"),
        ([step(1), made(RunFinished)], "finished"),
        ([step(1), made(RunFinished), BAD], "failed"),
        ([step(1), ended(0, rank=0)], "finished"),
        ([step(1), ended(1, rank=0), ended(0, rank=1)], "failed"),
        ([step(1), BAD, ended(0, rank=0)], "finished"),
        ([step(1), ended(None, rank=0)], "unended"),
        ([step(1), ended(None, rank=0), made(RunFinished)], "unended"),
        ([step(1), ended(None, rank=0), BAD], "failed"),
        ([step(1), BAD, made(SlurmState, state="COMPLETED")], "finished"),
        ([step(1), made(SlurmState, state="NODE_FAIL")], "failed"),
        ([step(1), made(SlurmState, state="RUNNING")], "unknown"),
        ([step(1), made(ContainerTerminated, exit_code=1)], "failed"),
        ([step(1), made(ContainerTerminated, exit_code=0)], "unknown"),
        ([step(1), raised(2)], "failed"),
        ([step(2), raised(1)], "unknown"),
        ([step(2), raised(2)], "failed"),
        ([raised(2), made(RunFinished)], "finished"),
        ([raised(2), ended(0)], "finished"),
        ([raised(2), made(SlurmState, state="COMPLETED")], "finished"),
        *[([step(1), made(SlurmState, state=state)], "failed")
          for state in ("FAILED", "OUT_OF_MEMORY", "TIMEOUT", "BOOT_FAIL", "DEADLINE")],
        ([step(1), made(FatalSignal, signal="SIGSEGV")], "failed"),
        ([step(1), made(RendezvousFailure, failure="timeout")], "failed"),
    ],
)  # fmt: skip
def test_the_state_of_an_attempt(facts: list[Fact], state: str) -> None:
    assert only(*facts).state == state


def test_an_exception_beside_a_worse_end_is_not_taken_for_the_end() -> None:
    assert only(raised(2), BAD).bad == [BAD]
    assert only(raised(2), ended(1)).bad == []


def test_the_ranks_that_had_not_ended() -> None:
    assert only(step(1), ended(None, rank=2), ended(None, rank=1), ended(0, rank=0)).alive == [1, 2]


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        (ended(None, 50, rank=1), ended(1, 51, rank=1), 1),
        (ended(1, 50, rank=1), ended(None, 51, rank=1), None),
        (ended(1, 50, rank=1), ended(None, 50, rank=1), 1),
        (ended(None, 50, rank=1), ended(1, 50, rank=1), 1),
        (ended(1, 50, rank=1), ended(2, 50, rank=1), 2),
    ],
)
def test_the_later_word_on_the_end_of_a_process_counts(first: ExitStatus, second: ExitStatus, kept: int | None) -> None:
    assert only(step(1), first, second).ended[1].exit_code == kept


@pytest.mark.parametrize(
    ("facts", "ranks"),
    [
        ([step(1, rank=0), step(1, rank=1), ended(1, rank=0)], {-1}),
        ([step(1, rank=0), ended(1, rank=0)], {0}),
        ([step(1, rank=1), ended(1, rank=1)], {1}),
        ([step(1, rank=1), ended(1, rank=0), ended(1, rank=1)], {0, 1}),
        ([step(1), ended(1)], {-1}),
    ],
)
def test_a_single_status_beside_several_ranks_is_that_of_their_launcher(facts: list[Fact], ranks: set[int]) -> None:
    assert set(only(*facts).ended) == ranks


@pytest.mark.parametrize(
    ("ranks", "unseen"), [((0, 2), {1}), ((0, 3), {1, 2}), ((0, 4), set()), ((0, 1), set()), ((), set())]
)
def test_a_gap_in_the_numbers_of_ranks_is_a_rank_where_most_are_there(ranks: tuple[int, ...], unseen: set[int]) -> None:
    assert only(step(1), *(step(1, rank=rank, path=f"{rank}.log") for rank in ranks)).unseen == unseen


def test_ranks_are_known_by_their_lines_logs_ends_and_by_others() -> None:
    told = made(LauncherFailure, 20, launcher="ray", other_rank=6)
    absent = made(GroupProgress, 5, pg="0", absent=(7, 1))
    attempt = only(step(1, rank=1), ended(0, rank=2), ended(0, rank=3), told, absent, logs=(4,))
    assert attempt.ranks == {1, 2, 3, 4, 6}
    assert attempt.unseen == {0, 5, 7}
    both = look([step(1, rank=1, job="a"), step(1, rank=1, job="b")], T0, logs=(4,))
    assert all(attempt.ranks == {1} for attempt in both.attempts.values()), "nobody knows whose log it is"


def test_ranks_are_known_by_pod_and_node() -> None:
    attempt = only(step(1, rank=1, pod="p", node="n"), step(1, rank=2, node="n"), step(1, node="m"))
    assert attempt.places == {"p": {1}, "n": {1, 2}}


def test_times_of_an_attempt_are_those_that_were_read() -> None:
    attempt = only(step(5), step(3), step(4, last_time=T0 + 9 * SECOND), step(1, approximate=True))
    assert (attempt.first - T0, attempt.last - T0, attempt.timed) == (3 * SECOND, 9 * SECOND, True)
    assert attempt.progress - T0 == 9 * SECOND
    guessed = only(step(1, approximate=True))
    assert (guessed.first, guessed.timed) == (0, False)


def test_facts_belong_to_their_job_and_attempt_else_to_the_only_job() -> None:
    run = look([step(1, job="a", attempt=1), step(2), ended(1), made(ContainerTerminated, 3, exit_code=1)], T0)
    assert sorted(run.attempts) == [("a", 0), ("a", 1)]
    last = run.last("a")
    assert last is not None
    assert (last.number, last.state) == (1, "failed")
    assert [fact.time for fact in run.attempts["a", 0].bad] == [T0 + 3 * SECOND], "a container tells its attempt"
    several = look([step(1, job="a"), step(1, job="b"), step(2), ended(1)], T0)
    assert several.jobs() == ["", "a", "b"]
    assert [several.of(job)[0].state for job in several.jobs()] == ["failed", "unknown", "unknown"]
    assert several.last("c") is None
    assert look([made(Xid, 1, code=79)], T0).attempts == {}


@pytest.mark.parametrize(
    ("at", "approximate", "attempt"), [(29, False, 0), (30, False, 1), (31, False, 1), (5, False, 1), (29, True, 1)]
)
def test_a_scheduler_speaks_of_the_last_attempt_that_had_begun(at: float, approximate: bool, attempt: int) -> None:
    run = look([step(10, job="a"), step(30, job="a", attempt=1)], T0 + 99 * SECOND)
    state = made(SlurmState, at, job="a", state="FAILED", approximate=approximate)
    assert _last_by(state, "a", run.attempts) == attempt
    assert _last_by(ended(1, 29, job="a"), "a", run.attempts) == 1, "statuses are written down at the end"


def test_a_rank_saves_until_it_says_otherwise_or_makes_a_step() -> None:
    def phase(at: float, event: str, rank: int | None) -> CheckpointPhase:
        return made(CheckpointPhase, at, path=f"{rank}.log", phase="write", event=event, rank=rank)

    begun = [phase(1, "begin", rank) for rank in (None, 0, 1, 2)]
    attempt = only(*begun, phase(2, "end", 0), phase(2, "error", 1), step(3, rank=2))
    assert set(attempt.saving) == {-1}
    assert set(only(*begun, step(3)).saving) == {0, 1, 2}


def test_the_last_report_of_each_rank() -> None:
    attempt = only(step(2, 2, rank=1), step(1, 1, rank=1), step(1, 7), step(2, 8, line=0), step(2, 9, line=5))
    assert {rank: fact.step for rank, fact in attempt.last_steps.items()} == {1: 2, -1: 9}


@pytest.mark.parametrize(
    ("report", "kept", "stalls"),
    [
        ({"rank": 1}, True, True), ({"rank": 1, "report": "exception"}, True, False),
        ({"rank": 1, "report": "abort"}, False, False), ({"rank": 1, "seq": None}, False, True),
        ({"rank": 1, "seq": None, "missing": (2,)}, True, True), ({}, False, True),
        ({"rank": 1, "reporter": "ray"}, True, False),
    ],
)  # fmt: skip
def test_reports_of_watchdogs(report: dict[str, Any], kept: bool, stalls: bool) -> None:
    attempt = only(timeout(5, **report))
    assert (any(attempt.reports.values()), bool(attempt.stalls)) == (kept, stalls)


def test_so_many_reports_of_a_rank_are_kept() -> None:
    attempt = only(*(timeout(n, rank=1) for n in range(40)))
    assert [fact.time - T0 for fact in attempt.reports[1]] == [n * SECOND for n in range(32)]


def test_the_first_lost_connection_of_a_rank_is_kept() -> None:
    facts = [
        made(NcclError, at, error=error, rank=rank)
        for at, error, rank in (
            (2, "remote_error", 1), (1, "connection_reset", 1), (1, "connect_failed", 2),
            (1, "connection_closed", None),
            (1, "gloo_connection_closed", 3), (1, "connection_closed", 4),
        )
    ]  # fmt: skip
    assert {rank: fact.time - T0 for rank, fact in only(*facts).lost.items()} == {1: SECOND, 3: SECOND, 4: SECOND}


def stack(at: float, **fields: Any) -> StackPrinted:
    return made(StackPrinted, at, inner="f", **fields)


@pytest.mark.parametrize(
    ("facts", "kept"),
    [
        ([stack(5), step(4)], True), ([stack(5), step(6)], False), ([stack(5), step(5, line=6)], True),
        ([stack(5, rank=1), step(6, rank=2)], True), ([stack(5, rank=1), step(6, rank=1)], False),
        ([stack(5, approximate=True), step(5, line=6)], False), ([stack(5, approximate=True), step(6, line=4)], True),
        ([stack(5, approximate=True), step(6, path="b.log")], False),
        ([stack(5, approximate=True), step(5.05, path="b.log")], True), ([stack(5), step(5.05, path="b.log")], False),
        ([stack(5), step(5, line=6, approximate=True)], False),
        ([stack(5, approximate=True, count=2), step(6)], True), ([stack(5, approximate=True), step(6, line=5)], True),
        ([stack(5, last_time=T0 + 7 * SECOND, count=2), step(6)], True),
    ],
)  # fmt: skip
def test_a_stack_counts_until_its_rank_makes_a_step(facts: list[Fact], kept: bool) -> None:
    assert bool(only(*facts).stacks) == kept


@pytest.mark.parametrize(("second", "kept"), [(stack(6), 6), (stack(5, line=6), 5), (stack(4), 5)])
def test_the_last_stack_of_a_rank_counts(second: StackPrinted, kept: float) -> None:
    first = stack(5)
    (found,) = only(first, second).stacks.values()
    assert found == (second if second.time >= first.time else first)
    assert found.time == T0 + kept * SECOND


@pytest.mark.parametrize(
    ("facts", "stalls"),
    [
        ([], 1), ([step(11)], 0), ([step(10)], 1), ([step(11, rank=1)], 1), ([step(9)], 1),
    ],
)  # fmt: skip
def test_a_stall_that_a_step_ended_was_only_slow(facts: list[Fact], stalls: int) -> None:
    assert len(only(made(StepStalled, 10, no_progress_s=60.0), *facts).stalls) == stalls
    ranked = made(StepStalled, 10, no_progress_s=60.0, rank=1)
    assert len(only(ranked, *facts).stalls) == (0 if [fact.rank for fact in facts] == [1] else 1)


def test_a_pause_while_saving_is_over_when_any_rank_makes_a_step_where_its_lines_name_none() -> None:
    saving = made(StepStalled, 10, no_progress_s=60.0, phase="checkpoint")
    assert only(saving, step(11, rank=1)).stalls == []
    assert len(only(saving, step(9, rank=1)).stalls) == 1
    assert (
        len(only(made(StepStalled, 10, no_progress_s=60.0, phase="checkpoint", rank=0), step(70, rank=1)).stalls) == 1
    )
    assert only(made(StepStalled, 10, no_progress_s=60.0, phase="checkpoint", rank=0), step(71, rank=1)).stalls == []


def test_a_timeout_is_a_stall_even_where_a_step_followed() -> None:
    assert len(only(timeout(5), step(9)).stalls) == 1


@pytest.mark.parametrize(
    ("fact", "trouble"),
    [
        (step(10), False), (made(NcclError, error="remote_error"), True),
        (made(NcclError, error="connect_failed"), False),
        (made(NcclError, error="connection_closed"), False), (made(NcclError, error="connection_reset"), False),
        (made(NcclError, error="socket_error"), False),
        *[(timeout(10, report=report), True) for report in ("timeout", "exception", "abort")],
        *[(timeout(10, report=report), True) for report in ("dump_signal", "heartbeat")],
        (timeout(10, report="started"), False),
        (made(ContainerTerminated, exit_code=1), True), (made(ContainerTerminated, exit_code=0), False),
        (made(ContainerTerminated, reason="OOMKilled"), True), (made(ContainerTerminated, reason="StartError"), True),
        (made(ContainerTerminated, reason="ContainerCannotRun"), True),
        (made(ContainerTerminated, reason="Completed"), False),
        (made(AerError, severity="fatal"), True), (made(AerError, severity="nonfatal"), True),
        (made(AerError, severity="corrected"), False),
        (made(NonFinite, what="loss", explicit=True), True), (made(NonFinite, what="loss"), False),
        (made(WorkloadEvent, hint="backoff"), True), (made(WorkloadEvent, hint="image_pull_failure"), True),
        (made(WorkloadEvent, hint="other"), False),
        (made(LoaderError, error_class="x"), True), (made(LoaderError, error_class="x", retried=True), False),
        (raised(10), True), (made(CudaError, error="x"), True), (made(CudaOom, tried_bytes=1), True),
        (made(CudaOomUnmeasured, backend="hip"), True), (made(FatalSignal, signal="SIGSEGV"), True),
        (made(GpuLost), True), (BAD, True), (made(MemoryKillReport, reporter="x"), True), (made(OomKill), True),
        (made(PodEvicted), True), (made(RendezvousFailure, failure="x"), True), (made(Xid, code=79), True),
        (made(RunFinished), False), (made(StepStalled, no_progress_s=1.0), False),
    ],
)  # fmt: skip
def test_what_speaks_of_a_failure_by_itself(fact: Fact, trouble: bool) -> None:
    assert look([fact], T0).trouble == ([fact] if trouble else [])


def below(number: int) -> list[Fact]:
    """So many steps further down the file, at an earlier time."""
    return [step(1, n, line=90 + n, rank=n) for n in range(number)]


@pytest.mark.parametrize(
    ("fact", "steps", "stands"),
    [
        (raised(10), [step(9)], True), (raised(10), [step(10)], True), (raised(10), [step(11)], False),
        (raised(10, last_time=T0 + 11 * SECOND), [step(11)], True),
        # Without times, the lines below tell, of what can be survived.
        (raised(10, approximate=True), [step(11, path="b.log")], True),
        (raised(10, approximate=True), below(1), True), (raised(10, approximate=True), below(2), False),
        (raised(10, approximate=True), [step(1, None, line=90), step(1, None, line=91)], True),
        (raised(10, approximate=True, line=91), below(2), True),
        (raised(10, approximate=True, line=90), below(3), False),
        (made(FatalSignal, signal="SIGSEGV", approximate=True), below(2), True),
        *[(made(kind, approximate=True, **fields), below(2), False) for kind, fields in (
            (CudaOom, {"tried_bytes": 1}), (CudaOomUnmeasured, {"backend": "hip"}), (CudaError, {"error": "x"}),
            (NcclError, {"error": "remote_error"}))],
        # They only waited long.
        (timeout(10, reporter="ray"), below(2), False), (timeout(10, reporter="ray"), below(1), True),
        (timeout(10), below(2), True),
        (made(NcclError, error="horovod_stall"), below(2), False), (made(NcclError, error="horovod_stall"), [], True),
        # Some programs report losses, and no steps.
        (made(NcclError, error="horovod_stall"), [step(1, None, line=n, loss=0.5) for n in (90, 91)], False),
        (made(NcclError, error="remote_error"), below(2), True),
    ],
)  # fmt: skip
def test_trouble_stands_while_no_step_follows_it(fact: Fact, steps: list[Fact], stands: bool) -> None:
    assert (fact in look([fact, *steps], T0).trouble) == stands


def test_so_much_trouble_is_kept_the_first_of_it_and_the_last_of_the_links() -> None:
    facts: list[Fact] = [made(Xid, n, code=79) for n in range(1001)]
    facts += [made(LinkState, n, interface="eth0", up=False) for n in range(1001)]
    run = look(reversed(facts), T0)
    assert [fact.time - T0 for fact in (run.trouble[0], run.trouble[-1])] == [0, 999 * SECOND]
    assert [fact.time - T0 for fact in (run.transport[0], run.transport[-1])] == [SECOND, 1000 * SECOND]
    assert len(run.trouble) == len(run.transport) == 1000


def test_links_ports_and_connections_are_transport() -> None:
    facts = [
        made(PortState, device="mlx5_0", port=1, state=1), made(NicError, error="x"), made(NcclError, error="x"),
        made(Xid, code=79),
    ]  # fmt: skip
    assert len(look(facts, T0).transport) == 3


def stopped(pod: str, code: int, attempt: int = 0) -> ContainerTerminated:
    return made(ContainerTerminated, 60 + attempt, pod=f"ml/{pod}", container="c", exit_code=code, attempt=attempt)


@pytest.mark.parametrize(
    ("ends", "listed", "state"),
    [
        ([stopped("a", 0), stopped("b", 0)], ("a", "b"), "finished"),
        # One was started again, and ended well then.
        ([stopped("a", 0), stopped("b", 1), stopped("b", 0, 1)], ("a", "b"), "finished"),
        ([stopped("a", 0), stopped("b", 1)], ("a", "b"), "failed"),
        # Of one that left lines, or that is listed, nothing says that it ended.
        ([stopped("b", 0)], ("b",), "failed"),
        ([stopped("a", 0)], ("a", "b"), "failed"),
    ],
)
def test_a_job_whose_containers_ended_well(ends: list[Fact], listed: tuple[str, ...], state: str) -> None:
    refused = made(RendezvousFailure, 5, pod="default/a", failure="host_not_found")
    placement = Placement(pod_nodes={pod: f"gx-{pod}" for pod in listed})
    run = look([refused, *ends], T0 + 99 * SECOND, placement=placement)
    assert run.attempts["", 0].state == state
