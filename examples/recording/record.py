"""Records real failures on a machine with one NVIDIA GPU, each as what a person on call would have.

    python record.py OUT_DIR [SCENARIO …]

Runs train.py in a chosen way. Several ranks share the GPU: each pretends to be its own host, so NCCL talks over
sockets. A scenario leaves `rankN.log` or `out.log`, `fr/nccl_trace_rank_N`, `dmesg.txt`, `exit_codes.json` and
`truth.json` (the label, which is not part of the bundle).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
HANG = ["resource", "unknown", "infrastructure"]
# scenario: (ranks, launcher, root patterns, culprit ranks, failure classes)
SCENARIOS: dict[str, tuple[int, str, list[str], list[int], list[str]]] = {
    "mismatch_op": (4, "plain", ["collective_mismatch"], [1], ["code"]),
    "mismatch_dtype": (4, "plain", ["collective_mismatch"], [2], ["code"]),
    "mesh_hang": (8, "plain", ["nccl_hang"], [5], HANG),
    "stopped_rank": (4, "plain", ["nccl_hang"], [2], HANG),
    "pipeline_hang": (4, "plain", ["nccl_hang"], [1], HANG),
    "nan_loss": (2, "plain", ["training_divergence"], [], ["code", "data", "unknown", "none"]),
    "nan_raises": (2, "torchrun", ["training_divergence", "worker_crash"], [0], ["code"]),
    "oom_one_rank": (4, "plain", ["cuda_oom"], [2], ["resource"]),
    "oom_capped": (1, "plain", ["cuda_oom"], [], ["resource"]),
    "segfault": (4, "torchrun", ["worker_crash"], [1], ["code", "infrastructure", "unknown"]),
    "faulthandler_segfault": (4, "plain", ["worker_crash"], [1], ["code", "infrastructure", "unknown"]),
    "elastic_recovers": (2, "torchrun", [], [], ["none"]),
    "elastic_gives_up": (4, "torchrun", ["worker_crash"], [3], ["code"]),
    "preempted": (2, "torchrun", ["planned_stop"], [], ["infrastructure", "none", "unknown"]),
    "checkpoint_full": (2, "plain", ["storage_failure"], [0], ["resource"]),
    "checkpoint_stuck": (4, "plain", ["checkpointer_hang", "nccl_hang"], [0], HANG),
    "loader_segfault": (2, "plain", ["worker_crash"], [1], ["code", "infrastructure", "unknown"]),
    "loader_bad_row": (2, "torchrun", ["worker_crash"], [1], ["data", "code"]),
    "loader_slow": (4, "plain", ["nccl_hang"], [1], HANG),
    "slow_rank": (8, "plain", ["straggler"], [6], ["none"]),
    "all_slow": (8, "plain", [], [], ["none"]),
    "assert_in_one": (4, "plain", ["gpu_app_fault", "worker_crash"], [3], ["code"]),
    "early_exit": (4, "plain", ["nccl_hang"], [2], HANG),
    "uneven_gather": (4, "plain", ["collective_mismatch"], [3], ["code"]),
    "killed_one": (4, "torchrun", ["worker_crash"], [2], ["infrastructure"]),
    "aborted_one": (4, "plain", ["worker_crash"], [0], ["code", "infrastructure", "unknown"]),
    "nobody_listens": (3, "plain", ["nccl_bootstrap"], [1, 2], ["infrastructure", "resource"]),
    "corrupt_checkpoint": (2, "torchrun", ["worker_crash", "storage_failure"], [], ["data"]),
    "missing_data": (2, "torchrun", ["worker_crash", "storage_failure"], [1], ["data", "code"]),
    "read_only": (2, "plain", ["storage_failure"], [0], ["resource", "infrastructure"]),
    "oom_survived": (1, "plain", [], [], ["none"]),
    "interrupted": (2, "torchrun", ["planned_stop"], [], ["infrastructure", "none", "unknown"]),
    "exploding": (2, "plain", ["training_divergence"], [], ["code", "data", "unknown", "none"]),
    "hf_runs": (1, "plain", [], [], ["none"]),
    "hf_bad_row": (1, "plain", ["worker_crash"], [], ["data", "code"]),
    "hf_nan": (1, "plain", ["training_divergence"], [], ["code", "data", "unknown", "none"]),
    "pl_runs": (1, "plain", [], [], ["none"]),
    "pl_raises": (1, "plain", ["worker_crash"], [], ["code"]),
    "survived": (2, "plain", [], [], ["none"]),
}
CRASH = ["code", "infrastructure", "unknown"]
SHARED = ["infrastructure", "resource"]
FAULT = ["gpu_app_fault", "worker_crash"]
# The same, of train_wider.py.
WIDER: dict[str, tuple[int, str, list[str], list[int], list[str]]] = {
    "fsdp_skip": (4, "plain", ["nccl_hang"], [2], HANG),
    "fsdp_oom": (4, "torchrun", ["cuda_oom"], [1], ["resource"]),
    "unused_parameters": (2, "torchrun", ["worker_crash"], [], ["code"]),
    "loader_exits": (2, "plain", ["worker_crash", "dataloader_hang"], [1], CRASH),
    "loader_timeout": (2, "plain", ["dataloader_hang", "worker_crash"], [1], [*HANG, "data"]),
    "loader_files": (2, "plain", ["worker_crash", "dataloader_hang"], [1], ["resource", "code", "infrastructure"]),
    "loader_shared_memory": (
        2,
        "plain",
        ["worker_crash", "dataloader_hang", "host_oom", "storage_failure"],
        [1],
        SHARED,
    ),
    "loader_ragged": (2, "torchrun", ["worker_crash"], [1], ["data", "code"]),
    "late_rank": (4, "plain", ["nccl_bootstrap"], [3], SHARED),
    "monitored": (4, "plain", ["nccl_hang"], [2], HANG),
    "gloo_wait": (4, "plain", ["nccl_hang"], [1], HANG),
    "sharded_save": (4, "plain", ["checkpointer_hang", "nccl_hang"], [1], HANG),
    "slow_save": (4, "plain", [], [], ["none"]),
    "long_evaluation": (4, "plain", [], [], ["none"]),
    "cgroup_kill": (4, "plain", ["host_oom", "worker_crash"], [2], ["infrastructure", "resource"]),
    "bus_error": (4, "plain", ["worker_crash"], [1], CRASH),
    "node_lost": (4, "two nodes", ["worker_crash", "host_lost", "nccl_hang"], [2, 3], ["infrastructure"]),
    "half_a_cluster": (2, "one of two nodes", ["nccl_bootstrap"], [], SHARED),
    "stopped_by_operator": (4, "torchrun", ["planned_stop"], [], ["infrastructure", "none", "unknown"]),
    "no_interface": (2, "plain", ["nccl_bootstrap"], [0], [*SHARED, "code"]),
    "locked": (4, "plain", ["nccl_hang"], [3], HANG),
    "spinning_kernel": (4, "plain", ["nccl_hang"], [], HANG),
    "extra_collective": (4, "plain", ["collective_mismatch"], [0], ["code", *HANG]),
    "crossed_groups": (4, "plain", ["nccl_hang"], [1], ["code", *HANG]),
    "ended_one": (4, "plain", ["worker_crash", "planned_stop"], [2], ["infrastructure", "unknown"]),
    "bad_record": (2, "torchrun", ["worker_crash"], [0], ["data", "code"]),
    "denied": (2, "plain", ["storage_failure", "worker_crash"], [0], ["resource", "infrastructure", "code", "data"]),
    "compiler_error": (1, "plain", ["worker_crash"], [], ["code"]),
    "chained": (4, "torchrun", ["worker_crash"], [2], ["code", "data"]),
    "first_leaves": (4, "plain", ["nccl_hang", "worker_crash"], [0], HANG),
    "host_allocation": (2, "torchrun", ["worker_crash", "host_oom"], [1], ["resource", "code", "infrastructure"]),
    "thread_fails": (2, "plain", [], [], ["none"]),
    "untidy_end": (2, "plain", [], [], ["none"]),
    "misaligned": (2, "plain", FAULT, [1], ["code", "resource"]),
    "overflowing": (2, "plain", FAULT, [1], ["code", "resource"]),
    "out_of_bounds": (4, "torchrun", FAULT, [1], ["code", "resource"]),
    "jax_runs": (1, "plain", [], [], ["none"]),
    "jax_oom": (1, "plain", ["cuda_oom"], [], ["resource"]),
    "jax_nan": (1, "plain", ["training_divergence", "worker_crash"], [], ["code", "data"]),
    "hf_quiet": (1, "plain", [], [], ["none"]),
    "hf_full_disk": (1, "plain", ["storage_failure"], [], ["resource"]),
    "hf_vocabulary": (1, "plain", FAULT, [], ["code", "data", "resource"]),
    "pl_oom": (1, "plain", ["cuda_oom"], [], ["resource"]),
    "pl_nan": (1, "plain", ["training_divergence"], [], ["code", "data", "unknown", "none"]),
}
# The same, of train_launched.py.
LAUNCHED: dict[str, tuple[int, str, list[str], list[int], list[str]]] = {
    "mesh_of_two_dimensions": (8, "plain", ["nccl_hang"], [6], HANG),
    "only_one_evaluates": (4, "plain", ["collective_mismatch"], [0], ["code"]),
    "object_fails": (4, "torchrun", ["worker_crash"], [0], ["code"]),
    "leaves_early": (4, "plain", ["nccl_hang"], [3], [*HANG, "data", "code"]),
    "slow_load": (4, "plain", ["nccl_hang", "checkpointer_hang"], [0], HANG),
    "teed_exception": (4, "torchrun --tee 3", ["worker_crash"], [2], ["code", "data"]),
    "teed_well": (4, "torchrun --tee 3", [], [], ["none"]),
    "restarts_in_vain": (4, "torchrun --max-restarts=2", ["worker_crash"], [2], ["code", "data"]),
    "labelled_exception": (4, "plain, labelled", ["worker_crash"], [2], ["code", "data"]),
    "labelled_well": (4, "plain, labelled", [], [], ["none"]),
    "compiles_long": (4, "plain", [], [], ["none"]),
    "wrong_settings": (4, "torchrun", ["worker_crash"], [3], ["code"]),  # or whoever is first
    "says_goodbye": (4, "plain", ["worker_crash"], [1], ["code", "data"]),
    "taken_port": (2, "plain", ["worker_crash", "nccl_bootstrap"], [0], [*SHARED, "code"]),
    "memory_of_another": (2, "torchrun", ["cuda_oom"], [1], ["resource"]),
    "ragged_exchange": (4, "plain", ["worker_crash", "nccl_hang", "collective_mismatch"], [2], ["code", *HANG]),
    "hf_ranks_fail": (2, "torchrun", ["worker_crash"], [1], ["data", "code"]),
    "spawned_raises": (1, "plain", ["worker_crash"], [2], ["code"]),
    "spawned_killed": (1, "plain", ["worker_crash"], [2], ["infrastructure"]),
}
# The same, of train_further.py.
FURTHER: dict[str, tuple[int, str, list[str], list[int], list[str]]] = {
    "rows_stop": (4, "plain", ["nccl_hang"], [1], [*HANG, "data"]),
    "before_the_first_step": (4, "plain", ["nccl_hang"], [2], HANG),
    "uneven_scatter": (4, "plain", ["collective_mismatch"], [3], ["code"]),
    "redirected": (4, "torchrun --redirects 3 --log-dir LOGS", ["worker_crash"], [3], ["code", "data"]),
    "missing_in_one": (2, "torchrun", ["worker_crash"], [1], ["code"]),
    "oom_is_logged": (4, "plain", ["cuda_oom"], [1], ["resource"]),
    "halves_the_batch": (1, "plain", [], [], ["none"]),
    "scaler_skips": (1, "plain", [], [], ["none"]),
    "stays_nan": (1, "plain", ["training_divergence"], [], ["code", "data", "unknown", "none"]),
    "spikes": (1, "plain", [], [], ["none"]),
    "requeued": (2, "plain", ["planned_stop"], [], ["infrastructure", "resource", "none", "unknown"]),
    "dumps_stacks": (4, "plain", ["nccl_hang"], [0], HANG),
    "cache_is_full": (4, "plain", ["storage_failure"], [2], ["resource"]),
    "store_answers_503": (2, "torchrun", ["storage_failure", "worker_crash"], [1], SHARED),
    "capture_fails": (2, "torchrun", FAULT, [1], ["code"]),
    "second_node_raises": (4, "two nodes", ["worker_crash"], [3], ["code", "data"]),
    "slow_in_json": (8, "plain", ["straggler"], [5], ["none"]),
    "noisy_and_well": (2, "plain", [], [], ["none"]),
    "upload_retried": (2, "plain", [], [], ["none"]),
    "holds_the_interpreter": (4, "plain", ["nccl_hang"], [2], HANG),
    "on_processors": (3, "plain", ["worker_crash"], [1], ["code"]),
    "first_raises_early": (4, "plain", ["worker_crash"], [0], ["code"]),
    "no_such_device": (2, "plain", [*FAULT, "nccl_bootstrap"], [1], ["code", "infrastructure"]),
    "not_enough_memory": (2, "torchrun", ["worker_crash", "host_oom"], [0], ["resource", "code", "infrastructure"]),
    "no_more_threads": (2, "torchrun", ["worker_crash"], [1], ["resource", "infrastructure", "code"]),
    "no_tokenizer": (1, "plain", ["worker_crash", "storage_failure"], [], ["code", "data"]),
    "deep": (4, "torchrun", ["worker_crash"], [3], ["code"]),
    "two_stop": (8, "plain", ["nccl_hang"], [2, 6], HANG),
    "wrong_order": (4, "plain", ["collective_mismatch"], [2], ["code"]),
    "saves_and_goes_on": (4, "torchrun", [], [], ["none"]),
}
# The same, of train_elsewhere.py.
ELSEWHERE: dict[str, tuple[int, str, list[str], list[int], list[str]]] = {
    "hook_raises": (4, "plain", ["worker_crash"], [2], ["code"]),
    "gives_a_status": (4, "torchrun", ["worker_crash"], [1], ["code"]),
    "no_such_text": (2, "torchrun", ["worker_crash"], [0], ["data", "code"]),
    "archive_is_cut": (2, "plain", ["worker_crash", "storage_failure"], [1], ["data"]),
    "disk_answers_wrong": (4, "plain", ["storage_failure"], [3], SHARED),
    "mount_is_gone": (2, "plain", ["storage_failure"], [0], SHARED),
    "left_on_the_host": (4, "torchrun", ["worker_crash"], [3], ["code"]),
    "shapes_do_not_fit": (4, "torchrun", ["worker_crash"], [], ["code"]),
    "bare_assertion": (4, "torchrun", ["worker_crash"], [2], ["code"]),
    "tells_in_json": (4, "plain", ["worker_crash"], [2], ["code", "data"]),
    "drawn_in_a_box": (2, "plain", ["worker_crash"], [1], ["code", "data"]),
    "waits_for_a_queue": (2, "torchrun", ["worker_crash", "dataloader_hang"], [1], [*CRASH, "resource"]),
    "on_gloo": (4, "plain", ["worker_crash"], [1], ["code"]),
    "divides_in_c": (4, "plain", ["worker_crash"], [2], CRASH),
    "keeps_everything": (1, "plain", ["cuda_oom"], [], ["resource"]),
    "late_to_the_barrier": (8, "plain", [], [], ["none", "unknown"]),
    "objects_do_not_come": (4, "plain", ["nccl_hang"], [3], HANG),
    "three_of_four": (4, "plain", ["nccl_hang"], [2], HANG),
    "skips_a_reduction": (4, "plain", ["collective_mismatch"], [0], ["code"]),
    "saves_into_nothing": (4, "plain", ["checkpointer_hang", "nccl_hang"], [0], HANG),
    "asks_another_port": (3, "plain", ["nccl_bootstrap"], [2], SHARED),
    "catches_and_goes_on": (2, "torchrun", [], [], ["none"]),
    "helper_dies": (2, "plain", [], [], ["none"]),
    "starts_from_nothing": (2, "torchrun", [], [], ["none"]),
    "well_on_gloo": (3, "plain", [], [], ["none"]),
    "slow_only_at_first": (4, "plain", [], [], ["none"]),
    "sends_more_than_is_taken": (2, "plain", ["nccl_hang", "collective_mismatch"], [], ["code", *HANG]),
    "nobody_sends": (2, "plain", ["nccl_hang", "collective_mismatch"], [0], ["code", *HANG]),
    "models_differ": (4, "torchrun", ["worker_crash"], [1], ["code"]),
    "evaluates_too_long": (4, "plain", ["nccl_hang"], [1], HANG),
    "says_it_in_a_line": (4, "plain", ["worker_crash"], [2], ["code"]),
    "leaves_with_seven": (4, "plain", ["worker_crash"], [3], CRASH),
    "two_at_odds": (4, "plain", ["worker_crash"], [3], ["code"]),
    "draws_a_bar": (2, "plain", ["worker_crash"], [1], ["data", "code"]),
    "nan_in_one": (4, "plain", ["training_divergence"], [3], ["code", "data", "unknown", "none"]),
    "speaks_of_failures": (2, "torchrun", [], [], ["none"]),
}
SMALL_DISK = ("checkpoint_full", "hf_full_disk", "cache_is_full")
LIMIT = int(os.environ.get("RECORD_SECONDS", "75"))


def environment(place: Path, port: int) -> dict[str, str]:
    return {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_DEBUG": "WARN",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "8000",
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "45",
        "TORCH_FR_DUMP_TEMP_FILE": str(place / "fr" / "nccl_trace_rank_"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(place / "fr" / "nccl_trace_rank_"),
        "SCRATCH": str(place / "scratch"),
        "PYTHONPATH": str(HERE),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def kernel_log() -> str:
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout


def end(process: int) -> None:
    """Kills a process and all that it started: torchrun gives each worker a session of its own."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    os.kill(process, signal.SIGKILL)
    for child in children:
        end(int(child))


