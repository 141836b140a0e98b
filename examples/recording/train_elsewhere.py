"""Failures in places where the others have none: hooks, files, ports, pipes, other ways to log. See record.py."""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import tarfile
import time
import traceback

import torch
import torch.distributed as dist
from train import RANK, SCENARIO, SCRATCH, TIMEOUT, WORLD, finish, say, start, step

log = logging.getLogger("trainer")


def steps(count: int = 6, begin: int = 0) -> None:
    for n in range(begin, begin + count):
        step(n)


def quiet_steps(count: int = 8) -> None:
    """Steps that only the first rank tells of, as most programs do."""
    for n in range(count):
        gradient = torch.ones(65536, device="cuda")
        dist.all_reduce(gradient)
        torch.cuda.synchronize()
        if RANK == 0:
            log.info("epoch 0 it %d/%d loss %.4f lr 3.0e-04", n, 500, 2.0 / (n + 1))


# -- exceptions -------------------------------------------------------------------------------------------------------


def hook_raises() -> None:
    """An exception in a hook of the backward pass."""
    start()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())

    def check(grad: torch.Tensor) -> torch.Tensor:
        if RANK == 2 and n == 5:
            raise ArithmeticError(f"gradient of step {n} has norm {grad.norm().item():.1f}, allowed are 0.1")
        return grad

    model.module.weight.register_hook(check)
    for n in range(8):
        loss = model(torch.ones(4, 64, device="cuda")).pow(2).mean()
        loss.backward()
        say(f"rank {RANK} | step {n} | loss {loss.item():.4f}")
    finish()


def gives_a_status() -> None:
    """Ends with a status of its own and says why on one line, without a traceback."""
    start()
    quiet_steps()
    if RANK == 1:
        log.error("cannot continue: the schedule has no phase for step 8")
        sys.exit(3)
    quiet_steps()
    finish()


def no_such_text() -> None:
    start()
    quiet_steps()
    if RANK == 0:
        with open(f"{SCRATCH}/vocabulary.txt", "wb") as file:
            file.write(b"the\nof\n\xff\xfe\x00and\n")
        with open(f"{SCRATCH}/vocabulary.txt", encoding="utf-8") as file:
            file.read()
    quiet_steps()
    finish()


def archive_is_cut() -> None:
    start()
    steps()
    if RANK == 1:
        shard = f"{SCRATCH}/shard-000017.tar"
        with tarfile.open(shard, "w") as tar:
            tar.add(__file__, "0.py")
        with open(shard, "r+b") as file:
            file.truncate(300)
        with tarfile.open(shard) as tar:
            tar.getmembers()
    steps(2, 6)
    finish()


def disk_answers_wrong() -> None:
    start()
    steps()
    if RANK == 3:
        raise OSError(5, "Input/output error", "/mnt/data/train/shard-00017.bin")
    steps(2, 6)
    finish()


def mount_is_gone() -> None:
    start()
    steps()
    if RANK == 0:
        raise OSError(107, "Transport endpoint is not connected", "/mnt/fuse/train/index.json")
    steps(2, 6)
    finish()


def left_on_the_host() -> None:
    start()
    quiet_steps()
    weight = torch.ones(8, 8, device="cpu" if RANK == 3 else "cuda")
    torch.nn.functional.linear(torch.ones(4, 8, device="cuda"), weight)
    quiet_steps()
    finish()


def shapes_do_not_fit() -> None:
    """The same mistake on every rank."""
    start()
    quiet_steps(2)
    torch.nn.Linear(64, 32).cuda()(torch.ones(8, 48, device="cuda"))
    finish()


def bare_assertion() -> None:
    start()
    quiet_steps()
    assert RANK != 2
    quiet_steps()
    finish()


def tells_in_json() -> None:
    """One object on each line, tracebacks inside of them."""
    start()
    for n in range(12):
        gradient = torch.ones(65536, device="cuda")
        dist.all_reduce(gradient)
        torch.cuda.synchronize()
        told = {"time": time.time(), "level": "info", "rank": RANK, "step": n, "loss": 2.0 / (n + 1)}
        print(json.dumps(told), flush=True)
        if RANK == 2 and n == 9:
            try:
                {"en": 0, "de": 1}["zh"]
            except KeyError:
                told = {"time": time.time(), "level": "error", "rank": RANK, "msg": "step failed"}
                print(json.dumps({**told, "exc_info": traceback.format_exc()}), flush=True)
                os._exit(1)
    finish()


