"""Failures of the seventh round: schedules, meshes, branches, groups of exceptions. Run by record_round_seven.py."""

from __future__ import annotations

import asyncio
import datetime
import io
import json
import os
import queue
import signal
import sys
import tarfile
import threading
import time
import warnings
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from training import RANK, SCRATCH, TIMEOUT, WORLD, alone, finish, forever, log, report, run, start, step, steps


def layers(width: int = 64, count: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count))).cuda()


# --- hangs and mismatches ---------------------------------------------------------------------------------------------
def hybrid_rank_reads() -> None:
    """FSDP2 over a 2 x 4 mesh; rank 5 waits for its data set."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    start()
    mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))
    model = layers(96)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for n in range(12):
        began = time.time()
        if RANK == 5 and n == 6:
            forever("opening shard 00017 of s3://corpus/web/en")
        loss = model(torch.randn(4, 96, device="cuda")).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    finish()


def tensor_parallel(stop: bool) -> None:
    """Tensor parallel by two, data parallel by two. Rank 3 is stopped from outside."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    start()
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))
    model = layers(64, 2)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    data = mesh.get_group("dp")
    for n in range(14):
        began = time.time()
        if stop and RANK == 3 and n == 7:
            os.kill(os.getpid(), signal.SIGSTOP)
        loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
        loss.backward()
        for weight in model.parameters():
            dist.all_reduce(weight.grad.to_local(), group=data)
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    finish()


def tensor_parallel_stopped() -> None:
    tensor_parallel(True)


def experts(spins: int | None) -> None:
    """Tokens travel to experts and back; the number of tokens differs by rank and step, sometimes it is zero."""
    start()
    for n in range(12):
        began = time.time()
        counts = torch.tensor([(RANK + n + other) % 4 * 8 for other in range(WORLD)], device="cuda")
        if spins == RANK and n == 6:
            torch.cuda._sleep(1 << 44)
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts)
        send, take = counts.tolist(), arriving.tolist()
        tokens = torch.ones(sum(send), 16, device="cuda")
        out = torch.empty(sum(take), 16, device="cuda")
        dist.all_to_all_single(out, tokens, take, send)
        dist.all_to_all_single(torch.empty_like(tokens), out, send, take)
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 4.2 - n / 20)
    finish()


def expert_gpu_spins() -> None:
    experts(2)


def branch_on_one() -> None:
    """DDP; on rank 1 an auxiliary head takes no part in the loss from step 5 on."""
    start()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = torch.nn.Linear(64, 64), torch.nn.Linear(64, 1)

        def forward(self, rows: torch.Tensor, auxiliary: bool) -> torch.Tensor:
            hidden = self.body(rows)
            return hidden.mean() + (self.head(hidden).mean() if auxiliary else 0)

    model = torch.nn.parallel.DistributedDataParallel(Net().cuda(), device_ids=[0])
    for n in range(14):
        began = time.time()
        loss = model(torch.randn(4, 64, device="cuda"), not (RANK == 1 and n >= 5))
        loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    finish()


