"""Records train_round_ten.py on a machine with one NVIDIA GPU: `record_round_ten.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, TWO, Scenario, main

RAISED = ["worker_crash"]
HUNG = ["nccl_hang"]
DIFFER = ["collective_mismatch", "nccl_hang"]
SCENARIOS = {
    "graph_copies_from_the_host": Scenario(4, "rank files", "titan", [*RAISED, "gpu_app_fault"], [[2]], ["code"]),
    "halves_meet_singles": Scenario(4, "torchrun", "plain", RAISED, [[1]], ["code"]),
    "no_attention_kernel": Scenario(4, "cri", "nanogpt", RAISED, [[3]], ["code"]),
    "graph_is_freed": Scenario(4, "slurm task files", "deepspeed", RAISED, [[0]], ["code"]),
    "tensors_changed_in_place": Scenario(4, "labelled", "megatron", RAISED, [[2]], ["code"]),
    "wrapped_models_differ": Scenario(2, "torchrun", "bare", [*RAISED, "collective_mismatch"], TWO, ["code"]),
    "reducer_is_not_ready": Scenario(2, "rank files", "hf", RAISED, TWO, ["code"]),
    "host_rows_on_nccl": Scenario(4, "torchrun --tee 3", "loguru", RAISED, [[1]], ["code"]),
    "gather_does_not_fit": Scenario(4, "rank files", "json", [*RAISED, *DIFFER], [[2]], ["code"]),
    "workers_use_the_gpu": Scenario(4, "rank files", "logging", RAISED, [[1]], ["code"]),
    "pickled_objects_refused": Scenario(4, "cri", "plain", [*RAISED, "storage_failure"], [[0]], ["code", "data"]),
    "file_shrinks_under_the_map": Scenario(4, "torchrun", "nanogpt", RAISED, [[2]], [*CRASH, "data", "resource"]),
    "address_is_not_set": Scenario(4, "rank files", "plain", [*RAISED, "nccl_bootstrap"], FOUR, ["code"]),
    "compiled_step_is_refused": Scenario(4, "out and err", "titan", RAISED, [[3]], ["code"]),
    "limited_address_space": Scenario(
        4, "labelled", "plain", [*RAISED, "host_oom"], [[1]], ["resource", "infrastructure", "code"]
    ),
    "asserts_without_a_word": Scenario(4, "torchrun", "json with iter_s", RAISED, [[3]], ["code"]),
    "stopped_by_a_time_limit_of_the_shell": Scenario(
        2, "torchrun", "plain", ["planned_stop"], [[]], ["infrastructure", "none", "unknown", "resource"]
    ),
    "reads_from_a_pipe_without_a_writer": Scenario(4, "rank files", "plain", HUNG, [[2]], HANG),
    "waits_for_a_file_lock": Scenario(4, "cri", "loguru", HUNG, [[1]], HANG),
    "sampler_never_yields": Scenario(4, "labelled", "titan", HUNG, [[3]], HANG),
    "one_stops_at_a_barrier": Scenario(4, "rank files", "megatron", DIFFER, [[0]], [*HANG, "code"]),
    "half_saves_half_trains": Scenario(
        4, "rank files", "nanogpt", DIFFER, [[], [0, 1], [2, 3], [0, 1, 2, 3]], [*HANG, "code"]
    ),
    "one_debugger_waits": Scenario(4, "out and err", "json", HUNG, [[2]], HANG),
    "one_rank_is_paused_by_the_system": Scenario(8, "rank files", "deepspeed", HUNG, [[5]], HANG),
    "samples_quote_a_traceback": Scenario(2, "rank files", "nanogpt", [], [[]], ["none"]),
    "scaler_skips_some_steps": Scenario(2, "torchrun", "megatron", [], [[]], ["none"]),
    "code_benchmark_fails_tests": Scenario(2, "labelled", "bare", [], [[]], ["none"]),
    "prints_its_settings": Scenario(2, "rank files", "titan", [], [[]], ["none"]),
    "probes_for_hardware": Scenario(2, "cri", "plain", [], [[]], ["none"]),
    "early_stopping_ends_it": Scenario(1, "single", "hf", [], [[]], ["none"]),
    "one_restart_of_a_worker": Scenario(4, "rank files", "logging", [], [[]], ["none"]),
}

if __name__ == "__main__":
    main("train_round_ten.py", SCENARIOS)