def drawn_in_a_box() -> None:
    """A traceback as rich prints it."""
    from rich.traceback import install

    install(width=100)
    start()
    steps()
    if RANK == 1:
        rows = list(range(4))
        print(rows[RANK * 7])
    steps(2, 6)
    finish()


def waits_for_a_queue() -> None:
    start()
    quiet_steps()
    if RANK == 1:
        queue.Queue().get(timeout=5)
    quiet_steps()
    finish()


def on_gloo() -> None:
    """No GPU at all, and one divides by nothing."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    for n in range(8):
        dist.all_reduce(torch.ones(1024))
        print(f"step {n} rank {RANK} loss {2.0 / (n + 1):.4f}", flush=True)
        if RANK == 1 and n == 6:
            print(1 / (n - 6))
    dist.destroy_process_group()


# -- signals, memory --------------------------------------------------------------------------------------------------


def divides_in_c() -> None:
    start()
    steps()
    if RANK == 2:
        os.kill(os.getpid(), signal.SIGFPE)
    steps(2, 6)
    finish()


def keeps_everything() -> None:
    """Every step keeps its activations."""
    start()
    torch.cuda.set_per_process_memory_fraction(0.01)
    kept = []
    for n in range(400):
        kept.append(torch.ones(16 << 20, device="cuda"))
        if n % 2 == 0:
            log.info("step %d loss %.4f mem %.2f GiB", n, 2.0 / (n + 1), torch.cuda.memory_allocated() / 2**30)
    finish()


# -- hangs ------------------------------------------------------------------------------------------------------------


def late_to_the_barrier() -> None:
    start()
    steps()
    if RANK == 6:
        say("rank 6 | building the index of documents")
        time.sleep(600)
    dist.barrier()
    steps(2, 6)
    finish()


def objects_do_not_come() -> None:
    start()
    quiet_steps()
    if RANK == 3:
        time.sleep(600)
    found = [None] * WORLD
    dist.all_gather_object(found, {"rank": RANK, "rows": 17})
    quiet_steps()
    finish()


def three_of_four() -> None:
    """A group that leaves one rank out; the one left out goes on to the next step."""
    start()
    some = dist.new_group([0, 1, 2], timeout=TIMEOUT, group_desc="encoders")
    for n in range(6):
        if RANK < 3:
            dist.all_reduce(torch.ones(2048, device="cuda"), group=some)
        step(n)
    if RANK == 2:
        time.sleep(600)
    if RANK < 3:
        dist.all_reduce(torch.ones(2048, device="cuda"), group=some)
    step(6)
    finish()


def skips_a_reduction() -> None:
    """Rank 0 thinks that nothing has to be reduced in this step."""
    start()
    steps()
    part = torch.empty(1024, device="cuda")
    if RANK != 0:
        dist.reduce_scatter_tensor(part, torch.ones(1024 * WORLD, device="cuda"))
    step(6)
    finish()


def saves_into_nothing() -> None:
    """The checkpoint's file system takes no bytes: a pipe that nobody reads."""
    start()
    steps()
    if RANK == 0:
        os.mkfifo(f"{SCRATCH}/model.pt")
        say(f"rank 0 | saving checkpoint to {SCRATCH}/model.pt")
        torch.save({"weight": torch.ones(1 << 20)}, f"{SCRATCH}/model.pt")
        say("rank 0 | saved checkpoint")
    steps(2, 6)
    finish()


def asks_another_port() -> None:
    if RANK == 2:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 5)
    start()
    steps()
    finish()


# -- all is well ------------------------------------------------------------------------------------------------------


def catches_and_goes_on() -> None:
    """Exceptions that are logged and got over, a signal that only asks for a report, a rejected batch."""
    start()
    signal.signal(signal.SIGUSR1, lambda *_: log.warning("received SIGUSR1, writing a report"))
    for n in range(30):
        gradient = torch.ones(65536, device="cuda")
        dist.all_reduce(gradient)
        torch.cuda.synchronize()
        if n % 7 == 3:
            try:
                int("n/a")
            except ValueError:
                log.exception("row %d of shard 3 cannot be read, skipping it", n * 11)
        if n == 12:
            os.kill(os.getpid(), signal.SIGUSR1)
            log.error("loss is nan in batch 12, skipping this batch")
        if RANK == 0:
            log.info("it %d/30 loss %.4f errors=0 failed=0", n, 2.0 / (n + 1))
    finish()


def helper_dies() -> None:
    """A process that only watches is killed, and the training does not care."""
    start()
    helper = subprocess.Popen(["sleep", "600"])
    steps()
    helper.kill()
    say(f"rank {RANK} | monitor exited with {helper.wait()} (killed), continuing without it")
    steps(20, 6)
    finish()


