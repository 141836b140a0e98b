"""What programs print about a machine: GPUs, links, adapters, health checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tracecore.diagnose.offline import diagnose


def diagnosed(folder: Path, files: dict[str, str]) -> dict[str, Any]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return dict(diagnose([folder]).document())


def root(document: dict[str, Any]) -> str | None:
    return document["incidents"][0]["root_cause"]["pattern"] if document["incidents"] else None


REMAPPED = """\
GPU 00000000:BA:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Remapped Rows
        Uncorrectable Error               : 9
        Pending                           : Yes
        Remapping Failure Occurred        : Yes
"""


def test_a_row_that_could_not_be_remapped_is_a_fault_of_the_gpu(tmp_path: Path) -> None:
    document = diagnosed(tmp_path, {"nvidia-smi-q-gpu5.txt": REMAPPED, "dmesg-dgx-b12.txt": "usb 1-1: new device\n"})
    assert root(document) == "gpu_fault"
    assert document["incidents"][0]["suspects"] == {
        "ranks": [],
        "nodes": ["dgx-b12"],
        "gpus": ["0000:ba:00.0"],
        "pods": [],
    }


def test_beside_another_failure_it_is_a_note(tmp_path: Path) -> None:
    killed = "[Tue Mar 10 10:40:02 2026] Out of memory: Killed process 4242 (python) total-vm:1kB, anon-rss:1kB\n"
    document = diagnosed(tmp_path, {"nvidia-smi-q.txt": REMAPPED, "dmesg.txt": killed})
    assert root(document) == "host_oom"
    assert any(note.startswith("A condition of a GPU") for note in document["notes"])
