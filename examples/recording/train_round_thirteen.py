"""Failures of the thirteenth round: accumulation, meshes, pipes and managers beside the trainer, error files, noise.

Run by record_round_thirteen.py.
"""

from __future__ import annotations

import asyncio
import atexit
import datetime
import logging
import multiprocessing
import multiprocessing.shared_memory
import os
import queue
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from training import RANK, SCRATCH, WORLD, alone, finish, forever, log, report, run, start, step, steps


# --- crashes ----------------------------------------------------------------------------------------------------------
def two_ranks_on_one_card() -> None:
    start()
    steps(12)
    finish()


def interface_of_gloo_does_not_exist() -> None:
    start("gloo")
    steps(12)
    finish()


def manager_of_queues_is_killed() -> None:
    start()
    steps(5)
    if RANK == 1:
        manager = multiprocessing.get_context("spawn").Manager()
        rows = manager.Queue()
        rows.put(1)
        os.kill(manager._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        time.sleep(0.5)
        rows.get()
    steps(30, first=5)
    finish()


def shared_segment_is_removed() -> None:
    start()
    steps(5)
    if RANK == 3:
        segment = multiprocessing.shared_memory.SharedMemory(create=True, size=1 << 16)
        segment.close()
        segment.unlink()
        multiprocessing.shared_memory.SharedMemory(name=segment.name)
    steps(30, first=5)
    finish()


def error_file_is_written() -> None:
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def body() -> None:
        start()
        steps(5)
        if RANK == 2:
            raise ValueError("expected 2048 tokens in document 118, found 2047")
        steps(30, first=5)
        finish()

    body()


def pool_of_graphs_is_too_large() -> None:
    start()
    steps(4)
    if RANK == 2:
        kept = []
        for _ in range(8):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                kept.append((graph, torch.ones(24 << 30, dtype=torch.uint8, device="cuda")))
    steps(30, first=4)
    finish()


def remote_call_raises() -> None:
    import torch.distributed.rpc as rpc

    torch.cuda.set_device(0)
    rpc.init_rpc(f"worker{RANK}", rank=RANK, world_size=WORLD)
    for number in range(4):
        time.sleep(0.1)
        report(number, 0.1, 4.0 - number / 10)
    if RANK == 0:
        rpc.rpc_sync("worker1", torch.add, args=(torch.ones(3), torch.ones(4)))
    rpc.shutdown()


def assertion_in_every_rank() -> None:
    start()
    heads = 30
    assert heads % WORLD == 0, f"num_attention_heads ({heads}) must be divisible by tensor parallel size ({WORLD})"
    steps(12)
    finish()


def pipe_of_the_logger_is_closed() -> None:
    start()
    steps(5)
    if RANK == 1:
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"metrics")
    steps(30, first=5)
    finish()


def exception_in_a_future() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def prepare(number: int) -> int:
        if number == 7 and RANK == 0:
            raise LookupError(f"document {number} has no language tag")
        return number

    start()
    with ThreadPoolExecutor(2) as pool:
        for number in range(20):
            future = pool.submit(prepare, number)
            step(number)
            future.result()
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.second = nn.Linear(64, 64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(rows)))


def one_accumulates_once_more() -> None:
    """One rank stays in no_sync at the step at which the others reduce."""
    start()
    model = nn.parallel.DistributedDataParallel(_Net().cuda())
    for number in range(14):
        began = time.time()
        quiet = number % 2 == 0 or (RANK == 1 and number == 7)
        with model.no_sync() if quiet else torch.enable_grad():
            loss = model(torch.ones(8, 64, device="cuda")).square().mean()
            loss.backward()
        time.sleep(0.15)
        torch.cuda.synchronize()
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


def shards_skip_a_backward() -> None:
    from torch.distributed.fsdp import fully_shard

    start()
    model = _Net().cuda()
    for part in (model.first, model.second, model):
        fully_shard(part)
    for number in range(12):
        began = time.time()
        loss = model(torch.ones(8, 64, device="cuda")).square().mean()
        if RANK == 2 and number == 6:
            log.warning("loss above the limit, batch left out")
        else:
            loss.backward()
        time.sleep(0.15)
        torch.cuda.synchronize()
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


