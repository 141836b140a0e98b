"""What a node writes: the output of containers as a kubelet keeps it, the kernel's log, Flight Recorder dumps."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Clock = Callable[[], float]

#: Bytes of a container's file after which it is rotated. A kubelet takes 10 MiB; here it happens within an incident.
ROTATE = 3_000


def stamp(seconds: float, digits: int = 9) -> str:
    """A time as container runtimes and rsyslog write it."""
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 10**digits):0{digits}d}"


class Container:
    """The output of a container, in the kubelet's tree: `<namespace>_<pod>_<uid>/<container>/0.log`.

    Args:
        root: `/var/log/pods` of the node.
        pod: as the API has it.
        clock: the time of the lines.
        rotate: bytes after which the file is renamed and a new one begun.
    """

    def __init__(
        self, root: Path, pod: dict[str, Any], clock: Clock = time.time, rotate: int = ROTATE, container: str = "main"
    ) -> None:
        meta = pod["metadata"]
        self._folder = root / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / container
        self._folder.mkdir(parents=True)
        self._clock = clock
        self._rotate = rotate
        self._lock = threading.Lock()
        self._file = (self._folder / "0.log").open("a", encoding="utf-8")
        self.lines = 0
        self.rotations = 0

    def print(self, text: str, stream: str = "stdout") -> None:
        """Lines of the program, each in the form of the container runtime interface."""
        with self._lock:
            for line in text.splitlines():
                self._file.write(f"{stamp(self._clock())}Z {stream} F {line}\n")
                self.lines += 1
            self._file.flush()
            if self._file.tell() >= self._rotate:
                self._turn()

    def rotate(self) -> None:
        """As the kubelet does it: the file is renamed, and the runtime opens a new one under the old name."""
        with self._lock:
            self._turn()

    def _turn(self) -> None:
        self._file.close()
        self.rotations += 1
        suffix = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._clock()))
        (self._folder / "0.log").rename(self._folder / f"0.log.{suffix}-{self.rotations}")
        self._file = (self._folder / "0.log").open("a", encoding="utf-8")

    def close(self) -> None:
        with self._lock:
            self._file.close()


class Kernel:
    """The kernel's log, as rsyslog writes it."""

    def __init__(self, path: Path, node: str, clock: Clock = time.time) -> None:
        self.path = path
        self._node = node
        self._clock = clock
        self.lines = 0
        path.touch()

    def say(self, *lines: str) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for line in lines:
                file.write(f"{stamp(self._clock(), 6)}+00:00 {self._node} kernel: {line}\n")
                self.lines += 1


def dump(folder: Path, rank: int, ranks: int, stuck: int, now: float, name: str = "nccl:all_reduce") -> None:
    """The Flight Recorder's dump of a rank that waits in a collective since a moment ago.

    Args:
        folder: where dumps are looked for.
        ranks: of the job.
        stuck: the sequence number of the collective that does not end.
        now: seconds.
    """
    entries = [
        _entry(seq, stuck, int((now - 0.4 * (stuck - seq)) * 1e9), name) for seq in range(max(stuck - 8, 1), stuck + 1)
    ]
    status = {
        "last_enqueued_collective": stuck,
        "last_started_collective": stuck,
        "last_completed_collective": stuck - 1,
    }
    document = {
        "version": "2.10",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}},
        "comm_lib_version": "2.28.9",
        "pg_status": {"0": status},
        "entries": entries,
    }
    (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, protocol=2))


def _entry(seq: int, stuck: int, begun: int, name: str) -> dict[str, Any]:
    done = seq < stuck
    return {
        "record_id": seq - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": name,
        "time_created_ns": begun,
        "time_discovered_started_ns": begun + 1_000_000,
        "time_discovered_completed_ns": begun + 200_000_000 if done else None,
        "input_sizes": [[67_108_864]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[67_108_864]],
        "output_dtypes": ["BFloat16"],
        "state": "completed" if done else "started",
        "is_p2p": False,
        "retired": done,
        "timeout_ms": 600_000,
        "thread_id": "140585198043456",
        "thread_name": "pt_autograd_0",
        "frames": [
            {"name": "all_reduce", "filename": "torch/distributed/distributed_c10d.py", "line": 3068},
            {"name": "train_step", "filename": "/workspace/train.py", "line": 214},
        ],
    }


class Training:
    """Ranks that make a step now and then and say so, until they are told to stop.

    Args:
        ranks: where each prints.
        pause: seconds of a step.
        first: the step to begin with.
    """

    def __init__(self, ranks: Sequence[Container], pause: float = 0.4, first: int = 1200) -> None:
        self._ranks = list(ranks)
        self._pause = pause
        self.step = first
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training")
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause):
            self.step += 1
            for number, rank in enumerate(self._ranks):
                rank.print(report(self.step, number))

    def stop(self) -> None:
        """No rank says anything more."""
        self._stop.set()
        self._thread.join()


def report(step: int, rank: int, seconds: float = 0.4) -> str:
    """What a rank says after a step."""
    loss = 2.4 - 0.0001 * step + 0.013 * ((step * 7 + rank) % 5)
    norm = 0.8 + 0.05 * ((step * 3 + rank) % 7)
    numbers = f"loss: {loss:.4f} | grad_norm: {norm:.3f} | lr: 3.0e-04 | step_time: {seconds:.3f}"
    return f"[rank{rank}]: step {step}/20000 | {numbers}"
