"""`tracecore diagnose` over many worker logs, and from a cold start over a few.

    python -m bench diagnose                            1 GB in 102 files
    python -m bench.diagnose --gigabytes 10             10 GB in 1,024 files: needs that much disk

Logs are container logs (CRI) of 10 MB, 50 lines a second as eight local ranks write them, nine progress lines in ten,
the rest the chatter of training programs; one of them raises an exception at its end and other ranks' watchdogs follow,
which the answer must name. The rate is for each second of processor time of the command as a user runs it, start
included; two processes are compared with one by the clock. Memory is the peak of the process itself, at a fifth of the
size and at the whole.

Beside them, logs of other shapes (`bench.log_shapes`): what reading four of 10 MB takes, without start and answer; and
logs in which several programs write (`bench.mixed_logs`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench import Measurement, log_shapes, mixed_logs
from tracecore.diagnose.facts import gather
from tracecore.signals.bundle.discovery import discover

FILE = 9_765_625
MOST_FILES = 1024
#: Logs of each shape.
FILES = 4
SEEDS = (1, 2, 3)
CULPRIT = 3
LINES_A_SECOND = 50
_CHATTER = (
    "INFO:trainer:shuffle buffer refilled from shard {}",
    "/opt/conda/lib/python3.11/site-packages/torch/utils/checkpoint.py:{}: FutureWarning: use_reentrant",
    "NCCL INFO Channel {:02d}/16 : 0[0] -> 1[1] via P2P/CUMEM",
    "wandb: Run data is saved locally in /scratch/wandb/run-{}",
)


def write(folder: Path, size: int) -> None:
    """Logs of this many bytes in all."""
    dice = random.Random(7)
    files = max(5, min(MOST_FILES, size // FILE))
    each = size // files
    blocks = [_block(dice, rank) for rank in range(8)]
    for rank in range(files):
        pod = folder / f"ml_train-{rank}_{rank:08x}-0000-4000-8000-000000000000" / "train"
        pod.mkdir(parents=True)
        block = blocks[rank % len(blocks)]
        with open(pod / "0.log", "wb") as file:
            written = 0
            part = 0
            while written < each:
                # Every block is a minute of its own, with steps that go on, by bytes of the same length.
                hour, minute = divmod(part, 60)
                text = block.replace(b"T00:00:", b"T%02d:%02d:" % (hour % 24, minute))
                text = text.replace(b"step 1000", b"step %04d" % (1000 + part))
                file.write(text)
                written += len(text)
                part += 1
            file.write(_end(rank))


def _line(number: int, text: str) -> str:
    second, part = divmod(number, LINES_A_SECOND)
    nanos = part * (10**9 // LINES_A_SECOND) + number * 7919 % 10**6
    return f"2026-11-15T00:00:{second:02d}.{nanos:09d}Z stdout F {text}\n"


def _block(dice: random.Random, rank: int) -> bytes:
    lines = []
    for number in range(60 * LINES_A_SECOND):
        if number % 10 == 9:
            lines.append(_line(number, dice.choice(_CHATTER).format(number % 60)))
        else:
            loss = 2.0 + dice.random()
            values = f"loss {loss:.4f} | lr 3.00e-04 | data_time 0.012 | iter_time 0.412"
            who = rank * 8 + number % 8
            lines.append(_line(number, f"rank {who} | step 1000{number // 8:03d} | {values}"))
    return "".join(lines).encode()


def _end(rank: int) -> bytes:
    at = "2026-11-15T23:59:{:02d}.000000000Z stderr F [rank{}]: "
    if rank == CULPRIT:
        lines = ["Traceback (most recent call last):", '  File "/app/train.py", line 88, in <module>', "    main()"]
        lines.append("ValueError: row 600: expected 512 tokens, got 17")
        return "".join(at.format(50, rank) + line + "\n" for line in lines).encode()
    if rank % 64 and rank > 2:
        return b""
    word = (
        "[E1115 23:59:58.511114259 ProcessGroupNCCL.cpp:689] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=65536, NumelOut=65536, Timeout(ms)=600000) ran for 600019 "
        "milliseconds before timing out."
    )
    return (at.format(58, rank).removesuffix(f"[rank{rank}]: ") + f"[rank{rank}]:" + word.format(rank) + "\n").encode()


class Run(NamedTuple):
    """One run of the command: seconds by the clock and of the processor, peak MiB of the largest process, and what it
    printed."""

    seconds: float
    processor: float
    peak: float
    document: dict[str, object]


def diagnose(path: Path, *options: str, pure: bool = False) -> Run:
    """Run the command on a path, without the compiled part if `pure`."""
    command = [sys.executable, "-m", "tracecore", "diagnose", str(path), "--format", "json", *options]
    # Users keep compiled modules, whatever this process was told.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if pure:
        environment["TRACECORE_PURE_PYTHON"] = "1"
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.monotonic() - begin
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with status {process.returncode}")
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, json.loads(out))


def logs(gigabytes: float) -> list[Measurement]:
    size = int(gigabytes * 1e9)
    found = []
    peaks = []
    folder = Path(tempfile.mkdtemp(prefix="tracecore-bench-"))
    try:
        for part in (size // 5, size):
            target = folder / "pods"
            shutil.rmtree(target, ignore_errors=True)
            write(target, part)
            total = sum(file.stat().st_size for file in target.rglob("*.log"))
            run = diagnose(target)
            _check(run.document)
            peaks.append(run.peak)
        how = f"{total / 1e9:.2f} GB, one process, {run.seconds:.1f} s by the clock"
        found.append(Measurement("diagnose.rate", total / 1e6 / run.processor, "MB/s", "≥ 60", how))
        found.append(Measurement("diagnose.memory", peaks[1], "MiB", "≤ 300", "peak at the whole size"))
        found.append(
            Measurement("diagnose.memory.growth", peaks[1] / peaks[0], "times", "≤ 1.2", "five times the input")
        )
        two = diagnose(target, "--jobs", "2")
        _check(two.document)
        found.append(Measurement("diagnose.jobs", run.seconds / two.seconds, "times", "≥ 1.7", "--jobs 2 against 1"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _check(document: dict[str, object]) -> None:
    incidents = document["incidents"]
    assert isinstance(incidents, list)
    pods = incidents[0]["suspects"]["pods"] if incidents else []
    if pods != [f"ml/train-{CULPRIT}"]:
        raise RuntimeError(f"the culprit is train-{CULPRIT}, not {pods}")


def shapes() -> list[Measurement]:
    """Bytes for each second of processor time that reading takes, for each shape of log; the best of three."""
    found = []
    for shape in (*log_shapes.SHAPES, *log_shapes.SLOW):
        text = log_shapes.log(shape, FILE)
        with tempfile.TemporaryDirectory(prefix="tracecore-bench-") as folder:
            for number in range(FILES):
                (Path(folder) / f"node{number}.log").write_bytes(text)
            incidents = diagnose(Path(folder)).document["incidents"]
            if incidents and shape is not log_shapes.json_tracebacks:
                raise RuntimeError(f"nothing is wrong in logs of the shape {shape.__name__}, but {incidents}")
            bundle = discover([folder])
            rates = []
            for _ in range(3):
                begin = time.process_time()
                gather(bundle)
                rates.append(FILES * len(text) / 1e6 / (time.process_time() - begin))
        how = f"reading alone, {FILES} logs of 10 MB"
        bar = "≥ 25" if shape in log_shapes.SHAPES else ""
        found.append(Measurement(f"diagnose.shape.{shape.__name__}", max(rates), "MB/s", bar, how))
    return found


def mixed(megabytes: int = 60) -> list[Measurement]:
    """The same for logs in which several programs write; of each mixture and layout the worst of some seeds."""
    found = []
    for mixture in mixed_logs.MIXTURES:
        for layout in mixed_logs.LAYOUTS:
            rates = []
            for seed in SEEDS:
                with tempfile.TemporaryDirectory(prefix="tracecore-bench-") as folder:
                    mixed_logs.write(Path(folder), mixture, layout, megabytes * 10**6, seed)
                    bundle = discover([folder])
                    begin = time.process_time()
                    gather(bundle)
                    rates.append(
                        sum(stream.size or 0 for stream in bundle.streams) / 1e6 / (time.process_time() - begin)
                    )
            how = f"reading alone, {megabytes} MB, the worst of {len(SEEDS)} seeds"
            found.append(Measurement(f"diagnose.mixed.{mixture}.{layout}", min(rates), "MB/s", "≥ 60", how))
    return found


def without_compiled_part(megabytes: int = 60) -> Measurement:
    """The whole command on one mixture where no compiler was at hand."""
    with tempfile.TemporaryDirectory(prefix="tracecore-bench-") as folder:
        mixed_logs.write(Path(folder), "torch", "cri", megabytes * 10**6, 1)
        run = diagnose(Path(folder), pure=True)
    how = f"the whole command, {megabytes} MB"
    return Measurement("diagnose.mixed.pure", megabytes / run.processor, "MB/s", "≥ 20", how)


def mixed_at_size(gigabytes: float = 2.0) -> list[Measurement]:
    """The whole command on one mixture: memory and time at a quarter of the size and at all of it; two processes."""
    runs = []
    with tempfile.TemporaryDirectory(prefix="tracecore-bench-") as folder:
        for part in (0.25, 1.0):
            target = Path(folder) / str(part)
            mixed_logs.write(target, "torch", "cri", int(part * gigabytes * 1e9), 1, files=16)
            runs.append(diagnose(target))
        two = diagnose(target, "--jobs", "2")
    small, large = runs
    how = f"{gigabytes:g} GB of a mixed log in 16 files"
    return [
        Measurement("diagnose.mixed.command", gigabytes * 1000 / large.processor, "MB/s", "≥ 60", how),
        Measurement("diagnose.mixed.memory", large.peak, "MiB", "≤ 300", how),
        Measurement("diagnose.mixed.memory.growth", large.peak / small.peak, "times", "≤ 1.2", "four times the input"),
        Measurement(
            "diagnose.mixed.growth", large.processor / small.processor, "times", "≤ 4.4", "four times the input"
        ),
        Measurement("diagnose.mixed.jobs", large.seconds / two.seconds, "times", "≥ 1.7", "--jobs 2 against 1"),
    ]


def cold() -> Measurement:
    """A few small files, from a cold start to the answer; the best of five."""
    path = Path(__file__).resolve().parents[1] / "examples" / "incidents" / "nccl_rank_exception"
    best = min(diagnose(path).seconds for _ in range(5))
    return Measurement("diagnose.cold", best, "s", "≤ 0.7", "a recorded incident of 8 files, start included")


def measure(gigabytes: float = 1.0) -> list[Measurement]:
    return [cold(), *logs(gigabytes), *shapes(), *mixed(), without_compiled_part()]


def measure_full() -> list[Measurement]:
    return mixed_at_size()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for measured in measure(parser.parse_args().gigabytes):
        print(f"{measured.name:<26} {measured.value:10.2f} {measured.unit:<6} {measured.bar:<8} {measured.note}")
