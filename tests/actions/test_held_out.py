"""Real output of other people's programs, with considered labels. The floor only goes up."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tracecore.actions.classify import classify

FLOOR = 0.95
#: Labels that the table of failure classes settles otherwise: memory of a host or a cgroup is infrastructure, and so is
#: a port of the rendezvous that another process holds.
SETTLED = dict.fromkeys(
    (
        "slurm_oom_kill",
        "kernel_oom_kill",
        "ray_oom_killed",
        "k8s_oomkilled",
        "dataloader_worker_killed",
        "c10d_address_in_use",
    ),
    "infrastructure",
)


@pytest.fixture(scope="module")
def excerpts(shared_data: Path) -> list[dict[str, Any]]:
    file = shared_data / "issue_logs.jsonl"
    if not file.exists():
        pytest.skip("issue_logs.jsonl is not there")
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("exit_code", [None, 1], ids=["text alone", "with exit status 1"])
def test_excerpts_get_their_class(excerpts: list[dict[str, Any]], exit_code: int | None) -> None:
    labelled = [one for one in excerpts if one["class"] not in ("benign", "unknown")]
    got = [classify(exit_code, None, one["text"]).failure_class for one in labelled]
    wrong = Counter(
        (one["kind"], one["class"], said)
        for one, said in zip(labelled, got, strict=True)
        if SETTLED.get(one["kind"], one["class"]) != said
    )
    accuracy = 1 - wrong.total() / len(labelled)
    print(f"{accuracy:.1%} of {len(labelled)} excerpts; wrong: {dict(wrong)}")
    assert accuracy >= FLOOR


@pytest.mark.parametrize("exit_code", [None, 0])
def test_no_benign_excerpt_is_taken_for_a_failure(excerpts: list[dict[str, Any]], exit_code: int | None) -> None:
    benign = [one for one in excerpts if one["class"] == "benign"]
    assert benign
    taken = [one["text"][:100] for one in benign if classify(exit_code, None, one["text"]).failed]
    assert taken == []


def test_what_nobody_knows_is_mostly_left_unknown(excerpts: list[dict[str, Any]]) -> None:
    unknown = [one for one in excerpts if one["class"] == "unknown"]
    right = sum(classify(None, None, one["text"]).failure_class == "unknown" for one in unknown)
    print(f"{right} of {len(unknown)}")
    assert right >= len(unknown) * 0.7
