"""The kernel recipe against lines that other projects test themselves with, and what those expect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROWS = 446

#: Lines that a peer marks as part of an event and that are no event by themselves.
CONTEXT = {
    "a frame of a call trace": ("nfs_lock_and_join_requests+", "nfs_page_async_flush+", "oom_kill_process+"),
    "a detail line below an AER line, which has the severity": (
        "error status/mask=", "[12] Timeout", "[ 0] Receiver Error", "[ 0] RxErr", "can't find device of ID",
        "[14] CmpltTO", "TLP Header:", "[21] ACSViol",
    ),
    "a header line of an OOM report": ("cpuset=/ mems_allowed=0",),
    "the middle of the driver's three lines": ("installed in this system has$",),
    "a board's serial number, printed before an Xid": ("GPU Board Serial Number: 0",),
    "the peer takes a PCI address from any line of the driver": ("some message",),
    "the log of the peer's own reset tool": ("GPU reset executed: ",),
}  # fmt: skip
#: Lines that a peer's one expression must not match, and that say something else which we do know.
OTHER_EVENT = {
    "a cable error, though not a hot one": ("Cable error, Low Signal", "kernelevents.nic.error"),
    "a read error, though not a write error": ("I/O error while reading", "tracecore.storage.error"),
    "an adapter's error without a PCI address": ("synd 0x8: unrecoverable hardware error", "kernelevents.nic.error"),
    "an SXid which the peer drops for want of metadata": ("26008, SOE Watchdog error", "kernelevents.sxid"),
    "a port's state is measured, also when nothing is wrong": ("Link INIT", "hw.network.ib.port.state"),
    "which GPU has which name, and no fault": ("NVRM: GPU at PCI:", "gpu.uuid"),
}  # fmt: skip
#: The attribute that shows a class was recognised.
SHOWS = {
    "xid": ("kernelevents.xid", "kernelevents.gpu_lost", "kernelevents.gpu.error"),
    "sxid": ("kernelevents.sxid",),
    "fabric_manager": ("kernelevents.sxid", "kernelevents.gpu.error"),
    "gpu_fallen_off_bus": ("kernelevents.gpu_lost", "kernelevents.gpu.error", "gpu.id"),
    "oom": ("kernelevents.oom.victim_pid", "kernelevents.oom.invoked_by"),
    "kernel_panic": ("kernelevents.host",),
    "hung_task": ("kernelevents.host",),
    "soft_lockup": ("kernelevents.host",),
    "vfs_file_max_limit": ("kernelevents.host",),
    "nccl_segfault_in_libnccl": ("kernelevents.host",),
    "nvlink": ("kernelevents.gpu.error",),
    "peermem_invalid_context": ("kernelevents.gpu.error",),
    "amdgpu": ("kernelevents.gpu.error",),
    "aer_correctable": ("kernelevents.pcie_aer.severity",),
    "aer_nonfatal": ("kernelevents.pcie_aer.severity",),
    "aer_fatal": ("kernelevents.pcie_aer.severity", "kernelevents.pcie_aer.recovery"),
    "aer_then_xid": ("kernelevents.pcie_aer.severity",),
}
SEVERITY = {
    "aer_correctable": "corrected",
    "aer_nonfatal": "nonfatal",
    "aer_fatal": "fatal",
    "aer_then_xid": "nonfatal",
}
NIC = ("kernelevents.nic.error", "hw.network.ib.port.state")
STORAGE = ("tracecore.storage.error",)


@pytest.fixture(scope="module")
def rows(shared_data: Path) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = json.loads((shared_data / "peers" / "kernel_lines.json").read_text())["lines"]
    return lines


def stamps(kernel: Any, row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for line in row["line"] if isinstance(row["line"], list) else [row["line"]]:
        found |= kernel(line)
    return found


def shown_by(kind: str) -> tuple[str, ...]:
    if kind in SHOWS:
        return SHOWS[kind]
    return NIC if kind.startswith(("mlx5", "nic")) else STORAGE


@pytest.mark.parametrize("number", range(ROWS))
def test_line(number: int, rows: list[dict[str, Any]], kernel: Any) -> None:
    if number >= len(rows):
        pytest.skip("the shared data has fewer lines")
    row = rows[number]
    text = row["line"] if isinstance(row["line"], str) else "\n".join(row["line"])
    found = stamps(kernel, row)
    expected = row.get("match")
    if expected is True:
        why = next((why for why, parts in CONTEXT.items() if any(part in f"{text}$" for part in parts)), None)
        if why:
            assert not any(name.startswith("kernelevents.") for name in found), why
        else:
            assert any(name in found for name in shown_by(row["class"])), found
    elif expected is False:
        other = next((name for part, name in OTHER_EVENT.values() if part in text), None)
        if other:
            assert other in found
        else:
            assert found == {}
    elif row["class"] in ("kernel_other", "kmsg_format", "npd_log") and "ERROR" not in text and "file-max" not in text:
        assert found == {}
    if row["class"] in SEVERITY and "kernelevents.pcie_aer.severity" in found:
        assert found["kernelevents.pcie_aer.severity"] == SEVERITY[row["class"]]


def test_codes(rows: list[dict[str, Any]], kernel: Any) -> None:
    wrong = []
    for row in rows:
        code = row.get("code")
        if not code or "${pci_id}" in str(row["line"]):  # a shell script that writes such a line, not the line
            continue
        found = stamps(kernel, row)
        name = "kernelevents.sxid" if row["class"] == "sxid" else "kernelevents.xid"
        # "Fallen off the bus" is what Xid 79 says; where the driver printed no number we stamp none.
        if found.get(name) != code and not (code == 79 and found.get("kernelevents.gpu_lost")):
            wrong.append((row["line"], code, found))
    assert wrong == []


def test_every_xid_line_names_its_gpu(rows: list[dict[str, Any]], kernel: Any) -> None:
    for row in rows:
        found = stamps(kernel, row)
        if "kernelevents.xid" in found:
            domain, bus, rest = found["gpu.id"].split(":")
            assert (len(domain), len(bus), len(rest)) == (4, 2, 4), row["line"]
            assert found["gpu.id"] == found["gpu.id"].lower()


def test_oom_victims(rows: list[dict[str, Any]], kernel: Any) -> None:
    """The last kill of a report wins, as its lines come one after another."""
    reports = [row for row in rows if row["class"] == "oom" and isinstance(row["line"], list)]
    for row in reports:
        found = stamps(kernel, row)
        killed = [line for line in row["line"] if "pid=" in line or "Kill" in line]
        assert ("kernelevents.oom.victim_pid" in found) == bool(killed), row["line"]
