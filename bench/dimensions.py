"""The cost of a diagnosis when one dimension of its input grows fourfold: four times as much, not sixteen.

Processor time is compared within one run, so that the number does not depend on the machine. The cost includes what
a user waits for: the document, the text and the HTML page.
"""

from __future__ import annotations

import gc
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from bench import Measurement
from tracecore.diagnose.offline import diagnose
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.incidents.page import page
from tracecore.incidents.text import report

CRASH = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: bad row 600\n'
STEPS = "".join(f"[2026-11-15 02:21:{10 + step}] rank 0 | step {step} | loss 2.0\n" for step in range(5))
#: Four times the input may cost so many times as much.
MOST = 6.5


def exit_statuses(place: Path, number: int) -> None:
    (place / "exit_codes.json").write_text(json.dumps({str(rank): 1 for rank in range(number)}))


def files(place: Path, number: int) -> None:
    for rank in range(number):
        text = STEPS.replace("rank 0", f"rank {rank}")
        (place / f"rank{rank}.log").write_text(text + (CRASH if rank == number // 2 else ""))


def size(place: Path, number: int) -> None:
    line = "loading shard from disk, nothing to see\n"
    (place / "rank0.log").write_text(line * (number // len(line)) + CRASH)


def matches_per_line(place: Path, number: int) -> None:
    (place / "rank0.log").write_text(f"{'NCCL WARN ' * number}\n" * 20 + CRASH)


def progress_bars(place: Path, number: int) -> None:
    """One line of Keras' bars, which overwrite each other with carriage returns."""
    bars = "\r".join(
        f"{step:5}/9999 [====>........] - ETA: 12:01 - loss: {2 + step / 1e5:.4f} - accuracy: 0.3156"
        for step in range(number)
    )
    (place / "rank0.log").write_text(f"{bars}\n{CRASH}")


def json_tracebacks(place: Path, number: int) -> None:
    (place / "rank0.log").write_text(
        "".join(
            json.dumps({"time": f"2026-11-15T02:{n // 60 % 60:02}:{n % 60:02}Z", "level": "ERROR", "exc_info": CRASH})
            + "\n"
            for n in range(number)
        )
    )


def line_length(place: Path, number: int) -> None:
    (place / "rank0.log").write_text(f"{'=' * number}\n" * 20 + CRASH)


def levels(place: Path, number: int) -> None:
    for _ in range(number):
        place = place / "d"
    place.mkdir(parents=True)
    (place / "rank0.log").write_text(CRASH)


def verdicts(place: Path, number: int) -> None:
    lines = "".join(
        f"2026-11-15T02:{minute % 60:02}:00Z node-7 kernel: NVRM: Xid (PCI:0000:{minute % 250:02x}:00): 79, pid=7, "
        "GPU has fallen off the bus.\n"
        for minute in range(number)
    )
    (place / "dmesg.txt").write_text(lines)


#: By dimension: what makes a folder of this size, and the smaller of two sizes.
DIMENSIONS: dict[str, tuple[Callable[[Path, int], None], int]] = {
    "ranks": (exit_statuses, 1_000),
    "files": (files, 500),
    "bytes": (size, 4_000_000),
    # Beyond the size below which every line is looked at, so that both sizes are read the same way.
    "line_length": (line_length, 200_000),
    "matches_per_line": (matches_per_line, 1_000),
    "progress_bars": (progress_bars, 2_500),
    "json_tracebacks": (json_tracebacks, 150),
    "levels": (levels, 200),
    "verdicts": (verdicts, 50),
}


def cost(name: str, times: int) -> float:
    """Processor seconds of a diagnosis of this dimension, of so many times the smaller size."""
    make, size = DIMENSIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), size * times)
        gc.collect()
        begin = time.process_time()
        _shown(Path(folder))
        return max(time.process_time() - begin, 0.02)


def _shown(folder: Path) -> Diagnosis:
    diagnosis = diagnose([folder])
    diagnosis.document()
    report(diagnosis)
    page(diagnosis)
    return diagnosis


def memory(name: str, times: int) -> float:
    """Bytes that a diagnosis holds at most, by Python's own count."""
    make, size = DIMENSIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), size * times)
        gc.collect()
        tracemalloc.start()
        try:
            _shown(Path(folder))
            return max(float(tracemalloc.get_traced_memory()[1]), 1e6)
        finally:
            tracemalloc.stop()


def growth(name: str, of: Callable[[str, int], float], attempts: int = 3) -> float:
    """How many times as much four times the input costs; the least of some attempts, for the machine may be busy."""
    of(name, 1)
    least = float("inf")
    for _ in range(attempts):
        least = min(least, of(name, 4) / of(name, 1))
        if least < MOST:
            break
    return least


def many_files(number: int) -> float:
    """Processor milliseconds for each of so many rank files, one of which ends in a plain traceback.

    Raises:
        RuntimeError: the traceback was not found.
    """
    with tempfile.TemporaryDirectory() as folder:
        files(Path(folder), number)
        begin = time.process_time()
        diagnosis = _shown(Path(folder))
        spent = time.process_time() - begin
    if not any(f"Rank {number // 2} raised ValueError" in said.verdict.headline() for said in diagnosis.verdicts):
        raise RuntimeError(f"the traceback among {number:,} files was not found")
    return spent / number * 1000


def measure_full() -> list[Measurement]:
    """The cost of each of 100,000 rank files."""
    return [
        Measurement("dimensions.files.100000", round(many_files(100_000), 2), "ms a file", "≤ 1.2", "processor time")
    ]


def measure() -> list[Measurement]:
    """Two rows for each dimension, and the cost of a file among very many."""
    rows = [Measurement("dimensions.files.10000", round(many_files(10_000), 2), "ms a file", "≤ 1.2", "processor time")]
    for name in DIMENSIONS:
        for what, of in (("time", cost), ("memory", memory)):
            note = "four times the input"
            rows.append(
                Measurement(f"dimensions.{name}.{what}", round(growth(name, of), 2), "times", f"≤ {MOST}", note)
            )
    return rows