def member_of_a_mesh_uploads() -> None:
    from torch.distributed.device_mesh import init_device_mesh

    start()
    mesh = init_device_mesh("cuda", (2, WORLD // 2), mesh_dim_names=("dp", "tp"))
    for number in range(14):
        if RANK == 6 and number == 8:
            forever("uploading artifacts of step 8")
        for name in ("tp", "dp"):
            dist.all_reduce(torch.ones(64, device="cuda"), group=mesh.get_group(name))
        step(number)
    finish()


def first_asks_for_the_manifest() -> None:
    """Rank 0 waits for a server that accepts and says nothing, the others for its list of files."""
    start()
    steps(6)
    names: list[object] = [None]
    if RANK == 0:
        server = socket.create_server(("127.0.0.1", 0))
        with socket.create_connection(server.getsockname()) as connection:
            log.info("fetching manifest of epoch 1")
            connection.recv(1)
    dist.broadcast_object_list(names, src=0)
    steps(12, first=6)
    finish()


def only_the_first_meets_a_barrier() -> None:
    start()
    steps(6)
    if RANK == 0:
        dist.barrier()
    steps(12, first=6)
    finish()


class _Slow:
    def __reduce__(self) -> object:
        time.sleep(600)
        return (str, ())


def pickles_for_ever() -> None:
    start()
    steps(6)
    gathered: list[object] = [None] * WORLD
    dist.all_gather_object(gathered, _Slow() if RANK == 1 else {"rank": RANK})
    steps(12, first=6)
    finish()


def waits_for_the_baton_of_a_build() -> None:
    from torch.utils.file_baton import FileBaton

    start()
    steps(6)
    if RANK == 2:
        Path(f"{SCRATCH}/lock").write_text("")
        log.info("building extension fused_adam")
        FileBaton(f"{SCRATCH}/lock").wait()
    steps(12, first=6)
    finish()


def shard_goes_to_a_pipe() -> None:
    """One rank writes its part of the checkpoint into a pipe that nobody reads."""
    start()
    steps(6)
    log.info("saving checkpoint at step 6")
    place = f"{SCRATCH}/shard_{RANK}.pt"
    if RANK == 3:
        os.mkfifo(place)
    torch.save(torch.ones(1 << 20), place)
    log.info("saved checkpoint %s", place)
    steps(12, first=6)
    finish()


def experts_wait_for_one() -> None:
    """Groups of four with a limit of their own; a member of the second never enters."""
    start(timeout=datetime.timedelta(seconds=60))
    halves = [
        dist.new_group(list(members), timeout=datetime.timedelta(seconds=10), group_desc="ep")
        for members in (range(WORLD // 2), range(WORLD // 2, WORLD))
    ]
    for number in range(14):
        if RANK == 5 and number == 7:
            forever("routing table is rebuilt")
        dist.all_reduce(torch.ones(64, device="cuda"), group=halves[RANK * 2 // WORLD])
        torch.cuda.synchronize()
        step(number)
    finish()


def one_exchanges_less() -> None:
    start()
    for number in range(14):
        if not (RANK == 2 and number == 7):
            rows = torch.ones(WORLD * 4, device="cuda")
            dist.all_to_all_single(torch.empty_like(rows), rows)
        step(number)
    finish()


def queue_of_batches_stays_empty() -> None:
    batches: queue.Queue[int] = queue.Queue()
    start()
    for number in range(14):
        if not (RANK == 3 and number >= 8):
            batches.put(number)
        batches.get()
        step(number)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
class _Broken(logging.StreamHandler):  # type: ignore[type-arg]
    def emit(self, record: logging.LogRecord) -> None:
        try:
            raise BrokenPipeError(32, "Broken pipe")
        except OSError:
            self.handleError(record)


def handler_of_logs_is_broken() -> None:
    start()
    steps(4)
    other = logging.getLogger("metrics")
    other.addHandler(_Broken())
    other.info("step 4")
    steps(8, first=4)
    other.info("step 12")
    steps(4, first=12)
    finish()


def task_of_asyncio_is_lost() -> None:
    async def send() -> None:
        raise ConnectionResetError("peer of the dashboard closed")

    async def main() -> None:
        task = asyncio.ensure_future(send())
        await asyncio.sleep(0.1)
        del task

    start()
    steps(4)
    asyncio.run(main())
    steps(8, first=4)
    finish()


def complains_after_the_end() -> None:
    def late() -> None:
        raise RuntimeError("dashboard is closed already")

    atexit.register(late)
    start()
    steps(12)
    finish()
    log.info("training finished after 12 steps")


def pusher_of_metrics_dies() -> None:
    def push() -> None:
        time.sleep(0.4)
        raise TimeoutError("pushgateway did not answer within 0.4 s")

    start()
    threading.Thread(target=push, name="metrics-pusher").start()
    steps(12)
    finish()


def talks_of_ranks_that_failed() -> None:
    torch.cuda.set_device(0)
    alone(4)
    log.info("health of the last job: 3 nodes failed, rank 12 lost, NCCL timeout after 1800 s, 2 ECC errors")
    log.info("unit tests of the tokenizer: 211 passed, 0 failed, 2 errors expected and caught")
    alone(8)


if __name__ == "__main__":
    sys.modules.setdefault("train_round_thirteen", sys.modules["__main__"])
    run(globals())
