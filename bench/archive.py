"""Archives: 1,000 recorded bundles with two workers against one, on Ray and with local processes.

On a machine that does something else too, times by the clock say little. So the processor time is given as well: of
the workers, of the command, and of Ray's own processes. With two free cores a run with one worker takes the workers'
time, and one with two takes half of all: `2 * workers / (workers + command + Ray)` is the speed-up to expect.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench import Measurement
from tracecore.archive.bundles import listed
from tracecore.archive.dataset import Archive
from tracecore.archive.ray_workers import RayWorkers
from tracecore.archive.running import diagnose_all, rediagnose_all
from tracecore.archive.tasks import TaskLimits
from tracecore.archive.workers import LocalProcesses, Workers

RECORDED = Path(__file__).resolve().parents[1] / "examples"
BUNDLES = int(os.environ.get("BENCH_ARCHIVE_BUNDLES", "1000"))
_TICK = os.sysconf("SC_CLK_TCK")


class Cost(msgspec.Struct):
    """Seconds of one run: by the clock, and of processors."""

    clock: float
    workers: float
    command: float
    others: float

    @property
    def expected(self) -> float:
        return 2 * self.workers / (self.workers + self.command + self.others)


def measure() -> list[Measurement]:
    with tempfile.TemporaryDirectory() as scratch:
        bundles = _bundles(Path(scratch) / "bundles")
        rows = _compared("archive.processes", bundles, Path(scratch), lambda n: LocalProcesses(n, TaskLimits()))
        rows += _again(Path(scratch) / "archive.processes-2")
        try:
            rows += _compared(
                "archive.ray", bundles, Path(scratch), lambda n: RayWorkers("local", TaskLimits(), cpus=n)
            )
        except Exception as error:
            rows.append(Measurement("archive.ray.speedup", 0.0, "", skipped=str(error)))
        return rows


def _bundles(folder: Path) -> list[str]:
    """Recorded bundles, again and again under other names."""
    recorded = sorted(path.parent for path in RECORDED.glob("incidents*/*/truth.json"))
    for number in range(BUNDLES):
        source = recorded[number % len(recorded)]
        shutil.copytree(source, folder / f"{source.name}-{number:05d}")
    return listed([str(folder)], each=True)


def _compared(name: str, bundles: list[str], scratch: Path, make: Callable[[int], Workers]) -> list[Measurement]:
    one, two = (_run(bundles, scratch / f"{name}-{count}", make, count) for count in (1, 2))
    load = os.getloadavg()[0]
    note = f"{len(bundles)} bundles, {one.clock:.0f} s with one worker, {two.clock:.0f} s with two, load {load:.0f}"
    share = f"processor seconds: workers {two.workers:.1f}, command {two.command:.1f}, others {two.others:.1f}"
    rows = [
        Measurement(f"{name}.speedup", one.clock / two.clock, "x", "≥ 1.7" if load < 4 else "", note),
        Measurement(f"{name}.expected", two.expected, "x", "≥ 1.7", share),
    ]
    rate = len(bundles) / two.workers
    return [*rows, Measurement(f"{name}.rate", rate, "bundles/s", note="for each processor second of the workers")]


def _run(bundles: list[str], folder: Path, make: Callable[[int], Workers], count: int) -> Cost:
    workers = make(count)
    # Workers that have read their recipes: a cluster is there before a command, and stays.
    diagnose_all(bundles[: 8 * count], Archive.create(folder.with_name(folder.name + "-warm")), workers)
    begin, before = time.monotonic(), _processors()
    try:
        summary = diagnose_all(bundles, Archive.create(folder), workers)
        clock, after = time.monotonic() - begin, _processors()
    finally:
        workers.close()
    if summary.done != len(bundles) or summary.errors:
        raise RuntimeError(f"{summary.done} of {len(bundles)} bundles, {summary.errors[:1]}")
    return Cost(clock, *(after[kind] - before[kind] for kind in ("workers", "command", "others")))


def _processors() -> dict[str, float]:
    """Processor seconds of this process and of those below it, by what they are for."""
    spent = {"workers": 0.0, "command": time.process_time(), "others": 0.0}
    parents: dict[int, int] = {}
    own: dict[int, tuple[str, float]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                command = Path(f"/proc/{entry}/cmdline").read_bytes().decode("utf-8", "replace")
            except OSError:
                continue
            parents[int(entry)] = int(stat[1])
            kind = "workers" if "ray::" in command or "forkserver" in command else "others"
            own[int(entry)] = kind, (int(stat[11]) + int(stat[12])) / _TICK
    for process, (kind, seconds) in own.items():
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid() and process != above:
            spent[kind] += seconds
    return spent


def _again(folder: Path) -> list[Measurement]:
    workers = LocalProcesses(2, TaskLimits())
    try:
        begin = _processors()
        found = rediagnose_all(Archive(folder), workers)
        end = _processors()
    finally:
        workers.close()
    if found.changes:
        raise RuntimeError(f"{len(found.changes)} diagnoses are others, first {found.changes[0]}")
    spent = sum(end.values()) - sum(begin.values())
    return [
        Measurement("archive.rediagnose", found.bundles / spent, "bundles/s", note="for each processor second, all")
    ]


if __name__ == "__main__":
    for row in measure():
        print(f"{row.name:<32} {row.value:10.2f} {row.unit}  {row.note}{row.skipped}")
