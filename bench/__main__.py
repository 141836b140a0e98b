"""Measure, print the table, fail above a committed ceiling.

python -m bench                     everything
python -m bench detectors engine    these modules
python -m bench --full              also the sizes that take minutes each
python -m bench --json              the numbers on stdout, the table on stderr
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

import bench
from bench import Measurement
from bench.ceilings import Ceiling, ceiling_of, failures, read

#: Modules that others here are made of.
PARTS = frozenset(
    {
        *("ceilings", "cost_model", "detector_shapes", "dumps", "log_shapes", "mixed_logs", "mixture"),
        *("kafka_brokers", "overhead", "postgres", "training_log"),
    }
)


def modules() -> list[str]:
    """Names of the modules here that measure something."""
    names = {module.name for module in pkgutil.iter_modules(bench.__path__) if not module.name.startswith("_")}
    return sorted(names - PARTS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks with committed ceilings.")
    parser.add_argument("names", nargs="*", metavar="MODULE", help=f"of {', '.join(modules())}; all when none is given")
    parser.add_argument("--full", action="store_true", help="also the sizes that take minutes each")
    parser.add_argument("--json", action="store_true", help="print the numbers on stdout")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in modules()]:
        parser.error(f"no module {', '.join(unknown)}")
    console = Console(stderr=True)
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    console.print(f"[dim]{cores} cores, load {load:.1f}: what else runs here makes every rate lower[/dim]")
    measurements: list[Measurement] = []
    broken: list[str] = []
    for name in options.names or modules():
        begin = time.monotonic()
        rows, why = run(name, options.full)
        measurements += rows
        broken += why
        console.print(f"[dim]{name}: {time.monotonic() - begin:.0f} s[/dim]")
    ceilings = read()
    console.print(table(measurements, ceilings))
    if options.json:
        rows_ = [document(measured, ceilings) for measured in measurements]
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(rows_), indent=2).decode() + "\n")
    wrong = failures(measurements, ceilings) + broken
    for line in wrong:
        console.print(f"[red]not met:[/red] {line}", soft_wrap=True)
    return 1 if wrong else 0


def run(name: str, full: bool) -> tuple[list[Measurement], list[str]]:
    """The rows of one module, and what went wrong; what is not installed here is a row that says so."""
    try:
        module = importlib.import_module(f"bench.{name}")
        rows = module.measure()
        if full and hasattr(module, "measure_full"):
            rows += module.measure_full()
    except ModuleNotFoundError as error:
        return [Measurement(name, 0.0, "", skipped=f"needs {error.name}, which is not installed")], []
    except Exception as error:
        # One broken measurement must not hide the others; it fails the run all the same.
        return [], [f"{name}: {type(error).__name__}: {error}"]
    # `python -m bench.x` gives rows of another class of the same name.
    return [msgspec.convert(row, Measurement, from_attributes=True) for row in rows], []


def document(measured: Measurement, ceilings: dict[str, Ceiling]) -> dict[str, Any]:
    """One row of the JSON."""
    ceiling = ceiling_of(measured, ceilings)
    row: dict[str, Any] = {"name": measured.name, "unit": measured.unit, "note": measured.note}
    if measured.skipped:
        return row | {"value": None, "pass": None, "skipped": measured.skipped}
    row |= {"value": measured.value, "bar": ceiling.bar, "pass": not failures([measured], ceilings)}
    return row if ceiling.baseline is None else row | {"baseline": ceiling.baseline}


def table(measurements: Sequence[Measurement], ceilings: dict[str, Ceiling]) -> Table:
    """What, how much, how much was asked for, and whether that is met."""
    made = Table(box=None, header_style="bold")
    for column in ("what", "value", "unit", "bar", "", "how"):
        made.add_column(column, justify="right" if column == "value" else "left")
    for measured in measurements:
        if measured.skipped:
            made.add_row(measured.name, "", "", "", "skipped", measured.skipped, style="dim")
            continue
        ceiling = ceiling_of(measured, ceilings)
        bar, wrong = ceiling.bar, failures([measured], ceilings)
        if ceiling.baseline is not None:
            bar += f" (was {ceiling.baseline:g})"
        value = f"{measured.value:,.2f}" if abs(measured.value) < 1000 else f"{measured.value:,.0f}"
        met = "FAIL" if wrong else "pass" if bar else ""
        made.add_row(measured.name, value, measured.unit, bar, met, measured.note, style="red" if wrong else None)
    return made


if __name__ == "__main__":
    sys.exit(main())
