"""Failures of the ninth round: refusals before training, helpers that fail, services, waits for people and servers.

Run by record_round_nine.py.
"""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from training import RANK, SCRATCH, WORLD, alone, finish, forever, library, log, report, run, start, step, steps


class Answers(http.server.BaseHTTPRequestHandler):
    """A service that answers with the status in the path; `/never` gets no answer."""

    def do_GET(self) -> None:
        if self.path == "/never":
            time.sleep(600)
        self.send_error(int(self.path.strip("/")))

    def log_message(self, *args: object) -> None:
        pass


def service() -> str:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}"


# --- crashes ----------------------------------------------------------------------------------------------------------
def config_is_refused() -> None:
    """Every process refuses its configuration before it joins the others, without a traceback."""
    print("Config error: optimizer.betas must be a pair of floats, got '0.9'", file=sys.stderr, flush=True)
    sys.exit(2)


def leaves_with_a_message() -> None:
    start()
    steps(5)
    if RANK == 0:
        sys.exit("checkpoint step_4000 was written with tensor parallel size 8, this run has 4")
    steps(30, first=5)
    finish()


def archive_tool_fails() -> None:
    start()
    steps(5)
    if RANK == 2:
        subprocess.run(["tar", "-xf", f"{SCRATCH}/shard-00041.tar", "-C", SCRATCH], check=True)
    steps(30, first=5)
    finish()


def assert_in_c() -> None:
    code = '#include <assert.h>\nint pack(int n) { assert(n % 8 == 0 && "rows must be padded"); return n; }\n'
    pack = library("pack", code).pack
    start()
    steps(5)
    pack(12 if RANK == 1 else 16)
    steps(30, first=5)
    finish()


def index_server_is_not_found() -> None:
    place = service()
    start()
    steps(4)
    if RANK == 3:
        urllib.request.urlopen(f"{place}/404")
    steps(30, first=4)
    finish()


def index_server_is_busy() -> None:
    place = service()
    start()
    steps(4)
    if RANK == 1:
        urllib.request.urlopen(f"{place}/503")
    steps(30, first=4)
    finish()


def feature_store_refuses() -> None:
    start()
    steps(4)
    if RANK == 2:
        socket.create_connection(("127.0.0.1", 9), timeout=5)
    steps(30, first=4)
    finish()


def too_deep() -> None:
    def flatten(tree: object) -> object:
        return flatten([tree])

    start()
    steps(4)
    if RANK == 2:
        flatten([])
    steps(30, first=4)
    finish()


def corpus_is_not_utf8() -> None:
    start()
    steps(4)
    if RANK == 1:
        place = Path(SCRATCH) / "part-00007.txt"
        place.write_bytes(b"the quick brown \xff\xfe fox")
        place.read_text(encoding="utf-8")
    steps(30, first=4)
    finish()


def line_of_json_is_cut() -> None:
    start()
    steps(4)
    if RANK == 0:
        json.loads('{"text": "the quick brown fox", "meta": {"source": "c4", "i')
    steps(30, first=4)
    finish()


def state_on_another_device() -> None:
    start()
    steps(4)
    rows = torch.ones(4, 4, device="cpu" if RANK == 3 else "cuda")
    rows @ torch.ones(4, 4, device="cuda")
    steps(30, first=4)
    finish()


def shapes_do_not_fit() -> None:
    start()
    torch.ones(8, 511, device="cuda") @ torch.ones(512, 8, device="cuda")


def told_by_the_logger() -> None:
    """One process; its logger tells of the failure, and it leaves with status 1."""
    torch.cuda.set_device(0)
    alone(6)
    log.error("validation split has no rows after filtering; nothing to evaluate")
    log.error("training aborted")
    sys.exit(1)


def pool_worker_raises() -> None:
    from concurrent.futures import ProcessPoolExecutor

    start("gloo")
    steps(4)
    if RANK == 1:
        with ProcessPoolExecutor(1) as pool:
            pool.submit(int, "12a").result()
    steps(30, first=4)
    finish()


