"""Exporters to scrape: what dcgm-exporter tells about eight GPUs, and node_exporter about two InfiniBand ports."""

from __future__ import annotations

import http.server
import random
import threading
from collections.abc import Callable, Iterator

#: Bus ids as a board with eight GPUs has them.
BUSES = ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db")
LINKS = 18
#: DCGM's "no value".
BLANK = 9_223_372_036_854_775_794


class Gpu:
    """What one GPU shows while it trains. Change a value, and the next scrape sees it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.bus = f"0000:{BUSES[index]}:00.0"
        self.temperature = 61.0 + index % 3
        self.sm_clock = 1980.0
        #: NVML's bits for what holds the clock back.
        self.reasons = 0
        self.thermal_violation_ns = 0
        self.double_bit = 0
        self.single_bit = 3
        self.replays = 12
        self.last_xid = 0
        self.utilization = 97
        self.used_mib = 61_000
        #: Bytes per second.
        self.pcie = 9.0e9
        self.nvlink = [2.1e10] * LINKS


class Gpus:
    """The page of dcgm-exporter."""

    def __init__(self, node: str, count: int = 8, seed: int = 1) -> None:
        self.gpus = [Gpu(index) for index in range(count)]
        self._node = node
        self._chance = random.Random(seed)
        #: Its driver says nothing for a while: DCGM's word for that is a number.
        self.blank = False

    def __getitem__(self, index: int) -> Gpu:
        return self.gpus[index]

    def page(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        around = self._chance.uniform
        series: list[tuple[str, str, str, Callable[[Gpu], object]]] = [
            ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).", lambda g: int(g.sm_clock)),
            ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz).", lambda g: 2619),
            ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C).", lambda g: int(g.temperature + 8)),
            ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda g: int(g.temperature + around(-1, 1))),
            ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda g: f"{around(610, 680):.3f}"),
            ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries.", lambda g: g.replays),
            ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda g: g.utilization),
            ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered.", lambda g: g.last_xid),
            ("DCGM_FI_DEV_FB_FREE", "gauge", "Frame buffer memory free (in MB).", lambda g: 81_079 - g.used_mib),
            ("DCGM_FI_DEV_FB_USED", "gauge", "Frame buffer memory used (in MB).", lambda g: g.used_mib),
            ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Single-bit volatile ECC errors.", lambda g: g.single_bit),
            ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Double-bit volatile ECC errors.", lambda g: g.double_bit),
            ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Current clock event reasons.", lambda g: g.reasons),
            (
                "DCGM_FI_DEV_THERMAL_VIOLATION",
                "counter",
                "Throttling duration due to thermal constraints (in ns).",
                lambda g: g.thermal_violation_ns,
            ),
            ("DCGM_FI_PROF_PCIE_TX_BYTES", "gauge", "PCIe bytes sent.", lambda g: int(g.pcie * around(0.9, 1.1))),
            ("DCGM_FI_PROF_PCIE_RX_BYTES", "gauge", "PCIe bytes received.", lambda g: int(g.pcie * around(0.8, 1.0))),
        ]
        series += [
            (
                f"DCGM_FI_PROF_NVLINK_L{link}_{way}_BYTES",
                "gauge",
                f"NVLink {link} {way} bytes.",
                lambda g, link=link: int(g.nvlink[link] * around(0.93, 1.07)),  # type: ignore[misc]
            )
            for link in range(LINKS)
            for way in ("TX", "RX")
        ]
        for name, kind, words, value in series:
            yield f"# HELP {name} {words}"
            yield f"# TYPE {name} {kind}"
            for gpu in self.gpus:
                yield f"{name}{{{self._labels(gpu)}}} {BLANK if self.blank else value(gpu)}"

    def _labels(self, gpu: Gpu) -> str:
        return (
            f'gpu="{gpu.index}",UUID="GPU-00000000-0000-4000-8000-00000000000{gpu.index}",'
            f'pci_bus_id="0000{gpu.bus.upper()}",device="nvidia{gpu.index}",modelName="NVIDIA H100 80GB HBM3",'
            f'Hostname="{self._node}",DCGM_FI_DRIVER_VERSION="550.54.15"'
        )


class Port:
    """An InfiniBand port."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.state = 4
        self.link_downed = 1
        self.bytes = 4.0e12


class Ports:
    """The page of node_exporter, as far as its infiniband collector goes."""

    def __init__(self, node: str, devices: tuple[str, ...] = ("mlx5_0", "mlx5_1")) -> None:
        self.ports = {device: Port(device) for device in devices}
        self._node = node

    def __getitem__(self, device: str) -> Port:
        return self.ports[device]

    def page(self) -> str:
        lines = [
            "# HELP node_uname_info Labeled system information as provided by the uname system call.",
            "# TYPE node_uname_info gauge",
            f'node_uname_info{{domainname="(none)",machine="x86_64",nodename="{self._node}",release="6.8.0",'
            'sysname="Linux",version="#1 SMP"} 1',
        ]
        for port in self.ports.values():
            if port.state == 4:
                port.bytes += 2.3e10
        for name, kind, value in (
            ("node_infiniband_state_id", "gauge", lambda p: p.state),
            ("node_infiniband_physical_state_id", "gauge", lambda p: 5 if p.state == 4 else 2),
            ("node_infiniband_link_downed_total", "counter", lambda p: p.link_downed),
            ("node_infiniband_symbol_error_total", "counter", lambda p: 0),
            ("node_infiniband_port_data_transmitted_bytes_total", "counter", lambda p: f"{p.bytes:.6e}"),
            ("node_infiniband_rate_bytes_per_second", "gauge", lambda p: "5e+10"),
        ):
            lines.append(f"# TYPE {name} {kind}")
            lines += [f'{name}{{device="{port.device}",port="1"}} {value(port)}' for port in self.ports.values()]
        return "\n".join(lines) + "\n"


class Exporter:
    """A page behind HTTP, written anew for each scrape.

    Args:
        page: what to answer.
    """

    def __init__(self, page: Callable[[], str]) -> None:
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = b"" if exporter.down else page().encode()
                self.send_response(503 if exporter.down else 200)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
                exporter.scrapes += 1

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: the agent's log says what was scraped."""

        self.scrapes = 0
        #: It answers, but has nothing to say.
        self.down = False
        self._serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._serving.daemon_threads = True
        self.port: int = self._serving.server_address[1]
        self._thread = threading.Thread(target=self._serving.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._serving.shutdown()
        self._serving.server_close()
        self._thread.join()
