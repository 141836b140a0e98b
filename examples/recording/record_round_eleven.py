"""Records train_round_eleven.py on a machine with one NVIDIA GPU: `record_round_eleven.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, Scenario, main

RAISED = ["worker_crash"]
HUNG = ["nccl_hang"]
DIFFER = ["collective_mismatch", "nccl_hang"]
SCENARIOS = {
    "async_error_at_the_next_sync": Scenario(
        4, "rank files", "plain", ["gpu_app_fault", *RAISED], [[2]], ["code", "data", "resource"]
    ),
    "optimizer_state_does_not_fit": Scenario(4, "torchrun", "titan", RAISED, [[0]], ["code", "data"]),
    "mesh_is_too_large": Scenario(4, "rank files", "bare", RAISED, FOUR, ["code"]),
    "memory_format_is_refused": Scenario(4, "cri", "loguru", RAISED, [[3]], ["code"]),
    "rows_of_numpy_do_not_broadcast": Scenario(4, "labelled", "nanogpt", RAISED, [[1]], ["code", "data"]),
    "thread_of_prefetch_raises": Scenario(
        4, "rank files", "json", ["nccl_hang", "dataloader_hang", *RAISED], [[1]], [*HANG, "code"]
    ),
    "child_of_the_tokenizer_is_killed": Scenario(4, "out and err", "logging", RAISED, [[2]], [*CRASH, "resource"]),
    "gradient_hook_divides_by_zero": Scenario(4, "torchrun --tee 3", "deepspeed", RAISED, [[3]], ["code"]),
    "config_file_is_not_yaml": Scenario(4, "torchrun", "plain", RAISED, FOUR, ["code", "data"]),
    "exits_with_a_status_of_its_own": Scenario(
        4, "rank files", "megatron", RAISED, [[1]], ["code", "unknown", "resource", "infrastructure"]
    ),
    "killed_by_an_operator": Scenario(4, "slurm task files", "plain", [*RAISED, "host_oom"], [[2]], CRASH),
    "loss_is_checked_by_the_program": Scenario(
        4, "cri", "hf", ["training_divergence", *RAISED], [[0]], ["code", "data"]
    ),
    "barrier_of_a_subgroup_is_entered_by_all_but_one": Scenario(4, "rank files", "titan", HUNG, [[0, 1, 2], [1]], HANG),
    "gathers_before_the_others": Scenario(4, "rank files", "json with iter_s", DIFFER, [[2]], [*HANG, "code"]),
    "kernel_of_the_first_never_ends": Scenario(4, "labelled", "plain", HUNG, [[], [0]], HANG),
    "waits_for_a_subprocess": Scenario(8, "cri", "megatron", HUNG, [[3]], HANG),
    "reads_a_socket_that_never_speaks": Scenario(4, "out and err", "nanogpt", HUNG, [[1]], HANG),
    "interpreter_complains_at_exit": Scenario(2, "rank files", "plain", [], [[]], ["none"]),
    "validation_takes_long": Scenario(2, "torchrun", "loguru", [], [[]], ["none"]),
    "retries_a_download": Scenario(2, "cri", "logging", [], [[]], ["none"]),
    "ends_by_its_own_time_limit": Scenario(1, "single", "hf", [], [[]], ["none"]),
    "prints_a_table_of_errors": Scenario(2, "labelled", "bare", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_eleven.py", SCENARIOS)
