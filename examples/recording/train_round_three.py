"""Failures of the third round: other signals, storage errors, launchers and loggers. Run by record_round_three.py."""

from __future__ import annotations

import datetime
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from training import (
    RANK,
    SCRATCH,
    TIMEOUT,
    WORLD,
    alone,
    finish,
    forever,
    library,
    log,
    report,
    run,
    start,
    step,
    steps,
)


# --- hangs -----------------------------------------------------------------------------------------------------------
def waits_for_a_key() -> None:
    """Everybody waits for rank 0 to say where the index is, and rank 0 is still building it."""
    start()
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        forever("building the sample index: 1% of 48211 documents")
        store.set("index_path", "/data/index")
    store.wait(["index_path"], datetime.timedelta(seconds=20))
    steps(3)
    finish()


def stage_skips_a_send() -> None:
    """Four pipeline stages. The second one forgets to send micro batch 5 and goes on to the reduction."""
    start()
    for n in range(8):
        began = time.time()
        rows = torch.ones(1024, device="cuda")
        if RANK > 0:
            dist.recv(rows, RANK - 1)
        if RANK < WORLD - 1 and not (RANK == 1 and n == 5):
            dist.send(rows, RANK + 1)
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 4.0 - n / 10)
    finish()


def lone_receive() -> None:
    """Rank 3 asks rank 0 for something nobody knows about. The others wait for rank 3 at the barrier."""
    start()
    steps(6)
    if RANK == 3:
        log.info("fetching the latest embedding table from rank 0")
        dist.recv(torch.ones(512, device="cuda"), 0)
        torch.cuda.synchronize()
    steps(4, first=6)
    finish()


def first_use_of_a_group() -> None:
    """The first collective of a subgroup, whose first member does not come: no communicator, no dump entry."""
    start()
    group = dist.new_group([1, 2, 3], timeout=TIMEOUT)
    steps(5)
    if RANK == 1:
        forever("loading expert weights from /ckpt/experts")
    if RANK:
        dist.all_reduce(torch.ones(64, device="cuda"), group=group)
        torch.cuda.synchronize()
    steps(3, first=5)
    finish()


def groups_in_another_order() -> None:
    start()
    wanted = [[0, 1], [2, 3]]
    groups = {tuple(ranks): dist.new_group(ranks, timeout=TIMEOUT) for ranks in (wanted[::-1] if RANK == 3 else wanted)}
    steps(4)
    mine = groups[(0, 1) if RANK < 2 else (2, 3)]
    dist.all_reduce(torch.ones(64, device="cuda"), group=mine)
    torch.cuda.synchronize()
    steps(4, first=4)
    finish()


def writer_and_trainer_deadlock() -> None:
    """Two locks taken in opposite order inside rank 1."""
    start()
    steps(7)
    if RANK == 1:
        first, second = threading.Lock(), threading.Lock()

        def writer() -> None:
            with second:
                time.sleep(0.5)
                first.acquire()

        threading.Thread(target=writer, name="ckpt-writer", daemon=True).start()
        with first:
            time.sleep(0.7)
            log.info("flushing the metrics queue")
            second.acquire()
    steps(5, first=7)
    finish()


def opens_a_dead_mount() -> None:
    start()
    steps(6)
    if RANK == 2:
        os.mkfifo(f"{SCRATCH}/shard-00017.tar")
        log.info("opening /mnt/lustre/corpus/shard-00017.tar")
        Path(f"{SCRATCH}/shard-00017.tar").read_bytes()
    steps(6, first=6)
    finish()


def stage_gpu_spins() -> None:
    """The GPU work of the third pipeline stage never ends."""
    start()
    for n in range(8):
        began = time.time()
        rows = torch.ones(1024, device="cuda")
        if RANK > 0:
            dist.recv(rows, RANK - 1)
        if RANK == 2 and n == 6:
            torch.cuda._sleep(1 << 44)
        if RANK < WORLD - 1:
            dist.send(rows, RANK + 1)
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 4.0 - n / 10)
    finish()


