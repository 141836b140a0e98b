"""Shared parts of the recorded training scripts: the rank's identity, steps, and loggers of several frameworks.

A script imports what it needs and ends with `run(globals())`. It is started as

    RANK=… WORLD_SIZE=… python SCRIPT SCENARIO STYLE
"""

from __future__ import annotations

import ctypes
import datetime
import json
import logging
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

SCENARIO = sys.argv[1]
STYLE = sys.argv[2] if len(sys.argv) > 2 else "plain"
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
SCRATCH = os.environ.get("SCRATCH", "/tmp")
TIMEOUT = datetime.timedelta(seconds=15)
LOG_FORMATS = (
    "%(asctime)s | %(levelname)-8s | %(name)s:%(funcName)s:%(lineno)d - %(message)s",
    "%(asctime)s [%(levelname)s] %(name)s: %(message)s",
)
logging.basicConfig(format=LOG_FORMATS[len(SCENARIO) % 2], level=logging.INFO, stream=sys.stdout)
log = logging.getLogger("pretrain")
loss_now = 9.0


def line(number: int, seconds: float, loss: float, more: dict[str, float]) -> str:
    """Return one step as this scenario's framework prints it."""
    now = datetime.datetime.now()
    clock = f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}"
    match STYLE:
        case "titan":
            return (
                f"[rank{RANK}]:[titan] {clock} - root - INFO - step: {number:2d}  loss: {loss:7.4f}"
                f"  grad_norm:  1.2031  memory:  3.01GiB(2.17%)  tps: {int(4096 / seconds):,}"
                "  tflops: 11.20  mfu: 1.13%"
            )
        case "deepspeed":
            return (
                f"[{clock}] [INFO] [logging.py:128:log_dist] [Rank {RANK}]"
                f" step={number}, skipped=0, lr=[0.0001], mom=[(0.9, 0.999)]\n"
                f"steps: {number} loss: {loss:.4f} iter time (s): {seconds:.3f} samples/sec: {32 / seconds:.3f}"
            )
        case "hf":
            row = {"loss": round(loss, 4), "grad_norm": 1.7, "learning_rate": 4.9e-05, "epoch": number / 100, **more}
            return str(row)
        case "maxtext":
            return (
                f"I{now:%m%d %H:%M:%S}.{now.microsecond:06d} {os.getpid()} metric_logger.py:118] completed step:"
                f" {number}, seconds: {seconds:.3f}, TFLOP/s/device: 41.213, Tokens/s/device: {4096 / seconds:.3f},"
                f" total_weights: 65536, loss: {loss:.3f}"
            )
        case "megatron":
            return (
                f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {number:8d}/    1000 | consumed samples:"
                f" {number * 32:12d} | elapsed time per iteration (ms): {seconds * 1e3:.1f} |"
                f" learning rate: 1.5E-04 | global batch size:    32 | lm loss: {loss:.6E} | loss scale: 1.0 |"
                " grad norm: 0.842 | number of skipped iterations:   0 | number of nan iterations:   0 |"
            )
        case "loguru":
            return (
                f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 1000:03d} | INFO     | __main__:train:142 -"
                f" step {number}/2000 | loss {loss:.4f} | dt {seconds * 1e3:.1f}ms"
            )
        case "json":
            row = {"time": now.isoformat(), "severity": "INFO", "rank": RANK, "message": f"step {number}",
                   "train/loss": round(loss, 4), "train/step_time": round(seconds, 4)}  # fmt: skip
            return json.dumps(row)
        case "json with iter_s":
            at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            row = {"ts": at, "level": "info", "rank": RANK, "step": number,
                   "loss": round(loss, 4), "iter_s": round(seconds, 4)}  # fmt: skip
            return json.dumps(row)
        case "nanogpt":
            return f"iter {number}: loss {loss:.4f}, time {seconds * 1e3:.2f}ms, mfu 31.20%"
        case "bare":
            return f"epoch 0 batch {number} loss {loss:.4f}"
        case _:
            return f"rank {RANK} step {number} loss {loss:.4f} time {seconds:.3f}"


def report(number: int, seconds: float, loss: float, **more: float) -> None:
    """Print one step; `plain` and `logging` go through the program's logger."""
    if STYLE == "plain":
        log.info("step %d | loss %.4f | step_time %.3f s", number, loss, seconds)
    elif STYLE == "logging":
        log.info("step=%d loss=%.4f step_time=%.3fs lr=3.0e-04", number, loss, seconds)
    else:
        print(line(number, seconds, loss, more), flush=True)


def start(backend: str = "nccl", timeout: datetime.timedelta = TIMEOUT) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(backend, timeout=timeout)


def step(number: int, group: dist.ProcessGroup | None = None, work: float = 0.15, size: int = 4096) -> None:
    global loss_now
    began = time.time()
    time.sleep(work * random.uniform(0.9, 1.1))
    rows = torch.ones(size, device="cpu" if dist.get_backend() == "gloo" else "cuda")
    dist.all_reduce(rows, group=group)
    torch.cuda.synchronize()
    loss_now *= 0.985
    report(number, time.time() - began, loss_now)


def steps(count: int, first: int = 0, **options: object) -> None:
    for number in range(first, first + count):
        step(number, **options)  # type: ignore[arg-type]


def alone(count: int) -> None:
    """Steps of a process without peers."""
    for number in range(count):
        time.sleep(0.1)
        report(number, 0.1, 5.0 - number / 50)


def finish() -> None:
    dist.barrier()
    dist.destroy_process_group()


def forever(what: str = "") -> None:
    if what:
        log.info(what)
    time.sleep(600)


def library(name: str, source: str) -> ctypes.CDLL:
    """Compile C and load it."""
    place = f"{SCRATCH}/{name}{RANK}"
    Path(f"{place}.c").write_text(source)
    subprocess.run(["gcc", "-O0", "-shared", "-fPIC", "-w", "-o", f"{place}.so", f"{place}.c"], check=True)
    return ctypes.CDLL(f"{place}.so")


def run(scenarios: dict[str, object]) -> None:
    """Run the scenario of the command line. Spawned loader workers import the script by its name."""
    scenarios[SCENARIO]()  # type: ignore[operator]
