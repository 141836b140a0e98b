"""A small distributed training job that fails in a chosen way. One process for each rank; see record.py."""

from __future__ import annotations

import ctypes
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

SCENARIO = sys.argv[1]
RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
TIMEOUT = datetime.timedelta(seconds=int(os.environ.get("NCCL_JOB_TIMEOUT", "20")))
SCRATCH = os.environ.get("SCRATCH", "/tmp")


def say(text: str) -> None:
    print(f"[{datetime.datetime.now():%Y-%m-%d %H:%M:%S}] {text}", flush=True)


def start() -> None:
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", timeout=TIMEOUT)


def step(number: int, group: dist.ProcessGroup | None = None, loss: float | None = None, work: float = 0.05) -> None:
    began = time.time()
    time.sleep(work)
    gradient = torch.ones(65536, device="cuda")
    dist.all_reduce(gradient, group=group)
    torch.cuda.synchronize()
    value = loss if loss is not None else 2.0 / (number + 1)
    say(f"rank {RANK} | step {number} | loss {value:.4f} | data_time 0.000 | iter_time {time.time() - began:.3f}")


def finish() -> None:
    dist.barrier()
    dist.destroy_process_group()
    say("training finished")


def mismatch_op() -> None:
    start()
    for n in range(6):
        step(n)
    tensor = torch.ones(4096, device="cuda")
    if RANK == 1:
        dist.broadcast(tensor, 0)
    else:
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    finish()


def mismatch_dtype() -> None:
    start()
    for n in range(6):
        step(n)
    dtype = torch.float64 if RANK == 2 else torch.float32
    dist.all_reduce(torch.ones(1 << 22, device="cuda", dtype=dtype))
    torch.cuda.synchronize()
    step(6)
    finish()