def ring_to_the_wrong_peer() -> None:
    start()
    for n in range(7):
        began = time.time()
        out, rows = torch.ones(256, device="cuda"), torch.empty(256, device="cuda")
        to = (RANK + 1) % WORLD if not (RANK == 2 and n == 5) else (RANK + 2) % WORLD
        work = dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, out, to), dist.P2POp(dist.irecv, rows, (RANK - 1) % WORLD)]
        )
        for one in work:
            one.wait()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 3.0)
    finish()


def one_more_micro_batch() -> None:
    start()
    for n in range(9 if RANK == 1 else 8):
        step(n)
    log.info("epoch 0 finished, reducing the metrics")
    dist.all_gather_into_tensor(torch.empty(4 * WORLD, device="cuda"), torch.ones(4, device="cuda"))
    torch.cuda.synchronize()
    finish()


def layers_in_another_order() -> None:
    from torch.distributed.fsdp import fully_shard

    start()
    layers = [torch.nn.Linear(64, 64).cuda(), torch.nn.Linear(64, 64, bias=False).cuda()]
    model = torch.nn.ModuleList(layers)
    for layer in model:
        fully_shard(layer)
    for n in range(20):
        began = time.time()
        rows = torch.randn(8, 64, device="cuda")
        order = (1, 0) if RANK == 1 and n >= 7 else (0, 1)
        for index in order:
            rows = model[index](rows)
        rows.pow(2).mean().backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, rows.sum().item())
    finish()


def exit_hook_waits() -> None:
    """Training is over; rank 2 uploads its logs before it joins the last barrier."""
    start()
    steps(10)
    if RANK == 2:
        log.info("training finished, uploading 312 artifacts before shutdown")
        time.sleep(600)
    else:
        log.info("training finished")
    finish()


def tokenizer_forks() -> None:
    start()
    lock = threading.Lock()

    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 4096

        def __getitem__(self, index: int) -> torch.Tensor:
            if index >= 320 and RANK == 0:
                lock.acquire()
                lock.acquire()
            return torch.ones(8)

    print(
        "huggingface/tokenizers: The current process just got forked, after parallelism has already been used."
        " Disabling parallelism to avoid deadlocks...\nTo disable this warning, you can either:\n"
        "\t- Avoid using `tokenizers` before the fork if possible\n"
        "\t- Explicitly set the environment variable TOKENIZERS_PARALLELISM=(true | false)",
        flush=True,
    )
    for n, _ in enumerate(torch.utils.data.DataLoader(Rows(), batch_size=32, num_workers=2)):
        step(n)
        if n == 60:
            break
    finish()


def jax_barrier() -> None:
    import jax

    jax.distributed.initialize("127.0.0.1:" + os.environ["MASTER_PORT"], WORLD, RANK)
    for n in range(12):
        report(n, 0.1, 4.0)
        time.sleep(0.2)
    if RANK == 1:
        forever("restoring checkpoint from gs://bucket/run7/checkpoints/1200")
    jax._src.distributed.global_state.client.wait_at_barrier("restore-complete", 12000)


# --- crashes of the process ------------------------------------------------------------------------------------------
def illegal_instruction() -> None:
    start()
    steps(5)
    if RANK == 2:
        library("ill", 'void go(){__asm__("ud2");}').go()
    steps(40, first=5)
    finish()


def stack_overflow() -> None:
    start()
    steps(5)
    if RANK == 3:
        library("deep", "int go(int n){volatile char b[4096];b[n%4096]=n;return go(n+1)+b[0];}").go(1)
    steps(40, first=5)
    finish()


def double_free() -> None:
    start()
    steps(5)
    if RANK == 0:
        library("free", "#include <stdlib.h>\nvoid go(){char*p=malloc(4000000/1000);free(p);free(p);}").go()
    steps(40, first=5)
    finish()


def assertion_in_c() -> None:
    start()
    steps(5)
    if RANK == 1:
        library("prefetch", '#include <assert.h>\nvoid go(){int slots=8;assert(slots > 8 && "queue overflow");}').go()
    steps(40, first=5)
    finish()


def exits_with_a_sentence() -> None:
    sys.exit("config error: tensor parallel size 3 does not divide the number of attention heads (32)")


def unknown_argument() -> None:
    import argparse

    parser = argparse.ArgumentParser("pretrain_gpt.py")
    parser.add_argument("--lr")
    parser.parse_args(["--use-flash-atn"])


