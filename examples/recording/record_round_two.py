"""Records train_round_two.py's scenarios on a machine with one NVIDIA GPU.

    python record_round_two.py OUT_DIR [SCENARIO …]

The truths below were written before any answer was seen. A layout says what a person on call would have: a file per
rank, stdout and stderr apart, one labelled file, container logs, or torchrun's own output.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from record import end, environment, kernel_log

HERE = Path(__file__).resolve().parent
HANG = ["infrastructure", "resource", "unknown"]
#: scenario: (ranks, layout, style, root patterns, culprit ranks (or lists of acceptable ones), failure classes)
SCENARIOS: dict[str, tuple[int, str, str, list[str], list[list[int]], list[str]]] = {
    "mesh_gpu_stops": (8, "rank files", "megatron", ["nccl_hang"], [[5]], HANG),
    "pipeline_downloads": (
        4,
        "rank files",
        "logging",
        ["nccl_hang", "storage_failure", "dataloader_hang"],
        [[2]],
        HANG,
    ),
    "sharded_stopped": (8, "cri", "keyvalue", ["nccl_hang"], [[6]], HANG),
    "one_rank_evaluates": (4, "labelled", "nanogpt", ["nccl_hang"], [[3]], [*HANG, "code"]),
    "even_ranks_wait": (8, "rank files", "json", ["nccl_hang"], [[4]], HANG),
    "one_reduces_twice": (4, "rank files", "logging", ["collective_mismatch"], [[1]], ["code"]),
    "types_differ": (4, "torchrun", "keyvalue", ["collective_mismatch"], [[2]], ["code"]),
    "dtensor_stuck": (4, "rank files", "megatron", ["nccl_hang"], [[1]], HANG),
    "dtensor_well": (4, "rank files", "megatron", [], [[]], ["none"]),
    "experts_disagree": (
        4,
        "rank files",
        "keyvalue",
        ["collective_mismatch", "nccl_hang"],
        [[2], [1, 2], [1]],
        ["code", *HANG],
    ),
    "barrier_is_monitored": (4, "rank files", "logging", ["nccl_hang"], [[2]], HANG),
    "slow_to_start": (3, "rank files", "logging", ["nccl_bootstrap"], [[1]], ["infrastructure", "resource"]),
    "missing_setting": (4, "torchrun", "logging", ["worker_crash"], [[0], [1], [2], [3], [0, 1, 2, 3], []], ["code"]),
    "not_positive": (4, "out and err", "logging", ["worker_crash"], [[2]], ["code", "data"]),
    "wrong_checkpoint": (1, "slurm out and err", "logging", ["worker_crash"], [[], [0]], ["code", "data"]),
    "harmless_finalizer": (2, "rank files", "logging", [], [[]], ["none"]),
    "caught_and_logged": (2, "torchrun", "json", [], [[]], ["none"]),
    "thrown_in_a_thread": (4, "torchrun", "keyvalue", ["worker_crash"], [[1]], ["code", "infrastructure", "unknown"]),
    "aborts": (4, "torchrun", "nanogpt", ["worker_crash"], [[3]], ["code", "infrastructure", "unknown"]),
    "lightning_raises": (1, "slurm out and err", "logging", ["worker_crash"], [[], [0]], ["code"]),
    "trainer_bad_labels": (1, "single", "logging", ["worker_crash"], [[], [0]], ["code", "data"]),
    "memory_wrapped": (1, "single", "json", ["cuda_oom"], [[], [0]], ["resource"]),
    "label_out_of_range": (4, "torchrun", "logging", ["gpu_app_fault", "worker_crash"], [[2]], ["code", "data"]),
    "lambda_in_loader": (1, "single", "logging", ["worker_crash"], [[], [0]], ["code"]),
    "loader_worker_killed": (
        4,
        "rank files",
        "logging",
        ["worker_crash", "dataloader_hang"],
        [[1]],
        ["infrastructure", "unknown"],
    ),
    "sharded_save_full": (4, "labelled", "keyvalue", ["storage_failure"], [[2]], ["resource"]),
    "stream_writer_full": (1, "single", "nanogpt", ["storage_failure"], [[], [0]], ["resource"]),
    "anomaly": (1, "out and err", "logging", ["training_divergence", "worker_crash"], [[], [0]], ["code", "data"]),
    "runs_away": (2, "rank files", "megatron", ["training_divergence"], [[]], ["code", "data", "unknown", "none"]),
    "slow_loader_rank": (8, "cri", "keyvalue", ["straggler"], [[5]], ["none"]),
    "jax_memory": (1, "single", "logging", ["cuda_oom"], [[], [0]], ["resource"]),
    "jax_peer_dies": (
        2,
        "rank files",
        "logging",
        ["worker_crash", "host_lost", "nccl_hang"],
        [[1]],
        ["infrastructure"],
    ),
    "killed_with_chatter": (4, "rank files", "keyvalue", ["worker_crash"], [[1]], ["infrastructure"]),
    "well_with_chatter": (4, "labelled", "logging", [], [[]], ["none"]),
    "backward_hook": (4, "labelled", "logging", ["worker_crash"], [[2]], ["code"]),
    "pinned_collate": (1, "cri", "json", ["worker_crash"], [[], [0]], ["code", "data"]),
    "large_file": (
        1,
        "slurm out and err",
        "keyvalue",
        ["storage_failure", "worker_crash"],
        [[], [0]],
        ["resource", "code"],
    ),
    "resumes_after_preemption": (2, "twice", "keyvalue", [], [[]], ["none"]),
    "compiles_and_pauses": (4, "rank files", "json", [], [[]], ["none"]),
    "first_leaves_quietly": (4, "rank files", "nanogpt", ["nccl_hang", "worker_crash"], [[0]], [*HANG, "code"]),
    "cublas_has_no_room": (1, "single", "keyvalue", ["cuda_oom", "gpu_app_fault"], [[], [0]], ["resource"]),
}
SMALL_DISK = ("sharded_save_full", "stream_writer_full")
LIMIT = int(os.environ.get("RECORD_SECONDS", "70"))


def container_lines(pipe: IO[bytes], out: Path) -> None:
    """Write lines as containerd does."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("wb") as file:
        for line in pipe:
            now = datetime.datetime.now(datetime.UTC)
            stamp = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond * 1000:09d}Z"
            flag = b"F" if line.endswith(b"\n") else b"P"
            file.write(stamp.encode() + b" stdout " + flag + b" " + line.rstrip(b"\n") + b"\n")
            file.flush()


