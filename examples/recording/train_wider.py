"""More ways to fail: sharded models, gloo groups, loaders, rendezvous, other trainers. See record.py."""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import threading
import time

import torch
import torch.distributed as dist
from train import RANK, SCENARIO, SCRATCH, TIMEOUT, finish, say, start, step


def wait_forever() -> None:
    time.sleep(600)


def sharded() -> torch.nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4))).cuda()
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)


def train_sharded(model: torch.nn.Module, number: int, rows: int = 8) -> None:
    began = time.time()
    loss = model(torch.randn(rows, 256, device="cuda")).pow(2).mean()
    loss.backward()
    torch.cuda.synchronize()
    say(f"rank {RANK} | step {number} | loss {loss.item():.4f} | data_time 0.000 | iter_time {time.time() - began:.3f}")


def fsdp_skip() -> None:
    """One rank takes another branch and stays on the host while the others gather parameters."""
    start()
    model = sharded()
    for n in range(6):
        train_sharded(model, n)
    if RANK == 2:
        say("rank 2 | tokenising a long document on the host")
        wait_forever()
    train_sharded(model, 6)
    finish()


def fsdp_oom() -> None:
    start()
    torch.cuda.set_per_process_memory_fraction(0.02)
    model = sharded()
    for n in range(6):
        train_sharded(model, n)
    train_sharded(model, 6, rows=8 << 20 if RANK == 1 else 8)
    finish()


def unused_parameters() -> None:
    start()

    class Two(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used = torch.nn.Linear(8, 8)
            self.unused = torch.nn.Linear(8, 8)

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return self.used(rows)

    model = torch.nn.parallel.DistributedDataParallel(Two().cuda())
    for n in range(3):
        loss = model(torch.ones(4, 8, device="cuda")).sum()
        loss.backward()
        say(f"rank {RANK} | step {n} | loss {loss.item():.4f}")
    finish()


class Items(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.open = []

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if SCENARIO == "loader_exits" and index == 600:
            os._exit(3)
        if SCENARIO == "loader_timeout" and index == 600:
            wait_forever()
        if SCENARIO == "loader_files":
            self.open.append(open("/dev/zero", "rb"))  # noqa: SIM115
        if SCENARIO == "loader_shared_memory":
            return torch.ones(1 << 20)
        if SCENARIO == "loader_ragged" and index == 600:
            return torch.ones(17)
        return torch.ones(16)


def loaders() -> None:
    start()
    if SCENARIO == "loader_files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))
    rows = torch.utils.data.DataLoader([torch.ones(16)] * 4096, batch_size=32)
    if RANK == 1:
        wait = 8 if SCENARIO == "loader_timeout" else 0
        rows = torch.utils.data.DataLoader(Items(), batch_size=32, num_workers=2, timeout=wait)
    for n, _ in enumerate(rows):
        step(n, work=0.02)
        if n == 40:
            break
    finish()


def late_rank() -> None:
    if RANK == 3:
        say("rank 3 | waiting for the dataset volume to be mounted")
        time.sleep(70)
    start()
    step(0)
    finish()


def monitored() -> None:
    start()
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    for n in range(6):
        step(n)
    if RANK == 2:
        wait_forever()
    dist.monitored_barrier(group=control, timeout=TIMEOUT, wait_all_ranks=True)
    finish()


def gloo_wait() -> None:
    start()
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    for n in range(6):
        step(n)
    if RANK == 1:
        say("rank 1 | evaluating")
        wait_forever()
    dist.barrier(group=control)
    finish()


def sharded_save() -> None:
    """A distributed checkpoint in which one rank's storage never answers."""
    import torch.distributed.checkpoint as dcp

    start()
    model = sharded()
    for n in range(6):
        train_sharded(model, n)
    say(f"rank {RANK} | saving checkpoint at step 6")
    if RANK == 1:
        os.mkfifo(f"{SCRATCH}/pipe1")
        with open(f"{SCRATCH}/pipe1", "wb") as pipe:
            pipe.write(b"x")
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"{SCRATCH}/step_6")
    say(f"rank {RANK} | saved checkpoint")
    finish()


def slow_save() -> None:
    """A save that takes long, and ends: nothing is wrong."""
    start()
    for n in range(8):
        step(n)
    if RANK == 0:
        say("rank 0 | saving checkpoint to /mnt/shared/step_8")
        time.sleep(14)
        say("rank 0 | checkpoint saved in 14.0 s")
    dist.barrier()
    for n in range(8, 16):
        step(n)
    finish()


def long_evaluation() -> None:
    start()
    for n in range(20):
        step(n)
    say(f"rank {RANK} | running evaluation on 2000 samples")
    for part in range(15):
        time.sleep(1)
        dist.all_reduce(torch.ones(16, device="cuda"))
        if part % 5 == 0:
            say(f"rank {RANK} | eval batch {part}/15")
    say(f"rank {RANK} | eval_loss 1.2345 perplexity 3.44")
    for n in range(20, 30):
        step(n)
    finish()


def cgroup_kill() -> None:
    """One rank leaks host memory until its control group is full."""
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        place = "/sys/fs/cgroup/rank2"
        os.makedirs(place, exist_ok=True)
        with open(f"{place}/memory.max", "w") as limit:
            limit.write(str(6 << 30))
        with open(f"{place}/cgroup.procs", "w") as members:
            members.write(str(os.getpid()))
        cached = []
        for _ in range(60):
            cached.append(bytearray(os.urandom(1 << 20) * 512))
            say(f"rank 2 | cached {len(cached) * 512} MiB of samples")
    step(6)
    finish()


def bus_error() -> None:
    """A memory-mapped file that somebody truncates."""
    start()
    path = f"{SCRATCH}/tokens_{RANK}.bin"
    with open(path, "wb") as file:
        file.write(bytes(1 << 20))
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), 1 << 20)
        for n in range(6):
            step(n)
        if RANK == 1:
            os.truncate(path, 0)
            say(f"rank 1 | {view[4096]}")
    step(6)
    finish()