def leaves_without_a_word() -> None:
    start()
    steps(8)
    if RANK == 2:
        os._exit(3)
    steps(40, first=8)
    finish()


def killed_on_gloo() -> None:
    start("gloo")
    steps(8)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    steps(40, first=8)
    finish()


def truncated_under_it() -> None:
    """Rank 3 reads a mapped file that somebody cuts."""
    import numpy

    start()
    steps(5)
    if RANK == 3:
        path = f"{SCRATCH}/tokens.bin"
        numpy.zeros(1 << 22, dtype=numpy.uint8).tofile(path)
        rows = numpy.memmap(path, mode="r", dtype=numpy.uint8)
        os.truncate(path, 0)
        print(int(rows.sum()))
    steps(40, first=5)
    finish()


def only_the_first_logs() -> None:
    global report
    if RANK:
        report = lambda *_: None  # noqa: E731
    start()
    steps(9)
    if RANK == 3:
        raise ValueError("sequence 4411 has 8193 tokens, but the rotary cache holds 8192 positions")
    steps(40, first=9)
    finish()


def everybody_asserts() -> None:
    start()
    heads, parts = 12, 8
    assert heads % parts == 0, f"number of heads ({heads}) must be a multiple of tensor-model-parallel size ({parts})"


def no_mpi() -> None:
    dist.init_process_group("mpi")


def broken_pool() -> None:
    from concurrent.futures import ProcessPoolExecutor

    alone(8)
    log.info("tokenizing 64 shards with 4 processes")
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(os._exit, [9, 9]))


def user_signal_before_the_limit() -> None:
    """Slurm's warning signal: save, and leave with success."""
    stop = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: stop.set())
    start()
    if RANK == 0:
        threading.Timer(6, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    for n in range(2000):
        step(n)
        flag = torch.tensor([float(stop.is_set())], device="cuda")
        dist.all_reduce(flag)
        if flag.item():
            break
    log.warning("caught signal SIGUSR1: time limit is near, saving checkpoint step_%d and requeueing the job", n)
    finish()


def interrupted_notebook() -> None:
    threading.Timer(5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    alone(400)


# --- storage and data ------------------------------------------------------------------------------------------------
def over_quota() -> None:
    start()
    steps(6)
    if RANK == 1:
        log.info("saving shard 1 of 4 to /home/team/ckpt/step_6")
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "/home/team/ckpt/step_6/__1_0.distcp")
    steps(40, first=6)
    finish()


def mount_times_out() -> None:
    start()
    steps(6)
    if RANK == 0:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), "/mnt/nfs/datasets/pile/00031.bin")
    steps(40, first=6)
    finish()


def not_gzip() -> None:
    import gzip

    start()
    steps(4)
    if RANK == 2:
        Path(f"{SCRATCH}/part-00007.jsonl.gz").write_bytes(b"<html>404</html>" * 8)
        with gzip.open(f"{SCRATCH}/part-00007.jsonl.gz", "rt") as rows:
            rows.readline()
    steps(40, first=4)
    finish()


class Lines(torch.utils.data.IterableDataset):
    def __iter__(self):  # type: ignore[no-untyped-def]
        for number in range(4000):
            text = '{"text": "a"}' if number != 700 else '{"text": "a"'
            yield len(json.loads(text)["text"])


def broken_line() -> None:
    start()
    for n, _ in enumerate(torch.utils.data.DataLoader(Lines(), batch_size=32, num_workers=1)):
        step(n)
    finish()


def damaged_safetensors() -> None:
    from safetensors.torch import load_file, save_file

    alone(2)
    path = f"{SCRATCH}/model-00002-of-00004.safetensors"
    save_file({"w": torch.ones(1 << 16)}, path)
    os.truncate(path, 100_000)
    log.info("loading checkpoint shards: 1/4")
    load_file(path)


def refuses_to_unpickle() -> None:
    path = f"{SCRATCH}/last.ckpt"
    torch.save({"args": Path("/x"), "model": torch.ones(2)}, path)
    log.info("resuming from %s", path)
    torch.load(path)


