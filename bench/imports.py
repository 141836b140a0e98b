"""What it costs to start: the package, and the command's help."""

from __future__ import annotations

import subprocess
import sys
import time

from bench import Measurement

RUNS = 5


def measure() -> list[Measurement]:
    return [
        Measurement("imports.tracecore", _seconds("import tracecore"), "s", "≤ 0.3", "import tracecore"),
        Measurement(
            "imports.help",
            _seconds("import sys; sys.argv = ['tracecore', '--help']; from tracecore.cli.main import main; main()"),
            "s",
            "≤ 0.3",
            "tracecore --help",
        ),
    ]


def _seconds(code: str) -> float:
    """The best of a few fresh processes."""
    best = float("inf")
    for _ in range(RUNS):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begin)
    return best