def runs() -> None:
    """Goes on until somebody ends it."""
    start()
    for n in range(600):
        step(n, work=0.1)
    finish()


def no_interface() -> None:
    os.environ["NCCL_SOCKET_IFNAME"] = "=bond9"
    start()
    step(0)
    finish()


def locked() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 3:
        lock = threading.Lock()
        with lock:
            lock.acquire()
    step(6)
    finish()


def spinning_kernel() -> None:
    """A kernel that does not end: the host goes on and enqueues, the GPU never gets there."""
    start()
    for n in range(6):
        step(n)
    if RANK == 1:
        torch.cuda._sleep(1 << 45)
    step(6)
    finish()


def extra_collective() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        dist.all_reduce(torch.ones(1, device="cuda"))  # the mean loss, for the log: the others do not join
        torch.cuda.synchronize()
    step(6)
    finish()


def crossed_groups() -> None:
    """Two groups of the same ranks, used in another order by one of them."""
    start()
    first, second = (dist.new_group(timeout=TIMEOUT, group_desc=name) for name in ("experts", "gradients"))
    tensor = torch.ones(1 << 22, device="cuda")
    for n in range(6):
        dist.all_reduce(tensor, group=first)
        dist.all_reduce(tensor, group=second)
        step(n)
    for group in (second, first) if RANK == 1 else (first, second):
        dist.all_reduce(tensor, group=group)
        torch.cuda.synchronize()
    step(6)
    finish()


def ended_one() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGTERM)
    step(6)
    finish()


def bad_record() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        json.loads('{"text": "half a rec')
    step(6)
    finish()


def denied() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        say("rank 0 | saving checkpoint to /proc/run/step_6.pt")
        torch.save({"w": torch.zeros(16)}, "/proc/run/step_6.pt")
    dist.barrier()
    finish()


