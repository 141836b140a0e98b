"""Failures and healthy runs in other styles of logging: JSON, `logging`, bars, nanoGPT's and Megatron's lines.

See record.py.
"""

from __future__ import annotations

import ctypes
import datetime
import faulthandler
import http.server
import json
import logging
import os
import resource
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import torch
import torch.distributed as dist
from train import RANK, SCENARIO, SCRATCH, TIMEOUT, WORLD, start

log = logging.getLogger("trainer")


def work(group: dist.ProcessGroup | None = None, seconds: float = 0.05) -> float:
    """One step's work; how long it took."""
    began = time.time()
    time.sleep(seconds)
    dist.all_reduce(torch.ones(65536, device="cuda"), group=group)
    torch.cuda.synchronize()
    return time.time() - began


def end() -> None:
    dist.barrier()
    dist.destroy_process_group()


def as_json(number: int, took: float, **more: object) -> None:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    loss = round(2.5 / (number + 1), 4)
    row = {
        "time": now,
        "level": "info",
        "rank": RANK,
        "step": number,
        "loss": loss,
        "iter_time": round(took, 4),
        **more,
    }
    print(json.dumps(row), flush=True)


def as_nano(number: int, took: float) -> None:
    print(f"iter {number}: loss {2.5 / (number + 1):.4f}, time {took * 1000:.2f}ms, mfu 31.20%", flush=True)


def as_megatron(number: int, took: float) -> None:
    if RANK == WORLD - 1:
        print(
            f" [{datetime.datetime.now():%Y-%m-%d %H:%M:%S}] iteration {number:8d}/     100 | consumed samples: "
            f"{number * 256:12d} | elapsed time per iteration (ms): {took * 1000:.1f} | learning rate: 1.500000E-04 | "
            f"global batch size:   256 | lm loss: {2.5 / (number + 1):.6E} | loss scale: 1.0 | grad norm: 0.912 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |",
            flush=True,
        )


def as_log(number: int, took: float) -> None:
    log.info("epoch 0 step %d loss %.4f lr 3.0e-04 step_time %.3fs", number, 2.5 / (number + 1), took)


def rows_stop() -> None:
    """The source of batches of one rank stops giving any; JSON lines."""
    start()
    for n in range(30):
        if RANK == 1 and n == 9:
            threading.Event().wait(600)
        as_json(n, work())
    end()


def before_the_first_step() -> None:
    """One rank is still fetching something when the others are ready."""
    log.info("initializing process group")
    start()
    dist.all_reduce(torch.ones(1, device="cuda"))
    torch.cuda.synchronize()
    log.info("building model, 124.4M parameters")
    if RANK == 2:
        log.info("downloading tokenizer files")
        time.sleep(600)
    dist.barrier()
    for n in range(5):
        as_log(n, work())
    end()


def uneven_scatter() -> None:
    start()
    for n in range(8):
        as_nano(n, work())
    rows = 4096 if RANK == 3 else 2048
    dist.reduce_scatter_tensor(torch.empty(rows, device="cuda"), torch.ones(rows * WORLD, device="cuda"))
    torch.cuda.synchronize()
    as_nano(8, work())
    end()


def redirected() -> None:
    """torchrun keeps the output of each rank in a file of its own."""
    start()
    for n in range(8):
        as_log(n, work())
        if n == 5 and RANK == 3:
            sizes = {"tokens": 511}
            assert sizes["tokens"] == 512, f"expected 512 tokens, got {sizes['tokens']}"
    end()


def missing_in_one() -> None:
    start()
    as_log(0, work())
    if RANK == 1:
        import flash_attention_kernels_v9  # noqa: F401
    as_log(1, work())
    end()


def oom_is_logged() -> None:
    """The exception is caught, logged and turned into an exit status."""
    start()
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        for n in range(12):
            if n == 7 and RANK == 1:
                kept = [torch.empty(1 << 30, device="cuda") for _ in range(64)]
                log.info("kept %d", len(kept))
            as_log(n, work())
    except torch.OutOfMemoryError:
        log.exception("training step failed")
        os._exit(1)
    end()


def halves_the_batch() -> None:
    """Out of memory, a smaller batch, and on it goes."""
    torch.cuda.set_per_process_memory_fraction(0.05)
    size = 1 << 31
    for n in range(25):
        while True:
            try:
                torch.empty(size, device="cuda").fill_(1)
                break
            except torch.OutOfMemoryError as error:
                log.warning("%s", error)
                size //= 2
                log.warning("halving the micro batch to %d", size >> 20)
        time.sleep(0.05)
        as_log(n, 0.05)
    log.info("training complete")


