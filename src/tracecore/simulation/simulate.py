"""Simulate a fleet and score it.

python -m tracecore.simulation.simulate --nodes 2048 --days 54 --seed 1 --jobs 2
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import median

from tracecore.simulation.fleet import GPUS, NOISE, draw
from tracecore.simulation.paging import pages
from tracecore.simulation.run import PARTITIONS, PlayedRun, play
from tracecore.simulation.score import Score, ScoreRow, score


def simulate(
    nodes: int, days: float, seed: int, *, rate: float = 1.0, noise: int = NOISE, quiet: int = 0, jobs: int = 1
) -> tuple[Score, PlayedRun]:
    """Play a fleet and score it; the outcome has the updates of all partitions, by time.

    Args:
        rate: how many times as often as published it fails.
        noise: health events that need no action, for each failure.
        quiet: further ones, away from failures.
        jobs: processes.
    """
    work = partial(_partition, nodes, days, seed, rate, noise, quiet)
    if jobs == 1:
        parts = [*map(work, range(PARTITIONS))]
    else:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            parts = [*pool.map(work, range(PARTITIONS))]
    found = PlayedRun(
        truths=sorted((t for part in parts for t in part.truths), key=lambda truth: truth.at),
        told=sorted((t for part in parts for t in part.told), key=lambda told: told.at),
        facts=sum(part.facts for part in parts),
        bytes=sum(part.bytes for part in parts),
        noise=sum(part.noise for part in parts),
        windows=sum(part.windows for part in parts),
    )
    return score(found.truths, found.told, pages(found.told), days), found


def _partition(nodes: int, days: float, seed: int, rate: float, noise: int, quiet: int, number: int) -> PlayedRun:
    # Facts of a window live for minutes: looking through all of them for garbage every few hundred finds none.
    gc.set_threshold(50_000, 20, 50)
    return play(draw(nodes, days, seed, rate=rate, noise=noise, quiet=quiet), number)


def table(found: Score) -> str:
    """Return the score in columns."""
    lines = [f"{'cause':32}{'count':>7}{'signals':>9}{'found':>9}{'root':>6}{'node':>9}{'class':>7}{'to page':>9}"]
    lines += [_line(row) for row in (*sorted(found.rows, key=lambda row: -row.count), found.total)]
    weeks = max(found.days / 7, 1e-9)
    lines += [
        f"roots right: {found.roots_right:.1f} % of {found.total.counted}; pages missed: {found.total.missed_pages}",
        f"false pages: {len(found.false_pages)} ({len(found.false_pages) / weeks:.2f} a week); "
        f"duplicate pages: {len(found.duplicates)}; incidents that nothing was behind: {len(found.false_incidents)}",
    ]
    lines += [f"  wrong: {text}" for text in found.wrong]
    lines += [f"  told to nobody: {text}" for text in found.untold]
    lines += [f"  false page: {text}" for text in found.false_pages]
    lines += [f"  duplicate page: {text}" for text in found.duplicates]
    return "\n".join(lines)


def _line(row: ScoreRow) -> str:
    seconds = f"{median(row.seconds):.0f} s" if row.seconds else "-"
    found, node = f"{row.found}/{row.needed}", f"{row.node}/{row.nodes}"
    return f"{row.cause:32}{row.count:>7}{row.counted:>9}{found:>9}{row.root:>6}{node:>9}{row.class_:>7}{seconds:>9}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate a fleet and score what is told about it.")
    parser.add_argument("--nodes", type=int, default=2048)
    parser.add_argument("--days", type=float, default=54)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1.0, help="times the published rate")
    parser.add_argument("--noise", type=int, default=NOISE, help="events without need of action for each failure")
    parser.add_argument("--quiet", type=int, default=0, help="further such events, away from failures")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    begin = time.monotonic()
    found, outcome = simulate(
        options.nodes, options.days, options.seed, rate=options.rate, noise=options.noise, quiet=options.quiet,
        jobs=options.jobs,
    )  # fmt: skip
    print(table(found))
    print(
        f"{options.nodes * GPUS} GPUs, {options.days:g} days, seed {options.seed}: {outcome.facts} facts, "
        f"{outcome.noise} events of noise, {outcome.windows} windows, {time.monotonic() - begin:.0f} s, "
        f"{sum(os.times()[:4]):.0f} s of processor time",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
