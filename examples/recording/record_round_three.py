"""Records train_round_three.py's scenarios on a machine with one NVIDIA GPU.

    python record_round_three.py OUT_DIR [SCENARIO …]

The truths below were written before any answer was seen.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from record import end, environment, kernel_log
from record_round_two import container_lines, labelled, wait

HERE = Path(__file__).resolve().parent
HANG = ["infrastructure", "resource", "unknown"]
CRASH = ["code", "infrastructure", "unknown"]
SHARED = ["infrastructure", "resource"]
ONE = [[], [0]]
TWO = [[], [0], [1], [0, 1]]
FOUR = [[], [0], [1], [2], [3], [0, 1, 2, 3]]
#: scenario: (ranks, layout, style, root patterns (None: no cause is also right), culprit ranks, failure classes)
SCENARIOS: dict[str, tuple[int, str, str, list[str | None], list[list[int]], list[str]]] = {
    "waits_for_a_key": (4, "rank files", "plain", ["nccl_hang", "nccl_bootstrap"], [[0]], HANG),
    "stage_skips_a_send": (
        4,
        "rank files",
        "titan",
        ["nccl_hang", "collective_mismatch"],
        [[1]],
        [*HANG, "code"],
    ),
    "lone_receive": (4, "labelled", "plain", ["nccl_hang", "collective_mismatch"], [[3], [0], [0, 3]], [*HANG, "code"]),
    "first_use_of_a_group": (4, "rank files", "deepspeed", ["nccl_hang", "nccl_bootstrap"], [[1]], HANG),
    "groups_in_another_order": (
        4,
        "rank files",
        "loguru",
        ["nccl_hang", "collective_mismatch", "nccl_bootstrap"],
        [[3], [2, 3]],
        [*HANG, "code"],
    ),
    "writer_and_trainer_deadlock": (4, "cri", "json", ["nccl_hang", "checkpointer_hang"], [[1]], [*HANG, "code"]),
    "opens_a_dead_mount": (
        4,
        "out and err",
        "titan",
        ["nccl_hang", "storage_failure", "dataloader_hang"],
        [[2]],
        HANG,
    ),
    "stage_gpu_spins": (4, "rank files", "deepspeed", ["nccl_hang"], [[2]], HANG),
    "ring_to_the_wrong_peer": (
        4,
        "rank files",
        "plain",
        ["nccl_hang", "collective_mismatch"],
        [[2], [2, 3]],
        [*HANG, "code"],
    ),
    "one_more_micro_batch": (4, "labelled", "loguru", ["collective_mismatch"], [[1]], ["code"]),
    "layers_in_another_order": (4, "rank files", "titan", ["collective_mismatch"], [[1]], ["code"]),
    "exit_hook_waits": (4, "rank files", "deepspeed", ["nccl_hang"], [[2]], HANG),
    "tokenizer_forks": (4, "rank files", "titan", ["nccl_hang", "dataloader_hang"], [[0]], [*HANG, "code"]),
    "jax_barrier": (3, "rank files", "maxtext", ["nccl_hang", "nccl_bootstrap"], [[1]], HANG),
    "illegal_instruction": (4, "torchrun", "titan", ["worker_crash"], [[2]], CRASH),
    "stack_overflow": (4, "rank files", "deepspeed", ["worker_crash"], [[3]], CRASH),
    "double_free": (4, "labelled", "loguru", ["worker_crash"], [[0]], CRASH),
    "assertion_in_c": (4, "torchrun", "plain", ["worker_crash"], [[1]], CRASH),
    "exits_with_a_sentence": (4, "torchrun", "plain", ["worker_crash"], FOUR, ["code"]),
    "unknown_argument": (4, "torchrun", "plain", ["worker_crash"], FOUR, ["code"]),
    "leaves_without_a_word": (4, "cri", "titan", ["worker_crash"], [[2]], CRASH),
    "killed_on_gloo": (4, "rank files", "json", ["worker_crash"], [[2]], ["infrastructure"]),
    "truncated_under_it": (
        4,
        "torchrun",
        "deepspeed",
        ["worker_crash", "storage_failure"],
        [[3]],
        [*CRASH, "data", "resource"],
    ),
    "only_the_first_logs": (4, "torchrun", "titan", ["worker_crash"], [[3]], ["code", "data"]),
    "everybody_asserts": (4, "torchrun --tee 3", "plain", ["worker_crash"], FOUR, ["code"]),
    "no_mpi": (2, "torchrun", "plain", ["worker_crash"], TWO, ["code"]),
    "broken_pool": (1, "single", "loguru", ["worker_crash"], ONE, [*CRASH, "resource"]),
    "user_signal_before_the_limit": (
        2,
        "labelled",
        "titan",
        ["planned_stop", None],
        [[]],
        ["none", "infrastructure", "unknown", "resource"],
    ),
    "interrupted_notebook": (1, "single", "bare", ["planned_stop"], ONE, ["none", "infrastructure", "unknown"]),
    "over_quota": (4, "labelled", "plain", ["storage_failure"], [[1]], ["resource"]),
    "mount_times_out": (4, "out and err", "deepspeed", ["storage_failure"], [[0]], SHARED),
    "not_gzip": (4, "torchrun", "loguru", ["worker_crash", "storage_failure"], [[2]], ["data"]),
    "broken_line": (2, "torchrun --tee 3", "titan", ["worker_crash"], TWO, ["data", "code"]),
    "damaged_safetensors": (1, "slurm out and err", "plain", ["worker_crash", "storage_failure"], ONE, ["data"]),
    "refuses_to_unpickle": (1, "single", "plain", ["worker_crash"], ONE, ["code", "data"]),
    "key_not_in_checkpoint": (4, "rank files", "titan", ["worker_crash"], FOUR, ["code", "data"]),
    "worker_init_raises": (1, "cri", "plain", ["worker_crash"], ONE, ["code"]),
    "optimizer_has_no_room": (4, "rank files", "json", ["cuda_oom"], [[3]], ["resource"]),
    "pinned_memory_fails": (
        1,
        "single",
        "deepspeed",
        ["host_oom", "cuda_oom", "worker_crash", "gpu_app_fault"],
        ONE,
        ["resource", "infrastructure", "code"],
    ),
    "numpy_has_no_room": (
        4,
        "torchrun",
        "loguru",
        ["host_oom", "worker_crash"],
        [[1]],
        ["resource", "infrastructure", "code"],
    ),
    "loader_memory_error": (
        4,
        "rank files",
        "plain",
        ["host_oom", "worker_crash", "dataloader_hang"],
        [[1]],
        ["resource", "infrastructure", "code"],
    ),
    "built_for_another_card": (1, "single", "loguru", ["worker_crash", "gpu_app_fault"], ONE, ["code"]),
    "kernel_wants_too_much": (
        1,
        "slurm out and err",
        "titan",
        ["worker_crash", "gpu_app_fault"],
        ONE,
        ["code", "resource"],
    ),
    "no_card_visible": (
        2,
        "torchrun",
        "plain",
        ["worker_crash", "gpu_app_fault"],
        TWO,
        ["code", "infrastructure", "resource"],
    ),
    "no_such_host": (2, "rank files", "plain", ["nccl_bootstrap"], TWO, SHARED),
    "gradients_are_nan": (1, "single", "hf", ["training_divergence"], ONE, ["code", "data", "unknown", "none"]),
    "batches_skipped": (2, "rank files", "plain", [], [[]], ["none"]),
    "attempt_two_succeeds": (2, "torchrun --max-restarts=2 --tee 3", "titan", [], [[]], ["none"]),
    "helpers_complain": (2, "labelled", "deepspeed", [], [[]], ["none"]),
    "finds_a_batch_size": (1, "single", "plain", [], [[]], ["none"]),
    "only_evaluates": (4, "rank files", "plain", [], [[]], ["none"]),
    "two_slow_ranks": (8, "cri", "json", ["straggler"], [[2, 3]], ["none"]),
    "jax_wrong_shapes": (1, "single", "maxtext", ["worker_crash"], ONE, ["code"]),
    "lightning_child_raises": (1, "single", "plain", ["worker_crash"], [[1]], ["code", "data"]),
    "accelerate_raises": (2, "accelerate", "plain", ["worker_crash"], [[1]], ["code", "data"]),
    "fails_in_another_way": (1, "single twice", "plain", ["cuda_oom"], ONE, ["resource"]),
    "fails_then_succeeds": (1, "single twice", "loguru", [], [[]], ["none"]),
}
SCRIPT = "train_round_three.py"
LIMIT = int(os.environ.get("RECORD_SECONDS", "100"))


def launcher(layout: str, ranks: int, port: str, place: Path) -> list[str]:
    if layout == "accelerate":
        return [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", f"--num_processes={ranks}",
                "--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no",
                f"--main_process_port={port}"]  # fmt: skip
    options = layout.replace("LOGS", str(place / "logs")).split()[1:]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={ranks}",
        f"--master-port={port}",
        *options,
    ]


def start(name: str, place: Path, env: dict[str, str]) -> dict[str, subprocess.Popen[bytes]]:
    ranks, layout, style, *_ = SCENARIOS[name]
    script = str(HERE / SCRIPT)
    if name == "no_such_host":
        env = {**env, "MASTER_ADDR": "trainer-0.trainer.default.svc.cluster.local"}
    if layout.startswith(("torchrun", "accelerate")):
        shim = place / "scratch" / "pretrain.py"
        shim.write_text(
            "import os, runpy, sys\nos.environ['NCCL_HOSTID'] = 'h' + os.environ['RANK']\n"
            f"os.environ['LOCAL_RANK'] = '0'\nsys.argv = [{script!r}, {name!r}, {style!r}]\n"
            f"runpy.run_path({script!r}, run_name='__main__')\n"
        )
        child = subprocess.Popen(
            [*launcher(layout, ranks, env["MASTER_PORT"], place), str(shim)],
            stdout=(place / "out.log").open("wb"),
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        return {"0": child}
    children: dict[str, subprocess.Popen[bytes]] = {}
    lock, merged = threading.Lock(), None
    for rank in range(ranks):
        own = {**env, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"h{rank}"}
        if name == "lightning_child_raises":
            for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"):
                own.pop(key)
        out: object = subprocess.PIPE
        err: object = subprocess.STDOUT
        if layout == "rank files":
            out = (place / f"rank{rank}.log").open("ab")
        elif layout.startswith("single"):
            out = (place / "train.log").open("ab")
        elif layout == "out and err":
            out, err = (place / f"rank{rank}.out").open("wb"), (place / f"rank{rank}.err").open("wb")
        elif layout == "slurm out and err":
            out, err = (place / "slurm-70213.out").open("wb"), (place / "slurm-70213.err").open("wb")
        child = subprocess.Popen(
            [sys.executable, script, name, style], stdout=out, stderr=err, env=own, start_new_session=True
        )  # type: ignore[call-overload]
        children[str(rank)] = child
        if layout == "labelled":
            merged = merged or (place / "srun.log").open("wb")
            threading.Thread(target=labelled, args=(child.stdout, merged, lock, rank), daemon=True).start()
        elif layout == "cri":
            pod = (
                place
                / "pods"
                / f"ml_gpt-worker-{rank}_7c1b{rank:04d}-1111-2222-3333-444455556666"
                / "pytorch"
                / "0.log"
            )
            threading.Thread(target=container_lines, args=(child.stdout, pod), daemon=True).start()
    return children


def record(name: str, out: Path, port: int) -> str:
    _, layout, _, roots, culprits, classes = SCENARIOS[name]
    place = out / name
    (place / "fr").mkdir(parents=True, exist_ok=True)
    (place / "scratch").mkdir(parents=True, exist_ok=True)
    env = {**environment(place, port), "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "50"}
    before = kernel_log()
    children = start(name, place, env)
    wait(children, LIMIT)
    if layout.endswith("twice"):
        children = start(name, place, {**env, "MASTER_PORT": str(port + 11)})
        wait(children, LIMIT)
    (place / "exit_codes.json").write_text(json.dumps({rank: child.poll() for rank, child in children.items()}))
    for child in children.values():
        if child.poll() is None:
            end(child.pid)
            child.wait()
    time.sleep(1)
    after = kernel_log()
    fresh = after[len(before) :] if after.startswith(before) else ""
    mine = "\n".join(line for line in fresh.splitlines() if any(f"[{c.pid}]" in line for c in children.values()))
    if mine:
        (place / "dmesg.txt").write_text(mine + "\n")
    subprocess.run(["rm", "-rf", place / "scratch"], check=False)
    if not any((place / "fr").iterdir()):
        (place / "fr").rmdir()
    truth = {
        "scenario": name,
        "root_patterns": roots,
        "culprit_ranks": culprits[0],
        "failure_classes": classes,
        "launcher": layout,
    }
    if len(culprits) > 1:
        truth["culprit_ranks_any"] = culprits
    (place / "truth.json").write_text(json.dumps(truth) + "\n")
    return f"{name}: {json.loads((place / 'exit_codes.json').read_text())}"


def main() -> None:
    out = Path(sys.argv[1])
    names = sys.argv[2:] or list(SCENARIOS)
    with ThreadPoolExecutor(max_workers=int(os.environ.get("RECORD_TOGETHER", "8"))) as pool:
        for line in pool.map(lambda item: record(item[1], out, 25000 + 37 * item[0]), enumerate(names)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