def scaler_skips() -> None:
    """The first steps of mixed precision overflow, as they do."""
    scale = 65536.0
    for n in range(40):
        time.sleep(0.05)
        if n in (0, 1, 2, 17):
            scale /= 2
            log.warning("gradient overflow, skipping step %d, reducing loss scale to %.1f", n, scale)
            continue
        as_log(n, 0.05)
    log.info("training complete, final loss 0.0610")


def stays_nan() -> None:
    """A bar whose loss becomes nan and stays so."""
    from tqdm import tqdm

    bar = tqdm(range(300), desc="train")
    for n in bar:
        time.sleep(0.03)
        bar.set_postfix(loss=float("nan") if n > 120 else 2.5 / (n + 1), lr=3e-4)


def spikes() -> None:
    for n in range(200):
        time.sleep(0.02)
        loss = 2.5 / (n + 1) + 1 + (4 if n == 120 else 0)
        log.info("step %d | loss %.4f | grad_norm %.3f", n, loss, 7.9 if n == 120 else 0.8)
    log.info("done")


def requeued() -> None:
    """The scheduler warns, the job saves and leaves."""
    start()
    told = threading.Event()
    signal.signal(signal.SIGUSR1, lambda *_: told.set())
    if RANK == 0:
        threading.Timer(6, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
    for n in range(1000):
        took = work()
        flag = torch.tensor([int(told.is_set())], device="cuda")
        dist.all_reduce(flag)
        if n % 10 == 0:
            as_log(n, took)
        if flag.item():
            log.warning("received SIGUSR1 (time limit is near), saving a checkpoint and requeueing the job")
            log.info("saved checkpoint to /scratch/run/step_%d in 0.4 s", n)
            end()
            sys.exit(0)


def dumps_stacks() -> None:
    """One rank waits for a lock for ever; all of them print where they are now and then."""
    faulthandler.dump_traceback_later(12, repeat=True, exit=False)
    start()
    for n in range(6):
        as_nano(n, work())
    if RANK == 0:
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    as_nano(6, work())
    end()


def cache_is_full() -> None:
    """The cache of one rank's data has no room."""
    start()
    for n in range(30):
        if RANK == 2:
            with open(f"{SCRATCH}/small/cache_{n}.arrow", "wb") as file:
                file.write(b"x" * (1 << 20))
        as_json(n, work())
    end()


def store_answers_503() -> None:
    """Shards come over HTTP, and the server is overloaded."""
    start()

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if int(self.path.rsplit("-", 1)[1]) < 5 else 503)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = http.server.HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for n in range(30):
        if RANK == 1:
            for attempt in range(3):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/shard-{n}")
                    break
                except urllib.error.HTTPError as error:
                    log.warning("shard-%d: attempt %d failed: %s", n, attempt + 1, error)
                    if attempt == 2:
                        raise
                    time.sleep(0.5)
        as_log(n, work())
    end()


def capture_fails() -> None:
    start()
    for n in range(5):
        as_nano(n, work())
    if RANK == 1:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            rows = torch.ones(16, device="cuda")
            log.info("sum %f", rows.sum().item())
    as_nano(5, work())
    end()


def second_node_raises() -> None:
    start()
    for n in range(8):
        as_megatron(n, work())
        if n == 6 and RANK == 3:
            raise ValueError("loss mask is empty for document 88123")
    end()


def slow_in_json() -> None:
    start()
    for n in range(60):
        wait = 0.35 if RANK == 5 else 0.04
        began = time.time()
        time.sleep(wait)
        own = time.time() - began
        work(seconds=0)
        as_json(n, time.time() - began, data_time=0.001, compute_time=round(own, 4))
    end()


def noisy_and_well() -> None:
    """Nothing is wrong, although many words sound like it."""
    start()
    log.warning("torch.backends.cuda.matmul.allow_tf32 is deprecated and will raise an error in a later release")
    for n in range(40):
        took = work()
        if n % 4 == 0:
            as_log(n, took)
        if n == 10:
            log.info("validation: error_rate 0.0213, failed requests: 0, timeouts: 0, nan_count: 0")
        if n == 15:
            log.info("killed 3 stale worker leases, 0 out of memory events so far")
        if n == 20:
            try:
                open(f"{SCRATCH}/optional.json")  # noqa: SIM115
            except FileNotFoundError as error:
                log.warning("no overrides: %s", error)
        if n == 25:
            log.info("NCCL timeout is 1800 s, watchdog enabled, abort on error: true")
    log.info("exiting with status 0")
    end()


