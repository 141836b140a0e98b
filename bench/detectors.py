"""Allocations of detectors, for each fact of a window of 1,024.

Counted by memray with Python's own allocators traced, so that a number does not depend on the machine: every object
made while `evaluate` runs counts, whether it is kept or not. Rendering a verdict is not part of it: that happens when
somebody reads.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import Measurement
from bench.detector_shapes import EVENTS, SECOND, SHAPES, nccl_hang_cohorts
from tracecore.engine.window import FactWindow
from tracecore.facts.fact import Fact
from tracecore.patterns import PATTERNS
from tracecore.patterns.contract import Pattern, Verdict

#: More for each fact than this fails.
ALLOCATIONS, BYTES = 2.0, 510.0
#: Patterns that may allocate more, and why; their own ceilings are in `ceilings.json`.
EXEMPT = {
    "host_oom": "three lists and two sets for each kill",
    "nccl_bootstrap": "a dozen sets and lists for each job, so that jobs are told apart in one window",
    "nvlink_degradation": "each event is kept with its beginning, which is not its time",
    "planned_stop": "stops of four types are sorted together, and each is asked whether it is one",
    "silent_data_corruption": "running sums for each job and node",
    "storage_failure": "facts are arranged by rank, pod and job, so that what lacks one of them is found",
    "straggler": "step times of each step are sorted",
    "training_divergence": "four running judgements for each rank",
}


def window_of(pattern: Pattern[Any], facts: Sequence[Fact]) -> FactWindow:
    """One window with all these facts, whatever their keys."""
    window = FactWindow(pattern.keys(facts[0])[0], 0)
    for fact in facts:
        window.add(fact)
    return window


def allocations(pattern: Pattern[Any], facts: Sequence[Fact], verdicts: int) -> tuple[float, float]:
    """Allocations and bytes for each fact while the pattern evaluates them once."""
    import memray

    window = window_of(pattern, facts)
    now = max(fact.end for fact in facts) + 86_400 * SECOND
    found: list[Verdict] = pattern.evaluate(window, now)
    if len(found) != verdicts:
        raise RuntimeError(f"{pattern.name}: {len(found)} verdicts instead of {verdicts}")
    # A window that was evaluated has its indexes already: what they cost counts.
    window = window_of(pattern, facts)
    gc.collect()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memray.bin"
        with memray.Tracker(path, trace_python_allocators=True):
            # memray follows the stack by a profile function, for which Python makes a frame object at each call of a
            # function. Without it Python makes none, so that they are not the detector's.
            sys.setprofile(None)
            found = pattern.evaluate(window, now)
        del found
        count = size = 0
        with memray.FileReader(path) as reader:
            for record in reader.get_allocation_records():
                name = memray.AllocatorType(record.allocator).name
                if "FREE" in name or name == "MUNMAP":
                    continue
                count += 1
                size += record.size
    return count / len(facts), size / len(facts)


def measure() -> list[Measurement]:
    """Two rows for each shape."""
    rows = []
    for kind in PATTERNS:
        verdicts, make, _ = SHAPES[kind.name]
        rows += _rows(kind.name, kind(), make(EVENTS), verdicts)
        if kind.name == "nccl_hang":
            rows += _rows("nccl_hang.cohorts", kind(), nccl_hang_cohorts(EVENTS), 64)
    return rows


def _rows(name: str, pattern: Pattern[Any], facts: list[Fact], verdicts: int) -> list[Measurement]:
    count, size = allocations(pattern, facts, verdicts)
    note = f"{len(facts):,} facts, {verdicts:,} {'verdict' if verdicts == 1 else 'verdicts'}"
    return [
        Measurement(f"detectors.{name}.allocations", round(count, 3), "per fact", f"≤ {ALLOCATIONS:g}", note),
        Measurement(f"detectors.{name}.bytes", round(size, 1), "B per fact", f"≤ {BYTES:g}", note),
    ]
