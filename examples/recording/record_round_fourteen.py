"""Records train_round_fourteen.py on a machine with one NVIDIA GPU: `record_round_fourteen.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, Environments, Scenario, main

RAISED = ["worker_crash"]
STORED = ["worker_crash", "storage_failure"]
HUNG = ["nccl_hang"]
DIFFER = ["collective_mismatch", "nccl_hang"]
STUCK = [*HANG, "code"]
EVERYBODY = [[], [0, 1, 2, 3]]
SCENARIOS = {
    "communication_hook_raises": Scenario(4, "rank files", "titan", RAISED, [[2]], ["code"]),
    "sampler_gets_nan_probabilities": Scenario(
        4, "torchrun", "plain", ["gpu_app_fault", *RAISED, "training_divergence"], [[1]], ["code", "data", "resource"]
    ),
    "watchdog_sees_the_illegal_access": Scenario(
        4, "rank files", "logging", ["gpu_app_fault", *RAISED], [[2]], ["code", "resource"]
    ),
    "pool_of_the_driver_is_exhausted": Scenario(4, "cri", "megatron", ["cuda_oom"], [[3]], ["resource"]),
    "map_of_the_corpus_has_no_room": Scenario(
        4, "labelled", "nanogpt", [*RAISED, "host_oom"], [[1]], ["resource", "infrastructure", "code"]
    ),
    "half_precision_transform_is_refused": Scenario(4, "torchrun", "deepspeed", RAISED, [[0]], ["code"]),
    "tokenizer_model_is_damaged": Scenario(4, "slurm task files", "plain", STORED, [[2]], ["data", "code"]),
    "link_of_the_corpus_leads_to_itself": Scenario(
        4, "labelled", "json", STORED, [[3]], ["data", "code", "infrastructure"]
    ),
    "image_is_cut_short": Scenario(4, "torchrun --tee 3", "hf", RAISED, [[1]], ["data", "code"]),
    "policy_has_nan_means": Scenario(
        4, "out and err", "loguru", [*RAISED, "training_divergence"], [[2]], ["code", "data"]
    ),
    "losses_in_json_are_nan": Scenario(
        4, "rank files", "json with iter_s", ["training_divergence"], EVERYBODY, ["code", "data", "unknown", "none"]
    ),
    "ends_by_a_broken_pipe": Scenario(4, "torchrun", "maxtext", RAISED, [[3]], CRASH),
    "thread_is_destroyed_while_it_runs": Scenario(4, "cri", "bare", RAISED, [[0]], CRASH),
    "bitwise_reduction_is_refused": Scenario(4, "torchrun --tee 3", "plain", RAISED, FOUR, ["code"]),
    "offloaded_activation_is_lost": Scenario(
        4, "rank files", "hf", STORED, [[1]], ["data", "code", "infrastructure", "resource"]
    ),
    "operator_has_no_fake": Scenario(4, "slurm task files", "titan", RAISED, FOUR, ["code"]),
    "loader_worker_is_stopped": Scenario(4, "labelled", "logging", [*HUNG, "dataloader_hang"], [[2]], HANG),
    "only_the_first_saves": Scenario(4, "rank files", "plain", ["collective_mismatch", *RAISED, *HUNG], [[0]], CRASH),
    "metric_is_computed_by_one": Scenario(4, "cri", "titan", DIFFER, [[0]], STUCK),
    "barrier_of_threads_is_not_full": Scenario(4, "rank files logs only", "json", HUNG, [[1]], HANG),
    "one_wraps_fewer_units": Scenario(4, "rank files", "loguru", DIFFER, [[2]], STUCK),
    "drops_a_layer_on_one": Scenario(8, "rank files", "megatron", ["nccl_hang", "collective_mismatch"], [[5]], STUCK),
    "last_stage_computes_its_loss_for_ever": Scenario(4, "labelled", "nanogpt", HUNG, [[3]], STUCK),
    "everybody_sends_to_the_next": Scenario(
        4, "rank files", "deepspeed", ["nccl_hang", "collective_mismatch"], EVERYBODY, STUCK
    ),
    "stream_waits_for_a_flag": Scenario(4, "rank files", "plain", HUNG, [[], [2]], STUCK),
    "one_ends_by_its_own_clock": Scenario(4, "out and err", "logging", [*HUNG, *RAISED], [[1]], STUCK),
    "finalizer_waits_for_ever": Scenario(4, "torchrun", "bare", HUNG, [[3]], STUCK),
    "backs_off_for_long": Scenario(
        4, "cri", "json with iter_s", [*HUNG, "storage_failure", "dataloader_hang"], [[2]], HANG
    ),
    "one_drifts_away": Scenario(8, "torchrun --tee 3", "loguru", ["straggler"], [[6]], ["none"]),
    "one_computes_slowly": Scenario(4, "labelled", "plain", ["straggler"], [[2]], ["none"]),
    "saves_take_longer_each_time": Scenario(4, "rank files", "logging", [], [[]], ["none"]),
    "writes_text_about_broken_machines": Scenario(2, "rank files", "nanogpt", [], [[]], ["none"]),
    "drills_an_alert": Scenario(2, "torchrun", "plain", [], [[]], ["none"]),
    "perplexity_is_infinite_at_first": Scenario(2, "cri", "hf", [], [[]], ["none"]),
    "probe_of_a_kernel_crashes": Scenario(2, "labelled", "titan", [], [[]], ["none"]),
    "saves_when_it_is_signalled": Scenario(1, "single", "logging", [], [[]], ["none"]),
    "waits_for_an_optional_key": Scenario(2, "out and err", "loguru", [], [[]], ["none"]),
}
ENVIRONMENTS: Environments = {
    "pool_of_the_driver_is_exhausted": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
}

if __name__ == "__main__":
    main("train_round_fourteen.py", SCENARIOS, ENVIRONMENTS)
