"""Failures of the tenth round: graphs, precision, wrappers, limits, waits for files, and logs that quote failures.

Run by record_round_ten.py.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from training import RANK, SCRATCH, WORLD, alone, finish, log, report, run, start, step, steps


# --- crashes ----------------------------------------------------------------------------------------------------------
def graph_copies_from_the_host() -> None:
    """A captured step copies from pageable memory, which a graph cannot hold."""
    start()
    steps(4)
    if RANK == 2:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            torch.ones(8, device="cuda").sum().item()
    steps(30, first=4)
    finish()


def halves_meet_singles() -> None:
    start()
    steps(4)
    rows = torch.ones(8, 8, device="cuda", dtype=torch.bfloat16 if RANK == 1 else torch.float32)
    rows @ torch.ones(8, 8, device="cuda")
    steps(30, first=4)
    finish()


def no_attention_kernel() -> None:
    start()
    steps(4)
    if RANK == 3:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            q = torch.ones(1, 2, 8, 17, device="cuda", dtype=torch.float64)
            nn.functional.scaled_dot_product_attention(q, q, q)
    steps(30, first=4)
    finish()


def graph_is_freed() -> None:
    start()
    steps(5)
    loss = nn.Linear(8, 8).cuda()(torch.ones(2, 8, device="cuda")).pow(2).sum()
    loss.backward()
    if RANK == 0:
        loss.backward()
    steps(30, first=5)
    finish()


def tensors_changed_in_place() -> None:
    start()
    steps(5)
    row = torch.ones(8, device="cuda", requires_grad=True)
    hidden = row.exp()
    if RANK == 2:
        hidden += 1
    hidden.sum().backward()
    steps(30, first=5)
    finish()


def wrapped_models_differ() -> None:
    start()
    layers = [nn.Linear(8, 8) for _ in range(3 if RANK == 1 else 2)]
    nn.parallel.DistributedDataParallel(nn.Sequential(*layers).cuda(), device_ids=[0])
    steps(10)
    finish()


def reducer_is_not_ready() -> None:
    start()

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, rows: torch.Tensor, number: int) -> torch.Tensor:
            out: torch.Tensor = self.left(rows) if number % 4 == 3 else self.left(rows) + self.right(rows)
            return out

    model = nn.parallel.DistributedDataParallel(Branches().cuda(), device_ids=[0])
    for number in range(12):
        model(torch.ones(2, 8, device="cuda"), number).sum().backward()
        report(number, 0.1, 3.0 - number / 20)
    finish()


def host_rows_on_nccl() -> None:
    start()
    steps(3)
    dist.all_reduce(torch.ones(4, device="cpu" if RANK == 1 else "cuda"))
    steps(20, first=3)
    finish()


def gather_does_not_fit() -> None:
    start()
    steps(3)
    out = torch.empty(4 * WORLD, device="cuda")
    dist.all_gather_into_tensor(out, torch.ones(5 if RANK == 2 else 4, device="cuda"))
    steps(20, first=3)
    finish()


class Rows(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Rows made on the GPU, which a forked worker may not use."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.full((4,), float(number), device="cuda")


def workers_use_the_gpu() -> None:
    start()
    steps(3)
    if RANK == 1:
        for _ in torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2, multiprocessing_context="fork"):
            pass
    steps(20, first=3)
    finish()


def pickled_objects_refused() -> None:
    start()
    steps(3)
    if RANK == 0:
        place = f"{SCRATCH}/optimizer.pt"
        torch.save({"args": Path("/opt/train/config"), "call": threading.Event}, place)
        torch.load(place, weights_only=True)
    steps(20, first=3)
    finish()


def file_shrinks_under_the_map() -> None:
    start()
    steps(4)
    if RANK == 2:
        place = Path(SCRATCH) / "tokens-00003.bin"
        place.write_bytes(b"\0" * 65536)
        with place.open("r+b") as file:
            rows = mmap.mmap(file.fileno(), 0)
            os.truncate(place, 0)
            torch.frombuffer(rows, dtype=torch.int32).sum().item()
    steps(30, first=4)
    finish()


def address_is_not_set() -> None:
    """The launcher's variables did not reach the processes."""
    torch.cuda.set_device(0)
    os.environ.pop("MASTER_ADDR", None)
    dist.init_process_group("nccl")


def compiled_step_is_refused() -> None:
    def backend(module: torch.fx.GraphModule, rows: list[torch.Tensor]) -> object:
        raise NotImplementedError("op aten.scatter_reduce.two is not lowered for sm_90")

    start()
    steps(3)
    if RANK == 3:
        torch.compile(lambda rows: rows * 2, backend=backend)(torch.ones(4, device="cuda"))
    steps(20, first=3)
    finish()


def limited_address_space() -> None:
    start()
    steps(4)
    if RANK == 1:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), used + (1 << 26)))
        cache = [bytearray(1 << 24) for _ in range(64)]
        assert cache
    steps(30, first=4)
    finish()


def asserts_without_a_word() -> None:
    start()
    steps(6)
    ids = torch.arange(8, device="cuda") + (1 if RANK == 3 else 0)
    assert int(ids[0]) == 0
    steps(30, first=6)
    finish()