def upload_retried() -> None:
    start()
    for n in range(30):
        as_log(n, work())
        if n == 15 and RANK == 0:
            for attempt in range(2):
                log.error("upload of step_15 failed (attempt %d): Connection reset by peer; retrying", attempt + 1)
                time.sleep(0.5)
            log.info("uploaded step_15 to object storage in 1.9 s")
    log.info("training complete")
    end()


def holds_the_interpreter() -> None:
    """One rank sits in native code that does not let go of the interpreter."""
    start()
    for n in range(6):
        as_nano(n, work())
    if RANK == 2:
        ctypes.PyDLL(None).sleep(600)
    as_nano(6, work())
    end()


def on_processors() -> None:
    """Gloo on the host: one rank raises, the others lose it."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    for n in range(10):
        time.sleep(0.05)
        dist.all_reduce(torch.ones(1024))
        as_log(n, 0.05)
        if n == 6 and RANK == 1:
            raise KeyError("label_smoothing")
    end()


def first_raises_early() -> None:
    """The rank that keeps the store fails right after the start."""
    start()
    dist.barrier()
    if RANK == 0:
        raise RuntimeError("vocabulary of the tokenizer (50304) and of the model (50257) differ")
    for n in range(5):
        as_log(n, work())
    end()


def no_such_device() -> None:
    torch.cuda.set_device(3 if RANK == 1 else 0)
    dist.init_process_group("nccl", timeout=TIMEOUT)
    as_log(0, work())
    end()


def not_enough_memory() -> None:
    import numpy as np

    start()
    as_log(0, work())
    if RANK == 0:
        resource.setrlimit(resource.RLIMIT_AS, (200 << 30, 200 << 30))
        np.ones((1 << 20, 1 << 16), dtype=np.float64)
    as_log(1, work())
    end()


def no_more_threads() -> None:
    start()
    as_log(0, work())
    if RANK == 1:
        threading.stack_size(64 << 20)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), used + (1 << 30)))
        for _ in range(64):
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    as_log(1, work())
    end()


def no_tokenizer() -> None:
    from transformers import AutoTokenizer

    log.info("loading tokenizer")
    AutoTokenizer.from_pretrained(f"{SCRATCH}/tokenizer-that-was-never-saved")


def deep() -> None:
    start()
    as_log(0, work())

    def visit(node: int) -> int:
        return visit(node + 1) + 1

    if RANK == 3:
        visit(0)
    as_log(1, work())
    end()


def two_stop() -> None:
    """Two of eight ranks stop at the same place."""
    start()
    for n in range(8):
        as_json(n, work())
    if RANK in (2, 6):
        time.sleep(600)
    as_json(8, work())
    end()


def wrong_order() -> None:
    """One rank reduces first and gathers then; the others the other way round."""
    start()
    for n in range(6):
        as_log(n, work())
    tensor, many = torch.ones(1024, device="cuda"), torch.empty(1024 * WORLD, device="cuda")
    if RANK == 2:
        dist.all_reduce(tensor)
        dist.all_gather_into_tensor(many, tensor)
    else:
        dist.all_gather_into_tensor(many, tensor)
        dist.all_reduce(tensor)
    torch.cuda.synchronize()
    end()


def saves_and_goes_on() -> None:
    """Saves every ten steps, evaluates in between, ends well."""
    start()
    for n in range(45):
        as_megatron(n, work())
        if n % 10 == 9:
            if RANK == 0:
                print(f"saving checkpoint at iteration {n:7d} to {SCRATCH} in torch_dist format", flush=True)
                torch.save({"n": n}, f"{SCRATCH}/{n}.pt")
                print(f"  successfully saved checkpoint from iteration {n:7d} to {SCRATCH}", flush=True)
            dist.barrier()
    if RANK == WORLD - 1:
        print(" validation loss at iteration 45 | lm loss value: 5.6E-02 | lm loss PPL: 1.06E+00 |", flush=True)
    end()


def main() -> None:
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr,
        format=f"%(asctime)s - %(name)s - %(levelname)s - [rank {RANK}] %(message)s",
    )  # fmt: skip
    globals()[SCENARIO]()


if __name__ == "__main__":
    main()
