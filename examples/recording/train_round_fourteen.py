"""Failures of the fourteenth round: hooks, samplers, links, layer drop, streams that wait, own clocks, drills, noise.

Run by record_round_fourteen.py.
"""

from __future__ import annotations

import ctypes
import datetime
import io
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from training import RANK, SCRATCH, WORLD, finish, log, report, run, start, step, steps


class _Net(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(rows)))


# --- crashes ----------------------------------------------------------------------------------------------------------
def communication_hook_raises() -> None:
    start()
    model = nn.parallel.DistributedDataParallel(_Net().cuda())
    calls = [0]

    # DDP compares annotations with classes, and here they are strings.
    def compress(group, bucket):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if RANK == 2 and calls[0] > 6:
            raise ValueError(f"PowerSGD: matrix rank 8 is larger than the bucket of {bucket.buffer().numel() // 4096}")
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0] / WORLD)

    model.register_comm_hook(None, compress)
    for number in range(16):
        began = time.time()
        loss = model(torch.ones(8, 64, device="cuda")).square().mean()
        loss.backward()
        time.sleep(0.15)
        torch.cuda.synchronize()
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


def sampler_gets_nan_probabilities() -> None:
    start()
    steps(5)
    odds = torch.full((4, 32), math.nan if RANK == 1 else 0.5, device="cuda")
    torch.multinomial(odds, 1)
    steps(30, first=5)
    finish()


def watchdog_sees_the_illegal_access() -> None:
    """The trainer sleeps while the watchdog of NCCL asks the damaged context."""
    import cupy

    start()
    source = 'extern "C" __global__ void gather() { *(volatile int*)0xdead00000000ull = 1; }'
    kernel = cupy.RawKernel(source, "gather")
    kernel.compile()
    steps(5)
    if RANK == 2:
        work = dist.all_reduce(torch.ones(4096, device="cuda"), async_op=True)
        kernel((1,), (32,), ())
        time.sleep(40)
        work.wait()
    time.sleep(3)
    steps(30, first=5)
    finish()


def pool_of_the_driver_is_exhausted() -> None:
    start()
    steps(5)
    if RANK == 3:
        torch.ones(200 << 30, dtype=torch.uint8, device="cuda")
    steps(30, first=5)
    finish()


def map_of_the_corpus_has_no_room() -> None:
    start()
    steps(5)
    if RANK == 1:
        mmap.mmap(-1, 1 << 47)
    steps(30, first=5)
    finish()


def half_precision_transform_is_refused() -> None:
    start()
    steps(5)
    rows = torch.ones(4, 1000 if RANK == 0 else 1024, dtype=torch.half, device="cuda")
    torch.fft.rfft(rows)
    steps(30, first=5)
    finish()


def tokenizer_model_is_damaged() -> None:
    import sentencepiece

    start()
    steps(3)
    if RANK == 2:
        place = f"{SCRATCH}/tokenizer.model"
        Path(place).write_bytes(os.urandom(4096))
        sentencepiece.SentencePieceProcessor(model_file=place)
    steps(30, first=3)
    finish()


def link_of_the_corpus_leads_to_itself() -> None:
    start()
    steps(4)
    if RANK == 3:
        place = Path(SCRATCH) / "corpus"
        place.symlink_to(place)
        (place / "train_00003.bin").open("rb")
    steps(30, first=4)
    finish()


