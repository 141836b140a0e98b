"""Resolve CUDA's device ordinal to a GPU, if that is certain.

CUDA's ordinal is not the index of NVML or DCGM. CUDA counts the devices that the process can see: those of its
container, limited by CUDA_VISIBLE_DEVICES, in the order of CUDA_DEVICE_ORDER. The default order is fastest first, which
defines only the first device. docs/metrics.md says when an ordinal can be resolved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from tracecore.facts.identity import bus_id
from tracecore.facts.memory import CudaOom, CudaOomUnmeasured
from tracecore.facts.training import Progress

if TYPE_CHECKING:
    from tracecore.facts.fact import Fact
    from tracecore.signals.metrics.point import Series

#: The setting `gpu_by_ordinal`: what an operator knows about the processes of their jobs.
Ordinals: TypeAlias = Literal["never", "environment", "pci_bus_id"]
#: Maximum number of pods, and of nodes, to remember.
MOST: Final = 65_536
#: A pod or node is assumed to hold a GPU this long before the first and after the last sample.
SLACK: Final = 120 * 1_000_000_000


class _Hold(msgspec.Struct):
    series: Series
    first: int
    last: int


class Holdings:
    """The GPUs of pods and nodes, learned from metrics that name both."""

    def __init__(self, most: int = MOST) -> None:
        self._pods: OrderedDict[str, dict[str, _Hold]] = OrderedDict()
        self._nodes: OrderedDict[str, dict[str, _Hold]] = OrderedDict()
        self._ordinals: OrderedDict[tuple[str, int], set[int]] = OrderedDict()
        self._most = most
        #: GPUs of processes that ran out of memory.
        self.processes: OrderedDict[tuple[object, ...], str] = OrderedDict()
        #: The only machine, if there certainly is only one. Facts without a machine are on it.
        self.sole: str | None = None

    def settle(self, facts: Iterable[Fact]) -> None:
        """Decide at the end of the stream whether all facts are about one machine."""
        machines = {node for node in self._nodes if node}
        gpus = {held.series.gpu for known in self._nodes.values() for held in known.values()}
        for fact in facts:
            if fact.node is not None:
                machines.add(fact.node)
            if fact.gpu is not None and fact.gpu not in gpus:
                return
        if len(self._nodes) == 1 and len(machines) <= 1:
            self.sole = next(iter(self._nodes))

    def learn(self, series: Series, time: int) -> None:
        """Learn the holder of a GPU from a sample of a series."""
        owner = series.unit[1]
        if not owner or "hw.network.ib.device" in series.attributes or "gen_ai.training.rank" in series.attributes:
            return
        if series.mig:
            owner = "MIG"
        self._put(self._nodes, series.node, owner, series, time)
        pod = series.identity.get("k8s.pod.name")
        if pod is not None:
            namespace = series.identity.get("k8s.namespace.name") or "default"
            self._put(self._pods, f"{namespace!s}/{pod!s}", owner, series, time)

    def _put(self, whose: OrderedDict[str, dict[str, _Hold]], who: str, gpu: str, series: Series, time: int) -> None:
        held = whose.get(who)
        if held is None:
            held = whose[who] = {}
            if len(whose) > self._most:
                whose.popitem(last=False)
        one = held.get(gpu)
        if one is None:
            if len(held) < 1024:
                held[gpu] = _Hold(series, time, time)
        else:
            one.first, one.last = min(one.first, time), max(one.last, time)

    def remember_ordinal(self, oom: CudaOom | CudaOomUnmeasured) -> None:
        """Remember that a rank named this ordinal of its pod."""
        if oom.pod is not None and oom.rank is not None and oom.ordinal is not None:
            self._ordinals.setdefault((oom.pod, oom.ordinal), set()).add(oom.rank)
            if len(self._ordinals) > self._most:
                self._ordinals.popitem(last=False)

    def remember_gpu(self, oom: CudaOom | CudaOomUnmeasured, gpu: str) -> None:
        """Remember the GPU of a process."""
        self.processes[_process(oom)] = gpu
        if len(self.processes) > self._most:
            self.processes.popitem(last=False)

    def shared(self, oom: CudaOom | CudaOomUnmeasured) -> bool:
        """Return whether several ranks of the pod name the same ordinal. Then each counts its own devices."""
        return len(self._ordinals.get((oom.pod or "", -1 if oom.ordinal is None else oom.ordinal), ())) > 1

    def of(self, oom: CudaOom | CudaOomUnmeasured) -> tuple[list[str], str]:
        """Return the bus ids of the GPUs that the process may see, or none and the reason."""
        if given := [bus_id(one) for one in (oom.pod_gpus or "").split(",") if one.strip()]:
            return ([], "the pod's annotation has no bus ids") if None in given else ([one for one in given if one], "")
        if oom.pod is not None and oom.pod in self._pods:
            return _at(self._pods[oom.pod], oom.time)
        if oom.node is not None and oom.node in self._nodes:
            held, why = _at(self._nodes[oom.node], oom.time)
            if oom.pod is None or len(held) <= 1:
                return held, why
            return [], "the metrics do not say which of the node's GPUs the pod holds"
        if oom.pod is None and oom.node is None and self.sole is not None:
            return _at(self._nodes[self.sole], oom.time)
        return [], "no metrics name the GPUs of its pod or node"

    def by_uuid(self, uuid: str) -> str | None:
        """Return the bus id of the only GPU with this beginning of its UUID."""
        found = {
            held.series.gpu
            for gpus in self._nodes.values()
            for held in gpus.values()
            if str(held.series.attributes.get("gpu.uuid", "")).lower().startswith(uuid.lower())
        }
        return found.pop() if len(found) == 1 else None


def _at(gpus: dict[str, _Hold], time: int) -> tuple[list[str], str]:
    if "MIG" in gpus:
        return [], "GPUs are split into MIG instances"
    whole = {held.series.gpu for held in gpus.values()}
    if len(whole) == 1 and None not in whole:
        return [gpu for gpu in whole if gpu is not None], ""
    near = [held for held in gpus.values() if held.first - SLACK <= time <= held.last + SLACK]
    if near and min(held.last for held in near) < max(held.first for held in near):
        return [], "its GPUs changed at about that time"
    named = {held.series.gpu for held in near}
    if None in named:
        return [], "the metrics name GPUs without their bus ids"
    return [gpu for gpu in named if gpu is not None], "" if named else "no metrics from about that time"


def identify(oom: CudaOom | CudaOomUnmeasured, holdings: Holdings, ordinals: Ordinals) -> tuple[str | None, str]:
    """Return the bus id of the GPU that ran out of memory, or None and the reason."""
    gpus, why = holdings.of(oom)
    if len(gpus) == 1 and oom.ordinal in (None, 0):
        return gpus[0], ""
    if oom.ordinal is None:
        return None, "the line names no device"
    if ordinals == "never":
        return None, why or f"{len(gpus)} GPUs are possible, and gpu_by_ordinal is not set"
    if oom.backend not in (None, "cuda"):
        return None, "only CUDA's ordinals are understood"
    visible = _visible_devices(oom.visible_devices)
    if visible is not None:
        if oom.ordinal >= len(visible):
            return None, f"CUDA_VISIBLE_DEVICES has {len(visible)} devices, and the line names number {oom.ordinal}"
        chosen = visible[oom.ordinal]
        if not chosen.isdigit():
            found = holdings.by_uuid(chosen) if chosen.upper().startswith("GPU-") else None
            return found, "" if found else f"no metrics name the GPU {chosen}"
        place = int(chosen)
    else:
        place = oom.ordinal
        if holdings.shared(oom):
            return None, "several ranks of the pod name the same device: each counts devices of its own"
    order = (oom.device_order or ("PCI_BUS_ID" if ordinals == "pci_bus_id" else "")).upper()
    if order != "PCI_BUS_ID":
        return None, "CUDA_DEVICE_ORDER is not known to be PCI_BUS_ID"
    if not gpus:
        return None, why
    if place >= len(gpus):
        return None, f"{len(gpus)} GPUs are known, and the line names number {oom.ordinal}"
    return sorted(gpus, key=_bus_order)[place], ""


def _visible_devices(value: str | None) -> list[str] | None:
    """Return the devices of CUDA_VISIBLE_DEVICES up to the first invalid one, as CUDA does; None if it is not known."""
    if value is None:
        return None
    found: list[str] = []
    for entry in value.split(","):
        entry = entry.strip()
        if not entry.isdigit() and not entry.upper().startswith(("GPU-", "MIG-")):
            break
        found.append(entry)
    return found


def _bus_order(gpu: str) -> tuple[int, ...]:
    domain, bus, rest = gpu.split(":")
    device, _, function = rest.partition(".")
    return int(domain, 16), int(bus, 16), int(device, 16), int(function or "0", 16)


def named(facts: Iterable[Fact], holdings: Holdings, ordinals: Ordinals, refused: list[tuple[Fact, str]]) -> list[Fact]:
    """Return the facts. Facts about GPU memory that ran out get the bus id of the GPU, if it is certain.

    Args:
        refused: receives those that stay without a GPU, each with the reason.
    """
    found = list(facts)
    nameless = [fact for fact in found if isinstance(fact, CudaOom | CudaOomUnmeasured) and fact.gpu is None]
    for fact in nameless:
        holdings.remember_ordinal(fact)
    made: dict[int, Fact] = {}
    for fact in nameless:
        gpu, why = identify(fact, holdings, ordinals)
        if gpu is not None:
            made[id(fact)] = msgspec.structs.replace(fact, gpu=gpu)
            holdings.remember_gpu(fact, gpu)
        else:
            refused.append((fact, why))
    if holdings.processes:
        # The failure is judged in the window of the GPU. The steps of its process need the GPU too, because they show
        # that the process survived.
        for step in found:
            if type(step) is Progress and step.gpu is None and (gpu := holdings.processes.get(_process(step))):
                made[id(step)] = msgspec.structs.replace(step, gpu=gpu)
    return [made.get(id(fact), fact) for fact in found] if made else found


def _process(fact: Fact) -> tuple[object, ...]:
    return fact.node, fact.pod, fact.rank, fact.attempt


def reasons(refused: Sequence[tuple[Fact, str]]) -> list[str]:
    """Return one sentence for each reason why a GPU could not be named."""
    first: dict[str, Fact] = {}
    for fact, why in refused:
        first.setdefault(why, fact)
    return [
        f"no GPU is named for the CUDA device that ran out of memory in {_who(fact)}: {why}"
        for why, fact in first.items()
    ]


def _who(fact: Fact) -> str:
    return fact.pod or (f"rank {fact.rank}" if fact.rank is not None else fact.node or "a process")
