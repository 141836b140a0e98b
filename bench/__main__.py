"""Measure, print the table, fail above a committed ceiling.

python -m bench                     everything
python -m bench detectors engine    these modules
python -m bench --json              the numbers on stdout, the table on stderr
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import time
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.table import Table

import bench
from bench import Measurement
from bench.ceilings import Ceiling, failures, read


def modules() -> list[str]:
    """Names of the modules here that measure something."""
    names = sorted(module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_"))
    return [name for name in names if hasattr(importlib.import_module(f"bench.{name}"), "measure")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks with committed ceilings.")
    parser.add_argument("names", nargs="*", metavar="MODULE", help=f"of {', '.join(modules())}; all when none is given")
    parser.add_argument("--json", action="store_true", help="print the numbers on stdout")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in modules()]:
        parser.error(f"no module {', '.join(unknown)}")
    console = Console(stderr=True)
    measurements: list[Measurement] = []
    for name in options.names or modules():
        begin = time.monotonic()
        rows = importlib.import_module(f"bench.{name}").measure()
        measurements += [msgspec.convert(row, Measurement, from_attributes=True) for row in rows]
        console.print(f"[dim]{name}: {time.monotonic() - begin:.0f} s[/dim]")
    ceilings = read()
    wrong = failures(measurements, ceilings)
    console.print(_table(measurements, ceilings))
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(measurements), indent=2).decode() + "\n")
    for line in wrong:
        console.print(f"[red]too much or too little:[/red] {line}")
    return 1 if wrong else 0


def _table(measurements: Sequence[Measurement], ceilings: dict[str, Ceiling]) -> Table:
    table = Table(box=None, header_style="bold")
    for column in ("what", "measured", "unit", "bar", "how"):
        table.add_column(column, justify="right" if column == "measured" else "left")
    for measured in measurements:
        ceiling = ceilings.get(measured.name, Ceiling())
        bars = [
            f"≤ {ceiling.most:,g}" if ceiling.most is not None else "",
            f"≥ {ceiling.least:,g}" if ceiling.least else "",
        ]
        bar = " ".join(filter(None, bars)) or measured.bar
        style = "red" if failures([measured], ceilings) else None
        value = f"{measured.value:,.2f}" if measured.value < 1000 else f"{measured.value:,.0f}"
        table.add_row(measured.name, value, measured.unit, bar, measured.note, style=style)
    return table


if __name__ == "__main__":
    sys.exit(main())
