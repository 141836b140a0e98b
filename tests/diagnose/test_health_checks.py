"""Another project's health checks of a machine: what they call critical or a warning is told here, and nothing else.

The outputs of commands are read in place; see the README of the shared data. Checks of a command that failed, of
versions and of daemons are not about what a bundle holds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracecore.diagnose.offline import diagnose

#: The file that such an output would be kept in, by the name of the other project's test.
FILES = {
    "test_process_dcgmi_diag_output": "dcgmi_diag.json",
    "test_process_dcgmi_nvlink_error_output": "dcgmi_nvlink_e.json",
    "test_process_dcgmi_nvlink_status_output": "dcgmi_nvlink_s.txt",
    "test_ibstat_physical_state": "ibstat.txt",
    "test_ibstat_state": "ibstat.txt",
    "test_check_buddyinfo": "buddyinfo.txt",
    "test_check_sensors": "ipmi-sensors.txt",
    "test_node_slurm_state": "sinfo.txt",
    "test_cluster_availability": "scontrol_states.txt",
}
#: Outputs that are wrong only by what their site expects: eight adapters, and disks that are at most 85 % full. A disk
#: with a tenth of its space left stops no job, and nobody here knows how many adapters a machine should have.
EXPECTED_THERE = {
    "test_ib_interfaces_state": "ip-link.json",
    "test_disk_usage": "df.txt",
    "test_inode_usage": "df-i.txt",
}
#: Answers of a command that did not work.
UNUSABLE = ("FAILED to execute", "failed to execute", "nvalid", "do not contain")


def told(folder: Path, name: str, output: str) -> bool:
    (folder / name).write_text(output + "\n")
    document = diagnose([folder]).document()
    return bool(document["incidents"] or document["notes"])


def test_the_same_outputs_are_worth_a_word(shared_data: Path, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = json.loads((shared_data / "peers/gcm_health_cases.json").read_text())["cases"]
    judged = 0
    for number, case in enumerate(cases):
        expected, output = case["expected"][0], case["command_output"]["args"][-1]
        if case["test"] not in FILES or not output.strip() or any(word in expected for word in UNUSABLE):
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        assert told(folder, FILES[case["test"]], output) == ("ExitCode.OK" not in expected), case["input_name"]
        judged += 1
    assert judged >= 15


def test_what_only_a_site_expects_is_no_trouble_here(shared_data: Path, tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = json.loads((shared_data / "peers/gcm_health_cases.json").read_text())["cases"]
    seen = set()
    for number, case in enumerate(cases):
        output = case["command_output"]["args"][-1]
        if case["test"] in EXPECTED_THERE and output.strip() and not any(w in case["expected"][0] for w in UNUSABLE):
            (folder := tmp_path / str(number)).mkdir()
            assert not told(folder, EXPECTED_THERE[case["test"]], output), case["input_name"]
            seen.add(case["test"])
    assert seen == EXPECTED_THERE.keys()


@pytest.mark.parametrize(
    ("name", "output", "worth"),
    [
        ("lspci.txt", "0b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev ff)\n", True),
        ("lspci.txt", "0b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n", False),
        (
            "lspci.txt",
            "0000:17:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n"
            "\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x4 (downgraded)\n",
            True,
        ),
        (
            "lspci.txt",  # a GPU without work
            "0000:17:00.0 3D controller: NVIDIA Corporation GH100 (rev a1)\n"
            "\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x16\n",
            False,
        ),
        (
            "lspci.txt",  # a disk in a slot with fewer lanes
            "0000:17:00.0 Non-Volatile memory controller: Samsung PM9A3 (rev 00)\n"
            "\tLnkSta:\tSpeed 8GT/s (downgraded), Width x2 (downgraded)\n",
            False,
        ),
        ("rdma.txt", "link mlx5_1/1 subnet_prefix fe80 lid 13 state DOWN physical_state POLLING\n", True),
        ("rdma.txt", "link mlx5_1/1 state ACTIVE physical_state LINK_UP netdev ens2\n", False),
        (
            "iblinkinfo.txt",
            "CA: ib-n4 mlx5_2:\n"
            '      0x1070fd0300a1b2c5      6    1[  ] ==(      Down/ Polling)==>             [  ] "" ( )\n',
            True,
        ),
        (
            "iblinkinfo.txt",
            "Switch: 0xb0cf0e0300e1ab40 MF0;leaf1:MQM9700/U1:\n"
            '      12    2[  ] ==(    Down/ Polling)==>    [  ] "" ( )\n',
            False,
        ),
        ("ethtool.txt", "Settings for ens1f0np0:\n\tSpeed: Unknown!\n\tLink detected: no\n", True),
        ("ethtool.txt", "Settings for ens1f0np0:\n\tSpeed: 200000Mb/s\n\tLink detected: yes\n", False),
        ("perfquery.txt", "# Port counters: Lid 5 port 1\nSymbolErrorCounter:..............65535\n", True),
        ("perfquery.txt", "# Port counters: Lid 5 port 1\nSymbolErrorCounter:..............0\n", False),
        ("ceph.txt", "HEALTH_ERR 3 osds down\n", True),
        ("ceph.txt", "HEALTH_WARN 1 pools have many more objects per pg than average\n", False),
    ],
)
def test_tables_of_a_machine(tmp_path: Path, name: str, output: str, worth: bool) -> None:
    assert told(tmp_path, name, output) is worth


def test_a_gpu_that_is_gone_from_lspci_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "lspci-hgx-3.txt").write_text("0b:00.0 3D controller: NVIDIA Corporation GH100 [H100 80GB] (rev ff)\n")
    (incident,) = diagnose([tmp_path]).document()["incidents"]
    assert incident["headline"] == "GPU 0000:0b:00.0 on hgx-3 has fallen off the bus"