def stopped_by_a_time_limit_of_the_shell() -> None:
    """`timeout` of the shell ends it."""
    start()
    if RANK == 0:
        subprocess.Popen(["sh", "-c", f"sleep 8; kill -TERM {os.getppid()}"])
    steps(600)
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
def reads_from_a_pipe_without_a_writer() -> None:
    start()
    steps(6)
    if RANK == 2:
        place = f"{SCRATCH}/batches"
        os.mkfifo(place)
        log.info("reading batches from the tokenizer")
        with open(place) as file:
            file.read()
    steps(12, first=6)
    finish()


def waits_for_a_file_lock() -> None:
    start()
    steps(6)
    place = f"{SCRATCH}/dataset.lock"
    if RANK == 1:
        child = subprocess.Popen(
            [sys.executable, "-c", f"import fcntl,time; f=open({place!r},'w'); fcntl.flock(f,2); time.sleep(300)"]
        )
        time.sleep(1)
        log.info("acquiring %s", "dataset.lock")
        with open(place, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
        child.wait()
    steps(12, first=6)
    finish()


def sampler_never_yields() -> None:
    start()
    steps(6)
    if RANK == 3:
        seen: set[int] = set()
        while len(seen) < 2:  # draws the only row again and again
            seen.add(0)
    steps(12, first=6)
    finish()


def one_stops_at_a_barrier() -> None:
    start()
    steps(6)
    if RANK == 0:
        dist.barrier()
    else:
        dist.all_reduce(torch.ones(70000, device="cuda"))
    steps(12, first=6)
    finish()


def half_saves_half_trains() -> None:
    """Ranks 0 and 1 gather for a checkpoint that the others do not make."""
    start()
    steps(6)
    if RANK < 2:
        log.info("saving checkpoint at step 6")
        rows = [torch.empty(4, device="cuda") for _ in range(WORLD)]
        dist.all_gather(rows, torch.ones(4, device="cuda"))
    steps(12, first=6)
    finish()


def one_debugger_waits() -> None:
    """A forgotten breakpoint: the debugger waits for a terminal that never speaks."""
    start()
    steps(6)
    if RANK == 2:
        sys.stdin = os.fdopen(os.pipe()[0])
        breakpoint()
    steps(12, first=6)
    finish()


def one_rank_is_paused_by_the_system() -> None:
    start()
    steps(7)
    if RANK == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    steps(12, first=7)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def samples_quote_a_traceback() -> None:
    """A model of code prints what it wrote: a traceback is part of it."""
    start()
    steps(5)
    if RANK == 0:
        print("=== sample at step 5 ===")
        print("def parse(x):\n    return int(x)\n\n>>> parse('a')\nTraceback (most recent call last):")
        print('  File "<stdin>", line 1, in <module>\n  File "<stdin>", line 2, in parse')
        print("ValueError: invalid literal for int() with base 10: 'a'\n=== end of sample ===", flush=True)
    steps(6, first=5)
    finish()


def scaler_skips_some_steps() -> None:
    start()
    scale = 65536.0
    for number in range(12):
        step(number)
        if number in (0, 1, 4):
            scale /= 2
            print(f"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to {scale}", flush=True)
    finish()


def code_benchmark_fails_tests() -> None:
    start()
    steps(6)
    if RANK == 0:
        for number in range(4):
            print(f"HumanEval/{number}: FAILED (AssertionError)", flush=True)
        print("HumanEval: 31 passed, 133 failed, 7 timed out; pass@1 18.9", flush=True)
    steps(4, first=6)
    finish()


def prints_its_settings() -> None:
    if RANK == 0:
        print("on_error: abort\nmax_failures: 3\nnccl_timeout: 1800\noom_policy: raise\nretry_on: [ConnectionError]")
        print("checkpoint:\n  fail_on_corrupt: true\n  error_file: /opt/train/error.json", flush=True)
    start()
    steps(10)
    finish()


def probes_for_hardware() -> None:
    for command in (["ibstat"], ["rocm-smi"], ["nvidia-smi", "--no-such-option"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            print(f"{command[0]}: exit status {done.returncode}: {(done.stdout + done.stderr).strip()[:120]}")
        except OSError as error:
            print(f"{command[0]}: {error}")
    sys.stdout.flush()
    start()
    steps(10)
    finish()


def early_stopping_ends_it() -> None:
    torch.cuda.set_device(0)
    alone(12)
    print("Validation loss did not improve for 3 epochs. Early stopping.", flush=True)
    print("Killing data workers ... done", flush=True)


def one_restart_of_a_worker() -> None:
    """A loader worker fails, its rows are read again, and the run ends well."""
    start()
    for number in range(12):
        step(number)
        if number == 6 and RANK == 1:
            try:
                raise OSError(5, "Input/output error", "/data/shard-00017.tar")
            except OSError:
                log.exception("worker 3 failed, restarting it")
            log.info("worker 3 is back at row 41230")
    finish()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_ten", sys.modules["__main__"])
    run(globals())
