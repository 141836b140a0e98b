"""One value of one series at one time."""

from __future__ import annotations

import msgspec

from tracecore.signals.record import Attributes, Source


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """A metric point.

    Args:
        name: as the source calls it (`DCGM_FI_DEV_GPU_TEMP`), or `hw.*` where the source has no names of its own.
        labels: what tells series of one name apart, the resource's identity (host) included.
        value: a number; a value that was not measured gives no point.
        time: nanoseconds since the epoch.
        source: where it was read.
        inferred: the time was not written down with the value.
        declared: what the source says the series is: `counter`, `gauge`, or empty where it does not say.
    """

    name: str
    labels: dict[str, str]
    value: float
    time: int
    source: Source
    inferred: bool = False
    declared: str = ""


#: The entity of a point; the events made from it have the same.
_IDENTITY = (
    "host.name", "k8s.node.name", "k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "gpu.id", "gpu.uuid",
    "gpu.vendor", "hw.gpu.index", "gen_ai.training.rank", "gen_ai.training.job_id", "tracecore.attempt",
)  # fmt: skip
#: What tells two series of one name and one owner apart. Pods are not among them: a GPU's counter goes on when the
#: pod that holds the GPU changes.
_DISTINCT = (
    "hw.gpu.mig.id", "hw.gpu.nvlink.link", "network.io.direction", "error.type", "error.subtype", "error.persistence",
    "error.location", "hw.gpu.memory.kind", "detail", "hw.gpu.throttle.reason", "clock_event", "hw.gpu.clock.kind",
    "hw.gpu.sdc.kind", "hw.network.ib.device", "hw.network.ib.port.num", "gen_ai.training.rank",
    "gen_ai.training.job_id",
)  # fmt: skip


class Series(msgspec.Struct, eq=False):
    """A series under its `hw.*` name, with what the recipes stamped on it.

    Args:
        name: `hw.gpu.temperature` and so on.
        origin: what the source calls it.
        attributes: by the names of docs/attributes.md.
        declared: as of `Point`.
        node: the node it is on.
        unit: its GPU under the name that is sure to stay (UUID, else bus id, else index on the node), or its port,
            with the node; empty strings where not known.
        key: names this series among all, across changes of pods and restarts of exporters.
        identity: resource attributes of events made of it.
        told: its names are known to whoever keeps names.
    """

    name: str
    origin: str
    attributes: Attributes
    declared: str
    node: str
    unit: tuple[str, str]
    key: tuple[str, ...]
    identity: Attributes
    told: bool = False

    @classmethod
    def of(cls, name: str, origin: str, attributes: Attributes, declared: str = "") -> Series:
        index = attributes.get("hw.gpu.index")
        if isinstance(index, str) and index.isascii() and index.isdigit() and len(index) < 6:
            attributes = {**attributes, "hw.gpu.index": int(index)}
        get = attributes.get
        node = str(get("k8s.node.name") or get("host.name") or "")
        device = get("hw.network.ib.device")
        if device is not None:
            owner = f"{device!s}/{get('hw.network.ib.port.num', 1)!s}"
        else:
            owner = str(
                get("gpu.uuid") or get("gpu.id") or ("" if get("hw.gpu.index") is None else get("hw.gpu.index"))
            )
        return cls(
            name=name,
            origin=origin,
            attributes=attributes,
            declared=declared,
            node=node,
            unit=(node, owner),
            key=(origin, node, owner, *(str(get(other, "")) for other in _DISTINCT)),
            identity={"tracecore.layer": "metrics", **{n: get(n) for n in _IDENTITY if get(n) not in (None, "")}},
        )

    @property
    def gpu(self) -> str | None:
        """The GPU's bus id, where it is known."""
        gpu = self.identity.get("gpu.id")
        return gpu if isinstance(gpu, str) else None

    @property
    def mig(self) -> bool:
        """Return whether it is about an instance, and not the whole GPU."""
        return "hw.gpu.mig.id" in self.attributes


class Sample(msgspec.Struct, frozen=True, eq=False):
    """A value of a series, under the names and in the units of docs/attributes.md."""

    series: Series
    value: float
    time: int
    source: Source
    inferred: bool = False
