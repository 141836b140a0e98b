"""Runs scenarios of a training script and keeps each as what a person on call would have.

A table of scenarios says, for each, how many ranks run, in which layout their output is kept, which logger they use,
and the truth: root patterns, culprit ranks and failure classes that are right. A layout is a file per rank, stdout and
stderr apart, one labelled file, container logs, or the output of torchrun or accelerate.
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
from typing import IO, NamedTuple

from record import end, environment, kernel_log

HERE = Path(__file__).resolve().parent
HANG = ["infrastructure", "resource", "unknown"]
CRASH = ["code", "infrastructure", "unknown"]
SHARED = ["infrastructure", "resource"]
ONE = [[], [0]]
TWO = [[], [0], [1], [0, 1]]
FOUR = [[], [0], [1], [2], [3], [0, 1, 2, 3]]
LIMIT = int(os.environ.get("RECORD_SECONDS", "100"))


class Scenario(NamedTuple):
    """A scenario and its truth, written before any answer was seen."""

    ranks: int
    layout: str
    style: str
    roots: list[str | None]  #: None: no cause is also right
    culprits: list[list[int]]  #: the first is expected, the others are also right
    classes: list[str]


#: Changes to the environment of a scenario's processes; None removes a variable.
Environments = dict[str, dict[str, str | None]]


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


def start(
    name: str, scenario: Scenario, script: Path, place: Path, env: dict[str, str], changes: dict[str, str | None]
) -> dict[str, subprocess.Popen[bytes]]:
    layout = scenario.layout
    if layout.startswith(("torchrun", "accelerate")):
        env = changed(env, changes)
        shim = place / "scratch" / "pretrain.py"
        shim.write_text(
            "import os, runpy, sys\nos.environ['NCCL_HOSTID'] = 'h' + os.environ['RANK']\n"
            f"os.environ['LOCAL_RANK'] = '0'\nsys.argv = [{str(script)!r}, {name!r}, {scenario.style!r}]\n"
            f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
        )
        child = subprocess.Popen(
            [*launcher(layout, scenario.ranks, env["MASTER_PORT"], place), str(shim)],
            stdout=(place / "out.log").open("wb"),
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,
        )
        return {"0": child}
    children: dict[str, subprocess.Popen[bytes]] = {}
    lock, merged = threading.Lock(), None
    for rank in range(scenario.ranks):
        own = {
            **env,
            "RANK": str(rank),
            "WORLD_SIZE": str(scenario.ranks),
            "LOCAL_RANK": str(rank),
            "NCCL_HOSTID": f"h{rank}",
        }
        out: object = subprocess.PIPE
        err: object = subprocess.STDOUT
        if layout.startswith("rank files"):
            out = (place / f"rank{rank}.log").open("ab")
        elif layout.startswith("single"):
            out = (place / "train.log").open("ab")
        elif layout == "out and err":
            out, err = (place / f"rank{rank}.out").open("wb"), (place / f"rank{rank}.err").open("wb")
        elif layout == "slurm out and err":
            out, err = (place / "slurm-70213.out").open("wb"), (place / "slurm-70213.err").open("wb")
        elif layout == "slurm task files":
            task = place / f"pretrain-70214_{rank}"
            out, err = task.with_suffix(".out").open("wb"), task.with_suffix(".err").open("wb")
        elif layout == "two jobs":
            folder = place / f"exp-{int(env['JOB']) + 41:03d}"
            folder.mkdir(exist_ok=True)
            out = (folder / f"rank{rank}.log").open("wb")
        child = subprocess.Popen(
            [sys.executable, str(script), name, scenario.style],
            stdout=out,
            stderr=err,
            env=changed(own, changes),
            start_new_session=True,
        )  # type: ignore[call-overload]
        children[str(rank)] = child
        if layout == "labelled":
            merged = merged or (place / "srun.log").open("wb")
            threading.Thread(target=labelled, args=(child.stdout, merged, lock, rank), daemon=True).start()
        elif layout == "cri":
            pod = f"ml_gpt-worker-{rank}_7c1b{rank:04d}-1111-2222-3333-444455556666"
            file = place / "pods" / pod / "pytorch" / "0.log"
            threading.Thread(target=container_lines, args=(child.stdout, file), daemon=True).start()
    return children


def changed(env: dict[str, str], changes: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**env, **changes}.items() if value is not None}


def wait(children: dict[str, subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.time() + seconds
    while time.time() < deadline and any(child.poll() is None for child in children.values()):
        time.sleep(0.5)


def keep_only(place: Path, layout: str) -> None:
    """Drop what the layout says was lost: the logs, the dumps, or all dumps but the first."""
    dumps = sorted((place / "fr").iterdir())
    if layout.endswith("dumps only"):
        lost = [*place.glob("*.log"), place / "exit_codes.json"]
    elif layout.endswith("first dump only"):
        lost = dumps[1:]
    else:
        lost = dumps if layout.endswith("logs only") else []
    for file in lost:
        file.unlink()


def record(
    name: str, scenario: Scenario, script: Path, out: Path, port: int, changes: dict[str, str | None], small: bool
) -> str:
    place = out / name
    (place / "fr").mkdir(parents=True, exist_ok=True)
    (place / "scratch" / "small").mkdir(parents=True, exist_ok=True)
    if small:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place / "scratch/small"], check=True)
    env = {**environment(place, port), "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "50"}
    before = kernel_log()
    if scenario.layout == "two jobs":
        wait(start(name, scenario, script, place, {**env, "JOB": "0", "MASTER_PORT": str(port + 11)}, {}), LIMIT)
    children = start(name, scenario, script, place, {**env, "JOB": "1"}, changes)
    wait(children, LIMIT)
    if scenario.layout.endswith("twice"):
        children = start(name, scenario, script, place, {**env, "MASTER_PORT": str(port + 11)}, changes)
        wait(children, LIMIT)
    statuses = {rank: child.poll() for rank, child in children.items()}
    (place / "exit_codes.json").write_text(json.dumps(statuses))
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
    if small:
        subprocess.run(["umount", place / "scratch/small"], check=False)
    subprocess.run(["rm", "-rf", place / "scratch"], check=False)
    keep_only(place, scenario.layout)
    if not any((place / "fr").iterdir()):
        (place / "fr").rmdir()
    truth = {
        "scenario": name,
        "root_patterns": scenario.roots,
        "culprit_ranks": scenario.culprits[0],
        "failure_classes": scenario.classes,
        "launcher": scenario.layout,
    }
    if len(scenario.culprits) > 1:
        truth["culprit_ranks_any"] = scenario.culprits
    (place / "truth.json").write_text(json.dumps(truth) + "\n")
    return f"{name}: {statuses}"


def main(
    script: str,
    scenarios: dict[str, Scenario],
    environments: Environments | None = None,
    small_disk: tuple[str, ...] = (),
) -> None:
    """Record the scenarios named on the command line (`OUT_DIR [SCENARIO …]`), or all of them."""
    out = Path(sys.argv[1])
    names = sys.argv[2:] or list(scenarios)

    def one(item: tuple[int, str]) -> str:
        number, name = item
        changes = (environments or {}).get(name, {})
        port = 25000 + 37 * number
        return record(name, scenarios[name], HERE / script, out, port, changes, name in small_disk)

    with ThreadPoolExecutor(max_workers=int(os.environ.get("RECORD_TOGETHER", "8"))) as pool:
        for result in pool.map(one, enumerate(names)):
            print(result, flush=True)
