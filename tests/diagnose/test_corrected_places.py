"""Ranks and pods of facts that other files of a bundle correct."""

from __future__ import annotations

from pathlib import Path

from tracecore.diagnose.offline import diagnose
from tracecore.facts.process import LauncherFailure

SRUN = "srun: error: gx-0{0}: task {0}: Exited with exit code 1\n"
FAILED = (
    "2026-05-04 03:01:00 step 1 loss 2.0\n  host      : gx-01\n  rank      : {rank} (local_rank: 1)\n"
    "  exitcode  : 1 (pid: 77)\n"
)


def ranks_of_srun(folder: Path, rank: int) -> set[int | None]:
    (folder / "launch.log").write_text(FAILED.format(rank=rank))
    (folder / "slurm-8.err").write_text(SRUN.format(0) + SRUN.format(1) + SRUN.format(2))
    said = diagnose([folder])
    return {fact.rank for fact in said.facts if isinstance(fact, LauncherFailure) and fact.launcher == "slurm"}


def test_tasks_of_srun_that_are_elsewhere_than_the_ranks_of_their_numbers_are_launchers(tmp_path: Path) -> None:
    assert ranks_of_srun(tmp_path, 1) == {None}  # ranks 0 and 1 are both on gx-01
    assert ranks_of_srun(tmp_path, 9) == {0, 1, 2}  # nothing says where the ranks of these numbers are


def test_pods_of_which_lines_leave_the_namespace_out_have_that_of_the_list(tmp_path: Path) -> None:
    lines = "[pod/ft-0/c] step 1 loss 2.0\n" * 8 + "[pod/ft-0/c] ValueError: label 7 is out of range\n"
    (tmp_path / "logs.txt").write_text(lines)
    pod = '{"kind": "Pod", "metadata": {"name": "ft-0", "namespace": "ml", "uid": "u-0"}, "spec": {"nodeName": "gx-1"}}'
    (tmp_path / "pods.json").write_text(f'{{"apiVersion": "v1", "kind": "List", "items": [{pod}]}}')
    assert {fact.pod for fact in diagnose([tmp_path]).facts if fact.pod} == {"ml/ft-0"}
