"""Records train_round_fifteen.py on a machine with one NVIDIA GPU: `record_round_fifteen.py OUT_DIR [SCENARIO …]`.

Beside the layouts of recorder.py there are those of mpirun, `kubectl logs`, Docker, journald, fluentd, files in folders
of nodes and Slurm with stdout and stderr apart. A job runs in a folder with a neutral name, under a program name of its
framework, so that paths in its output say nothing about the scenario. Signals come from here, when the job asks.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from record import end, environment, kernel_log
from recorder import CRASH, FOUR, HANG, Environments, Scenario, changed

HERE = Path(__file__).resolve().parent
ROOT = Path(os.environ.get("RECORD_ROOT", "/data"))
LIMIT = int(os.environ.get("RECORD_SECONDS", "85"))
LAST_START = time.time() + int(os.environ.get("RECORD_LAST_START", "430"))
RAISED = ["worker_crash"]
STORED = ["worker_crash", "storage_failure"]
FAULT = ["gpu_app_fault", "worker_crash"]
HUNG = ["nccl_hang"]
DIFFER = ["collective_mismatch", "nccl_hang"]
STUCK = [*HANG, "code"]
LOST = ["none", "infrastructure", "unknown"]
SCENARIOS = {
    # hangs come first: they take longest
    "own_watchdog_ends_the_job": Scenario(4, "labelled", "mmengine", [*HUNG, *RAISED, "dataloader_hang"], [[2]], STUCK),
    "pattern_never_matches": Scenario(4, "rank files", "timm", HUNG, [[1]], STUCK),
    "pool_waits_for_itself": Scenario(4, "cri", "logfmt", HUNG, [[2]], STUCK),
    "loader_forks_while_a_lock_is_held": Scenario(4, "docker", "nemo", [*HUNG, "dataloader_hang"], [[3]], STUCK),
    "first_maps_the_corpus": Scenario(4, "kubectl", "tqdm", HUNG, [[0]], STUCK),
    "upload_is_never_read": Scenario(4, "nodes", "fairseq", ["checkpointer_hang", *HUNG], [[0]], HANG),
    "card_spins_on_a_lock": Scenario(4, "mpirun", "absl", HUNG, [[3]], STUCK),
    "member_of_a_mesh_is_paused": Scenario(8, "fluent", "olmo", HUNG, [[6]], HANG),
    "last_batch_is_smaller_for_one_stage": Scenario(
        4, "out and err", "mmengine", DIFFER, [[1, 2], [1], [2]], [*STUCK, "data"]
    ),
    "epoch_of_one_is_shorter": Scenario(4, "slurm task files", "rich", HUNG, [[1]], [*STUCK, "data"]),
    "two_miss_the_barrier": Scenario(4, "pod files", "d2", HUNG, [[1, 3]], HANG),
    "splits_of_the_exchange_disagree": Scenario(4, "labelled", "verl", DIFFER, [[1], [1, 3], [3]], STUCK),
    "no_tokens_no_exchange": Scenario(8, "nodes", "structlog", [*HUNG, "collective_mismatch"], [[7]], STUCK),
    "another_backend_on_one": Scenario(4, "rank files", "letter", ["nccl_bootstrap", *RAISED], [[2]], STUCK),
    "second_node_does_not_come": Scenario(
        4,
        "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:PORT --rdzv-id=5521"
        " --rdzv-conf=join_timeout=25,last_call_timeout=5",
        "nemo",
        ["nccl_bootstrap"],
        [[], [0], [0, 1, 2, 3]],
        HANG,
    ),
    "port_belongs_to_another_service": Scenario(4, "srun apart", "olmo", ["nccl_bootstrap", *RAISED], [[3]], STUCK),
    "one_of_eight_steps_slowly": Scenario(8, "cri", "structlog", ["straggler"], [[3]], ["none"]),
    # crashes
    "recording_has_no_header": Scenario(4, "mpirun", "fairseq", STORED, [[2]], ["data", "code"]),
    "heads_do_not_divide": Scenario(4, "srun apart", "nemo", RAISED, FOUR, ["code"]),
    "widths_of_stages_differ": Scenario(4, "nodes", "olmo", RAISED, [[2]], ["code"]),
    "optimizer_mixes_plain_and_sharded": Scenario(4, "torchrun", "letter", RAISED, FOUR, ["code"]),
    "virtual_call_on_nothing": Scenario(4, "journal", "absl", RAISED, [[2]], CRASH),
    "interpreter_without_its_lock": Scenario(4, "kubectl", "structlog", RAISED, [[3]], CRASH),
    "clips_of_a_batch_differ_in_length": Scenario(4, "cri", "mmengine", RAISED, FOUR, ["code", "data"]),
    "shared_memory_is_too_small": Scenario(
        4, "cri", "mmengine", [*STORED, "dataloader_hang"], [[1]], ["resource", "infrastructure", "code"]
    ),
    "transport_has_no_shared_memory": Scenario(
        4, "cri", "mmengine", [*STORED, "nccl_bootstrap"], [[1]], ["resource", "infrastructure"]
    ),
    "cached_shards_fill_the_cgroup": Scenario(
        4, "docker", "logfmt", ["host_oom"], [[2]], ["infrastructure", "resource"]
    ),
    "scores_of_long_rows_do_not_fit": Scenario(4, "fluent", "structlog", ["cuda_oom"], [[1]], ["resource"]),
    "sort_on_the_card_has_no_room": Scenario(4, "nodes", "verl", ["cuda_oom"], [[2]], ["resource"]),
    "segments_expand_no_further": Scenario(4, "torchrun", "timm", ["cuda_oom"], [[3]], ["resource"]),
    "router_scatters_out_of_range": Scenario(4, "kubectl", "nemo", FAULT, [[3]], ["code", "data", "resource"]),
    "assertion_in_a_triton_kernel": Scenario(4, "torchrun --tee 3", "d2", FAULT, [[1]], ["code", "data", "resource"]),
    "block_is_too_large": Scenario(4, "labelled", "mmengine", [*RAISED, "gpu_app_fault"], [[0]], ["code"]),
    "host_compiler_is_missing": Scenario(4, "slurm task files", "rich", RAISED, FOUR, ["code", "infrastructure"]),
    "lengths_recompile_too_often": Scenario(4, "out and err", "torchtune", RAISED, [[0]], ["code"]),
    "weights_meet_a_full_disk": Scenario(4, "docker", "lightning", ["storage_failure"], [[0]], ["resource"]),
    "array_is_written_in_part": Scenario(
        4, "journal", "logfmt", ["storage_failure", *RAISED], [[1]], ["resource", "infrastructure"]
    ),
    "user_may_not_write": Scenario(4, "mpirun", "timm", STORED, [[0]], ["code", "infrastructure", "resource"]),
    "piece_of_the_checkpoint_is_cut": Scenario(
        4, "torchrun", "olmo", STORED, [[2], [], [0, 1, 2, 3]], ["data", "code", "infrastructure"]
    ),
    "names_of_weights_have_a_prefix": Scenario(4, "pod files", "rich", RAISED, FOUR, ["code", "data"]),
    "first_of_eight_is_killed": Scenario(8, "nodes", "letter", RAISED, [[0]], ["infrastructure"]),
    "told_to_stop_under_the_launcher": Scenario(4, "torchrun", "rich", ["planned_stop"], [[]], LOST),
    "everybody_is_interrupted": Scenario(4, "srun apart", "tqdm", ["planned_stop"], [[], [0, 1, 2, 3]], LOST),
    "terminal_was_closed": Scenario(1, "single", "wikitext", ["planned_stop", *RAISED], [[], [0]], LOST),
    "precision_of_the_shards_differs": Scenario(
        4, "journal", "absl", ["training_divergence"], [[], [2], [0, 1, 3]], ["code", "data", "unknown", "none"]
    ),
    "bar_says_nan": Scenario(
        2, "srun apart", "tqdm", ["training_divergence"], [[], [0], [0, 1]], ["code", "data", "unknown", "none"]
    ),
    "stops_because_the_loss_is_nan": Scenario(
        4, "torchrun", "d2", ["training_divergence", *RAISED], FOUR, ["code", "data", "unknown"]
    ),
    # nothing failed
    "libraries_are_talkative": Scenario(2, "mpirun", "fairseq", [], [[]], ["none"]),
    "prints_the_state_of_the_card": Scenario(2, "journal", "letter", [], [[]], ["none"]),
    "skips_batches_without_room": Scenario(2, "docker", "fairseq", [], [[]], ["none"]),
    "loader_is_started_again": Scenario(2, "kubectl", "nemo", [], [[]], ["none"]),
    "read_only_cache_is_replaced": Scenario(2, "rank files", "rich", [], [[]], ["none"]),
    "peer_is_silent_for_a_while": Scenario(4, "pod files", "olmo", [], [[]], ["none"]),
    "no_validation_yet": Scenario(1, "single", "lightning", [], [[]], ["none"]),
    "kernel_variants_are_refused": Scenario(2, "cri", "absl", [], [[]], ["none"]),
    "master_is_late": Scenario(2, "out and err", "d2", [], [[]], ["none"]),
    "stops_its_helper": Scenario(2, "torchrun", "verl", [], [[]], ["none"]),
}
ENVIRONMENTS: Environments = {
    "host_compiler_is_missing": {"CXX": "/opt/gcc-13/bin/g++"},
    "segments_expand_no_further": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "assertion_in_a_triton_kernel": {"TRITON_DEBUG": "1"},
    "master_is_late": {"TORCH_CPP_LOG_LEVEL": "INFO"},
    "libraries_are_talkative": {"NCCL_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "INFO"},
}
SMALL_DISK = ("weights_meet_a_full_disk", "array_is_written_in_part")
#: What a rank's command begins with.
BEFORE = {
    (name, 1): ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"', "sh"]
    for name, size in (("shared_memory_is_too_small", "120m"), ("transport_has_no_shared_memory", "24m"))
}
PROGRAMS = {
    "nemo": "megatron_gpt_pretraining.py",
    "verl": "main_ppo.py",
    "lightning": "fit.py",
    "d2": "train_net.py",
    "tqdm": "finetune.py",
    "structlog": "trainer.py",
    "olmo": "run_olmo.py",
    "wikitext": "main.py",
    "torchtune": "full_finetune_distributed.py",
    "absl": "train_lm.py",
    "letter": "pretrain.py",
}


# --- layouts ----------------------------------------------------------------------------------------------------------
Line = Callable[[int, int, str, bytes], bytes]


def utc() -> str:
    now = datetime.datetime.now(datetime.UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond * 1000:09d}Z"


def plain(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    return line


def srun_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    return f"{rank}: ".encode() + line


def mpirun_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    return f"[1,{rank}]<{stream}>:".encode() + line


def kubectl_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    return f"[pod/gpt-worker-{rank}/pytorch] ".encode() + line


def journal_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    return f"{datetime.datetime.now():%b %d %H:%M:%S} gpu-node-3 trainer-{rank}[{pid}]: ".encode() + line


def cri_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    flag = "F" if line.endswith(b"\n") else "P"
    return f"{utc()} {stream} {flag} ".encode() + line.rstrip(b"\n") + b"\n"


def docker_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    row = {"log": line.decode(errors="replace"), "stream": stream, "attrs": {"tag": f"trainer-{rank}"}, "time": utc()}
    return json.dumps(row, ensure_ascii=False).encode() + b"\n"


def fluent_line(rank: int, pid: int, stream: str, line: bytes) -> bytes:
    pod = {"namespace_name": "ml", "pod_name": f"gpt-worker-{rank}", "container_name": "pytorch"}
    text = line.decode(errors="replace").rstrip("\n")
    return json.dumps({"@timestamp": utc(), "log": text, "stream": stream, "kubernetes": pod}).encode() + b"\n"


def files_of(layout: str, rank: int) -> tuple[str, str, Line]:
    """Return the file of stdout, the file of stderr, and how a line is written there."""
    container = hashlib.sha256(f"trainer-{rank}".encode()).hexdigest()
    pod = f"pods/ml_gpt-worker-{rank}_91c2{rank:04d}-1111-2222-3333-444455556666/pytorch/0.log"
    return {
        "rank files": (f"rank{rank}.log", f"rank{rank}.log", plain),
        "pod files": (f"gpt-worker-{rank}.log", f"gpt-worker-{rank}.log", plain),
        "single": ("train.log", "train.log", plain),
        "out and err": (f"rank{rank}.out", f"rank{rank}.err", plain),
        "slurm task files": (f"pretrain-81990_{rank}.out", f"pretrain-81990_{rank}.err", plain),
        "nodes": (f"node-{rank // 2}/rank{rank}/stdout.log", f"node-{rank // 2}/rank{rank}/stderr.log", plain),
        "labelled": ("srun.log", "srun.log", srun_line),
        "srun apart": ("train-81990.out", "train-81990.err", srun_line),
        "mpirun": ("mpirun.log", "mpirun.log", mpirun_line),
        "kubectl": ("gpt-worker.log", "gpt-worker.log", kubectl_line),
        "journal": ("journal.log", "journal.log", journal_line),
        "docker": (f"containers/{container}/{container}-json.log",) * 2 + (docker_line,),
        "fluent": ("gpt-worker.jsonl", "gpt-worker.jsonl", fluent_line),
        "cri": (pod, pod, cri_line),
    }[layout]


class Files:
    """The files of one job; lines of several pipes do not mix."""

    def __init__(self, place: Path) -> None:
        self.place, self.lock, self.open = place, threading.Lock(), dict[str, IO[bytes]]()

    def copy(self, pipe: IO[bytes], name: str, form: Callable[[bytes], bytes]) -> None:
        for line in pipe:
            with self.lock:
                if name not in self.open:
                    (self.place / name).parent.mkdir(parents=True, exist_ok=True)
                    self.open[name] = (self.place / name).open("wb")
                self.open[name].write(form(line))
                self.open[name].flush()


# --- running ----------------------------------------------------------------------------------------------------------
def start_ranks(
    name: str, scenario: Scenario, program: Path, place: Path, env: dict[str, str], readers: list[threading.Thread]
) -> dict[str, subprocess.Popen[bytes]]:
    children: dict[str, subprocess.Popen[bytes]] = {}
    files = Files(place)
    if scenario.layout.startswith("torchrun"):
        options = scenario.layout.replace("PORT", env["MASTER_PORT"]).split()[1:]
        if not any("rdzv" in option for option in options):
            options.append(f"--master-port={env['MASTER_PORT']}")
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={scenario.ranks}", *options]
        with (place / "out.log").open("wb") as out:
            children["0"] = subprocess.Popen(
                [*command, str(program)], stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True
            )
        return children
    for rank in range(scenario.ranks):
        own = {"RANK": str(rank), "WORLD_SIZE": str(scenario.ranks), "LOCAL_RANK": str(rank)}
        out_name, err_name, form = files_of(scenario.layout, rank)
        together = out_name == err_name and scenario.layout in (
            "rank files",
            "pod files",
            "single",
            "journal",
            "labelled",
        )
        child = subprocess.Popen(
            [*BEFORE.get((name, rank), []), sys.executable, str(program)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if together else subprocess.PIPE,
            env={**env, **own},
            start_new_session=True,
        )
        children[str(rank)] = child
        for stream, pipe, file in (("stdout", child.stdout, out_name), ("stderr", child.stderr, err_name)):
            if pipe is not None:
                written = lambda line, f=form, r=rank, p=child.pid, s=stream: f(r, p, s, line)  # noqa: E731
                reader = threading.Thread(target=files.copy, args=(pipe, file, written), daemon=True)
                reader.start()
                readers.append(reader)
    return children


def send(request: str, children: dict[str, subprocess.Popen[bytes]]) -> None:
    """Send the signal that the job asked for; `PAUSE` stops a process for nine seconds."""
    what, whom = request.split()
    pause = what == "PAUSE"
    number = signal.SIGSTOP if pause else getattr(signal, f"SIG{what}")
    chosen = list(children.values()) if whom in ("all", "launcher") else [children[whom]]
    for child in chosen:
        child.send_signal(number)
    if pause:
        threading.Timer(9, lambda: [child.send_signal(signal.SIGCONT) for child in chosen]).start()


def wait(children: dict[str, subprocess.Popen[bytes]], asked: Path) -> None:
    deadline, done = time.time() + LIMIT, 0
    while time.time() < deadline and any(child.poll() is None for child in children.values()):
        requests = asked.read_text().splitlines() if asked.exists() else []
        for request in requests[done:]:
            send(request, children)
        done = len(requests)
        time.sleep(0.2)


def lines_of(kernel: str, processes: set[str]) -> str:
    """Return the kernel's lines about these processes, with whole reports of the killer of processes."""
    kept: list[str] = []
    block: list[str] = []
    for line in kernel.splitlines():
        if "invoked oom-killer" in line:
            block = []
        block.append(line)
        found = re.search(r"Killed process (\d+)", line) or re.search(r"pid=(\d+), name=|\w\[(\d+)\]: ", line)
        if found and (found[1] or found[2]) in processes:
            kept += block if "Killed process" in line else [line]
    return "".join(f"{line}\n" for line in kept)