def starts_from_nothing() -> None:
    start()
    if RANK == 0:
        log.warning("Error loading checkpoint /ckpt/latest: No such file or directory. Starting from scratch.")
        log.warning("Failed to connect to tracking server (Connection refused), metrics are written to disk")
    quiet_steps(30)
    finish()


def well_on_gloo() -> None:
    dist.init_process_group("gloo", timeout=TIMEOUT)
    for n in range(20):
        dist.all_reduce(torch.ones(1024))
        time.sleep(0.02)
        print(f"step {n} rank {RANK} loss {2.0 / (n + 1):.4f}", flush=True)
    dist.destroy_process_group()


def slow_only_at_first() -> None:
    start()
    for n in range(30):
        began = time.time()
        time.sleep(1.5 if RANK == 3 and n < 3 else 0.05)
        own = time.time() - began
        dist.all_reduce(torch.ones(65536, device="cuda"))
        torch.cuda.synchronize()
        took = time.time() - began
        say(f"rank {RANK} | step {n} | loss {2.0 / (n + 1):.4f} | data_time {own:.3f} | iter_time {took:.3f}")
    finish()


# -- they do not agree ------------------------------------------------------------------------------------------------


def sends_more_than_is_taken() -> None:
    start()
    steps()
    if RANK == 0:
        dist.send(torch.ones(1 << 22, device="cuda"), 1)
    else:
        dist.recv(torch.ones(1 << 18, device="cuda"), 0)
    torch.cuda.synchronize()
    steps(2, 6)
    finish()


def nobody_sends() -> None:
    start()
    steps()
    if RANK == 1:
        dist.recv(torch.ones(1024, device="cuda"), 0)
        torch.cuda.synchronize()
    steps(2, 6)
    finish()


def models_differ() -> None:
    start()
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64 if RANK != 1 else 32).cuda())
    steps()
    finish()


def evaluates_too_long() -> None:
    """One rank has the whole test set to itself."""
    start()
    steps()
    if RANK == 1:
        say("rank 1 | evaluating 40000 samples")
        time.sleep(45)
        say("rank 1 | eval_loss 0.3100")
    steps(4, 6)
    finish()


# -- without a traceback ----------------------------------------------------------------------------------------------


def says_it_in_a_line() -> None:
    """Catches everything, prints one line, ends with 1."""
    start()
    try:
        steps()
        if RANK == 2:
            raise RuntimeError("tokenizer and model disagree: 32000 != 32064")
        steps(2, 6)
        finish()
    except RuntimeError as error:
        print(f"ERROR: training failed: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def leaves_with_seven() -> None:
    start()
    steps()
    if RANK == 3:
        os._exit(7)
    steps(2, 6)
    finish()


def two_at_odds() -> None:
    """Two ranks fail of themselves, one three seconds after the other."""
    start()
    steps()
    if RANK == 3:
        raise KeyError("domain")
    if RANK == 0:
        time.sleep(3)
        raise IsADirectoryError(21, "Is a directory", "/data/out")
    steps(2, 6)
    finish()


def draws_a_bar() -> None:
    start()
    for n in range(40):
        dist.all_reduce(torch.ones(65536, device="cuda"))
        torch.cuda.synchronize()
        bar = "█" * (n // 4)
        rest = f"{n}/50 [00:{n:02d}<00:{50 - n:02d}, 1.00it/s, loss={2.0 / (n + 1):.3f}]"
        print(f"\rEpoch 0: {n * 2:3d}%|{bar:10s}| {rest}", end="", file=sys.stderr, flush=True)
        if RANK == 1 and n == 30:
            raise EOFError("shard 30 ends in the middle of a record")
    finish()


def nan_in_one() -> None:
    start()
    for n in range(20):
        step(n, loss=float("nan") if RANK == 3 and n >= 12 else None)
    finish()


def speaks_of_failures() -> None:
    """Well, and full of words."""
    start()
    if RANK == 0:
        log.info("config: on_error=raise max_failures=3 nccl_timeout=1800 oom_retry=true kill_on_xid=[48, 79]")
        log.info(
            'help: on "CUDA out of memory" lower --batch-size; a "Traceback (most recent call last)" is kept in err.log'
        )
    quiet_steps(20)
    if RANK == 0:
        log.info("eval: 412 passed, 3 failed, error rate 0.7 %, worst: AssertionError in sample 17 (expected)")
    quiet_steps(20)
    finish()


def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    globals()[SCENARIO]()


if __name__ == "__main__":
    main()
