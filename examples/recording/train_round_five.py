"""Failures of the fifth round: pipelines, loaders, compilers, sharded checkpoints. Run by record_round_five.py."""

from __future__ import annotations

import datetime
import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from training import RANK, SCRATCH, TIMEOUT, WORLD, alone, finish, forever, log, report, run, start, step, steps


class Numbers(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows; `at` runs in the loader's worker when it reads the row with that number."""

    def __init__(self, at: int = -1, what: str = "") -> None:
        self.at, self.what = at, what

    def __len__(self) -> int:
        return 400

    def __getitem__(self, row: int) -> torch.Tensor:
        if row == self.at:
            if self.what == "sleep":
                time.sleep(600)
            if self.what == "leave":
                os._exit(3)
            if self.what == "abort":
                os.abort()
        return torch.full((8,), float(row))


def from_loader(bad: int, what: str, rows: int = 24, **options: object) -> None:
    start()
    data = Numbers(40 if bad == RANK else -1, what)
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, **options)  # type: ignore[arg-type]
    for number, _ in enumerate(loader):
        step(number)
        if number == rows:
            break
    finish()


# --- hangs -----------------------------------------------------------------------------------------------------------
def both_send_first() -> None:
    """Ranks 1 and 2 swap tensors and both send first. The others wait at the reduction."""
    start()
    for n in range(8):
        began = time.time()
        if RANK in (1, 2):
            other, rows = 3 - RANK, torch.ones(1 << 22, device="cuda")
            order = (dist.send, dist.recv) if RANK == 1 or n == 5 else (dist.recv, dist.send)
            for call in order:
                call(rows, other)
        dist.all_reduce(torch.ones(16, device="cuda"))
        torch.cuda.synchronize()
        report(n, time.time() - began, 3.1 - n / 20)
    finish()


