"""Edges of windows and choices between equals that mutations showed to be untested."""

from __future__ import annotations

import pytest

from tracecore.engine.emission import Emission, standing
from tracecore.engine.engine import Engine
from tracecore.facts.collective import Arrival
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import EccDelta, Xid
from tracecore.facts.memory import MemoryKillReport, OomKill
from tracecore.facts.nccl import WatchdogReport
from tracecore.facts.process import FatalSignal
from tracecore.facts.training import CheckpointPhase, Progress, RunFinished, StepStalled
from tracecore.patterns.checkpointer_hang.detector import CheckpointerHang
from tracecore.patterns.contract import IncidentContext
from tracecore.patterns.hbm_ecc.detector import HbmEcc
from tracecore.patterns.host_oom.detector import HostOom
from tracecore.patterns.nccl_hang import reports
from tracecore.patterns.nccl_hang.verdict import NcclHangVerdict
from tracecore.patterns.straggler.detector import Straggler
from tracecore.patterns.worker_crash import crash
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_794_700_000 * SECOND
GPU = "0000:3b:00.0"


def _rise(second: float, index: int | None = None) -> Fact:
    return EccDelta(
        time=START + int(second * SECOND), source=Source("dcgm", int(second * 1000)), node="n1", gpu=GPU, index=index,
        delta=1, error_type="uncorrected", subtype="double_bit", persistence="volatile",
    )  # fmt: skip


def _xid(time: int, code: int) -> Fact:
    return Xid(time=time, source=Source("kern.log", time - START, ident=str(code)), node="n1", gpu=GPU, code=code)


@pytest.mark.parametrize(("after", "codes"), [(0, [48, 63]), (1, [48])])
def test_a_further_xid_belongs_to_the_rise_until_the_window_ends(after: int, codes: list[int]) -> None:
    window = HbmEcc().config.window
    facts = [_rise(0), _xid(START + SECOND, 48), _xid(START + window + after, 63)]
    (said,) = standing(Engine([HbmEcc()]).replay(facts))
    assert said.verdict.fields()["xids"] == codes


def test_the_index_of_a_gpu_is_that_of_the_first_rise() -> None:
    (said,) = standing(Engine([HbmEcc()]).replay([_rise(0, index=3), _rise(1), _xid(START + 2 * SECOND, 48)]))
    assert said.verdict.fields()["hw.gpu.index"] == 3


def _save(second: float, rank: int, event: str = "begin", offset: int = 0) -> Fact:
    place = Source(f"rank{rank}.log", int(second * 1000) + offset)
    return CheckpointPhase(
        time=START + int(second * SECOND), source=place, job="llm", rank=rank, phase="write", event=event
    )


def _stall(second: float, rank: int) -> Fact:
    place = Source("stall", int(second))
    return StepStalled(
        time=START + int(second * SECOND), source=place, job="llm", rank=rank, no_progress_s=second, step=None
    )


def _said_at(facts: list[Fact], end: float) -> list[Emission]:
    engine = Engine([CheckpointerHang()])
    engine.add(facts)
    return [*engine.advance(START + 100 * SECOND), *engine.close(START + int(end * SECOND))]


def test_the_first_save_that_hangs_is_told_at_its_own_deadline() -> None:
    stall = CheckpointerHang().config.stall // SECOND
    engine = Engine([CheckpointerHang()])
    engine.add([_save(0, 0), _save(60, 1), _stall(61, 0)])
    engine.advance(START + 61 * SECOND)
    (said,) = engine.advance(START + (stall + 30) * SECOND)
    assert said.at == START + stall * SECOND


@pytest.mark.parametrize(("last", "told"), [(50, 1), (61, 0)])
def test_a_save_that_began_before_the_run_was_last_said_to_be_finished_is_over(last: float, told: int) -> None:
    finished = RunFinished(
        time=START + 10 * SECOND, last_time=START + int(last * SECOND), count=2, source=Source("f"), job="llm", step=5
    )
    assert len(standing(_said_at([finished, _save(60, 0), _stall(99, 0)], 500))) == told


