"""Flight Recorder dumps of a sharded training job, as PyTorch writes them.

The layout is that of PyTorch's C++ writer, byte for byte: keys, strings and frames memoised, containers not. What is in
them follows dumps recorded on GPUs: gathers of the forward pass on one thread under nineteen frames, gathers and
scatters of the backward pass on another under seven to ten, no times of starting, threads numbered by each process.
The last step is left open: ranks wait in it with what they enqueued after it, and one rank never came.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

ENTRIES = 2000
START = 1_790_000_000_000_000_000
#: Collectives that a waiting rank enqueued after the one it waits in.
AHEAD = 12
_LAYERS = 8
_THREAD = "140414958731584"


class Writer:
    """A pickler of protocol 2 in the manner of PyTorch's recorder."""

    def __init__(self) -> None:
        self.out = bytearray(b"\x80\x02")
        self.memo: dict[Any, int] = {}
        self.times: list[int] = []
        self.uses: Counter[Any] = Counter()

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
            frame = tuple(value.values()) if "line" in value else None
            if frame is not None and self.get(frame):
                return
            out += b"}("
            for key, item in value.items():
                self.write(key)
                self.write(item)
            out += b"u"
            if self.uses[frame] > 1:
                self.put(frame)

    def document(self, root: dict[str, Any]) -> bytes:
        """A whole dump. A frame is numbered where it is used again."""
        self.uses.update(tuple(frame.values()) for entry in root["entries"] for frame in entry.get("frames", ()))
        self.write(root)
        self.put("")
        return bytes(self.out) + b"."


class _Call:
    """One of the calls that a training step repeats."""

    def __init__(self, name: str, operation: str, depth: int, layer: int, thread: int) -> None:
        library = "/opt/env/lib/python3.12/site-packages/torch"
        inner = [
            (operation, f"{library}/distributed/distributed_c10d.py", 3000 + len(operation)),
            ("wrapper", f"{library}/distributed/c10d_logger.py", 83),
            *((f"_stage_{n}", f"{library}/distributed/fsdp/_fully_shard/_fsdp_{n}.py", 400 + n) for n in range(depth)),
        ]
        outer = [("block", "/workspace/train/model.py", 100 + layer), ("step", "/workspace/train/loop.py", 57)]
        # The backward pass is called by the engine, not by the program: no line of the user's is in its stacks.
        stack = inner if thread else [*inner, *outer, ("<module>", "/workspace/train/main.py", 12)]
        self.frames = [{"name": name, "filename": file, "line": line} for name, file, line in stack]
        self.name = name
        self.thread = thread
        self.part = 8192 * (1 + layer)


_GATHER, _SCATTER = "nccl:_all_gather_base", "nccl:_reduce_scatter_base"
_STEP = (
    *(_Call(_GATHER, "all_gather_into_tensor", 14, layer, 0) for layer in range(_LAYERS)),
    *(
        call
        for layer in range(_LAYERS)
        for call in (
            _Call(_GATHER, "all_gather_into_tensor", 8, layer, 1),
            _Call(_SCATTER, "reduce_scatter_tensor", 6, layer, 1),
        )
    ),
    _Call("nccl:all_reduce", "all_reduce", 1, 0, 0),
)


def document(world: int, entries: int, last: int, open_from: int | None = None, seed: int = 7) -> dict[str, Any]:
    """What one rank records: it came to `last`, and what it entered from `open_from` on has not ended."""
    rng = random.Random(seed)
    stuck = last + 1 if open_from is None else open_from
    rows = []
    for seq in range(last - entries + 1, last + 1):
        call = _STEP[seq % len(_STEP)]
        # A whole is as many parts as there are ranks: PyTorch's analyser checks that, and gives up where it is not so.
        whole = [[call.part * world]]
        given, taken = ([[call.part]], whole) if call.name == _GATHER else (whole, [[call.part]])
        if call.name == "nccl:all_reduce":
            given = taken = [[1]]
        done = seq < stuck
        created = START + seq * 20_000_000 + rng.randrange(1_000_000)
        rows.append(
            {
                "frames": call.frames,
                "record_id": seq - 1,
                "pg_id": 0,
                "process_group": ("0", "default_pg"),
                "thread_name": "pt_autograd_0" if call.thread else "python3",
                "thread_id": str(int(_THREAD) - 10_000_000 * call.thread),
                "collective_seq_id": seq,
                "p2p_seq_id": 0,
                "op_id": seq,
                "profiling_name": call.name,
                "time_created_ns": created,
                "input_sizes": given,
                "input_dtypes": ["BFloat16"],
                "output_sizes": taken,
                "output_dtypes": ["BFloat16"],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None,
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
                "last_completed_collective": min(last, stuck - 1),
            }
        },
        "entries": rows,
    }


def generate(folder: Path, ranks: int, entries: int = ENTRIES, culprit: int = 3) -> int:
    """Write the dumps, each with times and threads of its own; gives their size in bytes.

    The culprit stopped before the collective that the others wait in, so its ring begins elsewhere; so do those of
    one rank in eight, which enqueued a little less than the others.
    """
    stuck = 70_000
    total = 0
    kinds: dict[int, tuple[bytes, list[int]]] = {}
    rng = np.random.default_rng(7)
    for rank in range(ranks):
        last = stuck - 1 if rank == culprit else stuck + AHEAD - (2 if rank % 8 == 5 else 0)
        if last not in kinds:
            writer = Writer()
            kinds[last] = writer.document(document(ranks, entries, last, stuck)), writer.times
        content, times = kinds[last]
        data = np.frombuffer(content.replace(_THREAD[:6].encode(), b"%06d" % (140_000 + rank)), np.uint8).copy()
        places = np.array(times)[:, None] + np.arange(8)
        shifted = data[places].copy().view("<i8")[:, 0] + rng.integers(0, 500_000, len(times))
        data[places] = shifted[:, None].copy().view(np.uint8)
        total += data.size
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data.tobytes())
    return total
