"""Records train_round_nine.py on a machine with one NVIDIA GPU: `record_round_nine.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, ONE, Scenario, main

RAISED = ["worker_crash"]
STORED = ["worker_crash", "storage_failure"]
SCENARIOS = {
    "config_is_refused": Scenario(4, "torchrun", "plain", RAISED, FOUR, ["code"]),
    "leaves_with_a_message": Scenario(4, "rank files", "nanogpt", RAISED, [[0]], ["code", "unknown", "data"]),
    "archive_tool_fails": Scenario(4, "torchrun --tee 3", "titan", STORED, [[2]], ["code", "data"]),
    "assert_in_c": Scenario(4, "rank files", "json", RAISED, [[1]], ["code", "unknown"]),
    "index_server_is_not_found": Scenario(4, "labelled", "megatron", STORED, [[3]], ["data", "code", "infrastructure"]),
    "index_server_is_busy": Scenario(4, "cri", "plain", STORED, [[1]], ["infrastructure", "resource"]),
    "feature_store_refuses": Scenario(4, "rank files", "loguru", RAISED, [[2]], ["infrastructure"]),
    "too_deep": Scenario(4, "torchrun", "deepspeed", RAISED, [[2]], ["code"]),
    "corpus_is_not_utf8": Scenario(4, "out and err", "plain", RAISED, [[1]], ["data", "code"]),
    "line_of_json_is_cut": Scenario(4, "slurm task files", "logging", RAISED, [[0]], ["data", "code"]),
    "state_on_another_device": Scenario(4, "labelled", "titan", RAISED, [[3]], ["code"]),
    "shapes_do_not_fit": Scenario(4, "rank files", "plain", RAISED, FOUR, ["code"]),
    "told_by_the_logger": Scenario(1, "single", "logging", RAISED, ONE, ["code", "data", "unknown"]),
    "pool_worker_raises": Scenario(4, "rank files", "hf", RAISED, [[1]], ["code", "data"]),
    "gradients_are_nan_losses_are_not": Scenario(
        1, "single", "hf", ["training_divergence", "worker_crash"], ONE, [*CRASH, "none"]
    ),
    "freed_tensor_is_used": Scenario(4, "torchrun", "bare", RAISED, [[1]], ["code", "unknown"]),
    "asks_a_person": Scenario(4, "rank files", "nanogpt", ["nccl_hang"], [[0]], HANG),
    "service_never_answers": Scenario(4, "cri", "json with iter_s", ["nccl_hang"], [[2]], HANG),
    "harness_never_ends": Scenario(8, "labelled", "plain", ["nccl_hang"], [[3]], HANG),
    "one_forgets_the_broadcast": Scenario(
        4, "rank files", "titan", ["collective_mismatch", "nccl_hang"], [[0, 1], [1]], [*HANG, "code"]
    ),
    "kernel_of_one_runs_on": Scenario(4, "rank files", "megatron", ["nccl_hang"], [[1], []], HANG),
    "falls_back_to_defaults": Scenario(2, "rank files", "plain", [], [[]], ["none"]),
    "words_of_failure_in_scores": Scenario(2, "labelled", "bare", [], [[]], ["none"]),
    "warns_of_everything": Scenario(2, "torchrun", "logging", [], [[]], ["none"]),
    "connection_comes_back": Scenario(4, "cri", "loguru", [], [[]], ["none"]),
    "drops_bad_samples": Scenario(1, "single", "nanogpt", [], [[]], ["none"]),
    "telemetry_fails_at_the_end": Scenario(2, "rank files", "titan", [], [[]], ["none"]),
    "waits_for_the_page_cache": Scenario(4, "torchrun --tee 3", "json", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_nine.py", SCENARIOS)
