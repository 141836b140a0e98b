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
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def kernel_log() -> str:
    return subprocess.run(["dmesg"], capture_output=True, text=True, check=False).stdout


def record(name: str, out: Path, port: int) -> str:
    ranks, launcher, roots, culprits, classes = SCENARIOS[name]
    place = out / name
    (place / "fr").mkdir(parents=True, exist_ok=True)
    (place / "scratch" / "small").mkdir(parents=True, exist_ok=True)
    if name == "checkpoint_full":
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place / "scratch/small"], check=True)
    if name == "read_only":
        (place / "scratch" / "ro").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=8m", "tmpfs", place / "scratch/ro"], check=True)
    env = environment(place, port)
    before = kernel_log()
    script = str(HERE / "train.py")
    children: dict[str, subprocess.Popen[bytes]] = {}
    if launcher == "torchrun":
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
        children["0"] = subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}",
             f"--master-port={port}", str(place / "scratch" / "shim.py")],
            stdout=(place / "out.log").open("wb"), stderr=subprocess.STDOUT, env=env, start_new_session=True,
        )  # fmt: skip
    else:
        for rank in range(ranks):
            log = place / (f"rank{rank}.log" if ranks > 1 else "out.log")
            own = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "NCCL_HOSTID": f"h{rank}"}
            children[str(rank)] = subprocess.Popen(
                [sys.executable, script, name], stdout=log.open("wb"), stderr=subprocess.STDOUT, env={**env, **own},
                start_new_session=True,
            )  # fmt: skip
    if name == "preempted":
        time.sleep(22)
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
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    after = kernel_log()
    fresh = after[len(before) :] if after.startswith(before) else after
    if fresh.strip():
        (place / "dmesg.txt").write_text(fresh)
    if name == "checkpoint_full":
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
    names = sys.argv[2:] or list(SCENARIOS)
    with ThreadPoolExecutor(max_workers=5) as pool:
        for line in pool.map(lambda item: record(item[1], out, 23000 + 37 * item[0]), enumerate(names)):
            print(line, flush=True)


if __name__ == "__main__":
    main()
