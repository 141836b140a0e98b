"""Job, rank and attempt of a process, by its environment, its cgroup and its command line."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.signals.processes.identity import identity

JOB, RANK, LOCAL, WORLD = (
    "gen_ai.training.job_id",
    "gen_ai.training.rank",
    "gen_ai.training.local_rank",
    "gen_ai.training.world_size",
)
TORCHRUN = {
    "RANK": "11", "LOCAL_RANK": "3", "WORLD_SIZE": "16", "TORCHELASTIC_RUN_ID": "llm-7b",
    "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "3",
}  # fmt: skip
OF_TORCHRUN = {RANK: 11, LOCAL: 3, WORLD: 16, "tracecore.attempt": 2}
SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NTASKS": "8",
    "SLURM_JOB_NODELIST": "gpu[01-02]", "SLURMD_NODENAME": "gpu02",
}  # fmt: skip
OF_JOB = {
    "slurm.job.id": "4711",
    "slurm.step.id": "0",
    "slurm.job.nodelist": "gpu[01-02]",
    "host.name": "gpu02",
    JOB: "4711",
}
OF_SLURM = {**OF_JOB, RANK: 5, LOCAL: 1, WORLD: 8}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4",
    "PMIX_NAMESPACE": "p@1",
}  # fmt: skip
FLUX = {"FLUX_JOB_ID": "fX9", "FLUX_TASK_RANK": "1", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_SIZE": "2"}
SCOPE = "0::/system.slice/slurmstepd.scope/job_4711/step_batch/user/task_0"
BATCH = {"slurm.job.id": "4711", "slurm.step.id": "batch", JOB: "4711"}

CASES: dict[str, tuple[dict[str, str], str, str, dict[str, Any]]] = {
    "torchrun": (TORCHRUN, "", "python train.py", {JOB: "llm-7b", **OF_TORCHRUN}),
    "torchrun without a name": ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}, "", "", OF_TORCHRUN),
    "accelerate": (
        {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}, "", "python train.py", {RANK: 1, LOCAL: 1, WORLD: 2}
    ),
    "deepspeed": (
        {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "8"}, "", "python -u t.py --local_rank=0",
        {RANK: 0, LOCAL: 0, WORLD: 8},
    ),
    "mpirun": (OPEN_MPI, "", "./train", {JOB: "p@1", RANK: 3, LOCAL: 1, WORLD: 4}),
    "mpich": ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"}, "", "./t", {RANK: 2, LOCAL: 0, WORLD: 4}),
    "flux": (FLUX, "", "", {JOB: "fX9", RANK: 1, LOCAL: 1, WORLD: 2}),
    "pbs": ({"PBS_JOBID": "77.head", "RANK": "0"}, "", "", {JOB: "77.head", RANK: 0}),
    "lsf": ({"LSB_JOBID": "88", "RANK": "0"}, "", "", {JOB: "88", RANK: 0}),
    "ray": ({"RAY_JOB_ID": "01000000", "RANK": "1"}, "", "ray::RayTrainWorker", {JOB: "01000000", RANK: 1}),
    "own name": ({**TORCHRUN, "TRACECORE_JOB_ID": "mine"}, "", "", {JOB: "mine", **OF_TORCHRUN}),
    "slurm": (SLURM, "", "python train.py", OF_SLURM),
    "slurm requeue": ({**SLURM, "SLURM_RESTART_COUNT": "2"}, "", "python t.py", {**OF_SLURM, "tracecore.attempt": 2}),
    "slurm array": (
        {**SLURM, "SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "11"}, "", "python train.py",
        {**OF_SLURM, "slurm.job.id": "4700_11", JOB: "4700_11"},
    ),
    "slurm cgroup v1": (
        {}, "5:memory:/slurm/uid_1000/job_4711/step_0/task_3", "slurmstepd: [4711.0]",
        {"slurm.job.id": "4711", "slurm.step.id": "0", JOB: "4711", RANK: 3},
    ),
    "slurm cgroup v2": ({}, SCOPE, "bash job.sh", {**BATCH, RANK: 0}),
    "slurmstepd": ({}, "0::/system.slice/slurmd.service", "slurmstepd: [4711.batch]", BATCH),
    "torchrun in slurm": (
        {**SLURM, **TORCHRUN, "SLURM_RESTART_COUNT": "1"}, "", "python train.py",
        {**OF_JOB, **OF_TORCHRUN, "tracecore.attempt": 6},
    ),
    "launcher in slurm": (SLURM, "", "/usr/bin/python -m torch.distributed.run --nnodes 2 train.py", OF_JOB),
    "nothing": ({}, "0::/user.slice", "vim notes.txt", {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_process_gives(name: str) -> None:
    environment, cgroup, command, expected = CASES[name]
    assert identity(environment, cgroup, command) == expected


def test_the_cgroup_counts_before_what_a_user_can_set() -> None:
    forged = {**SLURM, "SLURM_JOB_ID": "1", "SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "1"}
    found = identity(forged, SCOPE, "python train.py")
    assert found[JOB] == found["slurm.job.id"] == "4711"


@pytest.mark.parametrize(
    "command", ["torchrun train.py", "/opt/bin/accelerate launch t.py", "mpirun -np 4 ./t", "deepspeed t.py"]
)
def test_a_launcher_is_no_rank(command: str) -> None:
    assert RANK not in identity({**SLURM, "RANK": "3"}, "", command)


def test_odd_values_are_left_out() -> None:
    odd = {
        "RANK": "-1", "SLURM_JOB_ID": "x" * 99, "TORCHELASTIC_RUN_ID": "a\x1b[2J",
        "TORCHELASTIC_RESTART_COUNT": "9" * 40,
    }  # fmt: skip
    assert identity(odd, "::/job_/step_" + "/" * 1000, "\x00" * 100) == {}
