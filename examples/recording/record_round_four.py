"""Records train_round_four.py, as record_round_three.py does. The truths were written before any answer was seen."""

from __future__ import annotations

import record_round_three as recorder
from record_round_three import CRASH, FOUR, HANG, ONE, TWO

recorder.SCRIPT = "train_round_four.py"
recorder.SCENARIOS = {
    "batched_stage_sleeps": (4, "rank files", "titan", ["nccl_hang"], [[1]], HANG),
    "gathers_late": (4, "labelled", "deepspeed", ["nccl_hang"], [[3]], HANG),
    "hybrid_shard_stuck": (4, "cri", "json", ["nccl_hang"], [[3]], HANG),
    "skips_an_empty_batch": (4, "rank files", "loguru", ["collective_mismatch", "nccl_hang"], [[1]], ["code", *HANG]),
    "first_cannot_pickle": (4, "rank files", "titan", ["worker_crash"], [[0]], ["code"]),
    "two_stages_apart": (4, "out and err", "plain", ["nccl_hang"], [[2]], HANG),
    "quit_signal": (4, "torchrun", "titan", ["worker_crash"], [[1]], CRASH),
    "stack_smashed": (4, "cri", "loguru", ["worker_crash"], [[2]], CRASH),
    "bad_alloc": (4, "torchrun --tee 3", "plain", ["worker_crash", "host_oom"], [[1]], [*CRASH, "resource"]),
    "floating_point": (4, "labelled", "json", ["worker_crash"], [[0]], CRASH),
    "no_such_library": (4, "torchrun", "plain", ["worker_crash"], FOUR, ["code", "infrastructure"]),
    "cannot_import_name": (2, "torchrun --tee 3", "plain", ["worker_crash"], TWO, ["code"]),
    "everybody_out_of_memory": (4, "rank files", "titan", ["cuda_oom"], FOUR, ["resource"]),
    "one_pod_out_of_memory": (4, "cri", "deepspeed", ["cuda_oom"], [[1]], ["resource"]),
    "index_out_of_range": (4, "torchrun --tee 3", "loguru", ["gpu_app_fault", "worker_crash"], [[0]], ["code", "data"]),
    "saves_onto_a_folder": (
        4,
        "rank files",
        "deepspeed",
        ["worker_crash", "storage_failure"],
        [[0]],
        ["code", "resource", "infrastructure", "data"],
    ),
    "shard_server_down": (
        4,
        "torchrun",
        "titan",
        ["worker_crash", "storage_failure"],
        [[1]],
        ["infrastructure", "resource", "data"],
    ),
    "lock_is_held": (
        4,
        "labelled",
        "plain",
        ["worker_crash", "storage_failure"],
        [[2]],
        ["code", "infrastructure", "resource", "unknown"],
    ),
    "database_is_locked": (
        4,
        "out and err",
        "titan",
        ["worker_crash", "storage_failure"],
        [[3]],
        ["code", "infrastructure", "resource", "unknown"],
    ),
    "too_many_files": (4, "torchrun", "json", ["worker_crash"], [[2]], ["resource", "code", "infrastructure"]),
    "loader_recurses": (2, "rank files", "loguru", ["worker_crash"], [[1]], ["code", "data"]),
    "trainer_settings": (1, "slurm out and err", "plain", ["worker_crash"], ONE, ["code"]),
    "lightning_not_finite": (1, "single", "plain", ["training_divergence"], ONE, ["code", "data", "unknown", "none"]),
    "one_slows_down": (8, "cri", "json", ["straggler"], [[1]], ["none"]),
    "jax_wrong_mesh": (1, "single", "maxtext", ["worker_crash"], ONE, ["code"]),
    "paused_and_resumed": (4, "rank files", "plain", [], [[]], ["none"]),
    "metrics_endpoint_is_down": (2, "labelled", "titan", [], [[]], ["none"]),
    "jax_halves_the_batch": (1, "single", "maxtext", [], [[]], ["none"]),
    "preflight_and_train": (4, "torchrun", "deepspeed", [], [[]], ["none"]),
}

if __name__ == "__main__":
    recorder.main()
