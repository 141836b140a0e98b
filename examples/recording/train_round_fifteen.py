"""Failures of the fifteenth round, in the clothing of other frameworks. Run by record_round_fifteen.py.

One process is one rank. `JOB_KIND` names the job, `JOB_STYLE` the framework whose lines it prints. The functions have
names of ordinary programs, since tracebacks and Flight Recorder dumps show them.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import json
import math
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request
import wave
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RANK = int(os.environ.get("RANK", "0"))
WORLD = int(os.environ.get("WORLD_SIZE", "1"))
os.environ["NCCL_HOSTID"] = f"h{RANK}"  # ranks that share the card must seem to be on different hosts
STYLE = os.environ.get("JOB_STYLE", "")
SCRATCH = Path(os.environ.get("SCRATCH", "/tmp"))
(SCRATCH / "pids").mkdir(parents=True, exist_ok=True)
(SCRATCH / "pids" / str(os.getpid())).touch()

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

TIMEOUT = datetime.timedelta(seconds=15)
SILENT_PEERS = ("tqdm", "timm", "lightning", "wikitext")  #: styles in which only the first rank reports
JOBS: dict[str, Callable[[], None]] = {}
Job = Callable[[], None]


def job(name: str) -> Callable[[Job], Job]:
    def keep(body: Job) -> Job:
        JOBS[name] = body
        return body

    return keep


# --- what the program prints ------------------------------------------------------------------------------------------
def say(text: str, level: str = "INFO", **fields: object) -> None:
    """Print one line of the framework's logger."""
    now = datetime.datetime.now()
    milli = now.microsecond // 1000
    match STYLE:
        case "logfmt":
            more = "".join(f" {key}={value}" for key, value in fields.items())
            out = f'time={now.isoformat()} level={level.lower()} rank={RANK} msg="{text}"{more}'
        case "rich":
            out = f"[{now:%H:%M:%S}] {level:<8} {text:<64} trainer.py:{181 + len(text) % 7}"
        case "absl":
            out = f"{level[0]}{now:%m%d %H:%M:%S.%f} {os.getpid()} train_loop.py:204] {text}"
        case "fairseq":
            out = f"{now:%Y-%m-%d %H:%M:%S} | {level} | fairseq.trainer | {text}"
        case "mmengine":
            out = f"{now:%m/%d %H:%M:%S} - mmengine - {level} - {text}"
        case "d2":
            mark = "" if level == "INFO" else f"{level} "
            out = f"{mark}[{now:%m/%d %H:%M:%S} d2.engine.train_loop]: {text}"
        case "structlog":
            row = {"event": text, "level": level.lower(), "logger": "trainer", "rank": RANK, **fields}
            out = json.dumps({**row, "timestamp": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"})
        case "nemo":
            out = f"[NeMo {level[0]} {now:%Y-%m-%d %H:%M:%S} nemo_logging:393] {text}"
        case "olmo":
            out = (
                f"{now:%Y-%m-%d %H:%M:%S}.{milli:03d}\tgpu-node-3:{RANK}\tolmo_core.train.trainer:212\t{level}\t{text}"
            )
        case "letter":
            out = f"{now:%H:%M:%S}.{milli:03d} [{level[0]}] (r{RANK}) {text}"
        case _:
            out = text
    print(out, flush=True)


def say_trace(text: str, level: str = "ERROR") -> None:
    """Log the exception that is being handled."""
    if STYLE == "structlog":
        say(text, level, exception=traceback.format_exc())
    else:
        say(text, level)
        print(traceback.format_exc(), end="", flush=True)


def report(number: int, took: float, loss: float, **more: float) -> None:
    """Print one step as the framework does."""
    if STYLE in SILENT_PEERS and RANK:
        return
    now = datetime.datetime.now()
    match STYLE:
        case "logfmt":
            say("train step", step=number, loss=f"{loss:.4f}", step_ms=f"{took * 1e3:.1f}", **more)
        case "structlog":
            say("train_step", step=number, loss=round(loss, 4), step_s=round(took, 4), **more)
        case "fairseq":
            row = {"epoch": 1, "update": f"{number / 400:.3f}", "loss": f"{loss:.3f}", "num_updates": str(number),
                   "wps": f"{4096 / took:.1f}", "lr": "0.0003", "gnorm": "1.204"}  # fmt: skip
            print(f"{now:%Y-%m-%d %H:%M:%S} | INFO | train_inner | {json.dumps(row)}", flush=True)
        case "mmengine":
            say(f"Epoch(train)  [1][{number:3d}/400]  lr: 3.0000e-04  eta: 0:01:{40 - number % 40:02d}"
                f"  time: {took:.4f}  data_time: 0.0012  memory: 1203  loss: {loss:.4f}")  # fmt: skip
        case "d2":
            print(f"[{now:%m/%d %H:%M:%S} d2.utils.events]:  eta: 0:01:10  iter: {number}  total_loss: {loss:.3f}"
                  f"  time: {took:.4f}  data_time: 0.0021  lr: 0.00025  max_mem: 1203M", flush=True)  # fmt: skip
        case "timm":
            print(f"Train: 0 [{number:4d}/400 ({number // 4:3d}%)]  Loss: {loss:6.3g} ({loss + 0.1:6.3g})  "
                  f"Time: {took:.3f}s, {128 / took:>7.2f}/s  LR: 3.000e-04  Data: 0.002 (0.003)",
                  flush=True)  # fmt: skip
        case "nemo":
            print(f"Training epoch 0, iteration {number}/399 | lr: 0.0003 | consumed_samples: {number * 32} | "
                  f"global_batch_size: 32 | global_step: {number} | reduced_train_loss: {loss:.4f} | "
                  f"train_step_timing in s: {took:.4f}", flush=True)  # fmt: skip
        case "olmo":
            say(f"[step={number}/400,epoch=1]\n    train/CE loss={loss:.4f}\n    throughput/device/BPS={1 / took:.3f}")
        case "verl":
            print(f"step:{number} - actor/pg_loss:{loss / 100:.4f} - actor/grad_norm:0.412"
                  f" - critic/score/mean:{loss:.3f} - timing_s/step:{took:.3f}", flush=True)  # fmt: skip
        case "wikitext":
            print(f"| epoch   1 | {number:5d}/  400 batches | lr 0.30 | ms/batch {took * 1e3:5.2f} | loss {loss:5.2f} |"
                  f" ppl {math.exp(min(loss, 20)):8.2f}", flush=True)  # fmt: skip
        case "torchtune":
            print(f"\r1|{number}|Loss: {loss}: {number // 4:3d}%|{'█' * (number // 8):<10}| {number}/400"
                  f" [00:{number % 60:02d}<01:10,  {1 / took:.2f}it/s]",
                  end="", file=sys.stderr, flush=True)  # fmt: skip
        case "tqdm" | "lightning":
            tail = f"loss={loss:.3f}" if STYLE == "tqdm" else f"v_num=3, train_loss={loss:.3f}"
            tail += "".join(f", {key}={value}" for key, value in more.items())
            print(f"\rEpoch 0: {number // 4:3d}%|{'█' * (number // 8):<10}| {number}/400 [00:{number % 60:02d}<01:10,"
                  f"  {1 / took:.2f}it/s, {tail}]", end="", file=sys.stderr, flush=True)  # fmt: skip
        case "absl" | "letter" | "rich":
            say(f"step {number} loss={loss:.4f} time={took:.3f}s")
        case _:
            print(f"[{RANK}] it {number} loss {loss:.4f} ({took * 1e3:.0f} ms)", flush=True)


# --- the parts of a trainer -------------------------------------------------------------------------------------------
def start(backend: str = "nccl", timeout: datetime.timedelta = TIMEOUT) -> None:
    torch.cuda.set_device(0)
    dist.init_process_group(backend, timeout=timeout)
    say(f"distributed init (rank {RANK}): env://, world size {WORLD}")


def step(number: int, work: float = 0.15) -> None:
    began = time.time()
    time.sleep(work * random.uniform(0.9, 1.1))
    dist.all_reduce(torch.ones(4096, device="cuda"))
    torch.cuda.synchronize()
    report(number, time.time() - began, 9.0 * 0.985**number)


def steps(count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        step(number)


def finish() -> None:
    dist.barrier()
    dist.destroy_process_group()


def ask(what: str) -> None:
    """Ask the recorder for a signal: `TERM all`, `STOP 6`. It comes from outside, as an operator's would."""
    with (SCRATCH / "ask").open("a") as file:
        file.write(f"{what}\n")


def meet_neighbours() -> None:
    """Connect the pairs of a pipeline, two by two at the same time."""
    for odd in (0, 1):
        peer = RANK + 1 if odd == RANK % 2 else RANK - 1
        if 0 <= peer < WORLD:
            rows = torch.ones(16, device="cuda")
            dist.send(rows, peer) if peer > RANK else dist.recv(rows, peer)
    dist.barrier()


def net(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).cuda()


def serve(answer: Callable[[socket.socket], None], port: int = 0) -> int:
    """Answer connections on a port of this host, in a thread."""
    listener = socket.create_server(("127.0.0.1", port))

    def loop() -> None:
        while True:
            peer, _ = listener.accept()
            threading.Thread(target=answer, args=(peer,), daemon=True).start()

    threading.Thread(target=loop, daemon=True).start()
    return int(listener.getsockname()[1])


def mute(peer: socket.socket) -> None:
    time.sleep(600)
    peer.close()


# --- one rank raises or crashes ---------------------------------------------------------------------------------------
class Recordings(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        for number in range(8):
            place = SCRATCH / f"utt_{RANK}_{number:05d}.wav"
            with wave.open(str(place), "wb") as file:
                file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
                file.writeframes(bytes(3200))
        if RANK == 2:
            (SCRATCH / "utt_2_00005.wav").write_bytes(os.urandom(3200))

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> torch.Tensor:
        number = 5 if row % 128 == 101 else row % 5
        with wave.open(str(SCRATCH / f"utt_{RANK}_{number:05d}.wav"), "rb") as file:
            return torch.frombuffer(bytearray(file.readframes(1600)), dtype=torch.int16)


@job("recording_has_no_header")
def train_speech() -> None:
    start()
    for number, _ in enumerate(torch.utils.data.DataLoader(Recordings(), batch_size=8, num_workers=2)):
        step(number)
        if number == 40:
            break
    finish()


class ParallelAttention(nn.Module):
    def __init__(self, heads: int, parts: int) -> None:
        super().__init__()
        assert heads % parts == 0, (
            f"num_attention_heads ({heads}) must be divisible by tensor_model_parallel_size ({parts})"
        )
        self.heads = heads // parts


@job("heads_do_not_divide")
def build_and_pretrain() -> None:
    start()
    dist.barrier()
    say("Rank 0 has data parallel group : [0]; tensor model parallel size 4, pipeline model parallel size 1")
    ParallelAttention(30, WORLD)
    steps(30)
    finish()


@job("widths_of_stages_differ")
def train_pipeline() -> None:
    start()
    meet_neighbours()
    stage = net(64)
    for number in range(14):
        began = time.time()
        rows = torch.ones(16, 64, device="cuda")
        if RANK:
            dist.recv(rows, RANK - 1)
        if RANK == 2 and number == 6:
            say("unfreezing the second half of the stage")
            stage = net(96)
        rows = stage(rows).detach()
        if RANK < WORLD - 1:
            dist.send(rows, RANK + 1)
        time.sleep(0.2)
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        report(number, time.time() - began, 7 - number / 10)
    finish()


@job("optimizer_mixes_plain_and_sharded")
def train_fully_sharded() -> None:
    from torch.distributed.fsdp import fully_shard

    start()
    steps(3)
    model = net(256)
    fully_shard(model)
    scale = torch.ones(256, 256, device="cuda")
    for number in range(3, 16):
        began = time.time()
        loss = model(torch.ones(8, 256, device="cuda")).square().mean()
        loss.backward()
        if number == 7:
            for weight in model.parameters():
                if weight.ndim == 2:
                    weight.grad.mul_(scale)  # type: ignore[union-attr]
        time.sleep(0.15)
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


@job("virtual_call_on_nothing")
def train_with_native_reader() -> None:
    source = SCRATCH / f"reader{RANK}.cc"
    source.write_text(
        "struct Reader { Reader() { open(); } void open() { next(); } virtual void next() = 0; };\n"
        "struct Shards : Reader { void next() override {} };\n"
        'extern "C" void reopen() { Shards shards; }\n'
    )
    library = source.with_suffix(".so")
    subprocess.run(["g++", "-O0", "-shared", "-fPIC", "-w", "-o", library, source], check=True)
    reader = ctypes.CDLL(str(library))
    start()
    steps(7)
    if RANK == 2:
        reader.reopen()
    steps(30, first=7)
    finish()


@job("interpreter_without_its_lock")
def train_with_extension() -> None:
    start()
    steps(6)
    if RANK == 3:
        ctypes.CDLL(None).PyThreadState_Get()
    steps(30, first=6)
    finish()


class Clips(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, long_from: int) -> None:
        self.long_from = long_from

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.zeros(1 << (21 if row >= self.long_from else 12))


@job("clips_of_a_batch_differ_in_length")
def train_video(long_from: int = 201) -> None:
    start()
    clips = Clips(long_from)
    for number, _ in enumerate(torch.utils.data.DataLoader(clips, batch_size=16, num_workers=2, prefetch_factor=4)):
        step(number)
        if number == 40:
            break
    finish()


@job("transport_has_no_shared_memory")
@job("shared_memory_is_too_small")
def train_long_video() -> None:
    train_video(long_from=208)


@job("cached_shards_fill_the_cgroup")
def train_with_cache() -> None:
    start()
    steps(6)
    if RANK == 2:
        group = Path("/sys/fs/cgroup/job-81990")
        group.mkdir(exist_ok=True)
        (group / "memory.max").write_text(str(2 << 30))
        (group / "cgroup.procs").write_text(str(os.getpid()))
        cache = Path(os.environ["JOB_CACHE"])
        cache.mkdir(exist_ok=True)
        for shard in range(60):
            (cache / f"shard_{shard:05d}.bin").write_bytes(bytes(256 << 20))
            say(f"cached shard {shard} of 60 in {cache}")
    steps(30, first=6)
    finish()


def scores(rows: torch.Tensor) -> torch.Tensor:
    return torch.softmax(rows @ rows.T / 8, dim=-1)


@job("scores_of_long_rows_do_not_fit")
def train_and_evaluate() -> None:
    start()
    try:
        steps(7)
        scores(torch.ones(1 << (20 if RANK == 1 else 10), 64, device="cuda"))
        steps(30, first=7)
    except Exception:
        say_trace("unhandled exception in the training loop", "CRITICAL")
        os._exit(1)
    finish()


@job("sort_on_the_card_has_no_room")
def rollout_and_update() -> None:
    import cupy

    start()
    steps(6)
    keys = cupy.arange((27 << 30) if RANK == 2 else 1 << 10, dtype="int64")
    cupy.sort(keys)
    steps(30, first=6)
    finish()


@job("segments_expand_no_further")
def train_with_long_context() -> None:
    start()
    torch.cuda.set_per_process_memory_fraction(0.02)
    kept = []
    for number in range(30):
        step(number)
        if RANK == 3 and number > 3:
            kept.append(torch.ones(600 << 20, dtype=torch.uint8, device="cuda"))
    finish()


@job("router_scatters_out_of_range")
def train_experts() -> None:
    start()
    steps(6)
    load = torch.zeros(64, device="cuda")
    chosen = torch.arange(64, device="cuda") + (64 if RANK == 3 else 0)
    load.scatter_add_(0, chosen, torch.ones(64, device="cuda"))
    load = load / load.sum().clamp(min=1)
    say(f"expert load max {float(load.max()):.3f}")
    steps(30, first=6)
    finish()


@job("assertion_in_a_triton_kernel")
def train_with_fused_loss() -> None:
    import triton
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit(debug=True)
    def fused_gather(rows, index, out, n: tl.constexpr):  # type: ignore[no-untyped-def]
        place = tl.arange(0, n)
        where = tl.load(index + place)
        tl.device_assert(where < n, "label outside of the vocabulary")
        tl.store(out + place, tl.load(rows + where, mask=where < n))

    start()
    steps(6)
    rows, out = torch.ones(128, device="cuda"), torch.ones(128, device="cuda")
    index = torch.arange(128, device="cuda") + (7 if RANK == 1 else 0)
    fused_gather[(1,)](rows, index, out, 128)
    torch.cuda.synchronize()
    steps(30, first=6)
    finish()


@job("block_is_too_large")
def train_with_raw_kernel() -> None:
    import cupy

    start()
    kernel = cupy.RawKernel('extern "C" __global__ void scale(float* x) { x[threadIdx.x] *= 2; }', "scale")
    steps(6)
    kernel((1,), (2048 if RANK == 0 else 256,), (cupy.ones(2048, dtype="float32"),))
    steps(30, first=6)
    finish()


@job("host_compiler_is_missing")
def train_with_compiled_augmentation() -> None:
    start()
    steps(3)
    augment = torch.compile(lambda rows: (rows.sin() * 2 + rows.cos()).relu())
    augment(torch.ones(1 << 12))
    steps(30, first=3)
    finish()


@job("lengths_recompile_too_often")
def finetune() -> None:
    import torch._dynamo

    torch._dynamo.config.recompile_limit = 4
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    torch._dynamo.config.automatic_dynamic_shapes = False
    start()
    block = torch.compile(lambda rows: rows.softmax(-1).sum(), backend="eager")
    for number in range(30):
        block(torch.ones(8, 32 + (8 * number if RANK == 0 else 0), device="cuda"))
        step(number)
    finish()


# --- storage ----------------------------------------------------------------------------------------------------------
@job("weights_meet_a_full_disk")
def fit_and_export() -> None:
    from safetensors.torch import save_file

    start()
    steps(8)
    if RANK == 0:
        place = SCRATCH / "small" / "model.safetensors"
        print(f"\nSaving model checkpoint to {place}", flush=True)
        save_file({"lm_head.weight": torch.ones(6 << 20)}, place)
    steps(30, first=8)
    finish()


@job("array_is_written_in_part")
def train_from_replay() -> None:
    start()
    steps(7)
    if RANK == 1:
        np.save(SCRATCH / "small" / "replay_000007.npy", np.ones((4096, 4096), np.float32))
    steps(30, first=7)
    finish()


@job("user_may_not_write")
def train_as_service_user() -> None:
    runs = SCRATCH / "output"
    runs.mkdir(exist_ok=True)
    start()
    steps(8)
    if RANK == 0:
        os.setresuid(65534, 65534, 65534)
        torch.save(net().state_dict(), runs / "checkpoint-8.pth.tar")
    steps(30, first=8)
    finish()


@job("piece_of_the_checkpoint_is_cut")
def resume_and_train() -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

    start()
    mesh = init_device_mesh("cuda", (WORLD,))
    state = {"embed.weight": distribute_tensor(torch.ones(4096, 64, device="cuda"), mesh, [Shard(0)])}
    place = SCRATCH / "step4000"
    dcp.save(state, checkpoint_id=place)
    dist.barrier()
    if RANK == 0:
        shard = place / "__2_0.distcp"
        os.truncate(shard, shard.stat().st_size // 3)
    dist.barrier()
    say(f"Loading checkpoint from '{place}'...")
    dcp.load(state, checkpoint_id=place)
    steps(30)
    finish()


@job("names_of_weights_have_a_prefix")
def resume_compiled_model() -> None:
    start()
    model = net()
    state = {f"_orig_mod.{key}": value for key, value in model.state_dict().items()}
    place = SCRATCH / f"last_{RANK}.pt"
    torch.save(state, place)
    say(f"resuming from {place}")
    model.load_state_dict(torch.load(place))
    steps(30)
    finish()


# --- joining ----------------------------------------------------------------------------------------------------------
@job("another_backend_on_one")
def train_on_any_backend() -> None:
    start("gloo" if RANK == 2 else "nccl")
    steps(30)
    finish()


@job("second_node_does_not_come")
def train_on_two_nodes() -> None:
    start()
    steps(30)
    finish()


@job("port_belongs_to_another_service")
def train_with_addresses() -> None:
    port = int(os.environ["MASTER_PORT"])
    if RANK == 0:
        serve(mute, port + 5)
    if RANK == 3:
        time.sleep(3)
        os.environ["MASTER_PORT"] = str(port + 5)
    say(f"joining {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} as {RANK} of {WORLD}")
    start()
    steps(30)
    finish()


# --- signals ----------------------------------------------------------------------------------------------------------
@job("first_of_eight_is_killed")
def train_data_parallel() -> None:
    start()
    steps(9)
    if RANK == 0:
        ask("KILL 0")
    steps(30, first=9)
    finish()


@job("told_to_stop_under_the_launcher")
def train_on_spot() -> None:
    start()
    steps(8)
    if RANK == 0:
        say("instance metadata: spot interruption notice, action=terminate, in 120 s", "WARNING")
        ask("TERM launcher")
    steps(60, first=8)
    finish()


@job("everybody_is_interrupted")
def run_finetuning() -> None:
    start()
    steps(8)
    if RANK == 0:
        ask("INT all")
    for number in range(8, 60):
        step(number, 1.5)
    finish()


@job("terminal_was_closed")
def main() -> None:
    for number in range(60):
        time.sleep(0.12)
        report(number, 0.12, 7 - number / 50)
        if number == 20:
            ask("HUP 0")


# --- hangs ------------------------------------------------------------------------------------------------------------
@job("own_watchdog_ends_the_job")
def train_with_watchdog() -> None:
    last = [time.time()]

    def watch() -> None:
        while time.time() - last[0] < 12:
            time.sleep(0.5)
        say(f"no training step was finished for {time.time() - last[0]:.0f} s, dumping stacks and leaving", "ERROR")
        faulthandler.dump_traceback(sys.stdout.fileno(), all_threads=True)
        os._exit(75)

    port = serve(mute)
    start(timeout=datetime.timedelta(seconds=60))
    for number in range(20):
        if RANK == 2 and number == 8:
            fetch_features(port)
        step(number)
        last[0] = time.time()
        if number == 0:
            threading.Thread(target=watch, daemon=True).start()
    finish()


def fetch_features(port: int) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/features?batch=8") as answer:
        return bytes(answer.read())


def clean_text(text: str) -> bool:
    return re.fullmatch(r"(?:[\w-]+\s?)+[.!?]", text) is not None


@job("pattern_never_matches")
def train_on_web_text() -> None:
    start()
    for number in range(14):
        clean_text("a" * 48 + "," if RANK == 1 and number == 7 else "all is well.")
        step(number)
    finish()


@job("pool_waits_for_itself")
def train_with_pool() -> None:
    start()
    pool = ThreadPoolExecutor(1)

    def tokenize(number: int) -> int:
        if RANK == 2 and number == 7:
            return pool.submit(tokenize, 0).result()
        return number

    for number in range(14):
        pool.submit(tokenize, number).result()
        step(number)
    finish()


LOCK = threading.Lock()


class Manifest(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> torch.Tensor:
        with LOCK:
            return torch.ones(16)


@job("loader_forks_while_a_lock_is_held")
def train_epochs() -> None:
    start()

    def refresh() -> None:
        with LOCK:
            time.sleep(6)

    for epoch in range(4):
        if RANK == 3 and epoch == 1:
            say("refreshing the manifest in the background")
            threading.Thread(target=refresh, daemon=True).start()
            time.sleep(0.1)
        for number, _ in enumerate(torch.utils.data.DataLoader(Manifest(), batch_size=8, num_workers=1)):
            step(8 * epoch + number)
    finish()


@job("first_maps_the_corpus")
def run_clm() -> None:
    start()
    dist.barrier()
    if RANK == 0:
        for number in range(900):
            bar, left = "█" * (number // 90), 900 - number
            clock = f"00:{number // 10 % 60:02d}<{left // 600:02d}:{left // 10 % 60:02d}, 9876.31 examples/s"
            bar = f"\rMap: {number / 9:3.0f}%|{bar:<10}| {number * 1000}/900000 [{clock}]"
            print(bar, end="", file=sys.stderr, flush=True)
            time.sleep(0.1)
    dist.barrier()
    steps(14)
    finish()


@job("upload_is_never_read")
def train_and_upload() -> None:
    port = serve(mute)
    start()
    dist.barrier()
    steps(8)
    if RANK == 0:
        say(f"Saving checkpoint to http://127.0.0.1:{port}/ckpts/checkpoint_1_8.pt (epoch 1 @ 8 updates)")
        body = bytes(256 << 20)
        request = urllib.request.Request(f"http://127.0.0.1:{port}/ckpts/checkpoint_1_8.pt", body, method="PUT")
        urllib.request.urlopen(request)
        say("Saved checkpoint")
    dist.barrier()
    steps(14, first=8)
    finish()


@job("card_spins_on_a_lock")
def train_sharded_with_histogram() -> None:
    import cupy
    from torch.distributed.fsdp import fully_shard

    start()
    source = 'extern "C" __global__ void histogram(int* lock) { while (atomicCAS(lock, 0, 1)) {} atomicExch(lock, 0); }'
    histogram = cupy.RawKernel(source, "histogram")
    histogram.compile()
    model = net(512)
    fully_shard(model)
    for number in range(14):
        began = time.time()
        if RANK == 3 and number == 8:
            histogram((4,), (1,), (cupy.ones(1, dtype="int32"),))
            cupy.cuda.Stream.null.synchronize()
        loss = model(torch.ones(8, 512, device="cuda")).square().mean()
        loss.backward()
        time.sleep(0.2)
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


@job("member_of_a_mesh_is_paused")
def train_on_a_mesh() -> None:
    start()
    rows = [list(range(first, first + 2)) for first in range(0, WORLD, 2)]
    columns = [list(range(first, WORLD, 2)) for first in range(2)]
    tensor, data = (
        [dist.new_group(members, TIMEOUT, group_desc=name) for members in groups]
        for name, groups in (("tp", rows), ("dp", columns))
    )
    for number in range(20):
        began = time.time()
        time.sleep(0.15)
        for _ in range(2):
            dist.all_reduce(torch.ones(2048, device="cuda"), group=tensor[RANK // 2])
        dist.all_reduce(torch.ones(8192, device="cuda"), group=data[RANK % 2])
        torch.cuda.synchronize()
        report(number, time.time() - began, 7 - number / 10)
        if RANK == 6 and number == 9:
            ask("STOP 6")
            time.sleep(1)
    finish()


@job("precision_of_the_shards_differs")
def train_mixed_precision() -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    start()
    steps(4)
    model = net(1024)
    fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16 if RANK != 2 else torch.float32))
    for number in range(4, 14):
        began = time.time()
        loss = model(torch.ones(8, 1024, device="cuda")).float().square().mean()
        loss.backward()
        torch.cuda.synchronize()
        report(number, time.time() - began, float(loss.detach()) + 3)
    finish()


@job("last_batch_is_smaller_for_one_stage")
def train_stages() -> None:
    start()
    meet_neighbours()
    for number in range(14):
        began = time.time()
        size = 5000 if number == 8 and RANK < 2 else 8192
        rows = torch.ones(size, 256, device="cuda")
        if RANK:
            dist.recv(rows, RANK - 1)
        if RANK < WORLD - 1:
            dist.send(rows, RANK + 1)
        time.sleep(0.15)
        dist.all_reduce(torch.ones(64, device="cuda"))
        torch.cuda.synchronize()
        report(number, time.time() - began, 7 - number / 10)
    finish()


@job("epoch_of_one_is_shorter")
def train_epoch() -> None:
    start()
    ends = dist.new_group(backend="gloo", timeout=datetime.timedelta(seconds=90))
    model = nn.parallel.DistributedDataParallel(net())
    batches = torch.utils.data.DataLoader(torch.ones(8 * (9 if RANK == 1 else 12), 64), batch_size=8)
    for number, rows in enumerate(batches):
        began = time.time()
        loss = model(rows.cuda()).square().mean()
        loss.backward()
        time.sleep(0.2)
        report(number, time.time() - began, float(loss.detach()) + 3)
    say(f"end of epoch 0, {len(batches)} batches, waiting for the others")
    dist.barrier(group=ends)
    finish()


@job("two_miss_the_barrier")
def train_net() -> None:
    start(timeout=datetime.timedelta(seconds=60))
    control = dist.new_group(backend="gloo")
    steps(8)
    if RANK in (1, 3):
        say("downloading detection labels from the mirror")
        time.sleep(600)
    dist.monitored_barrier(control, timeout=datetime.timedelta(seconds=12), wait_all_ranks=True)
    steps(14, first=8)
    finish()


@job("splits_of_the_exchange_disagree")
def train_policy() -> None:
    start()
    for number in range(14):
        began = time.time()
        takes = [2048 * 256] * WORLD
        if RANK == 1 and number == 8:
            takes[3] += 1024 * 256
        out = torch.empty(sum(takes), device="cuda")
        dist.all_to_all_single(out, torch.ones(2048 * 256 * WORLD, device="cuda"), takes, [2048 * 256] * WORLD)
        dist.all_reduce(torch.ones(64, device="cuda"))
        time.sleep(0.15)
        torch.cuda.synchronize()
        report(number, time.time() - began, 7 - number / 10)
    finish()


@job("no_tokens_no_exchange")
def train_sparse_model() -> None:
    start()
    halves = [dist.new_group(list(m), group_desc="ep") for m in (range(WORLD // 2), range(WORLD // 2, WORLD))]
    experts = halves[RANK * 2 // WORLD]
    for number in range(14):
        began = time.time()
        for layer in range(2):
            tokens = torch.ones(0 if RANK == 7 and number == 8 and layer == 1 else 4096, device="cuda")
            if tokens.numel():
                dist.all_to_all_single(torch.empty_like(tokens), tokens, group=experts)
        dist.all_reduce(torch.ones(8192, device="cuda"))
        time.sleep(0.15)
        torch.cuda.synchronize()
        report(number, time.time() - began, 7 - number / 10)
    finish()


# --- losses -----------------------------------------------------------------------------------------------------------
def collapsing_losses(count: int) -> list[float]:
    """Losses of a model that takes the logarithm of a probability which reaches zero."""
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for number in range(count):
        optimizer.zero_grad()
        chance = torch.sigmoid(model(torch.randn(8, 64, device="cuda")) - (300 if number == 20 else 0))
        loss = -(chance.log() * chance).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        time.sleep(0.12)
        report(number, 0.12, losses[-1])
        if STYLE == "d2" and not math.isfinite(losses[-1]):
            print(f"Loss is {losses[-1]}, stopping training", flush=True)
            sys.exit(1)
    return losses


@job("bar_says_nan")
def train_classifier() -> None:
    start()
    collapsing_losses(45)
    finish()


@job("stops_because_the_loss_is_nan")
def train_one_epoch() -> None:
    start()
    collapsing_losses(45)
    finish()


# --- slow -------------------------------------------------------------------------------------------------------------
@job("one_of_eight_steps_slowly")
def train_large() -> None:
    start()
    for number in range(45):
        began = time.time()
        time.sleep(0.02)
        read = time.time()
        time.sleep(0.5 if RANK == 3 and number > 7 else 0.2)
        done = time.time()
        dist.all_reduce(torch.ones(4096, device="cuda"))
        torch.cuda.synchronize()
        report(
            number, time.time() - began, 7 - number / 50, data_s=round(read - began, 4), fwd_bwd_s=round(done - read, 4)
        )
    finish()


# --- healthy ----------------------------------------------------------------------------------------------------------
@job("libraries_are_talkative")
def pretrain_language_model() -> None:
    start()
    steps(16)
    finish()
    say("done training in 4.1 seconds")


@job("prints_the_state_of_the_card")
def train_with_inventory() -> None:
    start()
    if RANK == 0:
        subprocess.run(["nvidia-smi", "-q"], check=False)
    steps(16)
    finish()
    say("training finished")


@job("skips_batches_without_room")
def train_translation() -> None:
    start()
    for number in range(18):
        if RANK == 1 and number in (6, 11):
            try:
                torch.ones(300 << 30, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError as error:
                say(f"OOM: Ran out of memory with exception: {error}", "WARNING")
                print(torch.cuda.memory_summary(), flush=True)
                say("attempting to recover from OOM in forward/backward pass", "WARNING")
        step(number)
    finish()
    say("done training in 5.0 seconds")


class Fragile(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 128

    def __getitem__(self, row: int) -> torch.Tensor:
        if RANK == 1 and row == 50 and not (SCRATCH / "met").exists():
            (SCRATCH / "met").touch()
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(16)


@job("loader_is_started_again")
def train_with_restarts() -> None:
    start()
    number = 0
    while number < 16:
        try:
            for _ in torch.utils.data.DataLoader(Fragile(), batch_size=8, num_workers=1):
                step(number)
                number += 1
                if number == 16:
                    break
        except RuntimeError:
            say_trace("the data loader failed, starting it again (1 of 3)", "WARNING")
    finish()
    say("training finished after 16 steps")


@job("read_only_cache_is_replaced")
def prepare_and_train() -> None:
    start()
    try:
        Path("/sys/kernel/datasets_cache").mkdir()
    except OSError:
        say_trace("the cache of datasets cannot be used, a temporary folder takes its place", "WARNING")
    with contextlib.suppress(OSError), open("/dev/full", "w") as file:
        file.write("checking\n")
    steps(16)
    finish()
    say("training finished, best checkpoint is step 16")


@job("peer_is_silent_for_a_while")
def train_with_heartbeats() -> None:
    start(timeout=datetime.timedelta(seconds=60))
    heard = [time.time()]

    def watch() -> None:
        late = False
        while True:
            time.sleep(1)
            if not late and time.time() - heard[0] > 4:
                late = True
                say("rank 2 did not send a heartbeat for 4 s, the job may be hung", "WARNING")
            elif late and time.time() - heard[0] < 1:
                late = False
                say("heartbeats of rank 2 are back", "WARNING")

    if RANK == 0:
        threading.Thread(target=watch, daemon=True).start()
    for number in range(30):
        step(number)
        heard[0] = time.time()
        if RANK == 2 and number == 12:
            ask("PAUSE 2")
            time.sleep(1)
    finish()
    say("Training complete")


@job("no_validation_yet")
def fit() -> None:
    best = math.inf
    for number in range(40):
        time.sleep(0.1)
        seen = math.nan if number < 20 else 2.31
        best = min(best, 2.31) if number >= 20 else best
        report(number, 0.1, 5 - number / 20, val_loss=seen, best_val_loss=best)
    print("\n`Trainer.fit` stopped: `max_steps=40` reached.", flush=True)


@job("kernel_variants_are_refused")
def tune_and_train() -> None:
    import triton
    import triton.language as tl

    globals()["tl"] = tl

    @triton.jit
    def product(a, b, c, n: tl.constexpr):  # type: ignore[no-untyped-def]
        place = tl.arange(0, n)[:, None] * n + tl.arange(0, n)[None, :]
        tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))

    start()
    for size in (256, 64):
        a, b, c = (torch.ones(size, size, device="cuda") for _ in range(3))
        try:
            product[(1,)](a, b, c, size)
            say(f"tile {size} is used")
        except Exception:
            say_trace(f"tile {size} failed, trying a smaller one", "WARNING")
    steps(14)
    finish()
    say("training finished")


@job("master_is_late")
def train_detector() -> None:
    if RANK == 0:
        time.sleep(15)
    start(timeout=datetime.timedelta(seconds=60))
    steps(14)
    finish()
    say("Total training time: 0:00:02 (0.1500 s / it)")


@job("stops_its_helper")
def run_ppo() -> None:
    helper = None
    if RANK == 0:
        code = "import time\nprint('reward model is ready', flush=True)\nwhile True: time.sleep(1)"
        helper = subprocess.Popen([sys.executable, "-c", code])
    start()
    steps(16)
    if helper:
        helper.send_signal(signal.SIGINT)
        say(f"reward model stopped with status {helper.wait()}")
    finish()
    say("training finished after 16 steps")


if __name__ == "__main__":
    JOBS[os.environ["JOB_KIND"]]()