def sharded_epoch_is_shorter() -> None:
    """FSDP; rank 2 has one batch fewer and goes on to the metrics."""
    from torch.distributed.fsdp import fully_shard

    start()
    model = torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(2))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for n in range(8 if RANK == 2 else 9):
        began = time.time()
        loss = model(torch.randn(8, 96, device="cuda")).pow(2).mean()
        loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    log.info("epoch 0 finished")
    dist.all_reduce(torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
    finish()


def ring_attention_spins() -> None:
    """Blocks travel around a ring. The GPU of rank 2 is busy forever before its exchange."""
    start()
    for n in range(10):
        began = time.time()
        if RANK == 2 and n == 6:
            torch.cuda._sleep(1 << 44)
        for _ in range(3):
            operations = [
                dist.P2POp(dist.isend, torch.ones(2048, device="cuda"), (RANK + 1) % WORLD),
                dist.P2POp(dist.irecv, torch.empty(2048, device="cuda"), (RANK - 1) % WORLD),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 2.9)
    finish()


def coalesced_lists_differ() -> None:
    """Rank 1 reduces two gradients in one call where the others reduce three."""
    start()
    steps(6)
    count = 2 if RANK == 1 else 3
    with dist._coalescing_manager(device=torch.device("cuda")):
        for size in (512, 256, 128)[:count]:
            dist.all_reduce(torch.ones(size, device="cuda"))
    torch.cuda.synchronize()
    steps(5, first=6)
    finish()


def background_thread_keeps_it() -> None:
    """Rank 1 raises, but a thread that is no daemon keeps its process alive. The others wait for it."""
    start()
    steps(7)
    if RANK == 1:
        threading.Thread(target=time.sleep, args=(600,), name="metrics-uploader").start()
        raise KeyError("pixel_values")
    steps(9, first=7)
    finish()


def skips_after_an_error() -> None:
    """Rank 3 logs an exception and leaves that batch out: one reduction short, and the shapes differ at the end."""
    start()
    for n in range(12):
        try:
            if RANK == 3 and n == 6:
                raise ValueError("could not broadcast input array from shape (224,224) into shape (224,224,3)")
        except ValueError:
            log.exception("batch %d failed, skipping", n)
            continue
        step(n)
    dist.all_gather_into_tensor(torch.empty(3 * WORLD, device="cuda"), torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
    finish()


def loader_worker_sleeps() -> None:
    from_loader(bad=3, what="sleep")


def gloo_rank_is_late() -> None:
    start("gloo")
    steps(8)
    if RANK == 2:
        forever("rebuilding the tokenizer cache")
    steps(4, first=8)
    finish()


def async_save_is_stuck() -> None:
    """Rank 0 waits for its background writer, which waits for a pipe nobody reads."""
    start()
    steps(6)
    if RANK == 0:
        os.mkfifo(f"{SCRATCH}/model.pt")
        log.info("Saving checkpoint to /mnt/ckpt/step_6 in the background")
        writer = threading.Thread(target=lambda: torch.save({"w": torch.ones(1 << 16)}, f"{SCRATCH}/model.pt"))
        writer.start()
        log.info("waiting for the previous async checkpoint to finish")
        writer.join()
        log.info("checkpoint saved")
    dist.barrier()
    steps(6, first=6)
    finish()


def expert_group_is_stopped() -> None:
    """Eight ranks, expert groups of four. The kernel stops rank 5 between two exchanges."""
    start()
    groups = [dist.new_group(list(range(n, n + 4)), timeout=TIMEOUT) for n in (0, 4)]
    mine = groups[RANK // 4]
    for n in range(12):
        began = time.time()
        if n == 7 and RANK == 5:
            os.kill(os.getpid(), signal.SIGSTOP)
        dist.all_to_all_single(torch.empty(64, device="cuda"), torch.ones(64, device="cuda"), group=mine)
        dist.all_reduce(torch.ones(32, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 2.2)
    finish()


def one_rank_autotunes() -> None:
    """Rank 1 autotunes a kernel that the others have in their cache."""
    start()
    steps(5)
    if RANK == 1:
        for n in range(300):
            print(f"AUTOTUNE mm(4096x4096, 4096x4096) choice {n}: triton_mm_{n} 0.1{n:03d} ms", flush=True)
            time.sleep(2)
    steps(5, first=5)
    finish()


# --- starting --------------------------------------------------------------------------------------------------------
def one_never_joins() -> None:
    """The job was told five ranks; four were started."""
    dist.init_process_group("nccl", world_size=5, rank=RANK, timeout=datetime.timedelta(seconds=20))
    steps(2)


def two_on_one_card() -> None:
    """Ranks of one host share a card, which NCCL refuses."""
    os.environ["NCCL_HOSTID"] = "one"
    start()
    steps(3)
    finish()


def bad_settings() -> None:
    """A settings object that does not validate, on all ranks, before anything distributed."""
    import dataclasses

    @dataclasses.dataclass
    class Settings:
        hidden: int
        heads: int

        def __post_init__(self) -> None:
            if self.hidden % self.heads:
                raise ValueError(
                    f"hidden size {self.hidden} is not a multiple of the number of attention heads {self.heads}"
                )

    Settings(hidden=1000, heads=48)


# --- loaders ---------------------------------------------------------------------------------------------------------
def loader_times_out() -> None:
    from_loader(bad=2, what="sleep", timeout=8)


def loader_worker_leaves() -> None:
    from_loader(bad=0, what="leave")


def loader_worker_aborts() -> None:
    from_loader(bad=1, what="abort", persistent_workers=True)


# --- memory and the card ---------------------------------------------------------------------------------------------
def memory_in_backward() -> None:
    from torch.nn.parallel import DistributedDataParallel

    start()
    model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(4))).cuda())
    if RANK == 2:
        torch.cuda.set_per_process_memory_fraction(0.003)
    for n in range(12):
        began = time.time()
        rows = 1024 * (1 if n < 6 else 40)
        loss = model(torch.randn(rows, 1024, device="cuda")).pow(2).mean()
        loss.backward()
        torch.cuda.synchronize()
        report(n, time.time() - began, loss.item())
    finish()


def triton_bad_pointer() -> None:
    import triton
    import triton.language as tl

    @triton.jit
    def kernel(rows, n):  # type: ignore[no-untyped-def]
        place = tl.program_id(0) * 1024 + tl.arange(0, 1024)
        tl.store(rows + place + n, 1.0)

    sys.modules[__name__].triton_kernel = kernel  # type: ignore[attr-defined]
    start()
    steps(5)
    rows = torch.ones(1024, device="cuda")
    kernel[(1,)](rows, (1 << 36) if RANK == 1 else 0)
    torch.cuda.synchronize()
    steps(5, first=5)
    finish()


def convolution_shapes() -> None:
    start()
    steps(4)
    if RANK == 3:
        torch.nn.Conv2d(3, 8, 3).cuda()(torch.ones(2, 4, 16, 16, device="cuda"))
    steps(20, first=4)
    finish()


def compiler_backend_fails() -> None:
    def backend(module: object, inputs: object) -> object:
        raise NotImplementedError("no lowering for aten.native_group_norm_backward.default")

    alone(3)
    torch.compile(lambda x: x.sin() + 1, backend=backend)(torch.ones(8, device="cuda"))


# --- checkpoints -----------------------------------------------------------------------------------------------------
def sharded_checkpoint(break_it: str) -> None:
    import torch.distributed.checkpoint as dcp

    start()
    place = f"{SCRATCH}/step_40"
    dcp.save({"rows": torch.full((64, 8), 1.0), f"own{RANK}": torch.ones(4096)}, checkpoint_id=place)
    dist.barrier()
    if RANK == 0 and break_it == "missing":
        Path(place, "__2_0.distcp").unlink()
    dist.barrier()
    log.info("resuming from %s", "/ckpt/step_40")
    wanted = torch.zeros(64, 16 if break_it == "shape" else 8)
    dcp.load({"rows": wanted, f"own{RANK}": torch.zeros(4096)}, checkpoint_id=place)
    steps(3)
    finish()


def shard_is_missing() -> None:
    sharded_checkpoint("missing")


def shard_has_another_shape() -> None:
    sharded_checkpoint("shape")


def cannot_write_there() -> None:
    start()
    steps(5)
    if RANK == 0:
        log.info("saving checkpoint to /sys/kernel/checkpoints/step_5")
        Path("/sys/kernel/checkpoints/step_5").mkdir(parents=True)
    dist.barrier()
    steps(20, first=5)
    finish()


# --- numbers ---------------------------------------------------------------------------------------------------------
def says_loss_is_nan() -> None:
    start()
    steps(6)
    for n in range(6, 9):
        report(n, 0.1, float("nan"))
    print("Loss is nan, stopping training", flush=True)
    print({"loss_ce": float("nan"), "loss_bbox": float("nan"), "loss_giou": 1.8}, flush=True)
    sys.exit(1)


def gradient_norm_raises() -> None:
    start()
    steps(6)
    grown = torch.ones(8, device="cuda", requires_grad=True)
    (grown * (float("inf") if RANK == 2 else 1.0)).sum().backward()
    torch.nn.utils.clip_grad_norm_([grown], 1.0, error_if_nonfinite=True)
    steps(20, first=6)
    finish()


# --- processes -------------------------------------------------------------------------------------------------------
def killed_under_torchrun() -> None:
    start()
    steps(8)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    steps(60, first=8)
    finish()


def fault_with_all_threads() -> None:
    faulthandler.enable(all_threads=True)
    threading.Thread(target=time.sleep, args=(90,), daemon=True, name="prefetch").start()
    start()
    steps(6)
    if RANK == 3:
        import ctypes

        ctypes.string_at(16)
    steps(60, first=6)
    finish()


def exit_status_of_the_scheduler() -> None:
    """The training script asks to be requeued by its status; nobody failed."""
    start()
    steps(8)
    log.info("wall-time limit in 60 s: checkpoint written, exiting with 85 to be requeued")
    dist.destroy_process_group()
    sys.exit(85)


def reads_slowly() -> None:
    """Rank 2 reads four times as slowly as its peers from step 14 on."""
    start()
    for n in range(60):
        began = time.time()
        time.sleep(0.8 if RANK == 2 and n >= 14 else 0.2)
        waited = time.time() - began
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        total = time.time() - began
        print(f"rank {RANK} step {n} loss {3 - n / 100:.4f} data_time {waited:.3f} time {total:.3f}", flush=True)
    finish()


# --- healthy ---------------------------------------------------------------------------------------------------------
def evaluates_for_long() -> None:
    start(timeout=datetime.timedelta(seconds=90))
    steps(8)
    for n in range(0, 100, 10):
        log.info("eval %d/100 batches, running perplexity %.2f", n, 12 + n / 100)
        time.sleep(3)
    steps(8, first=8)
    finish()


def stops_early() -> None:
    start()
    steps(12)
    for epoch in range(3):
        log.info("epoch %d: val_loss 2.41 did not improve from 2.39 (patience %d/3)", epoch, epoch + 1)
    log.info("Early stopping triggered, restoring the best weights and terminating training")
    finish()


def finishes_unevenly() -> None:
    from torch.distributed.algorithms.join import Join
    from torch.nn.parallel import DistributedDataParallel

    start()
    model = DistributedDataParallel(torch.nn.Linear(32, 32).cuda())
    with Join([model]):
        for n in range(10 + 2 * RANK):
            began = time.time()
            model(torch.ones(2, 32, device="cuda")).sum().backward()
            torch.cuda.synchronize()
            time.sleep(0.1)
            report(n, time.time() - began, 2.0)
    log.info("rank %d has no more data", RANK)
    finish()


def retries_and_goes_on() -> None:
    import urllib.request

    start(timeout=datetime.timedelta(seconds=60))
    steps(6)
    for attempt in range(3):
        try:
            urllib.request.urlopen("http://127.0.0.1:9/shard-0007.tar", timeout=2)
        except OSError:
            log.warning("download failed (attempt %d/5), retrying in 1s", attempt + 1, exc_info=True)
            time.sleep(1)
    log.info("shard-0007.tar served from the local mirror")
    steps(12, first=6)
    finish()


def pauses_to_save() -> None:
    start(timeout=datetime.timedelta(seconds=90))
    steps(8)
    if RANK == 0:
        log.info("saving checkpoint step_8 (412 GB)")
        time.sleep(25)
        log.info("checkpoint step_8 saved in 25.0 s")
    dist.barrier()
    steps(10, first=8)
    finish()


def skips_bad_samples() -> None:
    start()
    for n in range(20):
        if n in (4, 9, 15):
            log.error("sample %d is corrupt: PIL.UnidentifiedImageError: cannot identify image file, skipped", n * 17)
        step(n)
    log.info("3 of 640 samples could not be decoded")
    finish()


def metric_is_nan() -> None:
    start()
    steps(10)
    print("val: mIoU 0.412 | IoU(train) nan | IoU(bus) 0.31 | classes without ground truth are nan", flush=True)
    steps(10, first=10)
    finish()


def recompiles_and_warns() -> None:
    import torch._dynamo

    torch._dynamo.config.cache_size_limit = 4
    start()
    doubled = torch.compile(lambda rows, n: rows * n + rows.shape[0], dynamic=False)
    for n in range(12):
        doubled(torch.ones(n + 2, device="cuda"), float(n))
        step(n)
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_five", sys.modules["__main__"])
    run(globals())
