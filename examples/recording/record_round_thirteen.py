"""Records train_round_thirteen.py on a machine with one NVIDIA GPU: `record_round_thirteen.py OUT_DIR [SCENARIO …]`."""

from __future__ import annotations

from recorder import CRASH, FOUR, HANG, Scenario, main

RAISED = ["worker_crash"]
HUNG = ["nccl_hang"]
DIFFER = ["collective_mismatch", "nccl_hang"]
JOIN = ["nccl_bootstrap", "worker_crash"]
SCENARIOS = {
    "two_ranks_on_one_card": Scenario(4, "rank files", "plain", JOIN, FOUR, ["code", "infrastructure", "resource"]),
    "interface_of_gloo_does_not_exist": Scenario(4, "labelled", "titan", JOIN, FOUR, ["code", "infrastructure"]),
    "manager_of_queues_is_killed": Scenario(4, "rank files", "json", RAISED, [[1]], CRASH),
    "shared_segment_is_removed": Scenario(
        4, "cri", "megatron", [*RAISED, "storage_failure"], [[3]], [*CRASH, "data", "resource"]
    ),
    "error_file_is_written": Scenario(4, "torchrun", "loguru", RAISED, [[2]], ["code", "data"]),
    "pool_of_graphs_is_too_large": Scenario(4, "labelled", "hf", ["cuda_oom"], [[2]], ["resource"]),
    "remote_call_raises": Scenario(2, "rank files", "bare", RAISED, [[0], [1], [0, 1]], ["code"]),
    "assertion_in_every_rank": Scenario(4, "torchrun --tee 3", "megatron", RAISED, FOUR, ["code"]),
    "pipe_of_the_logger_is_closed": Scenario(4, "slurm task files", "logging", RAISED, [[1]], CRASH),
    "exception_in_a_future": Scenario(4, "torchrun", "json with iter_s", RAISED, [[0]], ["code", "data"]),
    "one_accumulates_once_more": Scenario(4, "rank files", "titan", DIFFER, [[1]], [*HANG, "code"]),
    "shards_skip_a_backward": Scenario(4, "cri", "loguru", DIFFER, [[2]], [*HANG, "code"]),
    "member_of_a_mesh_uploads": Scenario(8, "labelled", "deepspeed", HUNG, [[6]], HANG),
    "first_asks_for_the_manifest": Scenario(4, "rank files", "nanogpt", HUNG, [[0]], HANG),
    "only_the_first_meets_a_barrier": Scenario(4, "out and err", "hf", DIFFER, [[0]], [*HANG, "code"]),
    "pickles_for_ever": Scenario(4, "torchrun", "plain", HUNG, [[1]], HANG),
    "waits_for_the_baton_of_a_build": Scenario(4, "cri", "plain", HUNG, [[2]], HANG),
    "shard_goes_to_a_pipe": Scenario(4, "rank files", "logging", ["checkpointer_hang", "nccl_hang"], [[3]], HANG),
    "experts_wait_for_one": Scenario(8, "rank files", "megatron", HUNG, [[5]], HANG),
    "one_exchanges_less": Scenario(4, "labelled", "json", DIFFER, [[2]], [*HANG, "code"]),
    "queue_of_batches_stays_empty": Scenario(
        4, "rank files logs only", "maxtext", ["nccl_hang", "dataloader_hang"], [[3]], HANG
    ),
    "handler_of_logs_is_broken": Scenario(2, "rank files", "plain", [], [[]], ["none"]),
    "task_of_asyncio_is_lost": Scenario(2, "cri", "titan", [], [[]], ["none"]),
    "complains_after_the_end": Scenario(2, "out and err", "logging", [], [[]], ["none"]),
    "pusher_of_metrics_dies": Scenario(2, "torchrun", "loguru", [], [[]], ["none"]),
    "talks_of_ranks_that_failed": Scenario(1, "single", "nanogpt", [], [[]], ["none"]),
}

if __name__ == "__main__":
    environments = {
        "two_ranks_on_one_card": {"NCCL_HOSTID": None},
        "interface_of_gloo_does_not_exist": {"GLOO_SOCKET_IFNAME": "bond7"},
    }
    main("train_round_thirteen.py", SCENARIOS, environments)
