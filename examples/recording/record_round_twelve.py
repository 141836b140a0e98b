"""Records train_round_twelve.py on a machine with one NVIDIA GPU: `record_round_twelve.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, Scenario, main

RAISED = ["worker_crash"]
HUNG = ["nccl_hang"]
DIFFER = ["collective_mismatch", "nccl_hang"]
SCENARIOS = {
    "view_is_not_contiguous": Scenario(4, "rank files", "nanogpt", RAISED, [[2]], ["code"]),
    "adam_meets_sparse_gradients": Scenario(4, "torchrun", "plain", RAISED, FOUR, ["code"]),
    "scaler_saw_no_gradients": Scenario(4, "cri", "hf", RAISED, [[0]], ["code"]),
    "asks_for_a_card_that_is_not_there": Scenario(
        4,
        "labelled",
        "megatron",
        [*RAISED, "gpu_fault", "gpu_app_fault"],
        [[3]],
        ["code", "infrastructure", "resource"],
    ),
    "share_of_the_card_is_small": Scenario(4, "rank files", "json", ["cuda_oom"], [[1]], ["resource"]),
    "recomputation_differs": Scenario(4, "torchrun --tee 3", "loguru", RAISED, [[1]], ["code"]),
    "backward_returns_too_much": Scenario(4, "out and err", "deepspeed", RAISED, [[2]], ["code"]),
    "spawned_child_raises": Scenario(1, "single", "bare", RAISED, [[], [0], [1]], ["code", "data"]),
    "alarm_ends_a_slow_step": Scenario(4, "rank files", "titan", RAISED, [[2]], [*CRASH, "resource"]),
    "key_of_the_store_never_comes": Scenario(
        4, "cri", "logging", [*RAISED, "nccl_bootstrap"], [[1]], [*CRASH, "resource"]
    ),
    "group_is_gone_already": Scenario(4, "slurm task files", "plain", RAISED, [[1]], ["code"]),
    "index_file_is_empty": Scenario(
        4, "labelled", "json with iter_s", [*RAISED, "storage_failure"], [[3]], ["data", "code"]
    ),
    "database_of_samples_is_locked": Scenario(
        4, "rank files", "megatron", [*RAISED, "storage_failure"], [[0]], ["infrastructure", "resource", "data", "code"]
    ),
    "kernels_do_not_agree": Scenario(
        4, "torchrun", "hf", [*RAISED, "silent_data_corruption"], [[3]], ["code", "infrastructure", "data"]
    ),
    "exits_in_a_callback_of_ctypes": Scenario(4, "cri", "plain", RAISED, [[2]], CRASH),
    "computes_metrics_for_ever": Scenario(4, "rank files", "logging", HUNG, [[2]], HANG),
    "takes_its_own_lock_twice": Scenario(4, "labelled", "titan", HUNG, [[0]], HANG),
    "skips_a_reduce_scatter": Scenario(4, "rank files", "plain", DIFFER, [[3]], [*HANG, "code"]),
    "says_that_it_still_waits": Scenario(8, "cri", "nanogpt", HUNG, [[5]], HANG),
    "sends_the_batch_to_nobody": Scenario(4, "out and err", "megatron", HUNG, [[1], [2], [], [1, 2]], [*HANG, "code"]),
    "prints_stacks_on_purpose": Scenario(2, "rank files", "plain", [], [[]], ["none"]),
    "compares_kernels_and_goes_on": Scenario(2, "torchrun", "titan", [], [[]], ["none"]),
    "metric_is_not_computed": Scenario(2, "cri", "hf", [], [[]], ["none"]),
    "helper_returns_one": Scenario(2, "labelled", "loguru", [], [[]], ["none"]),
    "handlers_are_installed": Scenario(1, "single", "logging", [], [[]], ["none"]),
    "quotes_an_old_incident": Scenario(2, "out and err", "bare", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_twelve.py", SCENARIOS)