def schedule(stop: str, where: int) -> None:
    """Four stages of torch.distributed.pipelining."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(32, 32)
            self.calls = 0

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            if where == RANK and self.calls == 26:
                if stop == "raise":
                    return self.linear(rows[:, :31])
                forever("reloading the frozen vision tower")
            return self.linear(rows)

    start()
    stage = PipelineStage(Stage().cuda(), RANK, WORLD, torch.device("cuda"))
    plan = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, target: (out - target).pow(2).mean())
    rows, target = torch.randn(16, 32, device="cuda"), torch.zeros(16, 32, device="cuda")
    for n in range(10):
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
        report(n, time.time() - began, losses[0].item() if losses else 0.0)
    finish()


def schedule_stage_raises() -> None:
    schedule("raise", 2)


def schedule_stage_sleeps() -> None:
    schedule("sleep", 1)


def gathers_objects_instead() -> None:
    """Rank 0 waits at a barrier while the others gather their metrics as objects."""
    start()
    steps(6)
    if RANK == 0:
        dist.barrier()
    else:
        dist.all_gather_object([None] * WORLD, {"rank": RANK, "accuracy": 0.5})
    torch.cuda.synchronize()
    steps(6, first=6)
    finish()


def uneven_inputs() -> None:
    """DDP; rank 3 has fewer batches and goes to the barrier at the end of the epoch."""
    start()
    model = torch.nn.parallel.DistributedDataParallel(layers(), device_ids=[0])
    for n in range(8 if RANK == 3 else 12):
        began = time.time()
        loss = model(torch.randn(4, 64, device="cuda")).pow(2).mean()
        loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    log.info("epoch 0 done, waiting for the others")
    dist.barrier()
    finish()


def stuck(where: int, what: str) -> None:
    start()
    steps(7)
    if where == RANK:
        forever(what)
    steps(9, first=7)
    finish()


def seen_in_dumps_only() -> None:
    stuck(2, "")


def seen_in_one_dump() -> None:
    stuck(1, "rebuilding the index of the tokenizer")


def seen_in_logs_only() -> None:
    """Rank 1 reduces more numbers than the others; the dumps are lost."""
    start()
    steps(6)
    dist.all_reduce(torch.ones(8192 if RANK == 1 else 4096, device="cuda"))
    if RANK == 1:
        dist.all_gather_into_tensor(torch.empty(64 * WORLD, device="cuda"), torch.ones(64, device="cuda"))
    torch.cuda.synchronize()
    steps(6, first=6)
    finish()


def task_is_never_awaited() -> None:
    """An asyncio task that feeds rank 1 dies; the trainer waits for the queue."""
    start()
    rows: queue.Queue[int] = queue.Queue(4)

    async def feed() -> None:
        for n in range(7):
            rows.put(n)
            await asyncio.sleep(0.05)
        if RANK == 1:
            raise ConnectionResetError(104, "Connection reset by peer")
        for n in range(7, 30):
            rows.put(n)
            await asyncio.sleep(0.05)

    async def main() -> None:
        task = asyncio.get_running_loop().create_task(feed())
        while not task.done():
            await asyncio.sleep(0.1)
        del task
        await asyncio.sleep(600)

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    for _ in range(20):
        step(rows.get())
    finish()


def another_world_size() -> None:
    """Rank 2 was started for three ranks, the others for four."""
    size = 3 if RANK == 2 else WORLD
    log.info("rank %d of %d", RANK, size)
    dist.init_process_group("nccl", rank=RANK, world_size=size, timeout=datetime.timedelta(seconds=25))
    steps(4)
    finish()


def last_step_is_skipped() -> None:
    """Rank 2 ends after the last step without the final reduction and waits in an exit handler."""
    import atexit

    start()
    steps(8)
    if RANK == 2:
        atexit.register(time.sleep, 500)
        log.info("training done, flushing metrics")
        raise SystemExit(0)
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    log.info("training done")
    finish()


# --- crashes ----------------------------------------------------------------------------------------------------------
def async_save_fills_the_disk() -> None:
    import torch.distributed.checkpoint as checkpoint

    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT)
    steps(6)
    state = {"weights": torch.ones(3 << 20), "more": torch.ones(3 << 20)}
    saving = checkpoint.async_save(state, checkpoint_id=f"{SCRATCH}/small/step_6")
    steps(3, first=6)
    saving.result()
    steps(6, first=9)
    finish()


def job_beside_another() -> None:
    """Two jobs: the first is well, in the second rank 1 has no memory left."""
    if os.environ["JOB"] == "0":
        start()
        steps(14)
        finish()
        return
    start()
    steps(6)
    if RANK == 1:
        torch.cuda.set_per_process_memory_fraction(0.01)
        torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
    steps(20, first=6)
    finish()


def fails_differently_each_time() -> None:
    start()
    steps(5)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" and RANK == 1:
        raise KeyError("input_ids")
    if attempt == "1" and RANK == 2:
        torch.cuda.set_per_process_memory_fraction(0.01)
        torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
    steps(30, first=5)
    finish()


def redirected_tree() -> None:
    start()
    steps(6)
    if RANK == 1:
        table = json.loads('{"train": {"lr": 0.1}}')
        log.info("lowering the learning rate to %s", table["train"]["min_lr"])
    steps(30, first=6)
    finish()


def group_of_exceptions() -> None:
    start()
    steps(6)
    if RANK == 2:
        problems = [ValueError("shard 3: 17 of 512 rows have no text"), OSError(5, "Input/output error")]
        raise ExceptionGroup("reading of 2 shards failed", problems)
    steps(30, first=6)
    finish()


def warning_is_an_error() -> None:
    start()
    steps(6)
    if RANK == 1:
        warnings.simplefilter("error")
        warnings.warn("lr_scheduler.step() was called before optimizer.step()", UserWarning, stacklevel=1)
    steps(30, first=6)
    finish()


def graph_break_is_refused() -> None:
    @torch.compile(fullgraph=True)
    def forward(rows: torch.Tensor) -> torch.Tensor:
        if rows.sum() > 0:
            return rows * 2
        return rows

    alone(5)
    forward(torch.ones(8, device="cuda"))


def triton_does_not_compile() -> None:
    Path(f"{SCRATCH}/kernels.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef scale(x, n, SIZE: tl.constexpr):\n"
        "    at = tl.arange(0, SIZE)\n    rows = tl.load(x + at, mask=at < n)\n"
        "    tl.store(x + at, tl.dot(rows, rows))\n"
    )
    sys.path.insert(0, SCRATCH)
    import kernels  # type: ignore[import-not-found]

    alone(5)
    kernels.scale[(1,)](torch.ones(64, device="cuda"), 64, SIZE=64)


class Archive(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Reads members of a tar; on rank 2 the archive ends too early."""

    def __iter__(self):  # type: ignore[no-untyped-def]
        place = f"{SCRATCH}/shard-{RANK:06d}.tar"
        with tarfile.open(place, "w") as archive:
            for n in range(40):
                member = tarfile.TarInfo(f"{n:06d}.txt")
                member.size = 4096
                archive.addfile(member, io.BytesIO(b"x" * 4096))
        if RANK == 2:
            with open(place, "r+b") as file:
                file.truncate(60_000)
        with tarfile.open(place) as archive:
            for member in archive:
                text = archive.extractfile(member)
                assert text is not None
                yield len(text.read())