class _Images(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        from PIL import Image

        whole = io.BytesIO()
        Image.effect_noise((64, 64), 80).save(whole, "png")
        self.whole = whole.getvalue()

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> torch.Tensor:
        from PIL import Image

        file = io.BytesIO(self.whole[: len(self.whole) // 2] if RANK == 1 and row == 213 else self.whole)
        return torch.tensor(list(Image.open(file).convert("L").tobytes()), dtype=torch.uint8)


def image_is_cut_short() -> None:
    start()
    for number, _ in enumerate(torch.utils.data.DataLoader(_Images(), batch_size=16, num_workers=2)):
        step(number)
        if number == 40:
            break
    finish()


def policy_has_nan_means() -> None:
    start()
    steps(6)
    policy = nn.Linear(8, 2).cuda()
    seen = torch.ones(4, 8, device="cuda")
    if RANK == 2:
        seen[1, 3] = math.nan
    torch.distributions.Normal(policy(seen), 0.2).sample()
    steps(30, first=6)
    finish()


def losses_in_json_are_nan() -> None:
    """The learning rate is too large: the loss grows, overflows and stays NaN."""
    start()
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(_Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=3e4)
    for number in range(40):
        began = time.time()
        optimizer.zero_grad()
        loss = (model(torch.randn(8, 64, device="cuda")) - 1).square().mean()
        loss.backward()
        if number >= 12:
            optimizer.step()
        time.sleep(0.1)
        report(number, time.time() - began, float(loss.detach()))
    finish()


def ends_by_a_broken_pipe() -> None:
    start()
    steps(6)
    if RANK == 3:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"metrics")
    steps(30, first=6)
    finish()


def thread_is_destroyed_while_it_runs() -> None:
    place = f"{SCRATCH}/reader{RANK}"
    Path(f"{place}.cc").write_text(
        "#include <chrono>\n#include <thread>\n"
        'extern "C" void reopen() { std::thread reader([] { std::this_thread::sleep_for(std::chrono::hours(1)); }); }\n'
    )
    subprocess.run(["g++", "-shared", "-fPIC", "-pthread", "-o", f"{place}.so", f"{place}.cc"], check=True)
    reader = ctypes.CDLL(f"{place}.so")
    start()
    steps(6)
    if RANK == 0:
        reader.reopen()
    steps(30, first=6)
    finish()


def bitwise_reduction_is_refused() -> None:
    start()
    steps(4)
    seen = torch.ones(16, dtype=torch.int64, device="cuda")
    dist.all_reduce(seen, op=dist.ReduceOp.BOR)
    steps(30, first=4)
    finish()


def offloaded_activation_is_lost() -> None:
    start()
    model = _Net().cuda()
    count = [0]

    def pack(rows: torch.Tensor) -> str:
        count[0] += 1
        place = f"{SCRATCH}/activation_{RANK}_{count[0]}.pt"
        torch.save(rows, place)
        return place

    for number in range(16):
        began = time.time()
        with torch.autograd.graph.saved_tensors_hooks(pack, torch.load):
            loss = model(torch.ones(8, 64, device="cuda")).square().mean()
        if RANK == 1 and number == 6:
            Path(f"{SCRATCH}/activation_{RANK}_{count[0]}.pt").unlink()
        loss.backward()
        dist.all_reduce(model.first.weight.grad)
        time.sleep(0.15)
        torch.cuda.synchronize()
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


def operator_has_no_fake() -> None:
    start()
    steps(4)

    @torch.library.custom_op("round_fourteen::gate", mutates_args=())
    def gate(rows: torch.Tensor) -> torch.Tensor:
        return rows.clamp(min=0)

    block = torch.compile(lambda rows: gate(rows) * 2, fullgraph=True)
    block(torch.ones(8, device="cuda"))
    steps(30, first=4)
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
class _Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> torch.Tensor:
        if RANK == 2 and row == 200:
            os.kill(os.getpid(), signal.SIGSTOP)
        return torch.ones(16)


def loader_worker_is_stopped() -> None:
    start()
    for number, _ in enumerate(torch.utils.data.DataLoader(_Rows(), batch_size=16, num_workers=1)):
        step(number)
        if number == 30:
            break
    finish()


def only_the_first_saves() -> None:
    """A distributed save inside `if rank == 0`."""
    import torch.distributed.checkpoint as dcp

    start()
    steps(6)
    if RANK == 0:
        log.info("saving checkpoint at step 6")
        dcp.save({"weight": torch.ones(64)}, checkpoint_id=f"{SCRATCH}/step_6")
        log.info("saved checkpoint at step 6")
    steps(12, first=6)
    finish()


def metric_is_computed_by_one() -> None:
    import torchmetrics

    start()
    score = torchmetrics.MeanMetric().cuda()
    for number in range(16):
        score.update(torch.ones(4, device="cuda"))
        step(number)
        if RANK == 0 and number == 7:
            log.info("validation score %.3f", float(score.compute()))
    finish()


def barrier_of_threads_is_not_full() -> None:
    start()
    steps(7)
    if RANK == 1:
        meeting = threading.Barrier(3)
        threading.Thread(target=meeting.wait, daemon=True).start()
        meeting.wait()
    steps(12, first=7)
    finish()


def one_wraps_fewer_units() -> None:
    """FSDP2; rank 2 shards the model as one unit, its peers shard each layer."""
    from torch.distributed.fsdp import fully_shard

    start()
    steps(3)
    model = _Net(1024).cuda()
    for part in (model,) if RANK == 2 else (model.first, model.second, model):
        fully_shard(part)
    for number in range(3, 12):
        began = time.time()
        loss = model(torch.ones(8, 1024, device="cuda")).square().mean()
        loss.backward()
        torch.cuda.synchronize()
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


def drops_a_layer_on_one() -> None:
    """Layer drop draws another number on rank 5 than on its tensor-parallel peers."""
    start()
    halves = [
        dist.new_group(list(members), group_desc="tp") for members in (range(WORLD // 2), range(WORLD // 2, WORLD))
    ]
    for number in range(14):
        for layer in range(3):
            if not (RANK == 5 and number == 8 and layer == 1):
                dist.all_reduce(torch.ones(2048, device="cuda"), group=halves[RANK * 2 // WORLD])
        step(number)
    finish()


def last_stage_computes_its_loss_for_ever() -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    calls = [0]

    def criterion(out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        while calls[0] == 22:  # the assignment of labels finds no solution
            pass
        return (out - target).pow(2).mean()

    start()
    stage = PipelineStage(_Net(32).cuda(), RANK, WORLD, torch.device("cuda"))
    plan = ScheduleGPipe(stage, n_microbatches=4, loss_fn=criterion)
    rows, target = torch.randn(16, 32, device="cuda"), torch.zeros(16, 32, device="cuda")
    for number in range(10):
        began = time.time()
        losses: list[torch.Tensor] = []
        if RANK == 0:
            plan.step(rows)
        elif RANK == WORLD - 1:
            plan.step(target=target, losses=losses)
        else:
            plan.step()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(number, time.time() - began, float(losses[0].detach()) if losses else 0.0)
    finish()


def everybody_sends_to_the_next() -> None:
    """A ring in which, at step 7, nobody receives first."""
    start()
    after, before = (RANK + 1) % WORLD, (RANK - 1) % WORLD
    for number in range(12):
        rows = torch.ones(1 << 24, device="cuda")
        if RANK % 2 == 0 or number == 7:
            dist.send(rows, after)
            dist.recv(rows, before)
        else:
            dist.recv(rows, before)
            dist.send(rows, after)
        step(number)
    finish()


def stream_waits_for_a_flag() -> None:
    """The stream of rank 2 waits for a word of memory that nobody writes; no kernel runs."""
    start()
    steps(7)
    if RANK == 2:
        flag = torch.zeros(1, dtype=torch.int32, device="cuda")
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        wait = ctypes.CDLL("libcuda.so.1").cuStreamWaitValue32_v2
        status = wait(stream, ctypes.c_uint64(flag.data_ptr()), ctypes.c_uint32(1), ctypes.c_uint(0))
        assert status == 0, f"cuStreamWaitValue32 gave {status}"
    steps(12, first=7)
    finish()


def one_ends_by_its_own_clock() -> None:
    start()
    for number in range(20):
        if RANK == 1 and number == 9:
            log.info("time budget of 2.0 s is used, stopping after step %d", number - 1)
            return
        step(number)
    finish()


class _Buffer:
    def __del__(self) -> None:
        threading.Event().wait()


def finalizer_waits_for_ever() -> None:
    start()
    steps(6)
    kept = _Buffer() if RANK == 3 else None
    kept = None
    assert kept is None
    steps(12, first=6)
    finish()


def backs_off_for_long() -> None:
    start()
    steps(7)
    if RANK == 2:
        for attempt in range(1, 4):
            pause = 0.2 * 4**attempt if attempt < 3 else 600
            log.warning("GET corpus/shard-00041.tar: 503 Slow Down (attempt %d of 8), next in %.1f s", attempt, pause)
            time.sleep(pause)
    steps(12, first=7)
    finish()


# --- slow -------------------------------------------------------------------------------------------------------------
def one_drifts_away() -> None:
    start()
    for number in range(60):
        began = time.time()
        time.sleep(0.15 * (1.04 ** max(0, number - 12) if RANK == 6 else 1))
        own = time.time() - began
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        report(number, own, 3 - number / 100)
    finish()


def one_computes_slowly() -> None:
    start()
    for number in range(50):
        began = time.time()
        time.sleep(0.03)
        read = time.time()
        time.sleep(0.45 if RANK == 2 and number > 9 else 0.16)
        done = time.time()
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        print(
            f"[rank {RANK}] step {number} loss {3 - number / 100:.4f} data_time {read - began:.3f}"
            f" compute_time {done - read:.3f} step_time {time.time() - began:.3f}",
            flush=True,
        )
    finish()


def saves_take_longer_each_time() -> None:
    start(timeout=datetime.timedelta(seconds=60))
    for number in range(5):
        steps(6, first=6 * number)
        pause = 0.5 * 2**number
        if RANK == 0:
            log.info("saving checkpoint step_%d", 6 * number + 6)
            time.sleep(pause)
            log.info("saved checkpoint step_%d in %.1f s", 6 * number + 6, pause)
            if pause > 3:
                log.warning("checkpoint took %.1f s, longer than the limit of 3.0 s", pause)
        dist.barrier()
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def writes_text_about_broken_machines() -> None:
    """A model of operators' logs prints what it wrote."""
    start()
    steps(5)
    if RANK == 0:
        print("--- generated text, step 5, temperature 0.8 ---")
        print("NVRM: Xid (PCI:0000:3b:00): 79, pid=4121, name=python, GPU has fallen off the bus.")
        print("Out of memory: Killed process 4121 (python) total-vm:90123456kB, anon-rss:64123456kB")
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        print("--- end of generated text ---", flush=True)
    steps(8, first=5)
    finish()


def drills_an_alert() -> None:
    start()
    steps(4)
    if RANK == 0:
        log.warning("alert drill begins: the next two lines are simulated")
        log.error("simulated: Watchdog caught collective operation timeout: rank 3 hung in ALLREDUCE for 1800000 ms")
        log.critical("simulated: node gpu-17 is lost, job will be killed")
        log.warning("alert drill is over: the pager answered after 0.4 s")
    steps(10, first=4)
    finish()


def perplexity_is_infinite_at_first() -> None:
    import numpy as np

    start()
    for number, nats in enumerate((900.0, 95.0, 7.1, 6.2)):
        log.info("evaluation %d: perplexity %s", number, np.exp(np.float32(nats)))
        steps(4, first=4 * number)
    finish()


def probe_of_a_kernel_crashes() -> None:
    start()
    code = "import ctypes; ctypes.string_at(0)"
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], check=False)
    log.warning("variant wgmma of the kernel crashed in its probe (status %d), using variant mma", done.returncode)
    steps(14)
    finish()


def saves_when_it_is_signalled() -> None:
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    torch.cuda.set_device(0)
    for number in range(14):
        time.sleep(0.1)
        report(number, 0.1, 5.0 - number / 50)
        if number == 6:
            os.kill(os.getpid(), signal.SIGTERM)
            log.warning("received SIGTERM (%d) from the node's agent: saving and going on until the node goes", *asked)
            torch.save(torch.ones(16), f"{SCRATCH}/step_6.pt")
            log.info("saved checkpoint step_6.pt")
    log.info("the notice was withdrawn; training finished after 14 steps")


def waits_for_an_optional_key() -> None:
    start()
    steps(3)
    try:
        dist.distributed_c10d._get_default_store().wait(["warm/cache"], datetime.timedelta(seconds=2))
    except dist.DistError:
        log.exception("nobody offers a warm cache, starting with a cold one")
    steps(12, first=3)
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_fourteen", sys.modules["__main__"])
    run(globals())
