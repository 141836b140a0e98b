"""Records train_round_six.py on a machine with one NVIDIA GPU: `record_round_six.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, Environments, Scenario, main

STUCK = [*HANG, "code"]
DIFFERENT = ["collective_mismatch", "nccl_hang"]
SCENARIOS = {
    "stage_gpu_is_busy": Scenario(4, "rank files", "megatron", ["nccl_hang"], [[1]], HANG),
    "stage_waits_for_features": Scenario(4, "labelled", "plain", ["nccl_hang"], [[2]], HANG),
    "groups_reversed": Scenario(8, "rank files", "titan", [*DIFFERENT, "nccl_bootstrap"], [[6], [6, 7]], STUCK),
    "gathers_another_amount": Scenario(4, "cri", "json", ["collective_mismatch"], [[2]], ["code"]),
    "scatters_another_type": Scenario(4, "rank files", "loguru", ["collective_mismatch"], [[0]], ["code"]),
    "no_gradient_on_one": Scenario(4, "out and err", "plain", DIFFERENT, [[1]], STUCK),
    "leaves_the_group": Scenario(4, "rank files", "deepspeed", ["nccl_hang", "worker_crash"], [[2]], STUCK),
    "sample_without_label": Scenario(4, "torchrun", "titan", ["worker_crash"], [[2]], ["code", "data"]),
    "thread_ends_the_process": Scenario(4, "cri", "plain", ["worker_crash"], [[2]], CRASH),
    "no_master_address": Scenario(4, "rank files", "plain", ["worker_crash", "nccl_bootstrap"], FOUR, ["code"]),
    "package_missing_on_one": Scenario(4, "rank files", "plain", ["worker_crash"], [[3]], ["code"]),
    "native_crash_among_eight": Scenario(8, "torchrun --tee 3", "json", ["worker_crash"], [[5]], CRASH),
    "checkpoint_hash_differs": Scenario(
        4, "torchrun", "plain", ["worker_crash", "storage_failure"], [[1]], ["data", "code"]
    ),
    "loss_is_nan_and_goes_on": Scenario(
        2, "rank files", "nanogpt", ["training_divergence"], [[], [0, 1]], ["code", "data", "unknown", "none"]
    ),
    "one_card_is_slower": Scenario(8, "labelled", "plain", ["straggler"], [[4]], ["none"]),
    "first_evaluates_alone": Scenario(4, "rank files", "titan", [], [[]], ["none"]),
    "optional_package_missing": Scenario(2, "out and err", "loguru", [], [[]], ["none"]),
    "ends_without_goodbye": Scenario(4, "torchrun", "deepspeed", [], [[]], ["none"]),
}
ENVIRONMENTS: Environments = {"no_master_address": {"MASTER_ADDR": None}}

if __name__ == "__main__":
    main("train_round_six.py", SCENARIOS, ENVIRONMENTS)
