"""Which file of a bundle is of which machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.signals.bundle.discovery import discover

KERNEL = "Nov  3 03:28:02 jwb0533 kernel: usb 1-1: new device\nNov  3 03:28:03 jwb0533 kernel: usb 1-1: gone\n"


def hosts(folder: Path, **files: str) -> dict[str, object]:
    """The machine of each file, by its name; `_` in a keyword stands for a dot."""
    for name, text in files.items():
        (folder / name.replace("_dot_", ".")).write_text(text)
    return {Path(stream.path).name: stream.resource.get("host.name") for stream in discover([folder]).streams}


@pytest.mark.parametrize(
    "line",
    [
        "jwb0533 rank20 03:27:55 saving shard 20",
        "[2026-11-03 03:27:55] [jwb0533] rank 20 | iter 9120",
        "I 03:27:55.102 | jwb0533 | rank 20 | step 77100",
        "03:27:55 jwb0533 rank=20 step=901",
        "2026-11-03T03:27:55Z INFO jwb0533: step 4",
    ],
)
def test_a_field_of_the_lines_names_the_machine(tmp_path: Path, line: str) -> None:
    found = hosts(tmp_path, messages=KERNEL, err_dot_txt=f"{line}\nTraceback\nOSError: x\n")
    assert found["err.txt"] == "jwb0533"


@pytest.mark.parametrize(
    "text",
    [
        "03:27:55 connecting to jwb0533:29500\n",  # another machine, in a message
        "jwb0533 rank 0 step 1\njwb0534 rank 8 step 1\n",
        "jwb0599 rank 0 step 1\n",  # nothing else knows such a machine
    ],
)
def test_other_lines_name_none(tmp_path: Path, text: str) -> None:
    other = KERNEL.replace("jwb0533", "jwb0534")
    assert hosts(tmp_path, messages=KERNEL, syslog=other, err_dot_txt=text)["err.txt"] is None


def test_a_name_of_a_file_has_a_known_machine_in_it(tmp_path: Path) -> None:
    line = "Nov  3 03:28:02 ip-10-0-61-9.ec2.internal kernel: usb 1-1: new\n"
    found = hosts(
        tmp_path,
        messages=line * 2,
        **{"train-ip-10-0-61-9-r0_dot_log": "step 1\n", "train-ip-10-0-61-8-r1_dot_log": "step 1\n"},
    )
    assert found["train-ip-10-0-61-9-r0.log"] == "ip-10-0-61-9.ec2.internal"
    assert found["train-ip-10-0-61-8-r1.log"] is None


def test_what_tells_of_a_machine_is_of_the_only_one(tmp_path: Path) -> None:
    table = "index, pci.bus_id, temperature.gpu\n0, 00000000:07:00.0, 61\n"
    scrape = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="node-c4"} 61\n' * 2
    assert hosts(tmp_path, throttle_dot_csv=table, scrape_dot_prom=scrape)["throttle.csv"] == "node-c4"
    assert hosts(tmp_path, messages=KERNEL)["throttle.csv"] is None
