"""Flight Recorder: reading and joining the dumps of a whole job.

    python -m bench.flight_recorder                      512 ranks x 2,000 entries
    python -m bench.flight_recorder --ranks 16384        the large one: needs 6 GB of disk
    python -m bench.flight_recorder --peer DIR           against the analyser of another PyTorch

Dumps are those of `bench.dumps`: one rank of them never enters the collective that all others wait in. Time is that of
`tracecore fr` as a user runs it, start included; memory is the proportional set size of all its processes together,
sampled. The peer is PyTorch's own analyser (`torchfrtrace DIR`) on the same dumps, and it must name the same rank.

The peer is the installed PyTorch, or the one of which DIR (or TRACECORE_PEER_TORCH) holds the Python files: a wheel
unpacked there will do, of which `torch/distributed/flight_recorder` is enough. It is pure Python; of a DIR nothing else
of PyTorch is loaded, which spares the peer the seconds that importing PyTorch takes.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from bench import Measurement
from bench.dumps import ENTRIES, generate

CULPRIT = 3


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


class Run(NamedTuple):
    """What running a command took: seconds, processor seconds, bytes at the peak; and what it said."""

    seconds: float
    processor: float
    peak: int
    out: str


def timed(command: list[str]) -> Run:
    """Run a command."""
    begin, before = time.perf_counter(), _spent()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    memory = Memory(process.pid)
    memory.start()
    out, err = process.communicate()
    seconds, processor = time.perf_counter() - begin, _spent() - before
    memory.stop.set()
    memory.join()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} … ended with {process.returncode}: {err.decode()[-400:]}")
    # PyTorch's analyser logs its findings.
    return Run(seconds, processor, memory.peak, out.decode() or err.decode())


def _spent() -> float:
    """Processor seconds of all processes that were started here and have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


ANALYSER = "torch.distributed.flight_recorder.fr_trace"
# Empty packages above the analyser's, so that none of the rest of PyTorch is looked for.
_ALONE = f"""
import runpy, sys, types
root = sys.argv.pop(1)
for name in ("torch", "torch.distributed"):
    sys.modules[name] = module = types.ModuleType(name)
    module.__path__ = [root + "/" + name.replace(".", "/")]
sys.argv[0] = "torchfrtrace"
runpy.run_module("{ANALYSER}", run_name="__main__")
"""


def analyser(peer: str | None) -> tuple[list[str], str] | None:
    """The command of PyTorch's analyser, and its version; None where there is none.

    Args:
        peer: a directory with the Python files of some PyTorch; None for the installed one.
    """
    if peer is not None:
        if not (Path(peer) / "torch" / "distributed" / "flight_recorder" / "fr_trace.py").is_file():
            raise FileNotFoundError(f"{peer} has no torch/distributed/flight_recorder")
        named = sorted(path.name for path in Path(peer).glob("torch-*.dist-info"))
        version = named[0].split("-")[1].removesuffix(".dist") if named else "of unknown version"
        return [sys.executable, "-c", _ALONE, peer], version
    try:
        if importlib.util.find_spec(ANALYSER) is None:
            return None
    except ModuleNotFoundError:
        return None
    return [sys.executable, "-m", ANALYSER], importlib.metadata.version("torch")


def compared(folder: Path, label: str, ours: Run, peer: str | None) -> Measurement:
    """How many times quicker than PyTorch's analyser on the same dumps."""
    name, bar = f"{label}.ratio", "≥ 50"
    found = analyser(peer)
    if found is None:
        why = "no PyTorch of 2.10 or later is installed, nor named by --peer or TRACECORE_PEER_TORCH"
        return Measurement(name=name, value=0.0, unit="x", bar=bar, skipped=why)
    command, version = found
    theirs = timed([*command, str(folder)])
    if f"missing ranks: {{{CULPRIT}}}" not in theirs.out:
        # It gives up early on dumps that it takes to be wrong: then its time says nothing.
        raise RuntimeError(f"PyTorch's analyser did not name rank {CULPRIT}: {theirs.out[-400:]}")
    note = (
        f"PyTorch {version}, `torchfrtrace DIR`: {theirs.seconds:.1f} s, {theirs.peak / 2**20:.0f} MiB; "
        f"processor {theirs.processor:.1f} s against {ours.processor:.2f} s"
    )
    return Measurement(name=name, value=theirs.seconds / ours.seconds, unit="x", bar=bar, note=note)


def measure(
    ranks: int = 512, entries: int = ENTRIES, jobs: int = 2, compare: bool = True, peer: str | None = None
) -> list[Measurement]:
    """Generate, analyse, check the answer."""
    folder = Path(tempfile.mkdtemp(prefix="fr_bench_"))
    label = f"flight_recorder.{ranks}x{entries}"
    large = ranks >= 16384
    try:
        size = generate(folder, ranks, entries, CULPRIT)
        command = [sys.executable, "-m", "tracecore", "fr", str(folder), "--format", "json", "--jobs", str(jobs)]
        # Of a few runs the one in the middle: a second is soon disturbed.
        ours = sorted([timed(command) for _ in range(1 if large else 3)])[0 if large else 1]
        verdicts = json.loads(ours.out)["sets"][0]["verdicts"]
        if [v["culprit_ranks"] for v in verdicts if v["pattern.name"] == "nccl_hang"] != [[CULPRIT]]:
            raise RuntimeError(f"the analysis did not name rank {CULPRIT}")
        rows = [
            Measurement(name=f"{label}.size", value=size / 1e6, unit="MB"),
            Measurement(
                name=f"{label}.seconds",
                value=ours.seconds,
                unit="s",
                bar="≤ 20" if large else "",
                note=f"processor {ours.processor:.1f} s",
            ),
            Measurement(
                name=f"{label}.memory", value=ours.peak / 2**20, unit="MiB", bar="≤ 1536" if large else "≤ 400"
            ),
        ]
        if compare and not large:
            rows.append(compared(folder, label, ours, peer or os.environ.get("TRACECORE_PEER_TORCH")))
        return rows
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure_full() -> list[Measurement]:
    """The large one."""
    if shutil.disk_usage(tempfile.gettempdir()).free < 12 * 10**9:
        why = "needs 12 GB of free disk for its dumps"
        return [Measurement(f"flight_recorder.16384x{ENTRIES}.seconds", 0.0, "s", "≤ 20", skipped=why)]
    return measure(16384)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-compare", action="store_true")
    parser.add_argument("--peer", metavar="DIR", help="a directory with the Python files of some PyTorch")
    options = parser.parse_args()
    for row in measure(options.ranks, options.entries, options.jobs, not options.no_compare, options.peer):
        print(f"{row.name:<40} {row.value:>10.2f} {row.unit:<4} {row.bar}  {row.note}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
