"""Recipes on real output: recorded incidents, and excerpts other people posted."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tracecore.recipes import FILES, directory
from tracecore.recipes.cases import Recipe, RecipeCase

#: Attributes that say that something failed, by their beginnings.
FAILURE = (
    "exception.",
    "cuda_oom.",
    "dataloader.",
    "nccl.error",
    "nccl.watchdog.kind",
    "tracecore.cuda.error",
    "tracecore.storage.",
    "tracecore.rendezvous.",
    "tracecore.process.",
    "tracecore.launcher",
    "tracecore.host_oom.",
    "tracecore.training.non_finite",
    "tracecore.stop.",
    "kernelevents.",
    "k8s.event.hint",
    "tracecore.slurm.state",
)
#: What must be found in each recorded incident; nothing where the run only stopped moving.
WANTED: dict[str, set[str]] = {
    "bootstrap_missing_rank": {"tracecore.rendezvous.failure=store_timeout", "tracecore.rendezvous.joined=3"},
    "cgroup_oom_loader": {"dataloader.error_class=DataLoader worker killed", "dataloader.signal=SIGKILL"},
    "ckpt_barrier_hang": {"tracecore.training.checkpoint.event=begin", "gen_ai.training.checkpoint.step=5"},
    "ckpt_enospc": {"tracecore.storage.error=write_failed", "tracecore.training.checkpoint.event=error"},
    "device_assert": {"tracecore.cuda.error=device_assert", "exception.type=torch.AcceleratorError"},
    "dl_exc": {"exception.type=FileNotFoundError", "tracecore.storage.error=not_found"},
    "dl_killed": {"dataloader.error_class=DataLoader worker killed", "dataloader.worker_pid=633"},
    "dl_stale": {"dataloader.error_class=Stale file handle", "tracecore.storage.backend=lustre"},
    "hf_ok": {"tracecore.training.finished=True", "gen_ai.training.step=25", "tracecore.training.loss=6.125"},
    "hf_oom": {"cuda_oom.tried_alloc_bytes=12582912", "cuda_oom.gpu_index=0", "cuda_oom.limit_bytes=180134811"},
    "host_oom": {"tracecore.host_oom.reporter=stdout"},
    "illegal_access": {"tracecore.cuda.error=illegal_memory_access"},
    "import_error": {"exception.type=ModuleNotFoundError"},
    "kernel_trap": {"tracecore.cuda.error=launch_failure"},
    "nccl_hang_one_rank_missing": {"nccl.watchdog.kind=timeout", "nccl.watchdog.seq=6", "nccl.watchdog.from_rank=0"},
    "nccl_rank_exception": {"exception.type=ValueError", "nccl.watchdog.kind=abort"},
    "oom": {"cuda_oom.tried_alloc_bytes=322122547200", "cuda_oom.allocated_bytes=0"},
    "pl_ok": {"tracecore.training.finished=True", "gen_ai.training.step=25"},
    "torchrun_sigkill": {
        "tracecore.launcher.root=True",
        "tracecore.launcher.rank=1",
        "tracecore.process.signal=SIGKILL",
    },
}
HEALTHY = ("healthy", "hf_ok", "pl_ok", "dl_hang", "ddp_straggler", "ckpt_barrier_hang")


@pytest.fixture(scope="module")
def recipes() -> dict[str, Recipe]:
    return {name: Recipe(directory() / name) for files in FILES.values() for name in files if "metrics" not in name}


def stamped(recipes: Iterable[Recipe], body: str) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for recipe in recipes:
        outcome = recipe.run(RecipeCase(name="", path="", line=0, body=body, attributes=attributes))
        assert outcome.errors == ()
        attributes = outcome.attributes
    return attributes


def records(log: Path) -> Iterable[str]:
    """Lines, and whole tracebacks and tables as one record each; enough to stand in for a reader."""
    block: list[str] = []
    for line in log.read_text(encoding="utf-8", errors="replace").split("\n"):
        if block and (line[:1] in (" ", "[", "-", "=", "") or not line.startswith(("rank", "step", "iter", "NCCL"))):
            block.append(line)
            continue
        if block:
            yield "\n".join(block)
            block = []
        if "Traceback (most recent call last)" in line or line.startswith("====="):
            block = [line]
        else:
            yield line
    if block:
        yield "\n".join(block)


def found(recipes: dict[str, Recipe], folder: Path) -> set[str]:
    stdout = [recipes[name] for name in FILES["stdout"]]
    return {
        f"{name}={value}"
        for log in sorted(folder.glob("*.log"))
        for body in {*records(log), *log.read_text(encoding="utf-8", errors="replace").splitlines()}
        for name, value in stamped(stdout, body).items()
    }


@pytest.mark.parametrize("name", sorted(WANTED))
def test_recorded_incident(recipes: dict[str, Recipe], incidents: Path, name: str) -> None:
    assert WANTED[name] - found(recipes, incidents / name) == set()


@pytest.mark.parametrize("name", HEALTHY)
def test_a_run_without_an_error_says_no_error(recipes: dict[str, Recipe], incidents: Path, name: str) -> None:
    assert {item for item in found(recipes, incidents / name) if item.startswith(FAILURE)} == set()


def test_excerpts_of_others(recipes: dict[str, Recipe], shared_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every layer's recipes on every excerpt: what is a failure is seen as one, what is benign is not."""
    rows = [json.loads(line) for line in (shared_data / "issue_logs.jsonl").read_text(encoding="utf-8").splitlines()]
    failing = [row for row in rows if row["class"] != "benign"]
    seen, alarmed, unseen = 0, [], []
    for row in rows:
        names = set(stamped(recipes.values(), row["text"]))
        failure = any(name.startswith(FAILURE) for name in names)
        if row["class"] == "benign":
            alarmed += [row["kind"]] * failure
        else:
            seen += failure
            unseen += [] if failure else [row["kind"]]
    with capsys.disabled():
        print(f"\nexcerpts of failures seen: {seen}/{len(failing)}, of benign lines mistaken: {len(alarmed)}")
        print(f"not seen: {', '.join(unseen)}")
    assert alarmed == []
    assert seen >= 0.9 * len(failing)


def test_snippets_of_another_project(recipes: dict[str, Recipe], shared_data: Path) -> None:
    """Lines that another project's tests feed in as failures are failures here, and its calm lines are calm."""
    cases = json.loads((shared_data / "peers" / "nvrx_log_cases.json").read_text(encoding="utf-8"))["cases"]
    logs = {log for case in cases for log in case["logs"]}
    stdout = [recipes[name] for name in FILES["stdout"]]
    raised = [log for log in logs if "Error:" in log and "NVRM" not in log]
    assert len(raised) > 15
    missed = [log for log in raised if not any(name.startswith(FAILURE) for name in stamped(stdout, log))]
    assert missed == []
    calm = [log for log in logs if log.startswith(("INFO:hypercorn", "some log", "iteration 7", "Launcher only"))]
    assert len(calm) >= 4
    assert [log for log in calm if any(name.startswith(FAILURE) for name in stamped(stdout, log))] == []