def record(name: str, out: Path, port: int) -> str:
    ranks, launcher, roots, culprits, classes = (SCENARIOS | WIDER | LAUNCHED | FURTHER | ELSEWHERE)[name]
    place = out / name
    (place / "fr").mkdir(parents=True, exist_ok=True)
    (place / "scratch" / "small").mkdir(parents=True, exist_ok=True)
    if name in SMALL_DISK:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place / "scratch/small"], check=True)
    if name == "read_only":
        (place / "scratch" / "ro").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=8m", "tmpfs", place / "scratch/ro"], check=True)
    env = environment(place, port)
    before = kernel_log()
    modules = {"train_wider": WIDER, "train_launched": LAUNCHED, "train_further": FURTHER, "train_elsewhere": ELSEWHERE}
    module = next((module for module, names in modules.items() if name in names), "train")
    script = str(HERE / f"{module}.py")
    children: dict[str, subprocess.Popen[bytes]] = {}
    if "plain" not in launcher:
        restarts = "1" if name.startswith("elastic") else "0"
        # Ranks started by torchrun still have to look like different hosts to NCCL.
        shim = "\n".join(
            (
                "import os, runpy, sys",
                "os.environ['NCCL_HOSTID'] = 'h' + os.environ['RANK']",
                f"sys.argv = ['{script}', '{name}']",
                f"runpy.run_path('{script}', run_name='__main__')",
            )
        )
        (place / "scratch" / "shim.py").write_text(shim)
        for node in range(2 if launcher == "two nodes" else 1):
            cluster = [
                f"--nproc-per-node={ranks}",
                f"--master-port={port}",
                *launcher.replace("LOGS", str(place / "logs")).split()[1:],
            ]
            if "nodes" in launcher:
                cluster = ["--nnodes=2", f"--nproc-per-node={ranks // 2}", "--rdzv-backend=c10d", "--rdzv-id=run7",
                           f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-conf=join_timeout=25"]  # fmt: skip
            children[str(node) if "torchrun" in launcher else f"node{node}"] = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", f"--max-restarts={restarts}", *cluster,
                 str(place / "scratch" / "shim.py")],
                stdout=(place / ("out.log" if "torchrun" in launcher else f"node{node}.log")).open("wb"),
                stderr=subprocess.STDOUT, env=env, start_new_session=True,
            )  # fmt: skip
    else:
        for rank in range(ranks):
            log = place / (f"rank{rank}.log" if ranks > 1 else "out.log")
            own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"h{rank}"}
            command = [sys.executable, script, name]
            if name == "loader_shared_memory":
                command = [
                    "unshare",
                    "-m",
                    "sh",
                    "-c",
                    'mount -t tmpfs -o size=2m tmpfs /dev/shm && exec "$@"',
                    "sh",
                    *command,
                ]
            if "labelled" in launcher:
                # As `srun --label` writes one log for all tasks.
                log = place / "out.log"
                label = f'"$@" 2>&1 | sed -u "s/^/{rank}: /"; exit ${{PIPESTATUS[0]}}'
                command = ["bash", "-c", label, "bash", *command]
            children[str(rank)] = subprocess.Popen(
                command, stdout=log.open("ab"), stderr=subprocess.STDOUT, env={**env, **own},
                start_new_session=True,
            )  # fmt: skip
    if name == "preempted":
        time.sleep(22)
        children["0"].send_signal(signal.SIGTERM)
    if name == "node_lost":
        time.sleep(30)
        end(children["node1"].pid)
    if name == "stopped_by_operator":
        time.sleep(25)
        children["0"].send_signal(signal.SIGTERM)
    if name == "interrupted":
        time.sleep(22)
        children["0"].send_signal(signal.SIGINT)
    deadline = time.time() + LIMIT
    while time.time() < deadline and any(child.poll() is None for child in children.values()):
        time.sleep(0.5)
    (place / "exit_codes.json").write_text(json.dumps({rank: child.poll() for rank, child in children.items()}))
    for child in children.values():
        if child.poll() is None:
            end(child.pid)
            child.wait()
    after = kernel_log()
    fresh = after[len(before) :] if after.startswith(before) else after
    if fresh.strip():
        (place / "dmesg.txt").write_text(fresh)
    if name in SMALL_DISK:
        subprocess.run(["umount", place / "scratch/small"], check=False)
    if name == "read_only":
        subprocess.run(["umount", place / "scratch/ro"], check=False)
    subprocess.run(["rm", "-rf", place / "scratch"], check=False)
    if not any((place / "fr").iterdir()):
        (place / "fr").rmdir()
    truth = {
        "scenario": name,
        "root_patterns": roots,
        "culprit_ranks": culprits,
        "failure_classes": classes,
        "launcher": launcher,
    }
    (place / "truth.json").write_text(json.dumps(truth) + "\n")
    return f"{name}: {json.loads((place / 'exit_codes.json').read_text())}"


def main() -> None:
    out = Path(sys.argv[1])
    names = sys.argv[2:] or [*SCENARIOS, *WIDER, *LAUNCHED, *FURTHER, *ELSEWHERE]
    with ThreadPoolExecutor(max_workers=int(os.environ.get("RECORD_TOGETHER", "5"))) as pool:
        for line in pool.map(lambda item: record(item[1], out, 23000 + 37 * item[0]), enumerate(names)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
