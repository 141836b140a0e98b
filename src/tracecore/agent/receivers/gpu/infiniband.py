"""InfiniBand and RoCE ports as the kernel tells of them in `/sys/class/infiniband`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tracecore.agent.receivers.gpu.measurement import Value

#: Devices, ports of one, and bytes of one file that are read.
MOST_DEVICES: Final = 256
MOST_PORTS: Final = 16
MOST_BYTES: Final = 256
#: Counters of errors: the kernel's name, and the kind of error under which node_exporter has it.
_ERRORS: Final = {
    "symbol_error": "symbol_error",
    "link_downed": "link_downed",
    "link_error_recovery": "link_error_recovery",
    "local_link_integrity_errors": "local_link_integrity_errors",
    "excessive_buffer_overrun_errors": "excessive_buffer_overrun_errors",
    "port_rcv_errors": "port_errors_received",
    "port_rcv_remote_physical_errors": "port_receive_remote_physical_errors",
    "port_rcv_switch_relay_errors": "port_receive_switch_relay_errors",
    "port_rcv_constraint_errors": "port_constraint_errors_received",
    "port_xmit_constraint_errors": "port_constraint_errors_transmitted",
    "port_xmit_discards": "port_discards_transmitted",
    "VL15_dropped": "vl15_dropped",
}
#: Those that cards count in hardware; retransmissions of RoCE are among them.
_HARDWARE: Final = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans",
)
_DATA: Final = (("port_rcv_data", "receive"), ("port_xmit_data", "transmit"))
#: The kernel counts data in words of four bytes.
_WORD: Final = 4


def collect(path: Path) -> list[Value]:
    """Return what all ports say now; nothing where there are none.

    Args:
        path: `/sys/class/infiniband`, or where it is mounted.
    """
    return [value for device, number, port in ports(path) for value in _port(device, number, port)]


def ports(path: Path) -> Iterator[tuple[str, int, Path]]:
    """Device, number and directory of each port."""
    for device in _entries(path)[:MOST_DEVICES]:
        numbers = sorted(int(one.name) for one in _entries(device / "ports") if one.name.isdigit())
        for number in numbers[:MOST_PORTS]:
            yield device.name, number, device / "ports" / str(number)


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(path.iterdir())
    except OSError:
        return []


def _port(device: str, number: int, port: Path) -> Iterator[Value]:
    who: dict[str, str | int] = {
        "hw.type": "network",
        "hw.network.ib.device": device,
        "hw.network.ib.port.num": number,
    }
    for name, file in (("state", "state"), ("physical_state", "phys_state")):
        # `4: ACTIVE`
        if (state := _number(_read(port / file).partition(":")[0])) is not None:
            yield Value(f"hw.network.ib.port.{name}", state, "1", who)
    # `200 Gb/sec (4X HDR)`
    gigabits = _read(port / "rate").partition(" Gb/sec")
    if gigabits[1] and (rate := _decimal(gigabits[0])) is not None:
        yield Value("hw.network.bandwidth.limit", rate * 1e9 / 8, "By/s", who)
    counters = port / "counters"
    for name, way in _DATA:
        if (words := _number(_read(counters / name))) is not None:
            yield Value("hw.network.io", _WORD * words, "By", {**who, "network.io.direction": way}, True)
    for name, kind in _ERRORS.items():
        if (count := _number(_read(counters / name))) is not None:
            yield Value("hw.errors", count, "{error}", {**who, "error.type": kind}, True)
    for name in _HARDWARE:
        if (count := _number(_read(port / "hw_counters" / name))) is not None:
            yield Value("hw.errors", count, "{error}", {**who, "error.type": name}, True)


def _read(path: Path) -> str:
    """The text of a file; empty where it is not there, or the kernel refuses (`N/A`, I/O error of a dead card)."""
    try:
        with path.open("rb") as file:
            return file.read(MOST_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def _decimal(text: str) -> float | None:
    whole, _, part = text.strip().partition(".")
    good = whole.isascii() and whole.isdigit() and len(whole) <= 6 and (not part or part.isdigit())
    return float(text) if good else None