def mesh_hang() -> None:
    """Tensor-parallel pairs and a data-parallel group: one member of one pair stops, the rest cascade."""
    start()
    pairs = [dist.new_group([i, i + 1], timeout=TIMEOUT, group_desc=f"tp_{i // 2}") for i in range(0, WORLD, 2)]
    own = pairs[RANK // 2]
    for n in range(6):
        dist.all_reduce(torch.ones(1024, device="cuda"), group=own)
        step(n)
    if RANK == 5:
        say("rank 5 | loading next shard")
        time.sleep(600)
    dist.all_reduce(torch.ones(1024, device="cuda"), group=own)
    step(6)
    finish()


def stopped_rank() -> None:
    """One rank is frozen by the operating system: it can neither compute nor write its dump."""
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    step(6)
    finish()


def pipeline_hang() -> None:
    start()
    for n in range(4):
        step(n)
    tensor = torch.ones(1024, device="cuda")
    for n in range(4):
        if RANK > 0:
            dist.recv(tensor, RANK - 1)
        if RANK == 1 and n == 2:
            time.sleep(600)
        if RANK < WORLD - 1:
            dist.send(tensor, RANK + 1)
        torch.cuda.synchronize()
        say(f"rank {RANK} | microbatch {n}")
    finish()


def nan_loss() -> None:
    start()
    for n in range(30):
        step(n, loss=float("nan") if n >= 12 else None, work=0.02)
    finish()


def nan_raises() -> None:
    start()
    for n in range(12):
        step(n, work=0.02)
    if RANK == 0:
        raise FloatingPointError("Loss is nan at step 12, stopping training")
    step(12)
    finish()


def oom_one_rank() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        torch.empty(400 << 30, dtype=torch.uint8, device="cuda")
    step(6)
    finish()


def oom_capped() -> None:
    torch.cuda.set_per_process_memory_fraction(0.02)
    held = []
    for n in range(200):
        held.append(torch.empty(64 << 20, dtype=torch.uint8, device="cuda"))
        say(f"step {n} loss {1 / (n + 1):.4f}")


def segfault() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 1:
        ctypes.string_at(0)
    step(6)
    finish()


def faulthandler_segfault() -> None:
    import faulthandler

    faulthandler.enable()
    segfault()


def elastic_recovers() -> None:
    """The first attempt dies, the second finishes."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    start()
    for n in range(6):
        step(n + 6 * attempt)
    if attempt == 0 and RANK == 1:
        raise ConnectionResetError(104, "Connection reset by peer")
    finish()


def elastic_gives_up() -> None:
    start()
    for n in range(4):
        step(n)
    if RANK == 3:
        raise KeyError("input_ids")
    step(4)
    finish()


def preempted() -> None:
    def on_term(signum: int, frame: object) -> None:
        say("received SIGTERM: spot instance preemption notice, saving and exiting")
        sys.exit(143)

    signal.signal(signal.SIGTERM, on_term)
    start()
    for n in range(400):
        step(n, work=0.1)
    finish()


def checkpoint_full() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        say(f"rank 0 | saving checkpoint to {SCRATCH}/small/step_6.pt")
        with open(f"{SCRATCH}/small/step_6.pt", "wb") as file:
            torch.save({"w": torch.zeros(64 << 20)}, file)
        say("rank 0 | saved checkpoint")
    dist.barrier()
    finish()


def checkpoint_stuck() -> None:
    """The writer blocks on storage that never answers; the others wait at the barrier."""
    start()
    for n in range(6):
        step(n)
    say(f"rank {RANK} | Saving checkpoint at step 6 to /mnt/nfs/run1/step_6")
    if RANK == 0:
        os.mkfifo(f"{SCRATCH}/pipe")
        with open(f"{SCRATCH}/pipe", "wb") as pipe:  # blocks until somebody reads: nobody does
            pipe.write(b"x")
    dist.barrier()
    say("checkpoint saved")
    finish()


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 600 and SCENARIO == "loader_segfault":
            ctypes.string_at(0)
        if index == 600 and SCENARIO == "loader_bad_row":
            raise ValueError(f"row {index}: expected 512 tokens, got 17")
        if index == 600 and SCENARIO == "loader_slow":
            time.sleep(600)
        return torch.ones(16)


def loader() -> None:
    start()
    rows = torch.utils.data.DataLoader(Rows(), batch_size=32, num_workers=2 if RANK == 1 else 0)
    if RANK != 1:
        rows = torch.utils.data.DataLoader([torch.ones(16)] * 4096, batch_size=32)
    for n, _ in enumerate(rows):
        step(n, work=0.02)
        if n == 40:
            break
    finish()


def slow_rank() -> None:
    start()
    for n in range(40):
        began = time.time()
        time.sleep(0.35 if RANK == 6 and n > 5 else 0.05)
        compute = time.time() - began
        dist.all_reduce(torch.ones(4096, device="cuda"))
        torch.cuda.synchronize()
        say(f"rank {RANK} | step {n} | loss {1 / (n + 1):.4f} | data_time 0.001 | iter_time {compute:.3f}")
    finish()


def all_slow() -> None:
    """Everybody is slow in the second half: nobody is to blame."""
    start()
    for n in range(40):
        began = time.time()
        time.sleep(0.3 if n > 20 else 0.05)
        compute = time.time() - began
        dist.all_reduce(torch.ones(4096, device="cuda"))
        torch.cuda.synchronize()
        say(f"rank {RANK} | step {n} | loss {1 / (n + 1):.4f} | data_time 0.001 | iter_time {compute:.3f}")
    finish()


def survived() -> None:
    """Errors that were retried and did not matter."""
    import logging
    import traceback

    start()
    for n in range(20):
        step(n, work=0.02)
        if n == 7 and RANK == 1:
            try:
                raise ConnectionResetError(104, "Connection reset by peer")
            except ConnectionResetError:
                traceback.print_exc()
                logging.warning("shard fetch failed, retrying in 1s (attempt 1/5)")
    finish()


def assert_in_one() -> None:
    """An index past the end of an embedding: the GPU's own assert, in one of several ranks."""
    start()
    table = torch.nn.Embedding(100, 16).cuda()
    for n in range(6):
        step(n)
    if RANK == 3:
        table(torch.tensor([5, 100], device="cuda")).sum().item()
    step(6)
    finish()


def early_exit() -> None:
    """One rank has fewer batches than the others and leaves the loop first."""
    start()
    for n in range(8 if RANK == 2 else 12):
        step(n)
    if RANK == 2:
        say("rank 2 | dataset exhausted after 8 batches")
        time.sleep(600)
    finish()


def uneven_gather() -> None:
    start()
    for n in range(6):
        step(n)
    size = 2 << 20 if RANK == 3 else 1 << 20
    parts = [torch.empty(size, device="cuda") for _ in range(WORLD)]
    dist.all_gather(parts, torch.ones(size, device="cuda"))
    torch.cuda.synchronize()
    step(6)
    finish()


def killed_one() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    step(6)
    finish()


def aborted_one() -> None:
    start()
    for n in range(6):
        step(n)
    if RANK == 0:
        os.abort()
    step(6)
    finish()


def nobody_listens() -> None:
    """The address of rank 0 is wrong, so nobody meets."""
    os.environ["MASTER_PORT"] = "1"
    if RANK == 0:
        time.sleep(40)
        sys.exit(0)
    start()


def corrupt_checkpoint() -> None:
    path = f"{SCRATCH}/step_100.pt"
    if RANK == 0:
        torch.save({"w": torch.zeros(1 << 20)}, path)
        with open(path, "r+b") as file:
            file.truncate(100_000)
    start()
    dist.barrier()
    say(f"rank {RANK} | loading checkpoint {path}")
    torch.load(path)
    finish()


def missing_data() -> None:
    start()
    for n in range(3):
        step(n)
    if RANK == 1:
        with open("/data/pile/shard_00042.bin", "rb") as file:
            file.read()
    step(3)
    finish()


def read_only() -> None:
    start()
    for n in range(3):
        step(n)
    if RANK == 0:
        say(f"rank 0 | saving checkpoint to {SCRATCH}/ro/step_3.pt")
        torch.save({"w": torch.zeros(1024)}, f"{SCRATCH}/ro/step_3.pt")
    dist.barrier()
    finish()


def oom_survived() -> None:
    """Out of memory, caught; the batch is halved and the run goes on."""
    held = 400 << 30
    for n in range(20):
        while True:
            try:
                block = torch.empty(held, dtype=torch.uint8, device="cuda")
                break
            except torch.OutOfMemoryError as error:
                print(f"WARNING: {error}", flush=True)
                held //= 4
                say(f"reducing batch: retrying with {held >> 30} GiB")
        del block
        say(f"step {n} | loss {1 / (n + 1):.4f} | iter_time 0.100")
    say("training finished")


def interrupted() -> None:
    start()
    for n in range(400):
        step(n, work=0.1)
    finish()


def exploding() -> None:
    start()
    for n in range(40):
        step(n, loss=2.0 if n < 20 else 2.0 * 3 ** (n - 19), work=0.02)
    finish()


def hugging_face() -> None:
    """A real Trainer on a tiny model: finishes, meets a bad row, or runs out of memory."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    class Text(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 200

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            if SCENARIO == "hf_bad_row" and index == 137:
                raise KeyError("labels")
            ids = torch.randint(0, 500, (64,))
            return {"input_ids": ids, "labels": ids}

    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=64, n_embd=64, n_layer=2, n_head=2))
    rate = 1e6 if SCENARIO == "hf_nan" else 1e-3
    arguments = TrainingArguments(
        output_dir=f"{SCRATCH}/hf", per_device_train_batch_size=4, num_train_epochs=2, logging_steps=5, save_steps=20,
        eval_strategy="steps", eval_steps=20, report_to=[], learning_rate=rate, max_grad_norm=0 if rate > 1 else 1.0,
    )  # fmt: skip
    Trainer(model=model, args=arguments, train_dataset=Text(), eval_dataset=Text()).train()


def lightning() -> None:
    """A real Lightning run: finishes, or raises in a training step."""
    import pytorch_lightning as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(16, 1)

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            if SCENARIO == "pl_raises" and number == 25:
                raise RuntimeError("mat1 and mat2 shapes cannot be multiplied (32x16 and 17x1)")
            loss = self.layer(batch).pow(2).mean()
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    rows = torch.utils.data.DataLoader(torch.ones(2048, 16), batch_size=32)
    pl.Trainer(max_epochs=2, default_root_dir=f"{SCRATCH}/pl", log_every_n_steps=5).fit(Model(), rows)


WHOLE = {"hf_runs": hugging_face, "hf_bad_row": hugging_face, "hf_nan": hugging_face}
WHOLE |= {"pl_runs": lightning, "pl_raises": lightning}
LOADERS = ("loader_segfault", "loader_bad_row", "loader_slow")
if __name__ == "__main__":
    WHOLE.get(SCENARIO, loader if SCENARIO in LOADERS else globals().get(SCENARIO))()
