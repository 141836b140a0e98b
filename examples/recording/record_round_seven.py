"""Records train_round_seven.py on a machine with one NVIDIA GPU: `record_round_seven.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, ONE, SHARED, Environments, Scenario, main

STUCK = [*HANG, "code"]
DIFFERENT = ["collective_mismatch", "nccl_hang"]
SCENARIOS = {
    "hybrid_rank_reads": Scenario(8, "rank files", "titan", ["nccl_hang"], [[5]], HANG),
    "tensor_parallel_stopped": Scenario(4, "slurm task files", "megatron", ["nccl_hang"], [[3]], HANG),
    "expert_gpu_spins": Scenario(4, "rank files", "json", ["nccl_hang"], [[2]], HANG),
    "branch_on_one": Scenario(4, "labelled", "plain", [*DIFFERENT, "worker_crash"], [[1]], STUCK),
    "schedule_stage_raises": Scenario(4, "torchrun --tee 3", "titan", ["worker_crash"], [[2]], ["code"]),
    "schedule_stage_sleeps": Scenario(4, "rank files", "loguru", ["nccl_hang"], [[1]], HANG),
    "gathers_objects_instead": Scenario(4, "cri", "plain", DIFFERENT, [[0]], STUCK),
    "uneven_inputs": Scenario(4, "rank files", "deepspeed", DIFFERENT, [[3]], [*STUCK, "data"]),
    "seen_in_dumps_only": Scenario(4, "rank files, dumps only", "plain", ["nccl_hang"], [[2]], HANG),
    "seen_in_one_dump": Scenario(4, "rank files, first dump only", "logging", ["nccl_hang"], [[1]], HANG),
    "seen_in_logs_only": Scenario(4, "rank files, logs only", "megatron", DIFFERENT, [[1]], STUCK),
    "task_is_never_awaited": Scenario(
        4, "out and err", "plain", ["nccl_hang", "worker_crash", "dataloader_hang"], [[1]], STUCK
    ),
    "another_world_size": Scenario(
        4, "rank files", "plain", ["nccl_bootstrap", "worker_crash"], [[2], [], [3], [2, 3]], [*SHARED, "code"]
    ),
    "last_step_is_skipped": Scenario(4, "rank files", "nanogpt", ["nccl_hang"], [[2]], STUCK),
    "async_save_fills_the_disk": Scenario(4, "torchrun --tee 3", "logging", ["storage_failure"], FOUR, ["resource"]),
    "job_beside_another": Scenario(2, "two jobs", "plain", ["cuda_oom"], [[1]], ["resource"]),
    "fails_differently_each_time": Scenario(
        4,
        "torchrun --max-restarts=1 --tee 3",
        "plain",
        ["cuda_oom", "worker_crash"],
        [[2], [1]],
        ["resource", "code", "data"],
    ),
    "redirected_tree": Scenario(4, "torchrun --log-dir LOGS -r 3", "hf", ["worker_crash"], [[1]], ["code"]),
    "group_of_exceptions": Scenario(
        4, "slurm task files", "logging", ["worker_crash", "storage_failure"], [[2]], ["data", "infrastructure", "code"]
    ),
    "warning_is_an_error": Scenario(4, "labelled", "json with iter_s", ["worker_crash"], [[1]], ["code"]),
    "graph_break_is_refused": Scenario(1, "single", "bare", ["worker_crash"], ONE, ["code"]),
    "triton_does_not_compile": Scenario(1, "slurm out and err", "nanogpt", ["worker_crash"], ONE, ["code"]),
    "archive_ends_early": Scenario(4, "torchrun", "titan", ["worker_crash", "storage_failure"], [[2]], ["data"]),
    "block_does_not_inflate": Scenario(4, "cri", "json", ["worker_crash", "storage_failure"], [[3]], ["data", "code"]),
    "interrupted_alone": Scenario(
        4,
        "rank files",
        "loguru",
        ["worker_crash", "planned_stop"],
        [[2]],
        [*CRASH, "none"],
    ),
    "tied_weights_refuse": Scenario(2, "torchrun", "hf", ["worker_crash"], [[0]], ["code"]),
    "batch_of_another_length": Scenario(4, "torchrun --tee 3", "deepspeed", ["worker_crash"], FOUR, ["code", "data"]),
    "fourth_saves_and_dies": Scenario(4, "slurm task files", "plain", ["worker_crash"], [[3]], ["infrastructure"]),
    "loss_runs_away": Scenario(
        2, "rank files", "json with iter_s", ["training_divergence"], [[], [0, 1]], [*CRASH, "data", "none"]
    ),
    "one_reads_slowly": Scenario(4, "labelled", "json", ["straggler"], [[3]], ["none"]),
    "tensor_parallel_well": Scenario(4, "slurm task files", "titan", [], [[]], ["none"]),
    "experts_well": Scenario(4, "torchrun --tee 3", "megatron", [], [[]], ["none"]),
    "async_saves_well": Scenario(2, "rank files", "logging", [], [[]], ["none"]),
    "dumps_are_asked_for": Scenario(4, "rank files", "plain", [], [[]], ["none"]),
    "stops_early": Scenario(4, "torchrun --max-restarts=3", "hf", [], [[]], ["none"]),
    "speech_errors": Scenario(2, "cri", "logging", [], [[]], ["none"]),
    "profiled": Scenario(2, "labelled", "nanogpt", [], [[]], ["none"]),
    "verbose_and_well": Scenario(4, "torchrun --log-dir LOGS -t 3", "deepspeed", [], [[]], ["none"]),
    "checks_then_trains": Scenario(4, "out and err", "loguru", [], [[]], ["none"]),
}
ENVIRONMENTS: Environments = {
    "verbose_and_well": {"NCCL_DEBUG": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
}

if __name__ == "__main__":
    main("train_round_seven.py", SCENARIOS, ENVIRONMENTS, small_disk=("async_save_fills_the_disk",))