def archive_ends_early() -> None:
    start()
    for number, _ in enumerate(torch.utils.data.DataLoader(Archive(), batch_size=2, num_workers=1)):
        step(number)
    finish()


def block_does_not_inflate() -> None:
    start()
    steps(5)
    block = bytearray(zlib.compress(os.urandom(4096)))
    if RANK == 3:
        block[20:40] = b"\0" * 20
    zlib.decompress(bytes(block))
    steps(30, first=5)
    finish()


def interrupted_alone() -> None:
    """Somebody sends SIGINT to rank 2."""
    start()
    steps(6)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGINT)
    steps(30, first=6)
    finish()


def tied_weights_refuse() -> None:
    """safetensors refuses tensors that share memory, on the rank that saves."""
    from safetensors.torch import save_file

    start()
    steps(6)
    if RANK == 0:
        weight = torch.ones(16, 16)
        save_file({"embed": weight, "head": weight}, f"{SCRATCH}/model.safetensors")
    dist.barrier()
    steps(6, first=6)
    finish()


def batch_of_another_length() -> None:
    """Hidden sizes do not fit: an error of cuBLAS's front end on every rank."""
    start()
    steps(4)
    torch.nn.Linear(128, 64).cuda()(torch.ones(4, 96, device="cuda"))
    steps(4, first=4)
    finish()


