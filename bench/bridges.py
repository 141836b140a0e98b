"""What it costs to scrape and bridge the metrics of a node: 8 GPUs with 100 series each, every second.

As the agent does it: the prometheus receiver asks an exporter in another process over HTTP (gzip, as Prometheus asks),
reads the answer, makes OTLP of it; the detector takes the points apart, renames them by the recipes, puts them in
order, bridges them and makes facts. All of it is counted, the exporter's own work is not. The time of a second's scrape
is the share of a core.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from pathlib import Path

from bench import Measurement
from tracecore.agent.batch import Batch
from tracecore.agent.receivers.prometheus.options import ScrapeConfig, StaticConfig
from tracecore.agent.receivers.prometheus.target import Scraper, target
from tracecore.agent.telemetry import Meter
from tracecore.diagnose.metrics import MetricFacts
from tracecore.signals.metrics.otlp import points

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


EXPORTER = """
import gzip, http.server, sys
sys.path.insert(0, sys.argv[1])
from bench.bridges import SCRAPES, scrape
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        body = bodies[min(next(turn), SCRAPES - 1)]
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments): pass
bodies = [gzip.compress(scrape(second).encode(), 1) for second in range(SCRAPES)]
turn = iter(range(10**9))
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


def bridge() -> tuple[float, int, int]:
    """Seconds of CPU for a second's scrape, points in it, and facts made in all."""
    exporter = subprocess.Popen(
        [sys.executable, "-c", EXPORTER, str(Path(__file__).parents[1])], stdout=subprocess.PIPE, text=True
    )
    assert exporter.stdout is not None
    try:
        return _scraped(f"127.0.0.1:{int(exporter.stdout.readline())}")
    finally:
        exporter.kill()
        exporter.wait()
        exporter.stdout.close()


def _scraped(address: str) -> tuple[float, int, int]:
    config = ScrapeConfig(
        job_name="dcgm",
        scrape_interval=30 * SECOND,
        scrape_timeout=30 * SECOND,
        static_configs=[StaticConfig(targets=[address])],
    )
    one = target(config, {"__address__": address})
    assert one is not None
    bridges = MetricFacts()
    seconds = iter(range(START, START + 10**6 * SECOND, SECOND))
    taken = [0]

    def consume(batch: Batch) -> None:
        taken[0] = batch.count
        for point in points(batch.view()):
            bridges.observe(point)

    scraper = Scraper(one, {}, consume, Meter("receiver", "prometheus"), seconds.__next__)
    facts, begin = 0, 0.0
    for second in range(SCRAPES):
        if second == 2:  # the first scrapes teach it the series
            gc.collect()
            begin = time.process_time()
        scraper.scrape()
        if scraper.wrong:
            raise RuntimeError(scraper.wrong)
        facts += len(bridges.advance(START + second * SECOND))
    spent = time.process_time() - begin
    scraper.hang_up()
    if bridges.dropped or facts < 8 * 2 * (SCRAPES - 10):
        raise RuntimeError(f"{facts} facts, dropped {bridges.dropped}")
    return spent / (SCRAPES - 2), taken[0], facts


def measure() -> list[Measurement]:
    spent, count, facts = min(bridge() for _ in range(3))
    about = f"{count:,} points a second over HTTP, {facts:,} facts in {SCRAPES} s"
    return [Measurement("bridges.core", round(100 * spent, 3), "% of a core", "≤ 2", about)]
