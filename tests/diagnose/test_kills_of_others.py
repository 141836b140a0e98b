"""Statements about other jobs of a cluster, which stand beside those about the one whose output was read."""

from __future__ import annotations

import pytest

from tracecore.diagnose.others import set_apart
from tracecore.facts.fact import Fact
from tracecore.facts.host import SlurmState
from tracecore.facts.memory import OomKill
from tracecore.facts.process import ExitStatus
from tracecore.facts.training import Progress
from tracecore.signals.record import Source

OUT, CONTROLLER = Source("train.out", 1), Source("slurmctld.log", 1)


def kill(job: str, task: str = "") -> OomKill:
    return OomKill(
        time=1, source=Source("dmesg.txt", 1), cgroup=f"/system.slice/slurmstepd.scope/job_{job}/step_0{task}"
    )


def step(job: str | None) -> Progress:
    return Progress(time=1, source=OUT, step=3, job=job)


@pytest.mark.parametrize(("own", "kept"), [("7", 1), ("8", 2), ("8_3", 2), ("pretrain", 2), (None, 2)])
def test_a_kill_in_the_cgroup_of_another_job_is_a_note(own: str | None, kept: int) -> None:
    facts, notes = set_apart([step(own), kill("8", "/user/task_3")], ())
    assert (len(facts), len(notes)) == (kept, 2 - kept)


def test_the_task_of_a_cgroup() -> None:
    assert kill("8", "/user/task_3").slurm == ("8", 3)
    assert kill("8").slurm == ("8", None)
    assert OomKill(time=1, source=OUT, cgroup="/kubepods.slice/x").slurm is None


def state(job: str, source: Source, state: str = "NODE_FAIL") -> SlurmState:
    return SlurmState(time=1, source=source, slurm_job=job, state=state)


def test_states_of_other_jobs_in_a_controllers_log() -> None:
    own: list[Fact] = [step(None), state("7", OUT), state("7", CONTROLLER)]
    ended = ExitStatus(time=1, source=CONTROLLER, job="7", exit_code=1)
    others = [state("5", CONTROLLER, "COMPLETED"), ExitStatus(time=1, source=CONTROLLER, job="5", exit_code=0)]
    facts, _ = set_apart([*own, ended, *others], ())
    assert [fact for fact in facts if isinstance(fact, SlurmState)] == own[1:]
    (status,) = (fact for fact in facts if isinstance(fact, ExitStatus))
    assert (status.exit_code, status.job) == (1, None)
