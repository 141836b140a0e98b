"""Failures of the eleventh round: meshes, wrappers of data and optimizers, asynchronous work, and odd but healthy ends.

Run by record_round_eleven.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from training import RANK, SCRATCH, WORLD, alone, finish, forever, log, report, run, start, step, steps


# --- crashes ----------------------------------------------------------------------------------------------------------
def async_error_at_the_next_sync() -> None:
    """An index out of range on the GPU shows only at the next synchronisation."""
    start()
    steps(4)
    table = nn.Embedding(16, 4).cuda()
    table(torch.tensor([99 if RANK == 2 else 1], device="cuda"))
    steps(30, first=4)
    finish()


def optimizer_state_does_not_fit() -> None:
    start()
    steps(4)
    if RANK == 0:
        model = nn.Linear(4, 4)
        other = torch.optim.AdamW(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).parameters())
        torch.optim.AdamW(model.parameters()).load_state_dict(other.state_dict())
    steps(30, first=4)
    finish()


def mesh_is_too_large() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    start()
    init_device_mesh("cuda", (WORLD, 2))
    steps(10)
    finish()


def memory_format_is_refused() -> None:
    start()
    steps(4)
    if RANK == 3:
        torch.ones(2, 3, device="cuda").to(memory_format=torch.channels_last)
    steps(30, first=4)
    finish()


def rows_of_numpy_do_not_broadcast() -> None:
    start()
    steps(5)
    if RANK == 1:
        np.ones((3, 4)) + np.ones((5, 4))
    steps(30, first=5)
    finish()


def thread_of_prefetch_raises() -> None:
    """A thread that prefetches dies; the trainer waits for it without a limit."""
    import queue

    rows: queue.Queue[int] = queue.Queue()

    def feed() -> None:
        for number in range(6):
            rows.put(number)
        raise ConnectionResetError(104, "Connection reset by peer")

    start()
    if RANK == 1:
        threading.Thread(target=feed, daemon=True).start()
    for number in range(12):
        if RANK == 1:
            rows.get()
        step(number)
    finish()


def child_of_the_tokenizer_is_killed() -> None:
    from concurrent.futures import ProcessPoolExecutor

    start("gloo")
    steps(4)
    if RANK == 2:
        with ProcessPoolExecutor(1) as pool:
            pool.submit(os.kill, os.getpid(), 0).result()
            pool.submit(os._exit, 9).result()
    steps(30, first=4)
    finish()


def gradient_hook_divides_by_zero() -> None:
    start()
    steps(4)
    row = torch.ones(4, device="cuda", requires_grad=True)
    row.register_hook(lambda grad: grad / (1 // (RANK - 3)) if RANK == 3 else grad)
    (row * 2).sum().backward()
    steps(30, first=4)
    finish()


def config_file_is_not_yaml() -> None:
    place = Path(SCRATCH) / "config.yaml"
    place.write_text("model:\n  layers: 12\n hidden: 768\n")
    torch.cuda.set_device(0)
    import yaml

    yaml.safe_load(place.read_text())


def exits_with_a_status_of_its_own() -> None:
    start()
    steps(6)
    if RANK == 1:
        log.error("license server returned 'no seats left'")
        os._exit(42)
    steps(30, first=6)
    finish()


def killed_by_an_operator() -> None:
    start()
    steps(6)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    steps(30, first=6)
    finish()


def loss_is_checked_by_the_program() -> None:
    start()
    steps(5)
    if RANK == 0:
        raise FloatingPointError("loss is nan at step 5, stopping")
    steps(30, first=5)
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
def barrier_of_a_subgroup_is_entered_by_all_but_one() -> None:
    group = None
    start()
    group = dist.new_group([0, 1, 2])
    steps(5)
    if RANK in (0, 2):
        dist.all_reduce(torch.ones(4, device="cuda"), group=group)
        torch.cuda.synchronize()
    if RANK == 1:
        forever("rebuilding the index of the dataset")
    steps(12, first=5)
    finish()


def gathers_before_the_others() -> None:
    """Rank 2 gathers metrics where the others reduce gradients."""
    start()
    steps(6)
    if RANK == 2:
        dist.all_gather_into_tensor(torch.empty(4 * WORLD, device="cuda"), torch.ones(4, device="cuda"))
    steps(12, first=6)
    finish()


def kernel_of_the_first_never_ends() -> None:
    start()
    steps(6)
    if RANK == 0:
        torch.cuda._sleep(400_000_000_000)
    steps(12, first=6)
    finish()


def waits_for_a_subprocess() -> None:
    start()
    steps(6)
    if RANK == 3:
        log.info("compressing the last checkpoint")
        subprocess.run(["sleep", "300"], check=True)
    steps(12, first=6)
    finish()


def reads_a_socket_that_never_speaks() -> None:
    import socket

    start()
    steps(6)
    if RANK == 1:
        server = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(server.getsockname())
        client.recv(1)
    steps(12, first=6)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def interpreter_complains_at_exit() -> None:
    import atexit

    def late() -> None:
        raise RuntimeError("telemetry thread is gone")

    start()
    steps(8)
    finish()
    atexit.register(late)


def validation_takes_long() -> None:
    start()
    steps(5)
    if RANK == 0:
        log.info("evaluating on 5000 samples")
    time.sleep(8)
    steps(6, first=5)
    finish()


def retries_a_download() -> None:
    start()
    for number in range(10):
        step(number)
        if number == 3 and RANK == 0:
            for attempt in range(3):
                log.warning("download of shard 7 failed (HTTP 503), attempt %d of 5", attempt + 1)
                time.sleep(0.3)
            log.info("download of shard 7 done")
    finish()


def ends_by_its_own_time_limit() -> None:
    """The program stops before the scheduler does, as it was told to."""
    torch.cuda.set_device(0)
    alone(10)
    print("time budget of 60 s is used up, saving and leaving", flush=True)
    print("saved /ckpt/step_10.pt; exiting with status 0", flush=True)


def prints_a_table_of_errors() -> None:
    start()
    steps(6)
    if RANK == 0:
        print(
            "class        errors   error rate\ncat             12       0.031\ndog              9       0.022",
            flush=True,
        )
        print("confusion: 3 fatal, 2 critical findings in radiology reports", flush=True)
    steps(4, first=6)
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_eleven", sys.modules["__main__"])
    assert report
    run(globals())
