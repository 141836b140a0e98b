"""Who a record speaks of: node, pod, job, rank, GPU, attempt, and where it was read."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import re2

from tracecore.facts import coerce
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Mapping

_BUS = re2.compile(
    r"(?i)^(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$",
)
_I64 = 1 << 63
_NOTHING: dict[str, Any] = {}


@functools.lru_cache(maxsize=8192)
def _bus_id(value: str) -> str | None:
    match = _BUS.match(value.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    if int(device, 16) > 0x1F:
        return None
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


def bus_id(value: object) -> str | None:
    """A PCI bus id in its one form, `dddd:bb:dd.f` in lower case; None for an index, a UUID or nonsense.

    `00000000:3B:00.0` (nvidia-smi), `PCI:0000:3b:00` (the driver) and `3b:00.0` (lspci) are all `0000:3b:00.0`.
    """
    return _bus_id(value) if isinstance(value, str) and len(value) <= 32 and value.isascii() else None


class Stamped:
    """A stamped record as projectors see it: own attributes first, then the resource's."""

    __slots__ = ("log", "own", "resource", "signal", "time")

    def __init__(self, signal: Mapping[str, Any], log: Mapping[str, Any], own: dict[str, Any], time: int) -> None:
        self.signal = signal
        self.log = log
        self.own = own
        self.time = time
        resource = signal.get("resource")
        attributes = resource.get("attributes") if isinstance(resource, dict) else None
        self.resource: dict[str, Any] = attributes if isinstance(attributes, dict) else _NOTHING

    def get(self, name: str) -> Any:
        value = self.own.get(name)
        return self.resource.get(name) if value is None else value

    @property
    def body(self) -> str | None:
        """The line itself, where the record has one."""
        return coerce.text(self.log.get("body"), 512)

    def source(self) -> Source:
        """Where it was read; a record that came with no place is named by its content."""
        source = self.signal.get("source")
        event = self.own.get("k8s.event.uid")
        if isinstance(source, Source):
            if source.ident or not isinstance(event, str) or not event:
                return source
            return Source(source.path, source.offset, source.line, source.length, coerce.name(event) or "")
        if isinstance(event, str) and event:
            return Source("k8s:events", ident=coerce.name(event) or "")
        content = repr((self.time, self.log.get("body"), sorted(self.own.items(), key=lambda item: str(item[0]))))
        digest = hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=10).hexdigest()
        return Source("otlp", ident=f"otlp:{digest}")

    def identity(self) -> dict[str, Any]:
        """The fields every fact has, only those that are known."""
        own, resource = self.own, self.resource
        fields: dict[str, Any] = {"time": self.time, "source": self.source()}
        node = (
            own.get("k8s.node.name")
            or resource.get("k8s.node.name")
            or own.get("host.name")
            or resource.get("host.name")
        )
        if node is not None and (node := coerce.name(node)) is not None:
            fields["node"] = node
        pod = own.get("k8s.pod.name") or resource.get("k8s.pod.name")
        if pod is not None and (pod := coerce.name(pod)) is not None:
            space = coerce.name(own.get("k8s.namespace.name") or resource.get("k8s.namespace.name"))
            fields["pod"] = f"{space or 'default'}/{pod}"
        job = own.get("gen_ai.training.job_id") or resource.get("gen_ai.training.job_id")
        if job is not None and (job := coerce.name(str(job) if type(job) is int else job)) is not None:
            fields["job"] = job
        rank = own.get("gen_ai.training.rank")
        if rank is None:
            rank = resource.get("gen_ai.training.rank")
        if rank is not None and (rank := coerce.natural(rank)) is not None:
            fields["rank"] = rank
        gpu = own.get("gpu.id") or resource.get("gpu.id")
        if gpu is not None and (gpu := bus_id(gpu)) is not None:
            fields["gpu"] = gpu
        attempt = own.get("tracecore.attempt")
        if attempt is None:
            attempt = resource.get("tracecore.attempt")
        if attempt and (attempt := coerce.natural(attempt)) is not None:
            fields["attempt"] = attempt
        if own.get("tracecore.time.inferred") is True or resource.get("tracecore.time.inferred") is True:
            fields["approximate"] = True
        return fields

    def event_identity(self) -> dict[str, Any]:
        """The same for a Kubernetes event, whose involved object is more precise than who collected it."""
        fields = self.identity()
        involved = coerce.name(self.get("k8s.object.name"))
        kind = coerce.name(self.get("k8s.object.kind"))
        if involved is not None and kind == "Pod":
            space = coerce.name(self.get("k8s.namespace.name"))
            fields["pod"] = f"{space or 'default'}/{involved}"
        elif involved is not None and kind == "Node":
            fields["node"] = involved
            fields.pop("pod", None)
        count = coerce.positive(self.get("k8s.event.count"))
        if count is not None and count > 1:
            fields["count"] = count
        return fields


def stamped(signal: object) -> Stamped | None:
    """The record, when it has attributes and a time; no statement can be made without either."""
    if not isinstance(signal, dict):
        return None
    log = signal.get("log")
    if not isinstance(log, dict):
        return None
    own = log.get("attributes")
    if not isinstance(own, dict):
        return None
    time = log.get("time_unix_nano") or log.get("observed_time_unix_nano")
    if type(time) is not int or not 0 < time < _I64:
        time = coerce.positive(time)
        if time is None:
            return None
    return Stamped(signal, log, own, time)
