"""Recorded failures by their logs and exit status alone, without the verdicts of `diagnose`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracecore.actions.classify import classify

INCIDENTS = Path(__file__).parents[2] / "examples" / "incidents"
#: What only a verdict can know: a hang without a word, a collective that differs, who killed a loader's worker.
NEEDS_A_VERDICT = {
    "mismatch_dtype",
    "mismatch_op",
    "uneven_gather",
    "cgroup_oom_loader",
    "dl_killed",
    "late_rank",
    "only_one_evaluates",
    "uneven_scatter",
    "wrong_order",
    "gives_a_status",
    "skips_a_reduction",
}


def scenarios() -> list[Path]:
    """Recordings with an exit status and one log, or a log for each rank: what `classify` is given."""
    folders = sorted(path.parent for path in INCIDENTS.glob("*/exit_codes.json"))
    return [folder for folder in folders if (folder / "rank0.log").exists() or len([*folder.glob("*.log")]) == 1]


def test_there_are_scenarios() -> None:
    assert len(scenarios()) >= 40


@pytest.mark.parametrize("folder", scenarios(), ids=lambda folder: folder.name)
def test_the_suspects_log_gives_the_class(folder: Path) -> None:
    if folder.name in NEEDS_A_VERDICT:
        pytest.skip("needs a verdict")
    truth = json.loads((folder / "truth.json").read_text())
    codes = json.loads((folder / "exit_codes.json").read_text())
    logs = sorted(folder.glob("*.log"))
    if any(log.name.startswith("node") for log in logs):
        pytest.skip("the logs are of launchers on two nodes, and which of them matters needs a verdict")
    suspects = [rank for rank in truth["culprit_ranks"] if (folder / f"rank{rank}.log").exists()]
    if len(logs) == 1:
        info = classify(next(iter(codes.values())), None, logs[0].read_bytes())
    else:
        rank = suspects[0] if suspects else 0
        info = classify(codes.get(str(rank)), None, (folder / f"rank{rank}.log").read_bytes())
    said = info.failure_class if info.failed else "none"
    # A log that says nothing gives an honest "unknown", with nothing to retry.
    allowed = {*truth["failure_classes"], *({"none"} if "unknown" in truth["failure_classes"] else ())}
    assert said in allowed, info.evidence