def labelled(pipe: IO[bytes], file: IO[bytes], lock: threading.Lock, rank: int) -> None:
    for line in pipe:
        with lock:
            file.write(f"{rank}: ".encode() + line)
            file.flush()


def start(name: str, place: Path, env: dict[str, str]) -> dict[str, subprocess.Popen[bytes]]:
    ranks, layout, style, *_ = SCENARIOS[name]
    script = str(HERE / "train_round_two.py")
    children: dict[str, subprocess.Popen[bytes]] = {}
    if "chatter" in name:
        env = {**env, "NCCL_DEBUG": "INFO"}
    if layout == "torchrun":
        shim = place / "scratch" / "shim.py"
        shim.write_text(
            "import os, runpy, sys\nos.environ['NCCL_HOSTID'] = 'h' + os.environ['RANK']\n"
            "os.environ['LOCAL_RANK'] = '0'\n"
            f"sys.argv = [{script!r}, {name!r}, {style!r}]\nrunpy.run_path({script!r}, run_name='__main__')\n"
        )
        port = env["MASTER_PORT"]
        launch = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={port}"]
        children["0"] = subprocess.Popen(
            [*launch, str(shim)],
            stdout=(place / "out.log").open("wb"),
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        return children
    lock, merged = threading.Lock(), None
    for rank in range(ranks):
        own = {**env, "RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"h{rank}"}
        out: object = subprocess.PIPE
        err: object = subprocess.STDOUT
        if layout in ("rank files", "twice"):
            out = (place / f"rank{rank}.log").open("ab")
        elif layout == "single":
            out = (place / "train.log").open("wb")
        elif layout == "out and err":
            out, err = (place / f"rank{rank}.out").open("wb"), (place / f"rank{rank}.err").open("wb")
        elif layout == "slurm out and err":
            out, err = (place / "slurm-48151.out").open("wb"), (place / "slurm-48151.err").open("wb")
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
                / f"team-nlp_pretrain-worker-{rank}_0f3a{rank:04d}-1111-2222-3333-444455556666"
                / "trainer"
                / "0.log"
            )
            threading.Thread(target=container_lines, args=(child.stdout, pod), daemon=True).start()
    return children


def wait(children: dict[str, subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.time() + seconds
    while time.time() < deadline and any(child.poll() is None for child in children.values()):
        time.sleep(0.5)


def record(name: str, out: Path, port: int) -> str:
    _, layout, _, roots, culprits, classes = SCENARIOS[name]
    place = out / name
    (place / "fr").mkdir(parents=True, exist_ok=True)
    (place / "scratch" / "small").mkdir(parents=True, exist_ok=True)
    if name in SMALL_DISK:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place / "scratch/small"], check=True)
    env = {**environment(place, port), "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "60"}
    before = kernel_log()
    children = start(name, place, env)
    wait(children, LIMIT)
    if layout == "twice":
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
    if fresh.strip():
        (place / "dmesg.txt").write_text(fresh)
    if name in SMALL_DISK:
        subprocess.run(["umount", place / "scratch/small"], check=False)
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
    with ThreadPoolExecutor(max_workers=int(os.environ.get("RECORD_TOGETHER", "6"))) as pool:
        for line in pool.map(lambda item: record(item[1], out, 25000 + 37 * item[0]), enumerate(names)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
