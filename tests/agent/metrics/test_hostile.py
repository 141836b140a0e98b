"""Whatever a scrape holds, it is read, and nothing is made up from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.diagnose import metrics
from tracecore.diagnose.metrics import MetricFacts
from tracecore.diagnose.offline import diagnose
from tracecore.facts.gpu import EccDelta, NvlinkRate, PcieRateCollapse
from tracecore.facts.network import PortState
from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source

SECOND = 1_000_000_000
START = 1_794_700_800 * SECOND
NAMES = (
    "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0", "DCGM_FI_DEV_GPU_UTIL", "hw_gpu_sdc_total",
    "node_infiniband_state_id", "node_infiniband_link_downed_total", "gen_ai_training_step",
)  # fmt: skip
WORDS = st.sampled_from(["", "0", "7", "x", "-1", "99999999999999999999", "00000000:3B:00.0", "\x00", "é"])
LABELS = st.dictionaries(
    st.sampled_from(["gpu", "UUID", "pci_bus_id", "Hostname", "device", "port", "rank", "GPU_I_ID", "pod", "instance"]),
    WORDS,
)
VALUES = st.floats(allow_nan=False) | st.integers(-5, 5).map(float) | st.sampled_from([2.0**31 - 16, 2.0**63, 1e300])
POINTS = st.builds(
    lambda name, labels, value, second, declared: Point(
        name=name,
        labels=labels,
        value=value,
        time=START + second * SECOND,
        source=Source("s.prom", second, 1, 1),
        declared=declared,
    ),
    st.sampled_from(NAMES),
    LABELS,
    VALUES,
    st.integers(-1000, 1000),
    st.sampled_from(["", "counter", "gauge"]),
)


@given(st.lists(POINTS, max_size=60))
def test_any_points(points: list[Point]) -> None:
    live = MetricFacts()
    for point in points:
        live.observe(point)
    for fact in live.advance(START + 10_000 * SECOND):
        assert abs(fact.time - START) <= 1400 * SECOND
        if isinstance(fact, EccDelta):
            assert fact.delta >= 1
        if isinstance(fact, PortState):
            assert 1 <= fact.state <= 4
        if isinstance(fact, NvlinkRate):
            assert 0 <= fact.bytes_per_second <= (fact.peer_median or 0) / 2
        if isinstance(fact, PcieRateCollapse):
            assert 0 <= fact.bytes_per_second <= (fact.baseline_bytes_per_second or 0) / 2


@given(st.binary(max_size=300))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.mktemp("scrape")
    (folder / "x.prom").write_bytes(b'DCGM_FI_DEV_GPU_TEMP{gpu="0"} 60\n' + data)
    assert diagnose([folder]).incidents == []


def test_samples_beyond_the_bound_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SAMPLES", 5)
    lines = "".join(
        f'DCGM_FI_DEV_GPU_TEMP{{gpu="{gpu}",pci_bus_id="00000000:{gpu:02X}:00.0"}} 60\n' for gpu in range(9)
    )
    (tmp_path / "x.prom").write_text(lines)
    found = diagnose([tmp_path])
    assert len(found.facts) == 5
    assert [one.reason for one in found.bundle.skipped] == ["4 points more than can be held"]


def test_a_scrape_of_the_far_future_moves_no_clock(
    tmp_path: Path, exporters: SimpleNamespace, bundle: SimpleNamespace
) -> None:
    """One line with a time of the year 3000 must not make everything else old."""
    dcgm: Callable[..., str] = exporters.dcgm
    bundle.scrapes(lambda t: dcgm(t, more="up 1 32503680000000\n"), range(0, 60, 15))
    found = diagnose([bundle.path])
    assert max(fact.time for fact in found.facts) == START + 45 * SECOND