@pytest.mark.parametrize(("below", "told"), [(1, 0), (-1, 1)])
def test_of_one_time_the_place_in_the_file_says_whether_a_save_ended(below: int, told: int) -> None:
    facts = [_save(60, 0, offset=5), _save(60, 0, "end", offset=5 + below), _stall(99, 0)]
    assert len(standing(_said_at(facts, 500))) == told


@pytest.mark.parametrize(("below", "told"), [(1, 0), (-1, 1)])
def test_of_one_time_the_place_in_the_file_says_whether_a_step_followed(below: int, told: int) -> None:
    save = _save(60, 0, offset=5)
    step = Progress(time=save.time, source=Source("rank0.log", save.source.offset + below), job="llm", rank=0, step=7)
    assert len(standing(_said_at([save, step, _stall(99, 0)], 500))) == told


@pytest.mark.parametrize(("lateness_ms", "told"), [(5.0, 1), (4.999, 0)])
def test_nobody_is_a_straggler_for_less_than_the_least_lateness(lateness_ms: float, told: int) -> None:
    # One that is never late tells how long steps are; a step of 10 ms would make 2 ms matter.
    lateness = int(lateness_ms * SECOND / 1000)
    arrivals = [
        Arrival(
            time=START + step * SECOND // 50, source=Source("fr", step), job="llm", rank=3, pg="0", seq=step,
            lateness=lateness if step < 9 else 6 * SECOND // 1000, ranks=8,
        )
        for step in range(10)
    ]  # fmt: skip
    assert len(standing(Engine([Straggler()]).replay(arrivals))) == told


@pytest.mark.parametrize(
    ("apart", "approximate", "alike"), [(SECOND, False, True), (SECOND + 1, False, False), (60 * SECOND, True, True)]
)
def test_deaths_by_one_signal_are_the_same_failure_within_a_second(apart: int, approximate: bool, alike: bool) -> None:
    first = FatalSignal(time=START, source=Source("a"), rank=0, signal="SIGSEGV")
    other = FatalSignal(time=START + apart, source=Source("b"), rank=1, signal="SIGSEGV", approximate=approximate)
    assert crash._alike(other, first) is alike


def _kill(second: int, pid: int) -> Fact:
    place = Source("kern.log", second)
    return OomKill(time=START + second * SECOND, source=place, node="n1", victim_pid=pid, victim_name="python3")


def test_a_report_belongs_to_the_kill_of_its_process_though_another_is_nearer() -> None:
    report = MemoryKillReport(time=START + 99 * SECOND, source=Source("slurm", 1), node="n1", reporter="slurm", pid=1)
    said = standing(Engine([HostOom()]).replay([_kill(0, 1), _kill(130, 2), report]))
    assert [[fact.source.path for fact in one.verdict.evidence()] for one in said] == [
        ["kern.log", "slurm"],
        ["kern.log"],
    ]


@pytest.mark.parametrize(("completed", "inside"), [(5, [1]), (6, [1]), (4, []), (None, [])])
def test_a_rank_is_still_inside_what_all_that_wait_have_completed(completed: int | None, inside: list[int]) -> None:
    def report(rank: int, seq: int, last: int | None) -> WatchdogReport:
        return WatchdogReport(
            time=START, source=Source(f"rank{rank}.log"), job="llm", rank=rank, report="timeout", pg="0", seq=seq,
            op="ALLREDUCE", last_completed=last,
        )  # fmt: skip

    hang = NcclHangVerdict(
        key=("llm", "0"), episode="7", time=START, pg="0", seq=7, op="ALLREDUCE",
        hanging=(report(0, 7, completed), report(2, 7, completed)),
    )  # fmt: skip
    rest = IncidentContext(reports={1: (report(1, 5, 4),)})
    assert [culprit.rank for culprit in reports._still_inside(hang, rest)] == inside
