"""The Xid catalogue: complete, and NVIDIA's actions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracecore.facts.xid_catalog import ACTIONS, entry, nvlink_entry, sxid_entry


@pytest.mark.parametrize("code", [79, 119, 120, 48, 64, 92, 94, 95, 140, 143, 62])
def test_faults_of_the_gpu(code: int) -> None:
    found = entry(code)
    assert found is not None
    assert found.hardware


@pytest.mark.parametrize("code", [13, 31, 43, 45])
def test_faults_of_the_program(code: int) -> None:
    found = entry(code)
    assert found is not None
    assert not found.hardware


def test_unknown_codes() -> None:
    assert entry(0) is None
    assert entry(9999) is None
    assert sxid_entry(1) is None


def test_advice_is_in_plain_words() -> None:
    found = entry(79)
    assert found is not None
    assert (found.action, found.advice) == ("RESTART_BM", "restart the machine")
    reserved = entry(171)
    assert reserved is not None
    assert reserved.advice == "contact the hardware vendor's support"


def test_every_action_has_words() -> None:
    entries = [found for code in range(1, 200) if (found := entry(code))]
    assert {found.action for found in entries if found.action} <= ACTIONS.keys()
    assert len(entries) >= 170
    assert all(found.name for found in entries)


def test_nvlink_decode() -> None:
    link_down = nvlink_entry(149, "NETIR_LINK_EVT", 0x0215E5C6, 0)
    assert link_down is not None
    assert (link_down.action, link_down.investigate, link_down.severity) == (
        "RESET_GPU",
        "INVESTIGATE_PEER_DEVICE",
        "link_fatal",
    )
    harmless = nvlink_entry(145, "RLW_RXPIPE", 0x040980C2, 8)
    assert harmless is not None
    assert harmless.action == "IGNORE"


def test_nvlink_decode_of_several_bits_takes_the_worst() -> None:
    both = nvlink_entry(144, "SAW_MVB", 0x1, 0b11)
    assert both is not None
    assert (both.action, both.severity) == ("RESET_GPU", "fatal")


def test_nvlink_decode_of_what_the_catalogue_lacks() -> None:
    assert nvlink_entry(145, "RLW_SRC_TRACK", 0x1, 1) is None
    assert nvlink_entry(79, "RLW_SRC_TRACK", 0x7, 1) is None


def test_sxids() -> None:
    host_reset, maybe, corrected = sxid_entry(22003), sxid_entry(20034), sxid_entry(11012)
    assert host_reset is not None
    assert maybe is not None
    assert corrected is not None
    assert (host_reset.fatal, maybe.fatal, corrected.fatal) == ("always", "possibly", "no")


def test_actions_are_nvidias(shared_data: Path) -> None:
    sheet = json.loads((shared_data / "peers" / "xid_catalog.json").read_text(encoding="utf-8"))["nvidia_catalog_xlsx"]
    for row in sheet["Xids"]:
        found = entry(row["Code"])
        assert found is not None, row["Code"]
        assert found.action == row.get("Resolution Bucket (Immediate Action)")


def test_decode_lines_of_peers(shared_data: Path, kernel: Any) -> None:
    """What the recipe takes from a line is enough to find its row, and the row's severity is the line's."""
    lines = json.loads((shared_data / "peers" / "kernel_lines.json").read_text(encoding="utf-8"))["lines"]
    decoded = 0
    for row in lines:
        found = kernel(row["line"]) if row["class"] == "xid" and isinstance(row["line"], str) else {}
        if "kernelevents.xid.error_status" not in found:
            continue
        match = nvlink_entry(
            found["kernelevents.xid"],
            found["kernelevents.xid.unit"],
            found["kernelevents.xid.intr_info"],
            found["kernelevents.xid.error_status"],
        )
        if match is not None:
            decoded += 1
            if "RLW_REMAP Nonfatal XC1 i0 Link 10 (0x00000082 0x00000040" in row["line"]:
                continue  # made up by the peer: this status is fatal in NVIDIA's table
            assert (match.severity != "nonfatal") == found["kernelevents.xid.fatal"], row["line"]
    assert decoded >= 40
