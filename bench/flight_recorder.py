"""Flight Recorder: reading and joining the dumps of a whole job.

    python -m bench.flight_recorder                      512 ranks x 2,000 entries
    python -m bench.flight_recorder --ranks 16384        the large one: needs 5 GB of disk

Dumps are written the way PyTorch's C++ writer does: keys and strings memoised, frames memoised, containers not. One
rank of them never enters the last collective. Time is that of `tracecore fr` as a user runs it, start included; memory
is the proportional set size of all its processes together, sampled.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import Measurement

ENTRIES = 2000
START = 1_790_000_000_000_000_000


class Writer:
    """A pickler of protocol 2 in the manner of PyTorch's recorder."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[Any, int] = {}
        self.times: list[int] = []

    def put(self, key: Any) -> None:
        index = self.memo[key] = len(self.memo)
        self.out += b"q" + bytes((index,)) if index < 256 else b"r" + struct.pack("<I", index)

    def get(self, key: Any) -> bool:
        index = self.memo.get(key)
        if index is None:
            return False
        self.out += b"h" + bytes((index,)) if index < 256 else b"j" + struct.pack("<I", index)
        return True

    def write(self, value: Any) -> None:
        out = self.out
        if value is None:
            out += b"N"
        elif value is True or value is False:
            out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            if 0 <= value < 1 << 8:
                out += b"K" + bytes((value,))
            elif 0 <= value < 1 << 16:
                out += b"M" + struct.pack("<H", value)
            elif -(1 << 31) <= value < 1 << 31:
                out += b"J" + struct.pack("<i", value)
            else:
                self.times.append(len(out) + 2)
                out += b"\x8a\x08" + struct.pack("<q", value)
        elif isinstance(value, str):
            if not self.get(value):
                data = value.encode()
                out += b"X" + struct.pack("<I", len(data)) + data
                self.put(value)
        elif isinstance(value, tuple):
            for item in value:
                self.write(item)
            out += b"\x86"
        elif isinstance(value, list):
            out += b"]("
            for item in value:
                self.write(item)
            out += b"e"
        else:
            frame = ("frame", *value.values()) if "line" in value else None
            if frame is not None and self.get(frame):
                return
            out += b"}("
            for key, item in value.items():
                self.write(key)
                self.write(item)
            out += b"u"
            if frame is not None:
                self.put(frame)


def document(world: int, entries: int, last: int, seed: int = 7) -> dict[str, Any]:
    """What one rank of a sharded training step records; `last` is the sequence it came to."""
    rng = random.Random(seed)
    library = "/opt/env/lib/python3.12/site-packages/torch/distributed"
    stacks = [
        [
            {"name": op, "filename": f"{library}/distributed_c10d.py", "line": 3000 + i},
            {"name": "wrapper", "filename": f"{library}/c10d_logger.py", "line": 83},
            {"name": "forward", "filename": f"{library}/fsdp/_fully_shard/_fsdp_param_group.py", "line": 400 + i},
            {"name": "block", "filename": "/workspace/train/model.py", "line": 100 + i},
            {"name": "step", "filename": "/workspace/train/loop.py", "line": 50 + i},
            {"name": "<module>", "filename": "/workspace/train/main.py", "line": 12},
        ]
        for i, op in enumerate(("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce") * 8)
    ]
    names = ("nccl:_all_gather_base", "nccl:_reduce_scatter_base", "nccl:all_reduce")
    rows = []
    for number in range(entries):
        seq = last - entries + 1 + number
        kind = seq % 24
        # A whole is as many parts as there are ranks: PyTorch's analyser checks that, and gives up where it is not so.
        part = 8192 * (1 + kind // 3)
        given = [[part]] if kind % 3 == 0 else [[part * world]] if kind % 3 == 1 else [[4096]]
        taken = [[part * world]] if kind % 3 == 0 else [[part]] if kind % 3 == 1 else [[4096]]
        done = number < entries - 1
        created = START + seq * 20_000_000 + rng.randrange(1_000_000)
        rows.append(
            {
                "frames": stacks[kind],
                "record_id": seq - 1,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "thread_name": "python3",
                "thread_id": "140414958731584",
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": names[kind % 3],
                "time_created_ns": created,
                "input_sizes": given,
                "input_dtypes": ["BFloat16"],
                "output_sizes": taken,
                "output_dtypes": ["BFloat16"],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": created + 5_000_000 if done else None,
                "time_discovered_completed_ns": created + 15_000_000 if done else None,
                "retired": done,
                "timeout_ms": 600000,
                "is_p2p": False,
            }
        )
    return {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}},
        "comm_lib_version": "2.28.9",
        "pg_status": {
            "0": {
                "last_enqueued_collective": last,
                "last_started_collective": -1,
                "last_completed_collective": last - 1,
            }
        },
        "entries": rows,
    }