def compiler_error() -> None:
    def broken(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> None:
        raise NotImplementedError("operator aten::_fancy is not lowered")

    model = torch.compile(torch.nn.Linear(8, 8).cuda(), backend=broken)
    say("step 0 loss 1.2345")
    model(torch.ones(2, 8, device="cuda"))


def chained() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        try:
            {}["reward"]
        except KeyError as missing:
            raise RuntimeError("batch 6 could not be collated") from missing
    step(6)
    finish()


def first_leaves() -> None:
    """Rank 0, which holds the store, believes that it is done."""
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        say("rank 0 | reached max_steps=6, exiting")
        os._exit(0)
    for n in range(6, 60):
        step(n)
    finish()


def host_allocation() -> None:
    import numpy

    start()
    for n in range(6):
        step(n)
    if RANK == 1:
        numpy.ones(1 << 47)
    step(6)
    finish()


def thread_fails() -> None:
    """An exception in a thread that nobody needs: training goes on and ends well."""
    start()
    threading.Thread(target=lambda: json.loads("{"), name="metrics-upload").start()
    for n in range(20):
        step(n)
    finish()


def untidy_end() -> None:
    """Ends well, but does not destroy its group."""
    start()
    for n in range(20):
        step(n)
    say("training finished")


def device_fault() -> None:
    import cupy

    code = {
        "misaligned": "reinterpret_cast<double*>(reinterpret_cast<char*>(out) + 1)[threadIdx.x] = 1.0;",
        "overflowing": "volatile double deep[1 << 17]; for (int i = 0; i < (1 << 17); i++) deep[i] = out[i % 8];"
        " out[0] = deep[threadIdx.x];",
        "out_of_bounds": "out[(1LL << 40) + threadIdx.x] = 1.0;",
    }[SCENARIO]
    start()
    for n in range(6):
        step(n)
    if RANK == 1:
        kernel = cupy.RawKernel('extern "C" __global__ void fuse(double* out) {' + code + "}", "fuse")
        kernel((1,), (32,), (cupy.zeros(64),))
        torch.cuda.synchronize()
    step(6)
    finish()


def jax_trains() -> None:
    """A real JAX job: ends, runs out of memory, or meets a number that is none."""
    import jax
    import jax.numpy as jnp

    if SCENARIO == "jax_nan":
        jax.config.update("jax_debug_nans", True)

    @jax.jit
    def update(weights: jax.Array, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, slope = jax.value_and_grad(lambda w: jnp.mean((rows @ w) ** 2))(weights)
        return weights - 0.01 * slope, loss

    weights = jnp.ones((16, 1))
    for n in range(30):
        weights, loss = update(weights, jnp.ones((32, 16)))
        print(f"step: {n}, loss: {float(loss):.4f}", flush=True)
        if SCENARIO == "jax_oom" and n == 12:
            jnp.ones((400, 1 << 30)).block_until_ready()
        if SCENARIO == "jax_nan" and n == 12:
            weights = weights * jnp.log(-1.0 * jnp.ones(1))


def hugging_face() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Text(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            ids = torch.randint(0, 700 if SCENARIO == "hf_vocabulary" and index == 91 else 500, (64,))
            return {"input_ids": ids, "labels": ids}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=256, n_layer=4, n_head=2))
    arguments = TrainingArguments(
        output_dir=f"{SCRATCH}/small/hf", per_device_train_batch_size=4, num_train_epochs=2, logging_steps=5,
        save_steps=20, report_to=[], disable_tqdm=SCENARIO == "hf_quiet",
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Text()).train()


def lightning() -> None:
    import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            if SCENARIO == "pl_oom" and number == 25:
                torch.empty(400 << 30, dtype=torch.uint8, device="cuda")
            loss = self.layer(batch).pow(2).mean()
            if SCENARIO == "pl_nan" and number > 25:
                loss = loss * float("nan")
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    rows = torch.utils.data.DataLoader(torch.ones(2048, 16), batch_size=32)
    stop = [pl.callbacks.EarlyStopping("train_loss", check_finite=True, patience=100, check_on_train_epoch_end=True)]
    pl.Trainer(
        max_epochs=2, default_root_dir=f"{SCRATCH}/pl", log_every_n_steps=5, callbacks=stop, enable_checkpointing=False
    ).fit(Model(), rows)


def main() -> None:
    if SCENARIO.startswith("loader_"):
        return loaders()
    if SCENARIO.startswith("jax_"):
        return jax_trains()
    if SCENARIO.startswith("hf_"):
        return hugging_face()
    if SCENARIO.startswith("pl_"):
        return lightning()
    if SCENARIO in ("misaligned", "overflowing", "out_of_bounds"):
        return device_fault()
    if SCENARIO in ("node_lost", "half_a_cluster", "stopped_by_operator"):
        return runs()
    return globals()[SCENARIO]()


if __name__ == "__main__":
    main()
