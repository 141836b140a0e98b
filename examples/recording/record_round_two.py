"""Records train_round_two.py on a machine with one NVIDIA GPU: `python record_round_two.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import HANG, Scenario, main

SCENARIOS = {
    "mesh_gpu_stops": Scenario(8, "rank files", "megatron", ["nccl_hang"], [[5]], HANG),
    "pipeline_downloads": Scenario(
        4,
        "rank files",
        "logging",
        ["nccl_hang", "storage_failure", "dataloader_hang"],
        [[2]],
        HANG,
    ),
    "sharded_stopped": Scenario(8, "cri", "keyvalue", ["nccl_hang"], [[6]], HANG),
    "one_rank_evaluates": Scenario(4, "labelled", "nanogpt", ["nccl_hang"], [[3]], [*HANG, "code"]),
    "even_ranks_wait": Scenario(8, "rank files", "json with iter_s", ["nccl_hang"], [[4]], HANG),
    "one_reduces_twice": Scenario(4, "rank files", "logging", ["collective_mismatch"], [[1]], ["code"]),
    "types_differ": Scenario(4, "torchrun", "keyvalue", ["collective_mismatch"], [[2]], ["code"]),
    "dtensor_stuck": Scenario(4, "rank files", "megatron", ["nccl_hang"], [[1]], HANG),
    "dtensor_well": Scenario(4, "rank files", "megatron", [], [[]], ["none"]),
    "experts_disagree": Scenario(
        4,
        "rank files",
        "keyvalue",
        ["collective_mismatch", "nccl_hang"],
        [[2], [1, 2], [1]],
        ["code", *HANG],
    ),
    "barrier_is_monitored": Scenario(4, "rank files", "logging", ["nccl_hang"], [[2]], HANG),
    "slow_to_start": Scenario(3, "rank files", "logging", ["nccl_bootstrap"], [[1]], ["infrastructure", "resource"]),
    "missing_setting": Scenario(
        4, "torchrun", "logging", ["worker_crash"], [[0], [1], [2], [3], [0, 1, 2, 3], []], ["code"]
    ),
    "not_positive": Scenario(4, "out and err", "logging", ["worker_crash"], [[2]], ["code", "data"]),
    "wrong_checkpoint": Scenario(1, "slurm out and err", "logging", ["worker_crash"], [[], [0]], ["code", "data"]),
    "harmless_finalizer": Scenario(2, "rank files", "logging", [], [[]], ["none"]),
    "caught_and_logged": Scenario(2, "torchrun", "json with iter_s", [], [[]], ["none"]),
    "thrown_in_a_thread": Scenario(
        4, "torchrun", "keyvalue", ["worker_crash"], [[1]], ["code", "infrastructure", "unknown"]
    ),
    "aborts": Scenario(4, "torchrun", "nanogpt", ["worker_crash"], [[3]], ["code", "infrastructure", "unknown"]),
    "lightning_raises": Scenario(1, "slurm out and err", "logging", ["worker_crash"], [[], [0]], ["code"]),
    "trainer_bad_labels": Scenario(1, "single", "logging", ["worker_crash"], [[], [0]], ["code", "data"]),
    "memory_wrapped": Scenario(1, "single", "json with iter_s", ["cuda_oom"], [[], [0]], ["resource"]),
    "label_out_of_range": Scenario(
        4, "torchrun", "logging", ["gpu_app_fault", "worker_crash"], [[2]], ["code", "data"]
    ),
    "lambda_in_loader": Scenario(1, "single", "logging", ["worker_crash"], [[], [0]], ["code"]),
    "loader_worker_killed": Scenario(
        4,
        "rank files",
        "logging",
        ["worker_crash", "dataloader_hang"],
        [[1]],
        ["infrastructure", "unknown"],
    ),
    "sharded_save_full": Scenario(4, "labelled", "keyvalue", ["storage_failure"], [[2]], ["resource"]),
    "stream_writer_full": Scenario(1, "single", "nanogpt", ["storage_failure"], [[], [0]], ["resource"]),
    "anomaly": Scenario(
        1, "out and err", "logging", ["training_divergence", "worker_crash"], [[], [0]], ["code", "data"]
    ),
    "runs_away": Scenario(
        2, "rank files", "megatron", ["training_divergence"], [[]], ["code", "data", "unknown", "none"]
    ),
    "slow_loader_rank": Scenario(8, "cri", "keyvalue", ["straggler"], [[5]], ["none"]),
    "jax_memory": Scenario(1, "single", "logging", ["cuda_oom"], [[], [0]], ["resource"]),
    "jax_peer_dies": Scenario(
        2,
        "rank files",
        "logging",
        ["worker_crash", "host_lost", "nccl_hang"],
        [[1]],
        ["infrastructure"],
    ),
    "killed_with_chatter": Scenario(4, "rank files", "keyvalue", ["worker_crash"], [[1]], ["infrastructure"]),
    "well_with_chatter": Scenario(4, "labelled", "logging", [], [[]], ["none"]),
    "backward_hook": Scenario(4, "labelled", "logging", ["worker_crash"], [[2]], ["code"]),
    "pinned_collate": Scenario(1, "cri", "json with iter_s", ["worker_crash"], [[], [0]], ["code", "data"]),
    "large_file": Scenario(
        1,
        "slurm out and err",
        "keyvalue",
        ["storage_failure", "worker_crash"],
        [[], [0]],
        ["resource", "code"],
    ),
    "resumes_after_preemption": Scenario(2, "rank files twice", "keyvalue", [], [[]], ["none"]),
    "compiles_and_pauses": Scenario(4, "rank files", "json with iter_s", [], [[]], ["none"]),
    "first_leaves_quietly": Scenario(4, "rank files", "nanogpt", ["nccl_hang", "worker_crash"], [[0]], [*HANG, "code"]),
    "cublas_has_no_room": Scenario(1, "single", "keyvalue", ["cuda_oom", "gpu_app_fault"], [[], [0]], ["resource"]),
}
CHATTER = {name: {"NCCL_DEBUG": "INFO"} for name in SCENARIOS if "chatter" in name}
SMALL_DISK = ("sharded_save_full", "stream_writer_full")

if __name__ == "__main__":
    main("train_round_two.py", SCENARIOS, CHATTER, SMALL_DISK)
