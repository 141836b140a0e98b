"""Failures of the sixth round: exchanges, group order, sharding, quiet ends. Run by record_round_six.py."""

from __future__ import annotations

import datetime
import os
import threading
import time

import torch
import torch.distributed as dist
from training import RANK, TIMEOUT, WORLD, finish, forever, library, log, report, run, start, step, steps


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows of which one has no label, on rank 2."""

    def __len__(self) -> int:
        return 400

    def __getitem__(self, row: int) -> torch.Tensor:
        sample = {"pixels": float(row)} if RANK == 2 and row == 50 else {"pixels": float(row), "label": 1.0}
        return torch.tensor([sample["pixels"], sample["label"]])


# --- hangs and mismatches ---------------------------------------------------------------------------------------------
def stages(stop: str, where: int) -> None:
    """Four stages exchange activations forward and gradients back in batches."""
    start()
    for n in range(9):
        began = time.time()
        if where == RANK and n == 6:
            if stop == "gpu":
                torch.cuda._sleep(1 << 44)
            else:
                forever("waiting for the feature store")
        for forward in (True, False):
            ahead, back = (RANK + 1, RANK - 1) if forward else (RANK - 1, RANK + 1)
            operations = []
            if 0 <= back < WORLD:
                operations.append(dist.P2POp(dist.irecv, torch.empty(1024, device="cuda"), back))
            if 0 <= ahead < WORLD:
                operations.append(dist.P2POp(dist.isend, torch.ones(1024, device="cuda"), ahead))
            for work in dist.batch_isend_irecv(operations):
                work.wait()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 3.3 - n / 20)
    finish()


def stage_gpu_is_busy() -> None:
    stages("gpu", 1)


def stage_waits_for_features() -> None:
    stages("sleep", 2)


def groups_reversed() -> None:
    """Eight ranks, groups of two. Rank 6 creates the groups in the opposite order."""
    start()
    wanted = [[n, n + 1] for n in range(0, WORLD, 2)]
    made = {tuple(g): dist.new_group(g, timeout=TIMEOUT) for g in (wanted[::-1] if RANK == 6 else wanted)}
    steps(3)
    first = RANK - RANK % 2
    dist.all_reduce(torch.ones(64, device="cuda"), group=made[first, first + 1])
    torch.cuda.synchronize()
    steps(4, first=3)
    finish()


def gathers_another_amount() -> None:
    start()
    steps(6)
    size = 96 if RANK == 2 else 128
    dist.all_gather_into_tensor(torch.empty(size * WORLD, device="cuda"), torch.ones(size, device="cuda"))
    torch.cuda.synchronize()
    steps(5, first=6)
    finish()


def scatters_another_type() -> None:
    start()
    steps(6)
    kind = torch.bfloat16 if RANK == 0 else torch.float32
    dist.reduce_scatter_tensor(
        torch.empty(32, device="cuda", dtype=kind), torch.ones(32 * WORLD, device="cuda", dtype=kind)
    )
    torch.cuda.synchronize()
    steps(5, first=6)
    finish()


def no_gradient_on_one() -> None:
    """FSDP; rank 1 leaves out the backward pass of a batch whose loss is zero."""
    from torch.distributed.fsdp import fully_shard

    start()
    model = torch.nn.Sequential(*(torch.nn.Linear(80, 80) for _ in range(3))).cuda()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    for n in range(12):
        began = time.time()
        loss = model(torch.randn(4, 80, device="cuda")).pow(2).mean()
        if RANK == 1 and n == 7:
            log.warning("loss of batch 7 is zero on this rank, no backward pass")
        else:
            loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    finish()


def leaves_the_group() -> None:
    """Rank 2 destroys its process group after an early stop of its own, and goes on alone."""
    start()
    steps(7)
    if RANK == 2:
        dist.destroy_process_group()
        forever("exporting the model for serving")
    steps(9, first=7)
    finish()


# --- crashes ----------------------------------------------------------------------------------------------------------
def sample_without_label() -> None:
    start()
    for number, _ in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=2)):
        step(number)
        if number == 24:
            break
    finish()


def thread_ends_the_process() -> None:
    start()
    steps(6)
    if RANK == 2:
        threading.Thread(target=os._exit, args=(17,)).start()
    steps(60, first=6)
    finish()


def no_master_address() -> None:
    dist.init_process_group("nccl")
    steps(2)


def package_missing_on_one() -> None:
    if RANK == 3:
        import flash_attn_hopper  # type: ignore[import-not-found]  # noqa: F401
    start(timeout=datetime.timedelta(seconds=20))
    steps(3)
    finish()


def native_crash_among_eight() -> None:
    start()
    steps(6)
    if RANK == 5:
        library("boom", "void go(void){*(volatile int*)8 = 1;}").go()
    steps(60, first=6)
    finish()


def checkpoint_hash_differs() -> None:
    start()
    log.info("verifying checkpoint step_4000")
    if RANK == 1:
        raise ValueError("sha256 of model-00003-of-00008.safetensors does not match: expected 9f2c…, got 11d0…")
    dist.barrier()
    steps(20)
    finish()


# --- numbers and speed ------------------------------------------------------------------------------------------------
def loss_is_nan_and_goes_on() -> None:
    start()
    steps(6)
    for n in range(6, 30):
        time.sleep(0.1)
        report(n, 0.1, float("nan"))
    finish()


def one_card_is_slower() -> None:
    start()
    for n in range(70):
        began = time.time()
        time.sleep(0.42 if RANK == 4 and n > 12 else 0.2)
        own = time.time() - began
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        print(f"rank {RANK} step {n} loss {3 - n / 100:.4f} compute_time {own:.3f}", flush=True)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def first_evaluates_alone() -> None:
    start(timeout=datetime.timedelta(seconds=90))
    steps(8)
    if RANK == 0:
        for n in range(0, 40, 5):
            log.info("validation batch %d/40", n)
            time.sleep(2)
    dist.barrier()
    steps(10, first=8)
    finish()


def optional_package_missing() -> None:
    try:
        import apex  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        log.exception("apex is not installed, using the slower fused norm of torch")
    start()
    steps(20)
    finish()


def ends_without_goodbye() -> None:
    start()
    steps(10)
    time.sleep(RANK)
    log.info("rank %d: training finished after 10 steps", RANK)


if __name__ == "__main__":
    run(globals())