def record(name: str, scenario: Scenario, out: Path, number: int) -> str:
    if time.time() > LAST_START:
        return f"{name}: not started"
    place = ROOT / f"run-{4100 + number}"
    shutil.rmtree(place, ignore_errors=True)
    (place / "fr").mkdir(parents=True)
    scratch = ROOT / f"exp-{4100 + number}"
    (scratch / "small").mkdir(parents=True, exist_ok=True)
    if name in SMALL_DISK:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", scratch / "small"], check=True)
    program = ROOT / f"code-{4100 + number}" / PROGRAMS.get(scenario.style, "train.py")
    program.parent.mkdir(exist_ok=True)
    shutil.copy(HERE / "train_round_fifteen.py", program)
    cache = Path(f"/dev/shm/shards-{4100 + number}")
    env = {
        **environment(place, 26000 + 37 * number),
        "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "40",
        "SCRATCH": str(scratch),
        "JOB_KIND": name,
        "JOB_STYLE": scenario.style,
        "JOB_CACHE": str(cache),
    }
    env = changed(env, {"PYTHONPATH": None, **ENVIRONMENTS.get(name, {})})
    before = kernel_log()
    readers: list[threading.Thread] = []
    children = start_ranks(name, scenario, program, place, env, readers)
    wait(children, scratch / "ask")
    statuses = {rank: child.poll() for rank, child in children.items()}
    (place / "exit_codes.json").write_text(json.dumps(statuses))
    alive = [child for child in children.values() if child.poll() is None]
    for child in alive:  # all at once, or the last ones write about the end of the first ones
        child.send_signal(signal.SIGSTOP)
    for child in alive:
        end(child.pid)
        child.wait()
    for reader in readers:
        reader.join(3)
    time.sleep(1)
    processes = {file.name for file in (scratch / "pids").glob("*")} | {str(c.pid) for c in children.values()}
    after = kernel_log()
    mine = lines_of(after[len(before) :] if after.startswith(before) else after, processes)
    if mine:
        (place / "dmesg.txt").write_text(mine)
    if name in SMALL_DISK:
        subprocess.run(["umount", scratch / "small"], check=False)
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.rmtree(cache, ignore_errors=True)
    if not any((place / "fr").iterdir()):
        (place / "fr").rmdir()
    shutil.move(place, out / name)
    write_truth(name, scenario, out)
    return f"{name}: {statuses}"


def write_truth(name: str, scenario: Scenario, out: Path) -> None:
    truth = {
        "scenario": name,
        "root_patterns": scenario.roots,
        "culprit_ranks": scenario.culprits[0],
        "failure_classes": scenario.classes,
        "launcher": scenario.layout,
    }
    if len(scenario.culprits) > 1:
        truth["culprit_ranks_any"] = scenario.culprits
    (out / name / "truth.json").write_text(json.dumps(truth) + "\n")


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    names = sys.argv[2:] or list(SCENARIOS)
    numbers = {name: number for number, name in enumerate(SCENARIOS)}

    def one(name: str) -> str:
        began = time.time()
        try:
            result = record(name, SCENARIOS[name], out, numbers[name])
        except Exception as error:  # one scenario must not end the others
            result = f"{name}: not recorded, {error!r}"
        print(f"{result} ({time.time() - began:.0f} s)", flush=True)
        return result

    with ThreadPoolExecutor(max_workers=int(os.environ.get("RECORD_TOGETHER", "12"))) as pool:
        list(pool.map(one, names))


if __name__ == "__main__":
    main()
