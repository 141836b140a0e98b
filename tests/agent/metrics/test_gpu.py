"""The gpu receiver: a real driver's answers played back call by call, and a tree like the kernel's."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tracecore.agent.batch import Batch, Refused
from tracecore.agent.component import Setting
from tracecore.agent.receivers.gpu import infiniband
from tracecore.agent.receivers.gpu.nvml import Nvml, NvmlError, bus_id
from tracecore.agent.receivers.gpu.receiver import GpuReceiver, Options
from tracecore.agent.telemetry import Meter
from tracecore.diagnose.metrics import MetricFacts
from tracecore.facts.gpu import FramebufferSample, ThrottleSample
from tracecore.facts.network import PortState
from tracecore.signals.metrics.otlp import points

RECORDED = Path(__file__).parents[2] / "data" / "nvml"
SECOND = 1_000_000_000
NOT_SUPPORTED, UNKNOWN, LOST, INVALID = 3, 999, 15, 2


class Library:
    """NVIDIA's library, played back: every call gives what the real one gave, byte by byte.

    Args:
        name: of the recording.
        gpus: so many GPUs that all answer as the recorded one did.
    """

    def __init__(self, name: str = "h200_busy", gpus: int = 1) -> None:
        self.recorded = json.loads((RECORDED / f"{name}.json").read_text())
        self.gpus = gpus
        #: What a function gives instead, by its name and the GPU's number: a status.
        self.broken: dict[tuple[str, int], int] = {}
        self._answers: dict[tuple[str, tuple[Any, ...]], deque[dict[str, Any]]] = defaultdict(deque)
        for call in self.recorded["calls"]:
            self._answers[call["function"], tuple(call["given"])].append(call)

    def __getattr__(self, name: str) -> Callable[..., int]:
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: tuple[Any, ...]) -> int:
        given: list[int | None] = []
        out: list[Any] = []
        gpu = 0
        for argument in arguments:
            held = getattr(argument, "_obj", argument)
            if held is argument and not isinstance(held, ctypes.Array):
                value = getattr(held, "value", held)
                if isinstance(held, ctypes._Pointer):
                    gpu = ctypes.cast(held, ctypes.c_void_p).value or 0
                given.append(value if isinstance(value, int) else None)
            else:
                given.append(None)
                out.append(held)
        if name.startswith("nvmlDeviceGetHandleByIndex"):
            index = int(given[0] or 0)
            if (name, index + 1) in self.broken:
                return self.broken[name, index + 1]
            ctypes.memmove(ctypes.byref(out[0]), (index + 1).to_bytes(8, "little"), 8)
            return 0
        if (name, gpu) in self.broken:
            return self.broken[name, gpu]
        answers = self._answers.get((name, tuple(given)))
        assert answers is not None, f"{name}{given} was not asked when it was recorded"
        call = answers[0]
        answers.rotate(-1)
        for place, raw in zip(out, call["out"], strict=True):
            data = bytes.fromhex(raw)
            assert len(data) == ctypes.sizeof(place)
            ctypes.memmove(ctypes.byref(place), data, len(data))
        if name.startswith("nvmlDeviceGetCount"):
            ctypes.memmove(ctypes.byref(out[0]), self.gpus.to_bytes(4, "little"), 4)
        if name == "nvmlDeviceGetUUID" and gpu > 1:
            out[0].value = out[0].value[:-1] + b"%d" % gpu
        return int(call["result"])


Load = Callable[..., Library]


@pytest.fixture
def pynvml() -> Any:
    return pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: pip install nvidia-ml-py")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch, pynvml: Any) -> Iterator[Load]:
    def load(*arguments: Any, **more: Any) -> Library:
        made = Library(*arguments, **more)
        monkeypatch.setattr(pynvml, "nvmlLib", made)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return made

    yield load
    pynvml._nvmlGetFunctionPointer_cache.clear()


@pytest.mark.parametrize("name", ["h200_idle", "h200_busy"])
def test_a_real_gpu(library: Load, name: str) -> None:
    recorded = library(name).recorded["values"]
    driver = Nvml()
    found = [[v.name, v.value, v.unit, v.counts, dict(v.attributes)] for v in driver.collect()]
    driver.close()
    assert found == recorded


def test_what_a_busy_h200_says(library: Load) -> None:
    library()
    found = {value.name: value for value in Nvml().collect()}
    assert found["hw.gpu.temperature"].attributes["gpu.id"] == "0000:00:06.0"
    assert found["hw.gpu.utilization"].value > 0.9
    assert found["hw.gpu.memory.total"].value == 150_754_820_096
    assert 300 < found["hw.gpu.power"].value < 700
    assert "hw.gpu.nvlink.io" not in found, "it has no links: none is not zero"


@pytest.mark.parametrize(
    ("function", "gone"),
    [
        ("nvmlDeviceGetTemperature", "hw.gpu.temperature"),
        ("nvmlDeviceGetTotalEccErrors", "hw.errors"),
        ("nvmlDeviceGetUtilizationRates", "hw.gpu.utilization"),
        ("nvmlDeviceGetRemappedRows", "hw.gpu.memory.remapped_rows"),
        ("nvmlDeviceGetViolationStatus", "hw.gpu.throttle.duration"),
        ("nvmlDeviceGetPowerUsage", "hw.gpu.power"),
    ],
)
@pytest.mark.parametrize("status", [NOT_SUPPORTED, UNKNOWN])
def test_what_is_not_supported_is_left_out(library: Load, function: str, gone: str, status: int) -> None:
    library().broken[function, 1] = status
    names = {value.name for value in Nvml().collect()}
    assert gone not in names
    assert len(names) > 12


def test_one_of_two_gpus_is_lost(library: Load) -> None:
    made = library(gpus=2)
    driver = Nvml()
    assert {value.attributes["hw.gpu.index"] for value in driver.collect()} == {0, 1}
    made.broken["nvmlDeviceGetHandleByIndex_v2", 2] = LOST
    assert {value.attributes["hw.gpu.index"] for value in driver.collect()} == {0}
    assert list(driver.lost) == ["0000:00:06.0"]
    assert "lost" in driver.lost["0000:00:06.0"].lower()


def test_a_gpu_that_is_lost_while_it_is_asked(library: Load) -> None:
    made = library()
    made.broken["nvmlDeviceGetPowerUsage", 1] = LOST
    driver = Nvml()
    assert driver.collect() == []
    assert driver.lost


def test_no_driver(monkeypatch: pytest.MonkeyPatch, pynvml: Any) -> None:
    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "CDLL", _no_library)
    with pytest.raises(NvmlError, match="not answer"):
        Nvml()


def _no_library(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("text", "bus"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "00010000:01:00.0"),
        ("3B", ""),
        ("zz:3B:00.0", ""),
    ],
)
def test_bus_ids(text: str, bus: str) -> None:
    assert bus_id(text) == bus


# -- InfiniBand --------------------------------------------------------------------------------------------------------


def port(sysfs: Path, device: str = "mlx5_0", number: int = 1, **files: str) -> Path:
    """A port as the kernel shows it."""
    place = sysfs / "class" / "infiniband" / device / "ports" / str(number)
    usual = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "counters/symbol_error": "0",
        "counters/link_downed": "2",
        "counters/port_rcv_data": "1000",
        "counters/port_xmit_data": "500",
        "counters/port_rcv_errors": "7",
        "hw_counters/out_of_sequence": "3",
    }
    for name, text in {**usual, **{key.replace("__", "/"): text for key, text in files.items()}}.items():
        file = place / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
    return place


def named(values: list[Any]) -> dict[tuple[str, ...], float]:
    keys = ("hw.network.ib.device", "hw.network.ib.port.num", "error.type", "network.io.direction")
    return {
        (value.name, *(str(value.attributes[key]) for key in keys if key in value.attributes)): value.value
        for value in values
    }


def test_ports(tmp_path: Path) -> None:
    port(tmp_path)
    port(tmp_path, "mlx5_1", 2, state="1: DOWN", rate="25 Gb/sec (1X EDR)", counters__symbol_error="N/A (no PMA)")
    found = named(infiniband.collect(tmp_path / "class" / "infiniband"))
    one, two = ("mlx5_0", "1"), ("mlx5_1", "2")
    assert found["hw.network.ib.port.state", *one] == 4
    assert found["hw.network.ib.port.physical_state", *one] == 5
    assert found["hw.network.bandwidth.limit", *one] == 50e9
    assert found["hw.network.io", *one, "receive"] == 4000
    assert found["hw.errors", *one, "link_downed"] == 2
    assert found["hw.errors", *one, "port_errors_received"] == 7
    assert found["hw.errors", *one, "out_of_sequence"] == 3
    assert found["hw.network.ib.port.state", *two] == 1
    assert ("hw.errors", *two, "symbol_error") not in found


@pytest.mark.parametrize("text", ["", "-1", "x", "99999999999999999999999", "4" * 300])
def test_files_that_say_nothing(tmp_path: Path, text: str) -> None:
    port(tmp_path, state=text, rate=text, counters__symbol_error=text)
    names = {name[0] for name in named(infiniband.collect(tmp_path / "class" / "infiniband"))}
    assert not {"hw.network.ib.port.state", "hw.network.bandwidth.limit"} & names


def test_no_ports(tmp_path: Path) -> None:
    assert infiniband.collect(tmp_path / "class" / "infiniband") == []


# -- as a whole --------------------------------------------------------------------------------------------------------


class Taken:
    def __init__(self) -> None:
        self.payloads: list[dict[str, Any]] = []
        self.refuse = False

    def __call__(self, batch: Batch) -> None:
        if self.refuse:
            raise Refused("full")
        self.payloads.append(batch.payload)


def receiver(tmp_path: Path, **options: Any) -> tuple[GpuReceiver, Meter, Taken, Callable[[], None]]:
    meter = Meter("receiver", "gpu")
    clock = iter(range(1_794_700_800 * SECOND, 1_794_800_800 * SECOND, 10 * SECOND)).__next__
    setting = Setting("gpu", meter, clock, {}.__getitem__, tmp_path, lambda: (True, {}))
    made = GpuReceiver(Options(sysfs_path=str(tmp_path), host_name="node-7", **options), setting)
    taken = Taken()
    return made, meter, taken, lambda: made.collect(taken, threading.Event(), time.monotonic())


def test_from_the_driver_to_facts(library: Load, tmp_path: Path) -> None:
    library()
    place = port(tmp_path)
    _, meter, taken, collect = receiver(tmp_path)
    facts = MetricFacts(host="")
    for state in ("4: ACTIVE", "1: DOWN", "4: ACTIVE"):
        (place / "state").write_text(state)
        collect()
    for payload in taken.payloads:
        for point in points(payload, "gpu"):
            facts.observe(point)
    found = facts.advance(1_794_701_000 * SECOND)
    assert not facts.dropped
    assert meter.degraded_reason == ""
    samples = [fact for fact in found if isinstance(fact, FramebufferSample)]
    assert [(fact.node, fact.gpu, fact.total_bytes) for fact in samples] == [
        ("node-7", "0000:00:06.0", 150_754_820_096)
    ] * 3
    throttles = [fact for fact in found if isinstance(fact, ThrottleSample)]
    assert {fact.reason for fact in throttles} == {"none"}
    states = [(fact.device, fact.port, fact.state) for fact in found if isinstance(fact, PortState)]
    assert states == [("mlx5_0", 1, 4), ("mlx5_0", 1, 1), ("mlx5_0", 1, 4)]


def test_series_of_a_lost_gpu_end(library: Load, tmp_path: Path) -> None:
    made = library()
    port(tmp_path)
    _, meter, taken, collect = receiver(tmp_path)
    collect()
    made.broken["nvmlDeviceGetHandleByIndex_v2", 1] = LOST
    collect()
    collect()
    assert "does not answer" in meter.degraded_reason
    ended = [
        {metric["name"]: point.get("flags") for metric in _metrics(payload) for point in _points(metric)}
        for payload in taken.payloads
    ]
    assert [one.get("hw.gpu.temperature", "absent") for one in ended] == [None, 1, "absent"]
    assert ended[1]["hw.network.ib.port.state"] is None
    made.broken.clear()
    collect()
    assert meter.degraded_reason == ""


def _metrics(payload: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = payload["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    return found


def _points(metric: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = metric.get("gauge", metric.get("sum"))["data_points"]
    return found


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"nvml": "none", "infiniband": "none"}, "neither"),
        ({"nvml": "none", "infiniband": "required"}, "no InfiniBand port"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, options: dict[str, Any], reason: str) -> None:
    _, meter, taken, collect = receiver(tmp_path, **options)
    collect()
    assert reason in meter.degraded_reason
    assert taken.payloads == []


def test_a_driver_that_goes_away_and_comes_back(library: Load, tmp_path: Path) -> None:
    made = library()
    _, meter, taken, collect = receiver(tmp_path, nvml="required")
    collect()
    made.broken["nvmlDeviceGetCount_v2", 0] = UNKNOWN
    collect()
    assert "driver does not answer" in meter.degraded_reason
    made.broken.clear()
    collect()
    assert meter.degraded_reason == ""
    assert len(taken.payloads) == 3


def test_values_that_nobody_takes_are_counted(library: Load, tmp_path: Path) -> None:
    library()
    _, meter, taken, collect = receiver(tmp_path)
    taken.refuse = True
    collect()
    assert meter.dropped["refused_collection"] == 26


def test_it_runs_until_it_is_stopped(library: Load, tmp_path: Path) -> None:
    library()
    made, _, taken, _ = receiver(tmp_path, collection_interval=SECOND // 100)
    stop = threading.Event()
    thread = threading.Thread(target=made.run, args=(taken, stop))
    thread.start()
    deadline = time.monotonic() + 30
    while len(taken.payloads) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert len(taken.payloads) >= 3
