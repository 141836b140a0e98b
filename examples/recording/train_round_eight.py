"""Failures of the eighth round: exits without a traceback, ends after the last step, loggers that carry the exception.

Run by record_round_eight.py.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback

import torch
import torch.distributed as dist
from training import RANK, SCRATCH, TIMEOUT, WORLD, finish, forever, log, report, run, start, step, steps


# --- crashes ----------------------------------------------------------------------------------------------------------
def accelerated_memory() -> None:
    start()
    steps(6)
    if RANK == 1:
        torch.cuda.set_per_process_memory_fraction(0.01)
        torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
    steps(20, first=6)
    finish()


def trainer_callback_raises() -> None:
    import transformers

    class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 64

        def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.arange(8), "labels": torch.arange(8)}

    class Callback(transformers.TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args, state, control, **kwargs):  # type: ignore[no-untyped-def]
            if state.global_step == 5:
                raise AttributeError(f"'{type(self).__name__}' object has no attribute 'tracker'")

    config = transformers.GPT2Config(n_layer=1, n_head=1, n_embd=16, vocab_size=32, n_positions=16)
    arguments = transformers.TrainingArguments(
        output_dir=f"{SCRATCH}/out", per_device_train_batch_size=4, logging_steps=1, report_to=[]
    )
    model = transformers.GPT2LMHeadModel(config)
    transformers.Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Callback()]).train()


def compiled_index() -> None:
    """A compiled lookup with an index that is out of range, on rank 2."""
    start()
    table = torch.randn(32, 8, device="cuda")
    look = torch.compile(lambda rows: table[rows].sum())
    for n in range(20):
        began = time.time()
        rows = torch.full((64,), 99 if RANK == 2 and n == 6 else 3, device="cuda")
        look(rows)
        dist.all_reduce(torch.ones(16, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 3.0 - n / 30)
    finish()


def memmap_is_shorter() -> None:
    import numpy as np

    start()
    steps(4)
    place = f"{SCRATCH}/tokens{RANK}.bin"
    np.arange(1000 if RANK == 1 else 4096, dtype=np.uint16).tofile(place)
    np.memmap(place, dtype=np.uint16, mode="r", shape=(4096,))
    steps(20, first=4)
    finish()


def told_in_json() -> None:
    """The logger writes JSON with the traceback in a field; the process leaves with status 3."""
    start()
    steps(6)
    if RANK == 3:
        try:
            raise ValueError("expected 2048 tokens in packed sequence, got 2049")
        except ValueError as problem:
            row = {"level": "error", "rank": RANK, "msg": "training failed", "error": str(problem),
                   "exc_info": traceback.format_exc()}  # fmt: skip
            print(json.dumps(row), flush=True)
        os._exit(3)
    steps(30, first=6)
    finish()


def critical_and_out() -> None:
    start()
    steps(6)
    if RANK == 1:
        log.critical("vocabulary of the tokenizer (50257) does not fit the embedding (50304): giving up")
        os._exit(2)
    steps(30, first=6)
    finish()


def iterator_is_exhausted() -> None:
    start()
    rows = iter(range(7 if RANK == 1 else 20))
    for _ in range(20):
        step(next(rows))
    finish()


def last_evaluation_fails() -> None:
    """All ranks are done; rank 0 then fails in its report."""
    start()
    steps(8)
    finish()
    log.info("training finished")
    if RANK == 0:
        scores: dict[str, float] = {}
        assert scores.get("accuracy", 0.0) > 0.1, "accuracy of the final model is below 0.1"


def memory_again() -> None:
    """Out of memory, half the batch, and out of memory again."""
    start()
    steps(4)
    if RANK == 0:
        torch.cuda.set_per_process_memory_fraction(0.01)
        try:
            torch.empty(16 << 30, device="cuda", dtype=torch.uint8)
        except torch.OutOfMemoryError:
            log.warning("out of memory, retrying with half the batch")
        torch.empty(8 << 30, device="cuda", dtype=torch.uint8)
    steps(20, first=4)
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
def full_state_is_written() -> None:
    """FSDP2; rank 0 writes the full state and never ends."""
    from torch.distributed.fsdp import fully_shard

    start()
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).cuda()
    fully_shard(model)
    for n in range(6):
        began = time.time()
        model(torch.randn(4, 64, device="cuda")).pow(2).mean().backward()
        torch.cuda.synchronize()
        time.sleep(0.1)
        report(n, time.time() - began, 2.0)
    {name: weight.full_tensor() for name, weight in model.state_dict().items()}
    if RANK == 0:
        forever("saving checkpoint to /lustre/run7/step_6")
    dist.barrier()
    steps(6, first=6)
    finish()


def gloo_peer_leaves() -> None:
    """Rank 2 ends with status 0 before the others are done."""
    start("gloo")
    steps(6)
    if RANK == 2:
        log.info("early stop on this rank")
        sys.stdout.flush()
        os._exit(0)
    steps(20, first=6)
    finish()


def waits_in_the_logger() -> None:
    """Rank 3 waits for a tracking server between two steps."""
    start()
    steps(7)
    if RANK == 3:
        forever("uploading 214 metrics to the tracking server (attempt 1)")
    steps(9, first=7)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def stacks_on_request() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    start()
    steps(6)
    os.kill(os.getpid(), signal.SIGUSR1)
    steps(12, first=6)
    finish()


def explains_failures() -> None:
    """Its banner explains how failures look; nothing fails."""
    print("on failure you will see 'Traceback (most recent call last)' and exit code 1; OOM shows as", flush=True)
    print("  torch.OutOfMemoryError: CUDA out of memory (then lower --batch-size)", flush=True)
    start()
    for n in range(14):
        step(n)
        if n == 6:
            print("wandb: ERROR Error while calling W&B API: rate limit exceeded (<Response [429]>)", flush=True)
            print("wandb: 429 encountered (rate limit), retrying request", flush=True)
    print("Run summary: errors 0, oom 0, nan 0, restarts 0, exit code 0", flush=True)
    finish()


def barrier_takes_long() -> None:
    start()
    steps(6)
    if RANK == 1:
        time.sleep(TIMEOUT.total_seconds() * 0.6)
    dist.barrier()
    steps(12, first=6)
    finish()
    assert WORLD


if __name__ == "__main__":
    sys.modules.setdefault("train_round_eight", sys.modules["__main__"])
    run(globals())