def key_not_in_checkpoint() -> None:
    import torch.distributed.checkpoint as dcp

    start()
    place = f"{SCRATCH}/step_900"
    dcp.save({"w": torch.ones(16)}, checkpoint_id=place)
    log.info("restoring step_900")
    dcp.load({"w": torch.ones(16), "ema": torch.ones(16)}, checkpoint_id=place)
    steps(4)
    finish()


def worker_init_raises() -> None:
    def init(worker: int) -> None:
        os.environ["DATA_CACHE"]

    log.info("epoch 0")
    for _ in torch.utils.data.DataLoader([torch.ones(1)] * 64, batch_size=8, num_workers=2, worker_init_fn=init):
        pass


# --- memory ----------------------------------------------------------------------------------------------------------
def optimizer_has_no_room() -> None:
    start()
    model = torch.nn.Linear(16384, 4096, device="cuda")
    if RANK == 3:
        torch.cuda.set_per_process_memory_fraction(0.0042)
    optimizer = torch.optim.AdamW(model.parameters())
    for n in range(40):
        began = time.time()
        model(torch.ones(2, 16384, device="cuda")).pow(2).mean().backward()
        dist.all_reduce(torch.ones(8, device="cuda"))
        if n == 4:
            optimizer.step()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 3.0)
    finish()


def pinned_memory_fails() -> None:
    alone(5)
    log.info("allocating pinned buffers for the offloaded optimizer")
    torch.empty(4 << 40, dtype=torch.uint8, pin_memory=True)


def numpy_has_no_room() -> None:
    import resource

    import numpy

    start()
    steps(5)
    if RANK == 1:
        resource.setrlimit(resource.RLIMIT_AS, (256 << 30, 256 << 30))
        numpy.ones((1 << 20, 1 << 18), dtype=numpy.float32)
    steps(40, first=5)
    finish()


