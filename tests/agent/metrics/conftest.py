"""Bundles of scrapes as exporters print them, made for one story each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

START = 1_794_700_800  # 2026-11-15T00:00:00Z
EVERY = 15
BUSES = [f"00000000:{bus:02X}:00.0" for bus in (0x18, 0x2A, 0x3A, 0x5D, 0x9A, 0xAB, 0xBA, 0xDB)]
MODEL = "NVIDIA H100 80GB HBM3"

#: What a GPU in training looks like: (name, type, value at a second).
USUAL: dict[str, tuple[str, Callable[[float, int], float]]] = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", lambda t, gpu: 1980),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", lambda t, gpu: 2619),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", lambda t, gpu: 58 + (int(t) // 15 + gpu) % 4),
    "DCGM_FI_DEV_MEMORY_TEMP": ("gauge", lambda t, gpu: 9223372036854775794),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", lambda t, gpu: 612.5),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", lambda t, gpu: 319159391 + 612500 * t),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": ("counter", lambda t, gpu: 0),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", lambda t, gpu: 97),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", lambda t, gpu: 0),
    "DCGM_FI_DEV_FB_FREE": ("gauge", lambda t, gpu: 9120),
    "DCGM_FI_DEV_FB_USED": ("gauge", lambda t, gpu: 71866),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", lambda t, gpu: 0),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", lambda t, gpu: 0),
    "DCGM_FI_DEV_THERMAL_VIOLATION": ("counter", lambda t, gpu: 0),
    "DCGM_FI_DEV_POWER_VIOLATION": ("counter", lambda t, gpu: 1_000_000_000 * t),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("gauge", lambda t, gpu: 4),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("gauge", lambda t, gpu: 4.2e9 + 3e8 * ((int(t) // 15 * 7 + gpu) % 5 - 2)),
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("gauge", lambda t, gpu: 6.1e9 + 3e8 * ((int(t) // 15 * 3 + gpu) % 5 - 2)),
    **{
        f"DCGM_FI_DEV_NVLINK_BANDWIDTH_L{link}": ("counter", lambda t, gpu: 8_000_000_000_000 + 21_000_000_000 * t)
        for link in range(4)
    },
}

Change = Callable[[float, int, float], "float | None"]


def dcgm(
    second: float,
    changes: Mapping[str, Change] | None = None,
    *,
    gpus: int = 8,
    host: str = "node-7",
    bus: bool = True,
    pod: str = "train-0",
    more: str = "",
) -> str:
    """One scrape of dcgm-exporter. A change gives another value, or None for no line."""
    lines: list[str] = []
    for name, (kind, usual) in USUAL.items():
        lines += [f"# HELP {name} of the GPU.", f"# TYPE {name} {kind}"]
        for gpu in range(gpus):
            value: float | None = usual(second, gpu)
            if changes and name in changes:
                value = changes[name](second, gpu, float(value or 0))
            if value is None:
                continue
            labels = {
                "gpu": str(gpu),
                "UUID": f"GPU-1f027ee8-6e1e-2b8c-0108-3d370e5f041{gpu}",
                **({"pci_bus_id": BUSES[gpu]} if bus else {}),
                "device": f"nvidia{gpu}",
                "modelName": MODEL,
                **({"Hostname": host} if host else {}),
                "container": "trainer" if pod else "",
                "namespace": "ml" if pod else "",
                "pod": pod,
            }
            written = ",".join(f'{label}="{text}"' for label, text in labels.items())
            lines.append(f"{name}{{{written}}} {value:.6f}" if value % 1 else f"{name}{{{written}}} {int(value)}")
    return "\n".join(lines) + "\n" + more


def ports(second: float, state: Callable[[float], int], downed: Callable[[float], int] = lambda t: 0) -> str:
    """One scrape of node_exporter with two ports, of which the first has a story."""
    lines = ["# TYPE node_infiniband_link_downed_total counter"]
    lines += [f'node_infiniband_link_downed_total{{device="mlx5_0",port="1"}} {downed(second)}']
    lines += ['node_infiniband_link_downed_total{device="mlx5_1",port="1"} 2']
    lines += ["# TYPE node_infiniband_state_id gauge"]
    lines += [f'node_infiniband_state_id{{device="mlx5_0",port="1"}} {state(second)}']
    lines += ['node_infiniband_state_id{device="mlx5_1",port="1"} 4']
    lines += [f"# TYPE node_time_seconds gauge\nnode_time_seconds {START + second:.3f}"]
    lines += ['node_uname_info{machine="x86_64",nodename="node-7",sysname="Linux"} 1', ""]
    return "\n".join(lines)


def clock(second: float) -> str:
    return datetime.fromtimestamp(START + second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class Bundle:
    """A directory that is filled story by story."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def scrapes(self, text: Callable[[float], str], seconds: Iterator[float] | range, name: str = "dcgm") -> Bundle:
        folder = self.path / "metrics"
        folder.mkdir(exist_ok=True)
        for second in seconds:
            stamp = datetime.fromtimestamp(START + second, UTC).strftime("%Y%m%dT%H%M%SZ")
            (folder / f"{name}-{stamp}.prom").write_text(text(second))
        return self

    def kernel(self, *lines: tuple[float, str], host: str = "node-7") -> Bundle:
        text = "".join(f"{clock(at)}.{int(at % 1 * 1e6):06d}+00:00 {host} kernel: {line}\n" for at, line in lines)
        (self.path / "kern.log").write_text(text)
        return self

    def file(self, name: str, text: str) -> Bundle:
        (self.path / name).write_text(text)
        return self


@pytest.fixture
def exporters() -> SimpleNamespace:
    """What exporters print."""
    return SimpleNamespace(dcgm=dcgm, ports=ports)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    path = tmp_path / "incident"
    path.mkdir()
    return Bundle(path)