def generate(folder: Path, ranks: int, entries: int = ENTRIES, culprit: int = 3) -> int:
    """Write the dumps, each with times of its own; gives their size in bytes."""
    last = 70_000
    total = 0
    waiting, missing = Writer(), Writer()
    waiting.write(document(ranks, entries, last))
    behind = document(ranks, entries, last - 1)
    behind["entries"][-1].update(state="completed", retired=True, time_discovered_completed_ns=START + 1)
    missing.write(behind)
    rng = np.random.default_rng(7)
    for rank in range(ranks):
        writer = missing if rank == culprit else waiting
        data = np.frombuffer(bytes(writer.out) + b".", dtype=np.uint8).copy()
        places = np.array(writer.times)[:, None] + np.arange(8)
        times = data[places].copy().view("<i8")[:, 0] + rng.integers(0, 500_000, len(writer.times))
        data[places] = times[:, None].copy().view(np.uint8)
        total += data.size
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data.tobytes())
    return total


class Memory(threading.Thread):
    """Samples the proportional set size of a session's processes."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.peak = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.wait(0.05):
            self.peak = max(self.peak, sum(map(_pss, _processes(self.session))))


def _processes(session: int) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[3]) == session:
                found.append(name)
    return found


def _pss(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def timed(command: list[str]) -> tuple[float, int, str]:
    """Seconds, peak bytes and output of a command."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    memory = Memory(process.pid)
    memory.start()
    out, err = process.communicate()
    seconds = time.perf_counter() - begin
    memory.stop.set()
    memory.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {process.returncode}: {err.decode()[-400:]}")
    return seconds, memory.peak, out.decode()


def torch_analyser(folder: Path) -> tuple[float, int] | None:
    """PyTorch's own analyser on the same dumps; None where torch is not installed."""
    try:
        if importlib.util.find_spec("torch.distributed.flight_recorder.fr_trace") is None:
            return None
    except ModuleNotFoundError:
        return None
    module = "torch.distributed.flight_recorder.fr_trace"
    seconds, peak, _ = timed([sys.executable, "-m", module, str(folder), "-p", "nccl_trace_rank_"])
    return seconds, peak


def measure(ranks: int = 512, entries: int = ENTRIES, jobs: int = 2, compare: bool = True) -> list[Measurement]:
    """Generate, analyse, check the answer."""
    folder = Path(tempfile.mkdtemp(prefix="fr_bench_"))
    label = f"flight_recorder.{ranks}x{entries}"
    large = ranks >= 16384
    try:
        size = generate(folder, ranks, entries)
        command = [sys.executable, "-m", "tracecore", "fr", str(folder), "--format", "json", "--jobs", str(jobs)]
        seconds, peak, out = timed(command)
        verdicts = json.loads(out)["sets"][0]["verdicts"]
        if [v["culprit_ranks"] for v in verdicts if v["pattern.name"] == "nccl_hang"] != [[3]]:
            raise RuntimeError("the analysis did not name rank 3")
        rows = [
            Measurement(name=f"{label}.size", value=size / 1e6, unit="MB"),
            Measurement(name=f"{label}.seconds", value=seconds, unit="s", bar="≤ 60" if large else ""),
            Measurement(name=f"{label}.memory", value=peak / 2**20, unit="MiB", bar="≤ 4096" if large else "≤ 400"),
        ]
        peer = torch_analyser(folder) if compare and not large else None
        if peer is not None:
            note = f"PyTorch's own analyser: {peer[0]:.1f} s, {peer[1] / 2**20:.0f} MiB"
            rows.append(Measurement(name=f"{label}.ratio", value=peer[0] / seconds, unit="x", bar="≥ 20", note=note))
        elif compare and not large:
            why = "PyTorch, whose analyser is the peer, is not installed"
            rows.append(Measurement(name=f"{label}.ratio", value=0.0, unit="x", bar="≥ 20", skipped=why))
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_full() -> list[Measurement]:
    """The large one."""
    if shutil.disk_usage(tempfile.gettempdir()).free < 12 * 10**9:
        why = "needs 12 GB of free disk for its dumps"
        return [Measurement(f"flight_recorder.16384x{ENTRIES}.seconds", 0.0, "s", "≤ 60", skipped=why)]
    return measure(16384)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-compare", action="store_true")
    options = parser.parse_args()
    for row in measure(options.ranks, options.entries, options.jobs, not options.no_compare):
        print(f"{row.name:<40} {row.value:>10.2f} {row.unit:<4} {row.bar}  {row.note}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