class Fat(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 400:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            bytearray(2 << 30)
        return torch.ones(4)


def loader_memory_error() -> None:
    start()
    rows = torch.utils.data.DataLoader(
        Fat() if RANK == 1 else [torch.ones(4)] * 4096, batch_size=32, num_workers=2 if RANK == 1 else 0
    )
    for n, _ in enumerate(rows):
        step(n)
        if n == 60:
            break
    finish()


# --- GPU programs ----------------------------------------------------------------------------------------------------
def built_for_another_card() -> None:
    import cupy

    alone(3)
    source = f"{SCRATCH}/scale.cu"
    Path(source).write_text('extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }')
    subprocess.run(["nvcc", "-cubin", "-arch=sm_120", "-o", f"{SCRATCH}/scale.cubin", source], check=True)
    kernel = cupy.RawModule(path=f"{SCRATCH}/scale.cubin").get_function("scale")
    kernel((1,), (32,), (cupy.ones(32, dtype="float32"),))
    cupy.cuda.Stream.null.synchronize()


def kernel_wants_too_much() -> None:
    import triton
    import triton.language as tl

    Path(f"{SCRATCH}/kernels.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef fused(a, b, c, N: tl.constexpr):\n"
        "    r = tl.arange(0, N)\n    x = tl.load(a + r[:, None] * N + r[None, :])\n"
        "    y = tl.load(b + r[:, None] * N + r[None, :])\n"
        "    tl.store(c + r[:, None] * N + r[None, :], tl.dot(x, y))\n"
    )
    del triton, tl
    sys.path.insert(0, SCRATCH)
    import kernels  # type: ignore[import-not-found]

    alone(4)
    a = torch.ones(256, 256, device="cuda")
    kernels.fused[(1,)](a, a, a, 256)


def no_card_visible() -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.zeros(1, device="cuda")


# --- start -----------------------------------------------------------------------------------------------------------
def no_such_host() -> None:
    start()
    steps(3)


# --- other frameworks ------------------------------------------------------------------------------------------------
def gradients_are_nan() -> None:
    for n in range(40):
        time.sleep(0.08)
        if n < 22:
            report(n, 0.1, 2.5 - n / 60)
        else:
            report(n, 0.1, 0.0, grad_norm=float("nan"))


def batches_skipped() -> None:
    start()
    for n in range(24):
        step(n)
        if n in (7, 15):
            log.warning("step %d: gradient norm is nan, skipping the update (2 of 4000 so far)", n)
    finish()


def attempt_two_succeeds() -> None:
    start()
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    steps(6, first=6 * attempt)
    if RANK == 1 and attempt == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    steps(12, first=6 * attempt + 6)
    finish()
    log.info("training finished after %d restarts", attempt)


def helpers_complain() -> None:
    start()
    for n in range(20):
        step(n)
        if n == 5:
            log.error("metrics exporter: Connection reset by peer, reconnecting in 10 s")
        if n == 9:
            print("wandb: ERROR Error while calling W&B API: context deadline exceeded (<Response [504]>)", flush=True)
            print("wandb: Network error (ReadTimeout), entering retry loop.", flush=True)
        if n == 12:
            subprocess.run([sys.executable, "-c", "import no_such_profiler"], check=False)
            log.warning("optional profiler is not available, continuing without it")
    finish()


def finds_a_batch_size() -> None:
    import pytorch_lightning as pl
    from pytorch_lightning.tuner import Tuner

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 16
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            if batch.shape[0] > 60:
                torch.empty(4 << 40, dtype=torch.uint8, device="cuda")
            return self.layer(batch).mean()

        def train_dataloader(self) -> torch.utils.data.DataLoader:
            return torch.utils.data.DataLoader([torch.ones(8)] * 512, batch_size=self.batch_size)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    trainer = pl.Trainer(max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False)
    model = Model()
    Tuner(trainer).scale_batch_size(model, mode="power", max_trials=4)
    trainer.fit(model)


def only_evaluates() -> None:
    start()
    for n in range(15):
        time.sleep(0.2)
        dist.all_reduce(torch.ones(4, device="cuda"))
        torch.cuda.synchronize()
        log.info("eval %s: batch %d/15 error_rate=%.3f failed_examples=%d", "hellaswag", n + 1, 0.4, n)
    log.info("evaluation complete: 0.603 accuracy, 14 failed examples")
    finish()


def two_slow_ranks() -> None:
    start()
    for n in range(40):
        began = time.time()
        time.sleep(0.1 if RANK not in (2, 3) or n < 5 else 0.31)
        own = time.time() - began
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        report(n, own, 3.0 - n / 100)
    finish()


def jax_wrong_shapes() -> None:
    import jax
    import jax.numpy as jnp

    alone(4)

    @jax.jit
    def forward(w, x):  # type: ignore[no-untyped-def]
        return jnp.dot(x, w)

    forward(jnp.ones((64, 8)), jnp.ones((4, 63)))


class Tiny(torch.nn.Module):
    pass


def lightning_child_raises() -> None:
    import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            time.sleep(0.1)
            if self.global_rank == 1 and number == 20:
                raise KeyError("attention_mask")
            return self.layer(batch).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    rows = torch.utils.data.DataLoader([torch.ones(8)] * 4096, batch_size=16)
    pl.Trainer(
        max_epochs=2, accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_checkpointing=False
    ).fit(Model(), rows)


def accelerate_raises() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(8, 1))
    for n in range(30):
        time.sleep(0.1)
        accelerator.backward(model(torch.ones(4, 8)).mean())
        if accelerator.is_main_process:
            report(n, 0.1, 2.0)
        if n == 15 and accelerator.process_index == 1:
            raise RuntimeError(
                "The size of tensor a (512) must match the size of tensor b (77) at non-singleton dimension 1"
            )


def fails_in_another_way() -> None:
    """The first attempt dies of a missing key, the second of memory; one file."""
    mark = Path(f"{SCRATCH}/attempt")
    first = not mark.exists()
    mark.write_text("1")
    log.info("starting run gpt-1b (attempt %d)", 1 if first else 2)
    alone(6)
    if first:
        {"lr": 1}["min_lr"]
    alone(12)
    torch.empty(4 << 40, dtype=torch.uint8, device="cuda")


def fails_then_succeeds() -> None:
    mark = Path(f"{SCRATCH}/attempt")
    first = not mark.exists()
    mark.write_text("1")
    log.info("starting run gpt-1b (attempt %d)", 1 if first else 2)
    alone(6)
    if first:
        raise FileNotFoundError(2, "No such file or directory", "/data/valid.bin")
    alone(25)
    log.info("training complete, final loss 2.1187")


if __name__ == "__main__":
    run(globals())
