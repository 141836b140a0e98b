"""CUDA's device ordinal becomes a GPU only where there is no doubt which one it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tracecore.facts.memory import CudaOom
from tracecore.facts.ordinals import Holdings, identify, named, reasons
from tracecore.signals.kubernetes.objects import pod_identity
from tracecore.signals.metrics.point import Series
from tracecore.signals.record import Source

SECOND = 1_000_000_000
NOW = 1_794_700_800 * SECOND
#: In the order of the bus; DCGM's indices go the other way.
BUSES = ("0000:18:00.0", "0000:9a:00.0", "0001:03:00.0")
UUIDS = ("GPU-aaaa1111", "GPU-bbbb2222", "GPU-cccc3333")


def series(number: int, **more: Any) -> Series:
    attributes = {
        "gpu.id": BUSES[number],
        "gpu.uuid": UUIDS[number],
        "hw.gpu.index": len(BUSES) - 1 - number,
        "k8s.node.name": "node-7",
        "k8s.pod.name": "train-0",
        "k8s.namespace.name": "ml",
        **more,
    }
    attributes = {name: value for name, value in attributes.items() if value is not None}
    return Series.of("hw.gpu.temperature", "DCGM_FI_DEV_GPU_TEMP", attributes)


def holdings(*numbers: int, at: int = NOW, **more: Any) -> Holdings:
    made = Holdings()
    for number in numbers:
        made.learn(series(number, **more), at)
    return made


def oom(**more: Any) -> CudaOom:
    known: dict[str, Any] = {
        "time": NOW, "source": Source("0.log"), "node": "node-7", "pod": "ml/train-0", "tried_bytes": 1 << 30,
        "ordinal": 1, "backend": "cuda",
    }  # fmt: skip
    return CudaOom(**{**known, **more})


ALL = (2, 0, 1)


@pytest.mark.parametrize(
    ("fact", "ordinals", "gpu"),
    [
        ({}, "pci_bus_id", BUSES[1]),
        ({"ordinal": 2}, "pci_bus_id", BUSES[2]),
        ({"device_order": "pci_bus_id"}, "environment", BUSES[1]),
        ({"visible_devices": "GPU-cccc3333,GPU-aaaa1111"}, "environment", BUSES[0]),
        ({"visible_devices": "GPU-cccc, gpu-aaaa"}, "environment", BUSES[0]),
        ({"visible_devices": "2,0"}, "pci_bus_id", BUSES[0]),
        ({"visible_devices": "2,0", "device_order": "PCI_BUS_ID"}, "environment", BUSES[0]),
        ({"pod": None}, "pci_bus_id", BUSES[1]),
        ({"pod_gpus": "0000:9a:00.0,0000:18:00.0"}, "pci_bus_id", BUSES[1]),
    ],
)
def test_an_ordinal_that_is_certain(fact: dict[str, Any], ordinals: Any, gpu: str) -> None:
    assert identify(oom(**fact), holdings(*ALL), ordinals) == (gpu, "")


@pytest.mark.parametrize(
    ("fact", "ordinals", "why"),
    [
        ({}, "never", "3 GPUs are possible, and gpu_by_ordinal is not set"),
        ({}, "environment", "CUDA_DEVICE_ORDER is not known to be PCI_BUS_ID"),
        ({"device_order": "fastest_first"}, "pci_bus_id", "CUDA_DEVICE_ORDER is not known to be PCI_BUS_ID"),
        ({"visible_devices": "2,0"}, "environment", "CUDA_DEVICE_ORDER is not known to be PCI_BUS_ID"),
        ({"visible_devices": "2"}, "pci_bus_id", "CUDA_VISIBLE_DEVICES has 1 devices, and the line names number 1"),
        ({"visible_devices": "2,-1,0"}, "pci_bus_id", "CUDA_VISIBLE_DEVICES has 1 devices, and the line"),
        ({"visible_devices": "0,MIG-1234"}, "pci_bus_id", "no metrics name the GPU MIG-1234"),
        ({"visible_devices": "0,GPU-dddd"}, "environment", "no metrics name the GPU GPU-dddd"),
        ({"ordinal": 3}, "pci_bus_id", "3 GPUs are known, and the line names number 3"),
        ({"ordinal": None}, "pci_bus_id", "the line names no device"),
        ({"backend": "hip"}, "pci_bus_id", "only CUDA's ordinals are understood"),
        ({"pod": "ml/other"}, "pci_bus_id", "do not say which of the node's GPUs the pod holds"),
        ({"pod": "ml/other", "node": "node-8"}, "pci_bus_id", "no metrics name the GPUs of its pod or node"),
        ({"time": NOW + 3600 * SECOND}, "pci_bus_id", "no metrics from about that time"),
        ({"pod_gpus": "GPU-1,GPU-2"}, "pci_bus_id", "the pod's annotation has no bus ids"),
    ],
)
def test_an_ordinal_that_is_not(fact: dict[str, Any], ordinals: Any, why: str) -> None:
    found, reason = identify(oom(**fact), holdings(*ALL), ordinals)
    assert found is None
    assert why in reason


def test_gpus_that_are_split_shared_or_moved_are_not_named() -> None:
    split = holdings(0, 1, **{"hw.gpu.mig.id": "1"})
    assert identify(oom(), split, "pci_bus_id") == (None, "GPUs are split into MIG instances")
    moved = holdings(0)
    moved.learn(series(0), NOW - 60 * SECOND)
    for number in (1, 2):
        moved.learn(series(number), NOW + 30 * SECOND)
    moved.learn(series(0), NOW - 30 * SECOND)
    assert identify(oom(), moved, "pci_bus_id") == (None, "its GPUs changed at about that time")
    # Two ranks of one pod that both say 0 have narrowed what they see, each in its own way.
    known = holdings(*ALL)
    refused: list[tuple[Any, str]] = []
    both = named([oom(rank=0, ordinal=0), oom(rank=1, ordinal=0)], known, "pci_bus_id", refused)
    assert [fact.gpu for fact in both] == [None, None]
    (reason,) = reasons(refused)
    assert reason == (
        "no GPU is named for the CUDA device that ran out of memory in ml/train-0: several ranks of the pod name the "
        "same device: each counts devices of its own"
    )


def test_one_gpu_leaves_no_choice() -> None:
    for known in (holdings(0), holdings(0, at=NOW - 3600 * SECOND)):
        assert identify(oom(ordinal=0), known, "never") == (BUSES[0], "")
    assert identify(oom(ordinal=1), holdings(0), "never")[0] is None


def test_what_a_pod_says_about_its_devices() -> None:
    trainer = {
        "name": "trainer",
        "resources": {"limits": {"nvidia.com/gpu": "2"}},
        "env": [{"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "1,0"}],
    }
    sidecar = {"name": "sidecar", "env": [{"name": "CUDA_DEVICE_ORDER", "value": "FASTEST_FIRST"}]}
    pod = {
        "metadata": {"name": "a", "annotations": {"nvidia.com/gpu-PCIDeviceBusID": "0000:9A:00.0,0000:18:00.0"}},
        "spec": {"containers": [sidecar, trainer]},
    }
    found = pod_identity(pod)
    assert found["process.environment_variable.CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert found["process.environment_variable.CUDA_VISIBLE_DEVICES"] == "1,0"
    assert found["tracecore.pod.gpus"] == "0000:9a:00.0,0000:18:00.0"
    assert "gpu.id" not in found
    other = {**trainer, "name": "other", "env": []}
    assert "CUDA_DEVICE_ORDER" not in repr(pod_identity({**pod, "spec": {"containers": [trainer, other]}}))


LINE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.18 GiB "
    "of which 1.00 GiB is free."
)


@pytest.mark.parametrize(("ordinals", "gpu"), [("never", None), ("pci_bus_id", BUSES[1])])
def test_live(ordinals: Any, gpu: str | None, caplog: pytest.LogCaptureFixture) -> None:
    """Points of DCGM and a line of the trainer meet in one detector."""
    from tracecore.agent.batch import Batch
    from tracecore.agent.component import Setting
    from tracecore.agent.processors.patterndetector import Options, PatternDetector
    from tracecore.agent.telemetry import Meter

    meter = Meter("processor", "patterndetector", "logs")
    now = [NOW]
    setting = Setting("patterndetector", meter, lambda: now[0], {}.__getitem__, Path(), lambda: (True, {}))
    detector = PatternDetector(Options(gpu_by_ordinal=ordinals), setting)
    points = [
        {"attributes": {"gpu": str(2 - n), "UUID": UUIDS[n], "pci_bus_id": f"0000{BUSES[n]}", "Hostname": "node-7",
                        "pod": "train-0", "namespace": "ml"}, "value_double": 60.0, "time_unix_nano": NOW}
        for n in range(3)
    ]  # fmt: skip
    metric = {"name": "DCGM_FI_DEV_GPU_TEMP", "unit": "", "gauge": {"data_points": points}}
    scrape = {"resource_metrics": [{"resource": {}, "scope_metrics": [{"scope": {}, "metrics": [metric]}]}]}
    list(detector.process(Batch("metrics", scrape)))
    resource = {"k8s.pod.name": "train-0", "k8s.namespace.name": "ml", "k8s.node.name": "node-7"}
    records = [{"body": LINE, "attributes": {}, "time_unix_nano": NOW + SECOND}]
    entry = {"resource": {"attributes": resource}, "scope_logs": [{"scope": {}, "log_records": records}]}
    now[0] += 2 * SECOND
    said = list(detector.process(Batch("logs", {"resource_logs": [entry]})))
    now[0] += 2 * SECOND
    said += detector.tick(now[0])
    found = [
        record["attributes"]
        for batch in said
        for entry in batch.view()["resource_logs"]
        for scope in entry["scope_logs"]
        for record in scope["log_records"]
        if record["attributes"].get("pattern.name") == "cuda_oom"
    ]
    document = msgspec.json.decode(found[-1]["pattern.verdict_json"])
    assert document.get("gpu.id") == gpu
    assert document["confidence"] == ("full" if gpu else "partial")
    assert meter.events["device_without_gpu"] == (0 if gpu else 1)
    assert ("gpu_by_ordinal is not set" in caplog.text) == (gpu is None)
