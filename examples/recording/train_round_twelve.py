"""Failures of the twelfth round: wrong use of torch's parts, small services beside the trainer, own watchdogs, noise.

Run by record_round_twelve.py.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from training import RANK, SCRATCH, WORLD, alone, finish, forever, log, run, start, step, steps


# --- crashes ----------------------------------------------------------------------------------------------------------
def view_is_not_contiguous() -> None:
    start()
    steps(5)
    if RANK == 2:
        torch.ones(4, 6, device="cuda").t().view(-1)
    steps(30, first=5)
    finish()


def adam_meets_sparse_gradients() -> None:
    start()
    steps(3)
    table = nn.Embedding(16, 4, sparse=True).cuda()
    optimizer = torch.optim.Adam(table.parameters())
    table(torch.tensor([1, 2], device="cuda")).sum().backward()
    optimizer.step()
    steps(30, first=3)
    finish()


def scaler_saw_no_gradients() -> None:
    start()
    steps(4)
    if RANK == 0:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        scaler.scale(torch.ones(1, device="cuda"))
        scaler.step(optimizer)
    steps(30, first=4)
    finish()


def asks_for_a_card_that_is_not_there() -> None:
    start()
    steps(4)
    torch.ones(4, device="cuda:3" if RANK == 3 else "cuda:0")
    steps(30, first=4)
    finish()


def share_of_the_card_is_small() -> None:
    start()
    steps(4)
    if RANK == 1:
        torch.cuda.set_per_process_memory_fraction(0.002)
        torch.ones(512, 1024, 1024, device="cuda")
    steps(30, first=4)
    finish()


def recomputation_differs() -> None:
    from torch.utils.checkpoint import checkpoint

    calls = [0]

    def block(rows: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        wide = rows if calls[0] == 1 or RANK != 1 else torch.cat([rows, rows])
        return torch.relu(wide * 2).sum()

    start()
    steps(4)
    checkpoint(block, torch.ones(8, device="cuda", requires_grad=True), use_reentrant=False).backward()
    steps(30, first=4)
    finish()


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, rows: torch.Tensor) -> torch.Tensor:
        return rows * 2

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> object:
        return (grad, grad) if RANK == 2 else grad * 2


def backward_returns_too_much() -> None:
    start()
    steps(4)
    _Twice.apply(torch.ones(4, device="cuda", requires_grad=True)).sum().backward()
    steps(30, first=4)
    finish()


def _child(number: int) -> None:
    time.sleep(number)
    if number == 1:
        raise KeyError("hidden_size")
    time.sleep(20)


def spawned_child_raises() -> None:
    torch.cuda.set_device(0)
    alone(5)
    torch.multiprocessing.spawn(_child, nprocs=2)


def alarm_ends_a_slow_step() -> None:
    def late(*_: object) -> None:
        raise TimeoutError("step 6 took longer than 3 s")

    start()
    steps(6)
    if RANK == 2:
        signal.signal(signal.SIGALRM, late)
        signal.alarm(3)
        time.sleep(30)
    steps(30, first=6)
    finish()


def key_of_the_store_never_comes() -> None:
    import datetime

    start()
    steps(4)
    if RANK == 1:
        store = dist.TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=datetime.timedelta(seconds=4))
        store.get("shard/0/ready")
    steps(30, first=4)
    finish()


def group_is_gone_already() -> None:
    start()
    steps(5)
    if RANK == 1:
        dist.destroy_process_group()
        dist.all_reduce(torch.ones(4, device="cuda"))
    steps(30, first=5)
    finish()


def index_file_is_empty() -> None:
    start()
    steps(4)
    if RANK == 3:
        place = Path(SCRATCH) / "train_00003.idx"
        place.write_bytes(b"")
        with place.open("r+b") as file:
            mmap.mmap(file.fileno(), 0)
    steps(30, first=4)
    finish()


def database_of_samples_is_locked() -> None:
    start()
    steps(4)
    if RANK == 0:
        place = str(Path(SCRATCH) / "samples.db")
        first = sqlite3.connect(place, isolation_level=None)
        first.execute("create table row (id int)")
        first.execute("begin exclusive")
        second = sqlite3.connect(place, timeout=1)
        second.execute("insert into row values (1)")
    steps(30, first=4)
    finish()


def kernels_do_not_agree() -> None:
    start()
    steps(4)
    if RANK == 3:
        rows = torch.ones(64, device="cuda")
        torch.testing.assert_close(rows, rows + (torch.arange(64, device="cuda") == 7))
    steps(30, first=4)
    finish()


def exits_in_a_callback_of_ctypes() -> None:
    start()
    steps(5)
    if RANK == 2:
        ctypes.CDLL(None).exit(77)
    steps(30, first=5)
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
def computes_metrics_for_ever() -> None:
    start()
    steps(6)
    if RANK == 2:
        log.info("computing BLEU over 120000 references")
        while True:
            sum(range(100_000))
    steps(12, first=6)
    finish()


def takes_its_own_lock_twice() -> None:
    lock = threading.Lock()
    start()
    steps(6)
    if RANK == 0:
        with lock:
            log.info("flushing the metric buffer")
            lock.acquire()
    steps(12, first=6)
    finish()


def skips_a_reduce_scatter() -> None:
    start()
    for number in range(12):
        if not (RANK == 3 and number == 7):
            dist.reduce_scatter_tensor(torch.empty(4, device="cuda"), torch.ones(4 * WORLD, device="cuda"))
        step(number)
    finish()


def says_that_it_still_waits() -> None:
    """A thread of each rank reports what the trainer waits for."""
    last = [0, time.time()]

    def watch() -> None:
        while True:
            time.sleep(4)
            if time.time() - last[1] > 5:
                print(f"[watch] no step since {time.time() - last[1]:.0f} s, last was {last[0]}", flush=True)

    start()
    threading.Thread(target=watch, daemon=True).start()
    for number in range(12):
        if RANK == 5 and number == 8:
            forever("waiting for the teacher model")
        step(number)
        last[:] = [number, time.time()]
    finish()


def sends_the_batch_to_nobody() -> None:
    start()
    steps(6)
    if RANK == 1:
        dist.send(torch.ones(1 << 22, device="cuda"), 2)
        torch.cuda.synchronize()
    steps(12, first=6)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def prints_stacks_on_purpose() -> None:
    start()
    for number in range(10):
        step(number)
        if number in (3, 6):
            print("where we are (debug aid, not an error):", flush=True)
            traceback.print_stack(file=sys.stdout)
    finish()


def compares_kernels_and_goes_on() -> None:
    start()
    steps(4)
    print("kernel check: max error 3.1e-06, mismatch 0 of 4096, FAILED 0, timeout 0", flush=True)
    print("kernel check: error bound 1e-05 holds; fatal differences: none", flush=True)
    steps(8, first=4)
    finish()


def metric_is_not_computed() -> None:
    start()
    for number in range(10):
        step(number)
        if number == 5:
            print({"eval_loss": float("nan"), "eval_note": "no validation set", "epoch": 0.05}, flush=True)
    finish()


def helper_returns_one() -> None:
    start()
    for number in range(10):
        step(number)
        if number == 4 and RANK == 0:
            status = subprocess.run(["false"], check=False).returncode
            log.info("grep found nothing: exit status %d, as expected", status)
    finish()


def handlers_are_installed() -> None:
    torch.cuda.set_device(0)
    signal.signal(signal.SIGTERM, lambda *_: None)
    log.info("handler for SIGTERM and SIGUSR1 installed, will save when preempted or killed")
    log.info("fault injection: off; abort on NaN: off; OOM retries: 0")
    alone(10)
    log.info("training finished after 10 steps")


def quotes_an_old_incident() -> None:
    start()
    steps(4)
    if RANK == 0:
        print("note from last week's run: rank 3 died with CUDA out of memory, batch is 8 since then", flush=True)
        print("resume policy: after a crash restart from the last checkpoint", flush=True)
    steps(8, first=4)
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_twelve", sys.modules["__main__"])
    assert os
    run(globals())
