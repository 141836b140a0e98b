"""Another project's log snippets, with what its tests assert of root and followers: the same answers are given here.

The snippets are read in place; see the README of the shared data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose

#: By the name of their test: (ranks that failed first, line of the decisive statement, patterns; None: no cause told).
EXPECTED: dict[str, tuple[list[int] | None, int | None, set[str | None]]] = {
    "test_decision_evidence_is_shared_with_l0b_and_trace": ([7], 2, {"cuda_oom"}),
    "test_training_runtime_gpu_error_uses_generic_cuda_assert": (None, None, {"gpu_app_fault", "worker_crash"}),
    "test_ambiguous_cuda_assert_defaults_to_restart": ([], 2, {"gpu_app_fault", "worker_crash"}),
    "test_concatenated_cuda_peer_error_is_not_hardware_confirmation": ([5250], 2, {"gpu_app_fault", "worker_crash"}),
    "test_l0_structural_candidate_does_not_stop_without_l1": ([], 2, {"worker_crash", "storage_failure"}),
    "test_failure_episode_uses_progress_then_terminal_exception": (
        [180],
        None,
        {"worker_crash", "training_divergence"},
    ),
    "test_checkpoint_load_fanout_preserves_shard_uncertainty": ([7], 3, {"worker_crash", "storage_failure"}),
    "test_bare_killed_does_not_infer_oom_without_confirmation": ([48], 2, {"worker_crash"}),
    "test_l0_uses_terminal_episode_when_registry_has_no_root_candidate": (
        [132],
        2,
        {"gpu_app_fault", "gpu_fault", "worker_crash"},
    ),
    "test_l0_keeps_specific_terminal_exception_over_generic_error_announcement": (
        [0],
        None,
        {"worker_crash", "nccl_bootstrap"},
    ),
    "test_single_rank_ordinary_failure_is_episode_only": ([7], 2, {"worker_crash"}),
    "test_single_observer_collective_timeout_is_mechanism_incident_and_episode": ([], None, {None, "nccl_hang"}),
}


@pytest.fixture(scope="module")
def snippets(shared_data: Path) -> dict[str, str]:
    cases: list[dict[str, Any]] = json.loads((shared_data / "peers/nvrx_log_cases.json").read_text())["cases"]
    return {case["test"]: "".join(case["logs"]) for case in cases}


@pytest.mark.parametrize("name", EXPECTED)
def test_root_and_followers(name: str, snippets: dict[str, str], tmp_path: Path) -> None:
    ranks, line, patterns = EXPECTED[name]
    (tmp_path / "train.log").write_text(snippets[name])
    (incident, *_) = diagnose([tmp_path]).incidents
    assert (incident.root.verdict.pattern_name if incident.root else None) in patterns
    if ranks is not None:
        assert list(incident.suspects.ranks) == ranks
    if line is not None:
        before = snippets[name].encode()
        places = [fact.source.offset for fact in incident.evidence if not incident.suspects.ranks or fact.rank in ranks]
        assert line in {before.count(b"\n", 0, place) + 1 for place in places}


def test_calm_teardown_is_no_failure(snippets: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "7: iteration 418 completed\n7: destroy_process_group() called during shutdown\n"
    )
    assert diagnose([tmp_path]).incidents == []
