"""Timelines and charts of made-up runs: few and many ranks, rows without times, losses that explode.

The drawings are recorded, so that a change of them is noticed:

    python tests/incidents/drawn_stories.py     # record them anew, after a change that is meant

A line is a number and a digest of everything that is drawn.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tracecore.facts.training import Progress
from tracecore.incidents.drawings import _amount, lanes_of, progress_charts, read_rows, ticks, timeline_picture
from tracecore.patterns.contract import rfc3339
from tracecore.signals.record import Source

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from recorded_lines import read, write

PATH = Path(__file__).resolve().parent / "stories" / "drawn.txt"
FIRST = 80
SECOND = 1_000_000_000
T0 = 1_790_000_000 * SECOND
SPANS = (0.004, 0.5, 3, 59, 60, 600, 5000, 90_000, 700_000, 9_000_000)


def outcome(name: str) -> str:
    """Return a digest of the drawings of a story."""
    rng = random.Random(f"drawn {name}")
    drawn: list[object] = [ticks(rng.choice(SPANS), rng.choice((3, 5, 9)))]
    rows = read_rows([_row(rng) for _ in range(rng.choice((0, 1, 2, 5, 30, 120)))])
    times = sorted(row.time for row in rows)
    window = rng.choice((None, None, (T0, T0 + 5 * SECOND), (times[0], times[-1]) if times else None))
    for by in ("rank", "node", "layer"):
        drawn += [[(lane.name, lane.rows, lane.members) for lane in lanes_of(rows, by)]]
        if window is None or window[0] < window[1]:
            drawn += timeline_picture(rows, by, window, rng.choice((2, 40)))
    drawn += [row.who for row in rows]
    suspects = rng.sample(range(12), rng.choice((0, 1, 3)))
    drawn += progress_charts(_steps(rng), suspects)
    drawn += [_amount(rng.choice((0.0, 1e-4, 0.00123, 0.5, 12.345, 999.6, 1000, 123_456, 1e6, 7.89e12, -3e-7)))]
    return hashlib.sha256(repr(drawn).encode()).hexdigest()[:12]


def _row(rng: random.Random) -> Any:
    """Return a row of a document, sometimes one that is none."""
    row: dict[str, Any] = {
        "time": rfc3339(T0 + int(rng.choice((0, 0.25, 1, 5, 60, 3600, 100_000)) * rng.random() * SECOND)),
        "text": rng.choice(("lost <b>", "x" * 400, "step 7")),
        "role": rng.choice(("cause", "symptom", "other", "other", "odd")),
        "layer": rng.choice(("stdout", "kernel", "scheduler", "flight_recorder", "")),
    }
    if rng.random() < 0.6:
        pairs = [sorted((rng.randrange(12), rng.randrange(12))) for _ in range(rng.choice((1, 1, 2, 7)))]
        row["ranks"] = [*pairs, *rng.choice(([], [[5, 2]], [[1]], ["a"], [[0, True]], [[3, 3]]))]
    if rng.random() < 0.4:
        row["where"] = rng.choice(("node-1", "a-very-long-name-of-a-pod", "node-10", "node-9"))
    if rng.random() < 0.4:
        row["node"] = rng.choice(("n1", "n2"))
    if rng.random() < 0.3:
        row["time_inferred"] = True
    return rng.choice((row, row, row, row, row, {**row, "time": "soon"}, "none", {**row, "text": 7}))


def _steps(rng: random.Random) -> list[Progress]:
    ranks: list[int | None] = [None] if rng.random() < 0.2 else [*range(rng.choice((1, 3, 11)))]
    count = rng.choice((1, 2, 10, 121, 300))
    kind = rng.choice(("flat", "explodes", "falls", "odd"))
    facts: list[Progress] = []
    for rank in ranks:
        time = T0
        for step in range(count):
            time += int(rng.choice((0, 0.1, 1.0, 1.0, 4.0)) * SECOND)
            loss = {"flat": 2.0, "explodes": 10.0 ** (step % 9), "falls": 5.0 / (step + 1)}.get(kind)
            if kind == "odd":
                loss = rng.choice((None, float("nan"), float("inf"), -1.0, 0.0, 3.0))
            facts.append(
                Progress(
                    time=time,
                    source=Source("log", step),
                    rank=rank,
                    step=rng.choice((step, step, step, None)),
                    loss=loss,
                    iter_time_s=rng.choice((None, None, 0.5, 0.7)),
                    phase=rng.choice((None, None, "train", "eval")),
                    approximate=rng.random() < 0.2,
                )
            )
    return facts


def recorded() -> dict[str, str]:
    """Return the digests by the name of the story."""
    return read(PATH)


def record(which: Iterable[str]) -> None:
    """Record these drawings."""
    write(PATH, ((name, outcome(name)) for name in which))


if __name__ == "__main__":
    record(map(str, range(FIRST)))
