"""`nvidia-smi` as points: real output of a healthy H200, and of one under a power cap."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tracecore.signals.bundle.discovery import discover
from tracecore.signals.bundle.reading import points
from tracecore.signals.bundle.recognition import recognise
from tracecore.signals.metrics.point import Point
from tracecore.signals.nvidia import smi, smi_csv
from tracecore.signals.stamps import parse
from tracecore.signals.stream import Clock, Counters, Stream

Make = Callable[..., Stream]
TELEMETRY = Path(__file__).resolve().parents[3] / "examples" / "telemetry"


def recorded(name: str) -> list[Point]:
    bundle = discover([TELEMETRY / name])
    return [point for _, each in points(bundle, Counters()) for point in each]


def test_a_healthy_gpu_in_full() -> None:
    found = recorded("nvidia-smi-q.txt")
    values = {p.name: p.value for p in found if p.name not in ("hw.gpu.throttle.active", "hw.errors")}
    assert values["hw.gpu.temperature"] == 34
    assert values["hw.gpu.memory.temperature"] == 36
    assert values["hw.gpu.clock.sm"] == 345
    assert values["hw.gpu.clock.sm.max"] == 1980
    assert values["hw.gpu.power"] == 78.99
    assert values["hw.gpu.power.limit"] == 700
    assert values["hw.gpu.memory.total"] == 143771 << 20
    assert values["hw.gpu.memory.free"] == 143156 << 20
    assert values["hw.gpu.pcie.replays"] == 3
    assert values["hw.gpu.pcie.link.width"] == 16
    active = {p.labels["hw.gpu.throttle.reason"] for p in found if p.name == "hw.gpu.throttle.active" and p.value}
    assert active == {"idle"}
    errors = [p for p in found if p.name == "hw.errors"]
    assert len(errors) == 10
    assert {p.value for p in errors} == {0.0}
    assert {p.labels["error.persistence"] for p in errors} == {"volatile", "aggregate"}
    assert {p.labels["gpu.id"] for p in found} == {"0000:00:06.0"}
    assert {p.time for p in found} == {parse("2026-11-15T01:15:25Z")}
    assert not any(p.inferred for p in found)


def test_the_part_about_one_gpu_is_enough(tmp_path: Path) -> None:
    whole = (TELEMETRY / "nvidia-smi-q.txt").read_text()
    (tmp_path / "gpu.txt").write_text(whole[whole.index("\nGPU 0") + 1 :])
    found = [point for _, each in points(discover([tmp_path]), Counters()) for point in each]
    assert {p.labels["gpu.id"] for p in found} == {"0000:00:06.0"}
    assert {p.value for p in found if p.name == "hw.gpu.temperature"} == {34}


def test_throttled_by_power_and_not_by_heat() -> None:
    found = recorded("power_cap_not_thermal.csv")
    active = {p.labels["hw.gpu.throttle.reason"] for p in found if p.name == "hw.gpu.throttle.active" and p.value}
    assert "power" in active
    assert not active & {"thermal_hardware", "thermal_software", "slowdown_hardware"}
    assert max(p.value for p in found if p.name == "hw.gpu.temperature") < 70
    assert found[0].time == parse("2026-11-15T01:36:10.445Z")
    times = [p.time for p in found]
    assert times == sorted(times)


def test_a_file_that_is_still_written_and_restarted(make: Make) -> None:
    header = (
        "timestamp, index, uuid, temperature.gpu, utilization.gpu [%], memory.used [MiB], "
        "ecc.errors.uncorrected.volatile.total\n"
    )
    row = "2026/11/15 01:36:10.445, 1, GPU-x, 61, 97 %, 1024 MiB, 2\n"
    counters = Counters()
    found = list(
        smi_csv.read_csv(make(header + row + header + row + "2026/11/15 01:36:1", "nvidia_csv"), Clock(), counters)
    )
    assert [(p.name, p.value) for p in found[:4]] == [
        ("hw.gpu.temperature", 61.0),
        ("hw.gpu.utilization", 0.97),
        ("hw.gpu.memory.used", float(1 << 30)),
        ("hw.errors", 2.0),
    ]
    assert found[3].labels["error.type"] == "uncorrected"
    assert found[3].labels["error.persistence"] == "volatile"
    assert len(found) == 10
    assert counters.lines_unparsed == 1


def test_units_may_be_in_the_header_only(make: Make) -> None:
    text = (
        "index, pci.bus_id, memory.total [MiB], clocks_throttle_reasons.active\n"
        "0, 00000000:3B:00.0, 81920, 0x0000000000000044\n"
    )
    found = list(smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters()))
    assert found[0].value == 81920 << 20
    assert found[0].labels["gpu.id"] == "0000:3b:00.0"
    active = {p.labels["hw.gpu.throttle.reason"] for p in found if p.name == "hw.gpu.throttle.active" and p.value}
    assert active == {"power", "thermal_hardware"}


ROWS = "0, NVIDIA H200, 00000000:3B:00.0, 61, 100 %\n1, NVIDIA H200, 00000000:4B:00.0, {}, {}\n"


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        (("[GPU is lost]", "[GPU is lost]"), "hw.gpu.lost"),
        (("[Unknown Error]", "[Unknown Error]"), "hw.gpu.unreadable"),
        (("ERR!", "0 %"), "hw.gpu.unreadable"),
        (("[N/A]", "[Unknown Error]"), None),
        (("60", "99 %"), None),
    ],
)
def test_rows_without_a_header(make: Make, cells: tuple[str, str], told: str | None) -> None:
    text = ROWS.format(*cells)
    assert smi_csv.begins_with_rows(text.encode(), text.encode())
    found = [p for p in smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters()) if p.value]
    assert [p.name for p in found] == ([told] if told else [])
    assert all(p.labels["hw.gpu.index"] == "1" and p.labels["gpu.id"] == "0000:4b:00.0" for p in found)


def test_the_command_says_what_the_columns_are(make: Make) -> None:
    command = "$ nvidia-smi --query-gpu=index,temperature.gpu,memory.used --format=csv,noheader,nounits\n"
    text = command + "0, 61, 1024\n1, 93, 2048\n"
    assert smi_csv.begins_with_rows(b"0, 61, 1024\n1, 93, 2048\n", text.encode())
    found = list(smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters()))
    assert [(p.name, p.labels["hw.gpu.index"], p.value) for p in found] == [
        ("hw.gpu.temperature", "0", 61.0),
        ("hw.gpu.memory.used", "0", float(1 << 30)),
        ("hw.gpu.temperature", "1", 93.0),
        ("hw.gpu.memory.used", "1", float(2 << 30)),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "0, 61, 1024\n1, 93, 2048\n",
        "step 1, loss 2.0\nstep 2, loss 1.9\n",
        "NVIDIA H200\n",
        "loading on NVIDIA H200, rank 0\n",
    ],
)
def test_other_rows_are_not_of_gpus(text: str) -> None:
    assert not smi_csv.begins_with_rows(text.encode(), text.encode())


def test_not_available_is_not_zero(make: Make) -> None:
    text = "index, pci.bus_id, temperature.gpu, power.draw [W]\n0, 00000000:3B:00.0, [N/A], [Unknown Error]\n"
    assert list(smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters())) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00", "0000:3b:00.0"),
        ("0001:A0:1f.1", "0001:a0:1f.1"),
        ("GPU-123", None),
    ],
)
def test_bus_ids_have_one_spelling(text: str, expected: str | None) -> None:
    assert smi.bus_id(text) == expected


UUIDS = ("GPU-d2b6e8aa-30f4-4e9e-8c53-0e7b44a1c9d8", "GPU-5be09d14-77a2-4c0e-b3c8-91d0aa02c6fe")
FIELDS = "DCGM_FI_DEV_GPU_TEMP,DCGM_FI_DEV_SM_CLOCK,DCGM_FI_DEV_CLOCKS_EVENT_REASONS"


@pytest.mark.parametrize(
    "text",
    [
        f"timestamp,Hostname,gpu,{FIELDS}\n2026-05-01T10:00:00Z,n7,0,61,1980,0x0\n2026-05-01T10:00:00Z,n7,3,91,975,0x60\n",
        f"ts\thostname\tgpu\t{FIELDS}\n".replace(",", "\t")
        + "1777629600\tn7\t0\t61\t1980\t0\n1777629600\tn7\t3\t91\t975\t96\n",
        "time;node;device;dcgm_fi_dev_gpu_temp;dcgm_fi_dev_sm_clock;dcgm_fi_dev_clock_throttle_reasons\n"
        "2026-05-01 10:00:00;n7;nvidia0;61;1980;0\n2026-05-01 10:00:00;n7;nvidia3;91;975;96\n",
        "timestamp,metric,instance,gpu,value\n"
        + "".join(
            f"2026-05-01T10:00:00Z,{name},n7:9400,{gpu},{value}\n"
            for gpu, values in (("0", (61, 1980, 0)), ("3", (91, 975, 96)))
            for name, value in zip(FIELDS.split(","), values, strict=True)
        ),
        '"Time","DCGM_FI_DEV_GPU_TEMP{Hostname=""n7"", gpu=""0""}","DCGM_FI_DEV_SM_CLOCK{Hostname=""n7"", gpu=""0""}",'
        '"DCGM_FI_DEV_GPU_TEMP{Hostname=""n7"", gpu=""3""}","DCGM_FI_DEV_SM_CLOCK{Hostname=""n7"", gpu=""3""}",'
        '"DCGM_FI_DEV_CLOCKS_EVENT_REASONS{Hostname=""n7"", gpu=""3""}"\n'
        '"2026-05-01 10:00:00","61","1980","91","975","96"\n',
        "timestamp,host,DCGM_FI_DEV_GPU_TEMP_gpu0,DCGM_FI_DEV_SM_CLOCK_gpu0,DCGM_FI_DEV_GPU_TEMP_gpu3,"
        "gpu3_DCGM_FI_DEV_SM_CLOCK,DCGM_FI_DEV_CLOCKS_EVENT_REASONS.3\n2026-05-01T10:00:00Z,n7,61,1980,91,975,0x60\n",
    ],
    ids=["rows", "tabs", "semicolons", "long", "grafana", "wide"],
)
def test_tables_of_dcgms_fields(make: Make, text: str) -> None:
    assert recognise(text.encode(), b"", "export.csv", True).format == "nvidia_csv"
    found = list(smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters()))
    hot = {p.name.replace("CLOCK_THROTTLE", "CLOCKS_EVENT"): p for p in found if p.labels["hw.gpu.index"] == "3"}
    assert {name: p.value for name, p in hot.items()} == {
        "DCGM_FI_DEV_GPU_TEMP": 91,
        "DCGM_FI_DEV_SM_CLOCK": 975,
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 96,
    }
    assert {p.labels["host.name"] for p in found} == {"n7"}
    assert {p.time for p in found} == {1_777_629_600_000_000_000}


def test_a_gpu_that_a_table_knows_by_its_uuid_or_bus_id(make: Make) -> None:
    rows = "".join(f"2026-05-01T10:00:00Z,{uuid},N/A,1980 MHz,\n" for uuid in UUIDS)
    text = f"timestamp,gpu,{FIELDS.replace(',', ',', 1)}\n{rows}"
    found = list(smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters()))
    assert [(p.name, p.labels["gpu.uuid"]) for p in found] == [("DCGM_FI_DEV_SM_CLOCK", uuid) for uuid in UUIDS]
    text = "timestamp,pci_bus_id,DCGM_FI_DEV_SM_CLOCK\n2026-05-01T10:00:00Z,00000000:B7:00.0,1980\n"
    (point,) = smi_csv.read_csv(make(text, "nvidia_csv"), Clock(), Counters())
    assert point.labels["gpu.id"] == "0000:b7:00.0"


@pytest.mark.parametrize(
    "text",
    [
        "# Format,,\n# If line starts with a '#' it is considered a comment,,\n"
        "DCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).\n",
        "DCGM_FI_DEV_SM_CLOCK, gauge, SM clock frequency (in MHz).\nDCGM_FI_DEV_GPU_TEMP, gauge, in C.\n",
        "# HELP DCGM_FI_DEV_SM_CLOCK SM clock, in MHz\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n"
        'DCGM_FI_DEV_SM_CLOCK{gpu="0"} 1980\n',
        "timestamp, step, loss\n2026-05-01T10:00:00Z, 3, 2.1 # DCGM_FI_DEV_SM_CLOCK is not exported here\n",
    ],
    ids=["counters of the exporter", "without its comments", "a scrape", "a table of a run"],
)
def test_what_is_no_table_of_dcgms_fields(text: str) -> None:
    assert recognise(text.encode(), b"", "file.txt", True).format != "nvidia_csv"


def test_dcgmis_own_table(make: Make) -> None:
    text = (
        "#Entity   TMPTR   SMCLK   DVCCTR\nID        C\nGPU 0     61      1980    0\nGPU 1     91      975     96\n"
        "GPU 0     62      1980    0\nGPU 1     N/A     960     96\n"
    )
    assert recognise(text.encode(), b"", "dmon.txt", True).format == "nvidia_dmon"
    found = list(smi.read_dmon(make(text, "nvidia_dmon"), Clock(), Counters()))
    assert [(p.name, p.value) for p in found if p.labels["hw.gpu.index"] == "1"] == [
        ("DCGM_FI_DEV_GPU_TEMP", 91),
        ("DCGM_FI_DEV_SM_CLOCK", 975),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 96),
        ("DCGM_FI_DEV_SM_CLOCK", 960),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 96),
    ]


def test_a_carriage_return_in_the_first_line_is_no_table() -> None:
    text = b"epoch 1, 10%\repoch 1, 20%\nnext\n"
    assert not smi_csv.begins_with_fields(text, text)
