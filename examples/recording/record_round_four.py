"""Records train_round_four.py on a machine with one NVIDIA GPU: `python record_round_four.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, ONE, TWO, Scenario, main

SCENARIOS = {
    "batched_stage_sleeps": Scenario(4, "rank files", "titan", ["nccl_hang"], [[1]], HANG),
    "gathers_late": Scenario(4, "labelled", "deepspeed", ["nccl_hang"], [[3]], HANG),
    "hybrid_shard_stuck": Scenario(4, "cri", "json", ["nccl_hang"], [[3]], HANG),
    "skips_an_empty_batch": Scenario(
        4, "rank files", "loguru", ["collective_mismatch", "nccl_hang"], [[1]], ["code", *HANG]
    ),
    "first_cannot_pickle": Scenario(4, "rank files", "titan", ["worker_crash"], [[0]], ["code"]),
    "two_stages_apart": Scenario(4, "out and err", "plain", ["nccl_hang"], [[2]], HANG),
    "quit_signal": Scenario(4, "torchrun", "titan", ["worker_crash"], [[1]], CRASH),
    "stack_smashed": Scenario(4, "cri", "loguru", ["worker_crash"], [[2]], CRASH),
    "bad_alloc": Scenario(4, "torchrun --tee 3", "plain", ["worker_crash", "host_oom"], [[1]], [*CRASH, "resource"]),
    "floating_point": Scenario(4, "labelled", "json", ["worker_crash"], [[0]], CRASH),
    "no_such_library": Scenario(4, "torchrun", "plain", ["worker_crash"], FOUR, ["code", "infrastructure"]),
    "cannot_import_name": Scenario(2, "torchrun --tee 3", "plain", ["worker_crash"], TWO, ["code"]),
    "everybody_out_of_memory": Scenario(4, "rank files", "titan", ["cuda_oom"], FOUR, ["resource"]),
    "one_pod_out_of_memory": Scenario(4, "cri", "deepspeed", ["cuda_oom"], [[1]], ["resource"]),
    "index_out_of_range": Scenario(
        4, "torchrun --tee 3", "loguru", ["gpu_app_fault", "worker_crash"], [[0]], ["code", "data"]
    ),
    "saves_onto_a_folder": Scenario(
        4,
        "rank files",
        "deepspeed",
        ["worker_crash", "storage_failure"],
        [[0]],
        ["code", "resource", "infrastructure", "data"],
    ),
    "shard_server_down": Scenario(
        4,
        "torchrun",
        "titan",
        ["worker_crash", "storage_failure"],
        [[1]],
        ["infrastructure", "resource", "data"],
    ),
    "lock_is_held": Scenario(
        4,
        "labelled",
        "plain",
        ["worker_crash", "storage_failure"],
        [[2]],
        ["code", "infrastructure", "resource", "unknown"],
    ),
    "database_is_locked": Scenario(
        4,
        "out and err",
        "titan",
        ["worker_crash", "storage_failure"],
        [[3]],
        ["code", "infrastructure", "resource", "unknown"],
    ),
    "too_many_files": Scenario(4, "torchrun", "json", ["worker_crash"], [[2]], ["resource", "code", "infrastructure"]),
    "loader_recurses": Scenario(2, "rank files", "loguru", ["worker_crash"], [[1]], ["code", "data"]),
    "trainer_settings": Scenario(1, "slurm out and err", "plain", ["worker_crash"], ONE, ["code"]),
    "lightning_not_finite": Scenario(
        1, "single", "plain", ["training_divergence"], ONE, ["code", "data", "unknown", "none"]
    ),
    "one_slows_down": Scenario(8, "cri", "json", ["straggler"], [[1]], ["none"]),
    "jax_wrong_mesh": Scenario(1, "single", "maxtext", ["worker_crash"], ONE, ["code"]),
    "paused_and_resumed": Scenario(4, "rank files", "plain", [], [[]], ["none"]),
    "metrics_endpoint_is_down": Scenario(2, "labelled", "titan", [], [[]], ["none"]),
    "jax_halves_the_batch": Scenario(1, "single", "maxtext", [], [[]], ["none"]),
    "preflight_and_train": Scenario(4, "torchrun", "deepspeed", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_four.py", SCENARIOS)
