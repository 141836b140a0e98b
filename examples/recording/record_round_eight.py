"""Records train_round_eight.py on a machine with one NVIDIA GPU: `record_round_eight.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, HANG, ONE, Scenario, main

FAULT = ["gpu_app_fault", "worker_crash"]
SCENARIOS = {
    "accelerated_memory": Scenario(2, "accelerate", "plain", ["cuda_oom"], [[1]], ["resource"]),
    "trainer_callback_raises": Scenario(1, "slurm out and err", "hf", ["worker_crash"], ONE, ["code"]),
    "compiled_index": Scenario(4, "torchrun --tee 3", "titan", FAULT, [[2]], ["code", "data", "resource"]),
    "memmap_is_shorter": Scenario(
        4, "rank files", "logging", ["worker_crash", "storage_failure"], [[1]], ["data", "code"]
    ),
    "told_in_json": Scenario(4, "rank files", "json", ["worker_crash"], [[3]], ["code", "data"]),
    "critical_and_out": Scenario(4, "slurm task files", "plain", ["worker_crash"], [[1]], CRASH),
    "iterator_is_exhausted": Scenario(4, "torchrun", "nanogpt", ["worker_crash"], [[1]], ["code", "data"]),
    "last_evaluation_fails": Scenario(4, "torchrun --tee 3", "deepspeed", ["worker_crash"], [[0]], ["code"]),
    "memory_again": Scenario(2, "cri", "loguru", ["cuda_oom"], [[0]], ["resource"]),
    "full_state_is_written": Scenario(4, "rank files", "megatron", ["checkpointer_hang", "nccl_hang"], [[0]], HANG),
    "gloo_peer_leaves": Scenario(4, "labelled", "plain", ["worker_crash", "nccl_hang"], [[2]], [*HANG, "code"]),
    "waits_in_the_logger": Scenario(8, "cri", "json with iter_s", ["nccl_hang"], [[3]], HANG),
    "stacks_on_request": Scenario(2, "rank files", "titan", [], [[]], ["none"]),
    "explains_failures": Scenario(2, "labelled", "bare", [], [[]], ["none"]),
    "barrier_takes_long": Scenario(4, "torchrun", "json", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_eight.py", SCENARIOS)