def fourth_saves_and_dies() -> None:
    """Rank 3 is killed by the out-of-memory killer's signal while it saves."""
    start()
    steps(6)
    log.info("saving checkpoint step_6")
    if RANK == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    steps(30, first=6)
    finish()


# --- numbers and speed ------------------------------------------------------------------------------------------------
def loss_runs_away() -> None:
    start()
    steps(8)
    loss = 2.0
    for n in range(8, 40):
        loss *= 2.4
        time.sleep(0.1)
        report(n, 0.1, loss)
    finish()


def one_reads_slowly() -> None:
    start()
    for n in range(60):
        began = time.time()
        time.sleep(0.5 if RANK == 3 and n > 10 else 0.12)
        data = time.time() - began
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        total = time.time() - began
        row = {"step": n, "rank": RANK, "loss": 3 - n / 100, "data_time": round(data, 3), "step_time": round(total, 3)}
        print(json.dumps(row), flush=True)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def tensor_parallel_well() -> None:
    tensor_parallel(False)


def experts_well() -> None:
    experts(None)


def async_saves_well() -> None:
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.fsdp import fully_shard

    torch.cuda.set_device(0)
    dist.init_process_group("cpu:gloo,cuda:nccl", timeout=TIMEOUT)
    model = layers()
    fully_shard(model)
    saving = None
    for n in range(20):
        began = time.time()
        loss = model(torch.randn(4, 64, device="cuda")).pow(2).mean()
        loss.backward()
        if n % 6 == 5:
            if saving is not None:
                saving.result()
            log.info("saving checkpoint step_%d in the background", n)
            saving = checkpoint.async_save(model.state_dict(), checkpoint_id=f"{SCRATCH}/step_{n}")
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    if saving is not None:
        saving.result()
    finish()


def dumps_are_asked_for() -> None:
    """Every rank writes its Flight Recorder once in a while; the ranks are not at the same step then."""
    start()
    for n in range(16):
        step(n)
        if n == 7 + RANK % 3:
            place = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(RANK)
            Path(place).write_bytes(torch._C._distributed_c10d._dump_nccl_trace())
    finish()


def stops_early() -> None:
    start()
    for n in range(30):
        step(n)
        if n == 11:
            log.info("no improvement for 5 evaluations (best 0.4123 at step 6): early stopping")
            break
    log.info("best model restored from step 6; exiting")
    finish()


def speech_errors() -> None:
    """Error rates, timeouts in settings, failed utterances that are skipped by design."""
    log.info("config: timeout=30 max_errors=100 abort_on_oom=false crash_dir=/tmp/crash kill_after=0")
    start()
    for n in range(14):
        step(n)
        if n % 5 == 4:
            log.info("valid: word error rate 31.20 | character error 12.10 | fatal 0 | failed utterances 3/512")
            log.warning("3 utterances were too long for CTC (T < U), their loss is inf and is masked")
    finish()


def profiled() -> None:
    start()
    with torch.profiler.profile(schedule=torch.profiler.schedule(wait=1, warmup=1, active=2)) as profiler:
        for n in range(12):
            step(n)
            profiler.step()
    print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=5), flush=True)
    finish()


def verbose_and_well() -> None:
    start()
    for group in ([0, 1], [2, 3]):
        dist.new_group(group, timeout=TIMEOUT)
    steps(12)
    finish()


def checks_then_trains() -> None:
    """A first phase tries kernels, of which some are not supported here, and logs each with its traceback."""
    start()
    for backend in ("flash_attn_3", "xformers", "te"):
        try:
            __import__(backend)
        except ImportError:
            log.warning("attention backend %s unavailable", backend, exc_info=True)
    try:
        torch.ones(2, 3, device="cuda") @ torch.ones(2, 3, device="cuda")
    except RuntimeError as problem:
        log.info("autotune: candidate 4 rejected: %s", problem)
    steps(14)
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_seven", sys.modules["__main__"])
    run(globals())