def gradients_are_nan_losses_are_not() -> None:
    torch.cuda.set_device(0)
    for n in range(16):
        time.sleep(0.1)
        norm = "nan" if n >= 8 else f"{1.2 - n / 50:.3f}"
        print(f"{{'loss': {2.1 - n / 40:.4f}, 'grad_norm': {norm}, 'learning_rate': 4.9e-05, 'epoch': {n / 100}}}")
    sys.stdout.flush()
    os.kill(os.getpid(), 9)


def freed_tensor_is_used() -> None:
    """The free list of C is damaged: glibc aborts."""
    code = (
        "#include <stdlib.h>\n#include <string.h>\nvoid fill(int n) { char *p = malloc(24); memset(p, 7, n); free(p);"
    )
    code += " char *q = malloc(1400); free(q); malloc(3000); }\n"
    fill = library("fill", code).fill
    start()
    steps(4)
    fill(400 if RANK == 1 else 8)
    steps(30, first=4)
    finish()


# --- hangs ------------------------------------------------------------------------------------------------------------
def asks_a_person() -> None:
    """Rank 0 asks on the terminal whether it may overwrite."""
    start()
    steps(6)
    if RANK == 0:
        print("/ckpt/run12/step_6 exists. Overwrite? [y/N] ", end="", flush=True)
        time.sleep(600)
    steps(9, first=6)
    finish()


def service_never_answers() -> None:
    place = service()
    start()
    steps(6)
    if RANK == 2:
        log.info("asking the reward model for 64 scores")
        urllib.request.urlopen(f"{place}/never")
    steps(9, first=6)
    finish()


def harness_never_ends() -> None:
    start()
    steps(6)
    if RANK == 3:
        log.info("running the evaluation harness: hellaswag, arc_easy")
        subprocess.run(["sleep", "600"], check=True)
    steps(9, first=6)
    finish()


def one_forgets_the_broadcast() -> None:
    start()
    steps(6)
    if RANK != 1:
        dist.broadcast_object_list([{"lr": 0.1}], src=0, device=torch.device("cuda", 0))
    steps(9, first=6)
    finish()


def kernel_of_one_runs_on() -> None:
    start()
    steps(6)
    if RANK == 1:
        torch.cuda._sleep(400_000_000_000)
    steps(9, first=6)
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
def falls_back_to_defaults() -> None:
    log.error("HTTP Error 404: Not Found: /models/gpt/generation_config.json")
    log.info("no generation_config.json, using defaults")
    start()
    steps(12)
    finish()


def words_of_failure_in_scores() -> None:
    start()
    for n in range(10):
        step(n)
        if n % 3 == 0 and RANK == 0:
            print(f"eval: word error rate 12.{n}, errors 214, failed 0, sentences killed 0, timeouts 3", flush=True)
    print("test suite of the tokenizer: 1 failed (known), 31 passed", flush=True)
    finish()


def warns_of_everything() -> None:
    warnings.warn("the fused optimizer failed to build, using the slow one", UserWarning, stacklevel=1)
    warnings.warn("timeout of 10 s is short", DeprecationWarning, stacklevel=1)
    start()
    steps(10)
    log.warning("could not read /sys/class/infiniband: no fabric counters")
    finish()


def connection_comes_back() -> None:
    start()
    for n in range(12):
        step(n)
        if n == 5 and RANK == 1:
            try:
                socket.create_connection(("127.0.0.1", 9), timeout=5)
            except OSError:
                log.exception("metrics gateway is down, keeping 1 batch")
    log.info("metrics gateway is back, 1 batch sent")
    finish()


def drops_bad_samples() -> None:
    torch.cuda.set_device(0)
    alone(8)
    print("3 samples failed to decode and were dropped; 0 errors", flush=True)
    print("done: 8 steps", flush=True)


def telemetry_fails_at_the_end() -> None:
    start()
    steps(8)
    finish()
    log.info("training complete")
    log.error("telemetry: failed to send usage report: connection refused")
    assert WORLD
    report(8, 0.1, 2.0)


def waits_for_the_page_cache() -> None:
    start()
    steps(4)
    if RANK == 0:
        log.info("warming up the page cache, this may take a while")
        time.sleep(9)
    steps(8, first=4)
    finish()
    if RANK < 0:
        forever()


if __name__ == "__main__":
    sys.modules.setdefault("train_round_nine", sys.modules["__main__"])
    run(globals())
