"""Failures of the fourth round. Run by record_round_four.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from training import RANK, SCRATCH, WORLD, alone, finish, forever, library, log, report, run, start, steps


# --- hangs -----------------------------------------------------------------------------------------------------------
def batched_stage_sleeps() -> None:
    """Pipeline stages exchange in batches, as Megatron does. The second one stops before its exchange."""
    start()
    for n in range(9):
        began = time.time()
        if RANK == 1 and n == 6:
            forever("compressing activations of micro batch 6")
        operations = []
        if RANK > 0:
            operations.append(dist.P2POp(dist.irecv, torch.empty(512, device="cuda"), RANK - 1))
        if RANK < WORLD - 1:
            operations.append(dist.P2POp(dist.isend, torch.ones(512, device="cuda"), RANK + 1))
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 4.0 - n / 10)
    finish()


def gathers_late() -> None:
    start()
    steps(7)
    if RANK == 3:
        forever("tokenizing the validation split: 12% of 88211 documents")
    rows = [torch.empty(64, device="cuda") for _ in range(WORLD)] if RANK == 0 else None
    dist.gather(torch.ones(64, device="cuda"), rows, dst=0)
    torch.cuda.synchronize()
    steps(3, first=7)
    finish()


def hybrid_shard_stuck() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    start()
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)).cuda()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for n in range(20):
        began = time.time()
        if n == 7 and RANK == 3:
            forever("waiting for the license server at 10.0.0.7:27000")
        loss = model(torch.randn(8, 64, device="cuda")).pow(2).mean()
        loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    finish()


def skips_an_empty_batch() -> None:
    """Rank 1 leaves out the backward pass of an empty batch and is one reduction short ever after."""
    start()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    for n in range(14):
        began = time.time()
        if RANK == 1 and n == 6:
            log.warning("batch 6 is empty on this rank, skipping it")
            continue
        loss = model(torch.ones(4, 64, device="cuda")).pow(2).mean()
        loss.backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, loss.item())
    dist.all_gather_into_tensor(torch.empty(2 * WORLD, device="cuda"), torch.ones(2, device="cuda"))
    torch.cuda.synchronize()
    finish()


def first_cannot_pickle() -> None:
    start()
    steps(5)
    dist.broadcast_object_list([threading.Lock()] if RANK == 0 else [None], src=0)
    steps(5, first=5)
    finish()


def two_stages_apart() -> None:
    """Two pipelines of two stages: rank 2 never sends, so rank 3 waits, and then everybody at the reduction."""
    start()
    for n in range(8):
        began = time.time()
        if RANK == 2 and n == 5:
            forever("decoding video 00817.mp4")
        if RANK % 2:
            dist.recv(torch.empty(64, device="cuda"), RANK - 1)
        else:
            dist.send(torch.ones(64, device="cuda"), RANK + 1)
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 3.0)
    finish()


# --- processes -------------------------------------------------------------------------------------------------------
def quit_signal() -> None:
    start()
    steps(6)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGQUIT)
    steps(60, first=6)
    finish()


def stack_smashed() -> None:
    start()
    steps(6)
    if RANK == 2:
        place = f"{SCRATCH}/smash"
        Path(f"{place}.c").write_text("#include <string.h>\nvoid go(int n){char b[8];memset(b,1,n);}")
        subprocess.run(
            ["gcc", "-w", "-shared", "-fPIC", "-fstack-protector-all", "-o", f"{place}.so", f"{place}.c"], check=True
        )
        import ctypes

        ctypes.CDLL(f"{place}.so").go(400)
    steps(60, first=6)
    finish()


def bad_alloc() -> None:
    start()
    steps(6)
    if RANK == 1:
        place = f"{SCRATCH}/alloc"
        Path(f"{place}.cpp").write_text('#include <vector>\nextern "C" void go(){std::vector<char> v(1UL<<60);}')
        subprocess.run(["g++", "-shared", "-fPIC", "-o", f"{place}.so", f"{place}.cpp"], check=True)
        import ctypes

        ctypes.CDLL(f"{place}.so").go()
    steps(60, first=6)
    finish()


def floating_point() -> None:
    start()
    steps(6)
    if RANK == 0:
        library("div", "int z=0;int go(){return 7/z;}").go()
    steps(60, first=6)
    finish()


def no_such_library() -> None:
    import ctypes

    ctypes.CDLL("libnvshmem_host.so.3")


def cannot_import_name() -> None:
    from transformers import FlashMoeForCausalLM  # noqa: F401


def everybody_out_of_memory() -> None:
    torch.cuda.set_per_process_memory_fraction(0.01)
    start()
    steps(5)
    torch.empty(64 << 30, dtype=torch.uint8, device="cuda")
    finish()


def one_pod_out_of_memory() -> None:
    if RANK == 1:
        torch.cuda.set_per_process_memory_fraction(0.01)
    start()
    steps(6)
    if RANK == 1:
        torch.empty(64 << 30, dtype=torch.uint8, device="cuda")
    steps(60, first=6)
    finish()


def index_out_of_range() -> None:
    start()
    steps(6)
    rows = torch.zeros(10, device="cuda")
    index = torch.tensor([99 if RANK == 0 else 1], device="cuda")
    print(rows[index].sum().item(), flush=True)
    steps(60, first=6)
    finish()


# --- files, networks, libraries --------------------------------------------------------------------------------------
def saves_onto_a_folder() -> None:
    start()
    steps(5)
    if RANK == 0:
        os.makedirs(f"{SCRATCH}/last.pt", exist_ok=True)
        log.info("saving checkpoint to %s/last.pt", SCRATCH)
        with open(f"{SCRATCH}/last.pt", "wb") as out:
            torch.save({"w": torch.ones(4)}, out)
    steps(60, first=5)
    finish()


def shard_server_down() -> None:
    import urllib.request

    start()
    steps(5)
    if RANK == 1:
        urllib.request.urlopen("http://127.0.0.1:9/shards/00041.tar", timeout=5)
    steps(60, first=5)
    finish()


def lock_is_held() -> None:
    import filelock

    start()
    steps(4)
    if RANK == 2:
        first = filelock.FileLock(f"{SCRATCH}/tokenizer.lock", is_singleton=False)
        first.acquire()
        filelock.FileLock(f"{SCRATCH}/tokenizer.lock", timeout=3, is_singleton=False).acquire()
    steps(60, first=4)
    finish()


def database_is_locked() -> None:
    import sqlite3

    start()
    steps(4)
    if RANK == 3:
        one, other = (sqlite3.connect(f"{SCRATCH}/runs.db", timeout=1, isolation_level=None) for _ in range(2))
        one.execute("create table t(x)")
        one.execute("begin exclusive")
        other.execute("insert into t values (1)")
    steps(60, first=4)
    finish()


def too_many_files() -> None:
    import resource

    start()
    steps(4)
    if RANK == 2:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        keep = [open(f"{SCRATCH}/part-{number}", "wb") for number in range(4096)]  # noqa: SIM115
        print(len(keep))
    steps(60, first=4)
    finish()


class Deep(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        return self[index] if index == 300 else torch.ones(4)


def loader_recurses() -> None:
    start()
    rows = torch.utils.data.DataLoader(Deep() if RANK == 1 else [torch.ones(4)] * 4096, 32, num_workers=1)
    for n, _ in enumerate(rows):
        time.sleep(0.1)
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        report(n, 0.1, 3.0)
        if n == 60:
            break
    finish()


def trainer_settings() -> None:
    import transformers

    log.info("building the trainer")
    transformers.TrainingArguments(
        SCRATCH + "/hf", load_best_model_at_end=True, eval_strategy="no", save_strategy="steps", report_to=[]
    )


def lightning_not_finite() -> None:
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import EarlyStopping

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            loss = self.layer(batch).mean()
            loss = loss * float("nan") if self.current_epoch > 1 else loss
            self.log("train_loss", loss, prog_bar=True, on_epoch=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    rows = torch.utils.data.DataLoader([torch.ones(8)] * 320, batch_size=16)
    stop = EarlyStopping("train_loss", patience=10, check_finite=True, verbose=True, check_on_train_epoch_end=True)
    pl.Trainer(
        max_epochs=8, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, callbacks=[stop]
    ).fit(Model(), rows)


def one_slows_down() -> None:
    start()
    for n in range(60):
        began = time.time()
        time.sleep(0.1 if RANK != 1 or n < 20 else 0.36)
        own = time.time() - began
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        report(n, own, 3.0 - n / 100)
    finish()


def jax_wrong_mesh() -> None:
    import jax

    alone(3)
    jax.make_mesh((4, 2), ("data", "model"))


# --- healthy ---------------------------------------------------------------------------------------------------------
def paused_and_resumed() -> None:
    start()
    for n in range(20):
        if n == 8 and RANK == 2:
            subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        steps(1, first=n)
    finish()


def metrics_endpoint_is_down() -> None:
    import urllib.request

    start()
    for n in range(18):
        steps(1, first=n)
        if n in (5, 11):
            try:
                urllib.request.urlopen("http://127.0.0.1:9/metrics", timeout=2)
            except OSError:
                log.exception("could not push metrics, will try again at the next step")
    finish()


def jax_halves_the_batch() -> None:
    os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = ".02"
    import jax.numpy as jnp

    size = 1 << 17
    while True:
        try:
            jnp.ones((size, 1 << 15)).block_until_ready()
            break
        except Exception as error:
            print(f"batch of {size} does not fit ({str(error)[:120]}), trying {size // 4}", flush=True)
            size //= 4
    alone(15)
    log.info("training complete")


def preflight_and_train() -> None:
    start()
    print("preflight: dcgmi diag -r 1: Pass | Xid errors: none | nccl-tests: 0 out of bounds values OK", flush=True)
    print("fault injection disabled; simulated failure rate 0.0; restart budget 3, used 0", flush=True)
    steps(15)
    print("summary: failed steps 0, skipped batches 0, killed workers 0, timeouts 0", flush=True)
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_four", sys.modules["__main__"])
    run(globals())
