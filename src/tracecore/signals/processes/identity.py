"""Job, rank and attempt of a process, by the environment that launchers and schedulers give it (docs/identity.md).

The cgroup of a process is made by Slurm itself and counts before its environment, which the user can set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import re2

from tracecore.signals.record import Attributes

#: Variables that name the job, the first that is set.
_JOB: Final = (
    "TRACECORE_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "RAY_JOB_ID", "PMIX_NAMESPACE",
)  # fmt: skip
#: Variables that name the global rank, the first that is set.
_RANK: Final = (
    "RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK", "SLURM_PROCID",
)  # fmt: skip
_LOCAL_RANK: Final = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "FLUX_TASK_LOCAL_ID",
    "SLURM_LOCALID",
)  # fmt: skip
_WORLD: Final = (
    "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE", "SLURM_NTASKS",
)  # fmt: skip
_SLURM: Final = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
_OTHERS: Final = (
    "SLURMD_NODENAME", "SLURM_JOB_NODELIST", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
)  # fmt: skip
#: All variables that are read; no other value of an environment is kept.
VARIABLES: Final = frozenset({*_JOB, *_RANK, *_LOCAL_RANK, *_WORLD, *_SLURM, *_OTHERS})

#: `…/slurm/uid_1000/job_42/step_0/task_3` and `…/slurmstepd.scope/job_42/step_batch/user/task_0`.
_CGROUP = re2.compile(r"/job_(\d{1,12})(?:/step_([a-z0-9_+]{1,20}))?(?:/(?:user/)?task_(\d{1,7}))?(?:/|$)")
#: Slurm's own process that writes the output files of a step: `slurmstepd: [42.0]`.
_STEP_PROCESS = re2.compile(r"^slurmstepd: \[(\d{1,12})(?:\.([a-z0-9_+]{1,20}))?\]")
#: Programs that start ranks and are none themselves: what a scheduler calls their rank is the number of a node.
_LAUNCHERS = re2.compile(
    r"(?:^|[\s/])(?:torchrun|accelerate|deepspeed|mpirun|mpiexec|horovodrun|srun|composer|colossalai)(?:\s|$)"
    r"|-m\s+(?:torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|deepspeed\.launcher\.\w+)(?:\s|$)"
)


def identity(environment: Mapping[str, str], cgroup: str = "", command: str = "") -> Attributes:
    """Return the resource attributes that a process gives.

    Args:
        environment: of the process.
        cgroup: its line of `/proc/PID/cgroup`.
        command: its command line.
    """
    found: Attributes = {}
    slurm, step, task = _slurm(environment, cgroup, command)
    if slurm:
        found["slurm.job.id"] = slurm
        if step:
            found["slurm.step.id"] = step
        if nodes := environment.get("SLURM_JOB_NODELIST"):
            found["slurm.job.nodelist"] = nodes[:1024]
        if node := environment.get("SLURMD_NODENAME"):
            found["host.name"] = node[:256]
    job = slurm or next((text for name in _JOB if _is_name(text := environment.get(name, ""))), "")
    if job:
        found["gen_ai.training.job_id"] = job[:256]
    if not _LAUNCHERS.search(command[:4096]):
        rank = _number(environment, _RANK)
        rank = task if rank is None else rank
        if rank is not None:
            found["gen_ai.training.rank"] = rank
        if (local := _number(environment, _LOCAL_RANK)) is not None and rank is not None:
            found["gen_ai.training.local_rank"] = local
        if (world := _number(environment, _WORLD)) is not None and rank is not None:
            found["gen_ai.training.world_size"] = world
    if attempt := _attempt(environment):
        found["tracecore.attempt"] = attempt
    return found


def _slurm(environment: Mapping[str, str], cgroup: str, command: str) -> tuple[str, str, int | None]:
    """Return job, step and task as Slurm names them: by the cgroup, by its own process, else by the environment."""
    match = _CGROUP.search(cgroup)
    told = match or _STEP_PROCESS.match(command)
    job = told.group(1) if told is not None else environment.get("SLURM_JOB_ID", "")
    if not (job.isascii() and job.isdigit() and len(job) <= 12):
        return "", "", None
    step = (told.group(2) if told is not None else None) or environment.get("SLURM_STEP_ID", "")
    task = match.group(3) if match is not None else None
    array, index = environment.get("SLURM_ARRAY_JOB_ID", ""), environment.get("SLURM_ARRAY_TASK_ID", "")
    if array.isdigit() and index.isdigit() and environment.get("SLURM_JOB_ID") == job:
        job = f"{array[:12]}_{index[:9]}"
    return job, step[:20], int(task) if task else None


def _attempt(environment: Mapping[str, str]) -> int:
    """Return which start of the job it is: requeues by Slurm, and within each the restarts by torchrun."""
    requeues = _number(environment, ("SLURM_RESTART_COUNT",)) or 0
    restarts = _number(environment, ("TORCHELASTIC_RESTART_COUNT",)) or 0
    most = _number(environment, ("TORCHELASTIC_MAX_RESTARTS",)) or restarts
    return requeues * (most + 1) + restarts


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        text = environment.get(name, "")
        if text.isascii() and text.isdigit() and len(text) < 8:
            return int(text)
    return None


def _is_name(text: str) -> bool:
    return bool(text) and text != "none" and text.isprintable()
