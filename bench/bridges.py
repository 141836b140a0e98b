"""What it costs to read and bridge the metrics of a node: 8 GPUs with 100 series each, scraped every second.

Text in, records out, as the agent does it: parse, rename by the recipes, put in order, bridge, project. The time of a
second's scrape is the share of a core.
"""

from __future__ import annotations

import gc
import time

from bench import Measurement
from tracecore.pipeline.metrics import MetricFacts
from tracecore.signals.metrics.point import Point
from tracecore.signals.metrics.prometheus import Families
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_767_225_600 * SECOND
BUSES = [f"00000000:{bus:02X}:00.0" for bus in (0x18, 0x2A, 0x3B, 0x5E, 0x86, 0x9A, 0xAF, 0xDB)]
GAUGES = {
    "DCGM_FI_DEV_SM_CLOCK": 1980, "DCGM_FI_DEV_MEM_CLOCK": 2619, "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_MEMORY_TEMP": 71, "DCGM_FI_DEV_POWER_USAGE": 612, "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_XID_ERRORS": 0, "DCGM_FI_DEV_FB_FREE": 9120, "DCGM_FI_DEV_FB_USED": 71866,
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": 4, "DCGM_FI_PROF_PCIE_TX_BYTES": 4.2e9, "DCGM_FI_PROF_PCIE_RX_BYTES": 6.1e9,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.98, "DCGM_FI_PROF_DRAM_ACTIVE": 0.61,
}  # fmt: skip
COUNTERS = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 612_000, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 0, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 0, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL": 0,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 0, "DCGM_FI_DEV_POWER_VIOLATION": 900_000_000,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 0,
    **{f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}": 21_000_000_000 for link in range(18)},
}  # fmt: skip
SERIES = 100
SCRAPES = 60


def scrape(second: int) -> str:
    """One scrape of dcgm-exporter; what is left of the hundred are fields that nobody reads."""
    names = [(name, value + (second * 7919 % 13)) for name, value in GAUGES.items()]
    names += [(name, 10**12 + rate * second) for name, rate in COUNTERS.items()]
    names += [(f"DCGM_FI_DEV_OTHER_{place}", float(second)) for place in range(SERIES - len(names))]
    return "\n".join(
        f'{name}{{gpu="{gpu}",UUID="GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f041{gpu}",pci_bus_id="{bus}",'
        f'device="nvidia{gpu}",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",container="trainer",namespace="ml",'
        f'pod="train-0"}} {value}'
        for name, value in names
        for gpu, bus in enumerate(BUSES)
    )


def bridge() -> tuple[float, int, int]:
    """Seconds of CPU for a second's scrape, points in it, and facts made in all."""
    texts = [scrape(second) for second in range(SCRAPES)]
    families, bridges = Families(), MetricFacts()
    facts = points = 0
    begin = 0.0
    for second, text in enumerate(texts):
        if second == 2:  # the first scrapes teach it the series
            gc.collect()
            begin, points = time.process_time(), 0
        now, offset = START + second * SECOND, 0
        for number, line in enumerate(text.split("\n"), 1):
            parsed = families.parse(line)
            assert parsed is not None
            name, labels, value, _ = parsed
            source = Source("http://node-7:9400/metrics", offset, number, len(line))
            offset += len(line) + 1
            points += 1
            bridges.observe(Point(name=name, labels=labels, value=value, time=now, source=source))
        facts += len(bridges.advance(now))
    spent = time.process_time() - begin
    if bridges.dropped or facts < 8 * 2 * (SCRAPES - 10):
        raise RuntimeError(f"{facts} facts, dropped {bridges.dropped}")
    return spent / (SCRAPES - 2), points // (SCRAPES - 2), facts


def measure() -> list[Measurement]:
    spent, points, facts = min(bridge() for _ in range(3))
    about = f"{points:,} points a second, {facts:,} facts in {SCRAPES} s"
    return [Measurement("bridges.core", round(100 * spent, 3), "% of a core", "≤ 2", about)]
