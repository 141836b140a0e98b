"""Allocations of detectors, for each fact of a window of 1,024.

Counted by memray with Python's own allocators traced, so that a number does not depend on the machine: every object
made while `evaluate` runs counts, whether it is kept or not. Rendering a verdict is not part of it: that happens when
somebody reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench import Measurement
from tracecore.engine.windows import FactWindow
from tracecore.facts.collective import CollectiveEntry
from tracecore.facts.fact import Fact
from tracecore.facts.gpu import AerError, EccDelta, PcieRateCollapse, ThrottleSample, Xid
from tracecore.facts.kubernetes import NodePressure, PodEvicted
from tracecore.patterns import PATTERNS
from tracecore.patterns.contract import Pattern, Verdict
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
EVENTS = 1024
GPU = "0000:3b:00.0"


def source(number: int) -> Source:
    return Source(path="k8s:events", offset=number, ident=f"event-{number:05d}")


def xid_correlation() -> list[Fact]:
    """128 Xids, each followed by seven evictions: 896 verdicts."""
    facts: list[Fact] = []
    for number in range(128):
        time = START + number * 10 * SECOND
        facts.append(Xid(time=time, source=source(number * 8), node="node-7", gpu=GPU, code=79))
        facts += [
            PodEvicted(
                time=time + pod * SECOND,
                source=source(number * 8 + pod),
                node="node-7",
                pod=f"train/worker-{number}-{pod}",
                reason="Evicted",
            )
            for pod in range(1, 8)
        ]
    return facts


def pod_evicted() -> list[Fact]:
    """820 evictions on 64 pressures; the rest of the 1,024 are evictions long after any pressure."""
    facts: list[Fact] = []
    for number in range(64):
        time = START + number * 20 * SECOND
        facts.append(NodePressure(time=time, source=source(number), node="node-7", condition="DiskPressure"))
    for number in range(960):
        late = 86_400 * SECOND if number >= 820 else 0
        facts.append(
            PodEvicted(
                time=START + number * SECOND + late,
                source=source(100 + number),
                node="node-7",
                pod=f"train/worker-{number}",
                reason="Evicted",
                note="The node was low on resource: ephemeral-storage.",
            )
        )
    return facts


def hbm_ecc() -> list[Fact]:
    """512 rises, each confirmed by its own Xid."""
    facts: list[Fact] = []
    for number in range(512):
        time = START + number * 600 * SECOND
        facts.append(
            EccDelta(
                time=time,
                source=source(2 * number),
                node="node-7",
                gpu=GPU,
                delta=1,
                error_type="uncorrected",
                subtype="double_bit",
                persistence="volatile",
            )
        )
        facts.append(Xid(time=time + SECOND, source=source(2 * number + 1), node="node-7", gpu=GPU, code=48))
    return facts


def thermal_throttle() -> list[Fact]:
    """128 scrapes of eight GPUs, of which one throttles for heat all the time: 1 verdict."""
    return [
        ThrottleSample(
            time=START + scrape * 10 * SECOND,
            source=source(scrape * 8 + gpu),
            node="node-7",
            gpu=f"0000:{gpu:02x}:00.0",
            reason="thermal_hardware" if gpu == 2 else "none",
            temperature_c=91.0 if gpu == 2 else 60.0,
            sm_clock_mhz=1200.0 if gpu == 2 else 1980.0,
        )
        for scrape in range(128)
        for gpu in range(8)
    ]


def pcie_aer() -> list[Fact]:
    """512 errors of one GPU, each followed by a collapse of its own: 512 verdicts."""
    facts: list[Fact] = []
    for number in range(512):
        time = START + number * 600 * SECOND
        facts.append(
            AerError(
                time=time, source=source(2 * number), node="node-7", gpu=GPU, severity="corrected", error_type="RxErr"
            )
        )
        facts.append(
            PcieRateCollapse(
                time=time + SECOND,
                source=source(2 * number + 1),
                node="node-7",
                gpu=GPU,
                bytes_per_second=1e9,
                baseline_bytes_per_second=2e10,
                direction="receive",
            )
        )
    return facts


def nccl_hang() -> list[Fact]:
    """64 collectives of 16 ranks; every other one hangs: 32 verdicts."""
    return [
        CollectiveEntry(
            time=START + (seq * 16 + rank) * 1_000_000,
            source=source(seq * 16 + rank),
            node="node-7",
            job="job-1",
            rank=rank,
            pg="0",
            seq=seq,
            op="all_reduce",
            state="scheduled" if seq % 2 else "completed",
            created=START + seq * 16_000_000,
            completed=None if seq % 2 else START + seq * 16_000_000 + 5_000_000,
        )
        for seq in range(64)
        for rank in range(16)
    ]


#: Shapes by pattern name, and how many verdicts each must give.
SHAPES: dict[str, tuple[Callable[[], list[Fact]], int]] = {
    "xid_correlation": (xid_correlation, 896),
    "pod_evicted": (pod_evicted, 960),
    "hbm_ecc": (hbm_ecc, 512),
    "nccl_hang": (nccl_hang, 32),
    "thermal_throttle": (thermal_throttle, 1),
    "pcie_aer": (pcie_aer, 512),
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
    # A window that was looked at has its digests already: what they cost counts.
    window = window_of(pattern, facts)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memray.bin"
        with memray.Tracker(path, trace_python_allocators=True):
            found = pattern.evaluate(window, now)
        del found
        count = size = 0
        with memray.FileReader(path) as reader:
            for record in reader.get_allocation_records():
                name = memray.AllocatorType(record.allocator).name
                if "FREE" in name or name == "MUNMAP":
                    continue
                if any(function == "evaluate" for function, _, _ in record.stack_trace()):
                    count += 1
                    size += record.size
    return count / len(facts), size / len(facts)


def measure() -> list[Measurement]:
    """Two rows for each shape."""
    rows = []
    for kind in PATTERNS:
        if kind.name not in SHAPES:
            continue
        make, verdicts = SHAPES[kind.name]
        facts = make()
        count, size = allocations(kind(), facts, verdicts)
        note = f"{len(facts)} facts, {verdicts} verdicts"
        rows.append(Measurement(f"detectors.{kind.name}.allocations", round(count, 3), "per fact", "≤ 2.0", note))
        rows.append(Measurement(f"detectors.{kind.name}.bytes", round(size, 1), "B per fact", "≤ 510", note))
    return rows
