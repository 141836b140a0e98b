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


DMON = (
    "#Date       Time        gpu   gtemp  pclk  tviol  rxpci\n#YYYYMMDD   HH:MM:SS    Idx       C   MHz   bool   MB/s\n"
)


def rows(*states: tuple[int, int, int, int], rounds: int = 5) -> str:
    """Rounds of half a minute: of each GPU its temperature, clock, whether it throttles, and what it receives."""
    return DMON + "".join(
        f" 20260401   12:{round_ // 2:02d}:{30 * (round_ % 2):02d}      {gpu}   {' '.join(map(str, state))}\n"
        for round_ in range(rounds)
        for gpu, state in enumerate(states)
    )


def test_dmon_shows_a_gpu_that_throttles(tmp_path: Path) -> None:
    well = (66, 1980, 0, 18000)
    document = diagnosed(tmp_path, {"dmon-hgx-3.txt": rows(well, (93, 810, 1, 18000), well)})
    assert root(document) == "thermal_throttle"
    assert document["incidents"][0]["headline"].startswith("GPU 1 on hgx-3 throttles because of heat at 93 °C")
    assert document["incidents"][0]["suspects"]["nodes"] == ["hgx-3"]


def test_dmon_of_gpus_at_work_says_nothing(tmp_path: Path) -> None:
    well = (66, 1980, 0, 18000)
    document = diagnosed(tmp_path, {"dmon.txt": rows(well, well, well)})
    assert not document["incidents"]
    assert not document["notes"]


def test_a_table_with_columns_of_its_own(tmp_path: Path) -> None:
    lines = ["time, host, gpu, temperature.gpu, clocks.sm [MHz], clocks_event_reasons.active"]
    for half in range(5):
        at = f"2026/02/19 10:{half // 2:02d}:{30 * (half % 2):02d}.114"
        lines += [
            f"{at}, a100-12, 0, 66, 1410, 0x0",
            f"{at}, a100-12, 1, 92, 630, 0x60",
            f"{at}, a100-12, 2, 61, 1410, 0x0",
        ]
    document = diagnosed(tmp_path, {"smi.csv": "\n".join(lines) + "\n"})
    assert root(document) == "thermal_throttle"
    assert document["incidents"][0]["suspects"]["nodes"] == ["a100-12"]


def test_a_table_shows_a_gpu_that_does_not_answer(tmp_path: Path) -> None:
    table = "index, pci.bus_id, temperature.gpu\n0, 00000000:07:00.0, 61\n1, 00000000:0B:00.0, [GPU is lost]\n"
    document = diagnosed(tmp_path, {"smi.csv": table})
    assert root(document) == "gpu_fault"
    assert document["incidents"][0]["headline"] == "GPU 0000:0b:00.0 is lost, according to nvidia-smi"


STEPS = "".join(f"2026-05-20 08:00:{second:02d} step {second} loss 2.31\n" for second in range(0, 50, 5))
LOST = "index, pci.bus_id, temperature.gpu\n0, 00000000:0B:00.0, [GPU is lost]\n"


def test_a_gpu_that_is_gone_beside_a_run_that_is_well_is_a_note(tmp_path: Path) -> None:
    for name, table in (("smi.csv", LOST), ("nvidia-smi-q.txt", REMAPPED)):
        document = diagnosed(
            tmp_path / name, {name: table, "train.log": STEPS + "2026-05-20 08:00:51 Training completed.\n"}
        )
        assert not document["incidents"]
        assert any(
            note.startswith("A condition of a GPU, and nothing links it to the job") for note in document["notes"]
        )


def test_a_gpu_that_is_gone_is_why_the_ranks_hang(tmp_path: Path) -> None:
    said = (
        "[rank{0}]:[E520 08:10:50.7 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600034 milliseconds "
        "before timing out.\n"
    )
    log = STEPS + "".join(map(said.format, range(4)))
    assert root(diagnosed(tmp_path / "lost", {"smi.csv": LOST, "train.log": log})) == "gpu_fault"
    assert root(diagnosed(tmp_path / "worn", {"nvidia-smi-q.txt": REMAPPED, "train.log": log})) == "nccl_hang"


def test_a_gpu_that_is_gone_is_why_a_rank_lost_its_gpu_and_no_reason_for_a_missing_key(tmp_path: Path) -> None:
    for message, expected in (
        ("RuntimeError: CUDA error: unknown error", "gpu_fault"),
        ("KeyError: 'mask'", "worker_crash"),
    ):
        log = STEPS + f'Traceback (most recent call last):\n  File "/app/t.py", line 9, in <module>\n{message}\n'
        document = diagnosed(tmp_path / expected, {"smi.csv": LOST, "train.log": log})
        assert root(document) == expected
