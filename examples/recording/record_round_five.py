"""Records train_round_five.py on a machine with one NVIDIA GPU: `record_round_five.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, ONE, Scenario, main

STUCK = [*HANG, "code"]
SCENARIOS = {
    "both_send_first": Scenario(4, "rank files", "plain", ["nccl_hang", "collective_mismatch"], [[1, 2]], STUCK),
    "sharded_epoch_is_shorter": Scenario(
        4, "labelled", "titan", ["nccl_hang", "collective_mismatch"], [[2]], [*STUCK, "data"]
    ),
    "ring_attention_spins": Scenario(4, "rank files", "megatron", ["nccl_hang"], [[2]], HANG),
    "coalesced_lists_differ": Scenario(4, "rank files", "json", ["collective_mismatch", "nccl_hang"], [[1]], STUCK),
    "background_thread_keeps_it": Scenario(4, "rank files", "loguru", ["worker_crash"], [[1]], ["code", "data"]),
    "skips_after_an_error": Scenario(
        4, "out and err", "plain", ["collective_mismatch", "nccl_hang", "worker_crash"], [[3]], [*STUCK, "data"]
    ),
    "loader_worker_sleeps": Scenario(4, "cri", "nanogpt", ["nccl_hang", "dataloader_hang"], [[3]], HANG),
    "gloo_rank_is_late": Scenario(4, "rank files", "deepspeed", ["nccl_hang"], [[2]], HANG),
    "async_save_is_stuck": Scenario(4, "labelled", "plain", ["checkpointer_hang", "nccl_hang"], [[0]], HANG),
    "expert_group_is_stopped": Scenario(8, "rank files", "titan", ["nccl_hang"], [[5]], HANG),
    "one_rank_autotunes": Scenario(4, "torchrun --tee 3", "plain", ["nccl_hang"], [[1]], HANG),
    "one_never_joins": Scenario(
        4, "rank files", "plain", ["nccl_bootstrap"], [[4], [], [0], [0, 1, 2, 3]], [*HANG, "code"]
    ),
    "two_on_one_card": Scenario(
        2, "rank files", "plain", ["nccl_bootstrap", "worker_crash"], [[0, 1], [], [0], [1]], ["code"]
    ),
    "bad_settings": Scenario(4, "torchrun", "plain", ["worker_crash"], FOUR, ["code"]),
    "loader_times_out": Scenario(4, "torchrun", "titan", ["worker_crash", "dataloader_hang"], [[2]], [*HANG, "data"]),
    "loader_worker_leaves": Scenario(
        4, "rank files", "json", ["worker_crash", "dataloader_hang"], [[0]], [*CRASH, "resource"]
    ),
    "loader_worker_aborts": Scenario(
        4, "labelled", "loguru", ["worker_crash", "dataloader_hang"], [[1]], [*CRASH, "resource"]
    ),
    "memory_in_backward": Scenario(4, "torchrun", "deepspeed", ["cuda_oom"], [[2]], ["resource"]),
    "triton_bad_pointer": Scenario(4, "rank files", "titan", ["gpu_app_fault"], [[1]], ["code"]),
    "convolution_shapes": Scenario(4, "cri", "json", ["worker_crash"], [[3]], ["code"]),
    "compiler_backend_fails": Scenario(1, "slurm out and err", "plain", ["worker_crash"], ONE, ["code"]),
    "shard_is_missing": Scenario(
        4,
        "torchrun --tee 3",
        "plain",
        ["worker_crash", "storage_failure"],
        [[2], [], [0, 1, 2, 3], [0]],
        ["data", "code", "infrastructure"],
    ),
    "shard_has_another_shape": Scenario(4, "torchrun", "plain", ["worker_crash"], FOUR, ["code", "data"]),
    "cannot_write_there": Scenario(
        4, "rank files", "titan", ["worker_crash", "storage_failure"], [[0]], ["code", "infrastructure", "resource"]
    ),
    "says_loss_is_nan": Scenario(
        2, "rank files", "plain", ["training_divergence"], [[], [0, 1]], ["code", "data", "unknown"]
    ),
    "gradient_norm_raises": Scenario(
        4, "torchrun", "plain", ["training_divergence", "worker_crash"], [[2]], ["code", "data"]
    ),
    "killed_under_torchrun": Scenario(
        4, "torchrun --redirects 3 --log-dir LOGS", "titan", ["worker_crash"], [[2]], ["infrastructure"]
    ),
    "fault_with_all_threads": Scenario(4, "out and err", "plain", ["worker_crash"], [[3]], CRASH),
    "exit_status_of_the_scheduler": Scenario(
        2, "labelled", "plain", ["planned_stop", None], [[]], ["none", "infrastructure", "resource", "unknown"]
    ),
    "reads_slowly": Scenario(4, "torchrun --tee 3", "plain", ["straggler"], [[2]], ["none"]),
    "evaluates_for_long": Scenario(4, "rank files", "deepspeed", [], [[]], ["none"]),
    "stops_early": Scenario(2, "labelled", "plain", [], [[]], ["none"]),
    "finishes_unevenly": Scenario(4, "rank files", "nanogpt", [], [[]], ["none"]),
    "retries_and_goes_on": Scenario(2, "out and err", "json", [], [[]], ["none"]),
    "pauses_to_save": Scenario(4, "cri", "titan", [], [[]], ["none"]),
    "skips_bad_samples": Scenario(2, "torchrun", "plain", [], [[]], ["none"]),
    "metric_is_nan": Scenario(2, "rank files", "megatron", [], [[]], ["none"]),
    "recompiles_and_warns": Scenario(2, "rank files", "loguru", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_five.py", SCENARIOS)
