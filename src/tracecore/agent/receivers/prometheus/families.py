"""Metrics of a target: which type they are, whose they are, and how they look in OTLP."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

SCOPE: Final = "tracecore/receiver/prometheus"
_CUMULATIVE: Final = 2
_TRIMMED: Final = ("_bucket", "_count", "_sum", "_total", "_info", "_created")
#: OTLP's type for each of Prometheus'.
_KINDS: Final = {
    "counter": "sum", "gauge": "gauge", "unknown": "gauge", "histogram": "histogram", "summary": "summary",
    "info": "sum", "stateset": "sum", "gaugehistogram": "gauge",
}  # fmt: skip
_UNITS: Final = {
    "days": "d", "hours": "h", "minutes": "min", "seconds": "s", "milliseconds": "ms", "microseconds": "us",
    "nanoseconds": "ns", "bytes": "By", "kibibytes": "KiBy", "mebibytes": "MiBy", "gibibytes": "GiBy",
    "tibibytes": "TiBy", "kilobytes": "KBy", "megabytes": "MBy", "gigabytes": "GBy", "terabytes": "TBy",
    "meters": "m", "volts": "V", "amperes": "A", "joules": "J", "watts": "W", "grams": "g", "celsius": "Cel",
    "hertz": "Hz", "ratio": "1", "percent": "%",
}  # fmt: skip
_PER: Final = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w", "month": "mo", "year": "y"}
#: Which discovered labels are attributes of the resource.
_DISCOVERED: Final = {
    "__meta_kubernetes_pod_name": "k8s.pod.name",
    "__meta_kubernetes_pod_uid": "k8s.pod.uid",
    "__meta_kubernetes_pod_container_name": "k8s.container.name",
    "__meta_kubernetes_namespace": "k8s.namespace.name",
    "__meta_kubernetes_pod_node_name": "k8s.node.name",
}
_CONTROLLERS: Final = {
    "ReplicaSet": "k8s.replicaset.name", "DaemonSet": "k8s.daemonset.name", "StatefulSet": "k8s.statefulset.name",
    "Job": "k8s.job.name", "CronJob": "k8s.cronjob.name",
}  # fmt: skip


class Metadata(msgspec.Struct, frozen=True):
    """Type, unit and help of a metric, as its target states them."""

    name: str
    type: str = "unknown"
    help: str = ""
    unit: str = ""

    def told(self, what: str, text: str) -> Metadata:
        """With what one more comment says."""
        return msgspec.structs.replace(self, **{what.lower(): text.strip() if what == "UNIT" else text})


def named(name: str, known: Mapping[str, Metadata]) -> tuple[Metadata, str]:
    """Return which metric a series of this name belongs to, and that metric's name."""
    if (found := known.get(name)) is not None:
        return found, name
    for suffix in _TRIMMED:
        if name.endswith(suffix) and name != suffix:
            stem = name.removesuffix(suffix)
            found = known.get(stem)
            if found is None or found.type in ("gauge", "unknown"):
                break
            if found.type == "counter":
                return found, f"{stem}_total" if suffix == "_created" else name
            return found, stem
    return Metadata(name), name


class SeriesScope:
    """The resource and the scope of a series.

    Args:
        job: becomes `service.name`.
        instance: becomes `service.instance.id`.
        discovered: the target's labels before any rule.
        scope: what `otel_scope_*` labels say.
    """

    def __init__(self, job: str, instance: str, discovered: Mapping[str, str], scope: Mapping[str, str]) -> None:
        self.resource_key = hash((job, instance))
        self._attributes = resource(job, instance, discovered)
        self._scope = dict(scope)
        #: Labels of `target_info`.
        self.information: Mapping[str, str] = {}

    def attributes(self) -> dict[str, Any]:
        return {**self._attributes, **self.information}

    def scope_metrics(self, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        if not self._scope:
            return {"scope": {"name": SCOPE}, "metrics": metrics}
        given = dict(self._scope)
        name, version, schema = given.pop("name", ""), given.pop("version", ""), given.pop("schema_url", "")
        scope: dict[str, Any] = {"name": name, "version": version}
        if given:
            scope["attributes"] = given
        made: dict[str, Any] = {"scope": scope, "metrics": metrics}
        return {**made, "schema_url": schema} if schema else made


def resource(job: str, instance: str, discovered: Mapping[str, str]) -> dict[str, Any]:
    """Attributes of a target's resource, as the Collector gives them."""
    host, port = _split(instance)
    made = {"service.name": job}
    if discernible(host):
        made["server.address"] = host
    made |= {
        "service.instance.id": instance,
        "server.port": port,
        "url.scheme": discovered.get("__scheme__", ""),
    }
    for label, attribute in _DISCOVERED.items():
        if value := discovered.get(label):
            made[attribute] = value
    kind = _CONTROLLERS.get(discovered.get("__meta_kubernetes_pod_controller_kind", ""))
    if kind and (name := discovered.get("__meta_kubernetes_pod_controller_name")):
        made[kind] = name
    return made


def _split(instance: str) -> tuple[str, str]:
    host, colon, port = instance.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")):
        return instance, ""
    return host.removeprefix("[").removesuffix("]"), port


def discernible(host: str) -> bool:
    """Return whether a host's name tells which machine it is; `localhost` does not."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host != "localhost"
    return not address.is_loopback and not address.is_unspecified


class HistogramParts:
    """A histogram or summary: the parts that come line by line."""

    __slots__ = (
        "attributes",
        "count",
        "created",
        "exemplars",
        "kind",
        "last",
        "parts",
        "scrape",
        "shown",
        "start",
        "sum",
        "time",
    )

    def __init__(self, attributes: dict[str, str], kind: str) -> None:
        self.attributes = attributes
        self.kind = kind
        self.parts: list[tuple[float, float]] = []
        self.exemplars: list[dict[str, Any]] = []
        self.sum: float | None = None
        self.count: float | None = None
        self.created = 0
        self.start = 0
        self.last = 0.0
        self.scrape = 0
        self.time = 0
        #: The answer before had enough of it.
        self.shown = False

    def begin(self, scrape: int, time: int) -> None:
        """A new answer has it."""
        self.scrape, self.time = scrape, time
        self.parts, self.exemplars, self.sum, self.count = [], [], None, None

    def point(self) -> dict[str, Any] | None:
        """Return what the answer says; None without a count, which is the one thing it needs."""
        count = self.count
        self.shown = False
        if count is None or not 0 <= count < 2**64:
            return None
        if count < self.last or not self.start:
            self.start = self.time
        self.last = count
        self.parts.sort()
        made: dict[str, Any] = {
            "attributes": dict(self.attributes),
            "start_time_unix_nano": self.created or self.start,
            "time_unix_nano": self.time,
            "count": int(count),
        }
        if self.sum is not None:
            made["sum"] = self.sum
        if self.kind == "summary":
            made["quantile_values"] = [{"quantile": bound, "value": value} for bound, value in self.parts]
            self.shown = True
            return made
        finite = [(bound, value) for bound, value in self.parts if bound != math.inf]
        made["explicit_bounds"] = [bound for bound, _ in finite]
        heights = [*(value for _, value in finite), count]
        steps = [height - before for before, height in zip([0.0, *heights], heights, strict=False)]
        if not all(0 <= step < 2**64 for step in steps):
            return None  # buckets that fall are none
        made["bucket_counts"] = [int(step) for step in steps]
        self.shown = True
        if self.exemplars:
            made["exemplars"] = self.exemplars
        return made

    def mark(self, time: int) -> dict[str, Any]:
        """Return a point that marks the end of the series."""
        made: dict[str, Any] = {"attributes": dict(self.attributes), "time_unix_nano": time, "flags": 1}
        bounds = [bound for bound, _ in self.parts if bound != math.inf]
        if self.kind == "summary":
            made["quantile_values"] = [{"quantile": bound, "value": 0.0} for bound in bounds]
        else:
            made |= {"explicit_bounds": bounds, "bucket_counts": [0] * (len(bounds) + 1)}
        return made


class Family:
    """A metric of one resource and scope, and its points of one scrape."""

    __slots__ = ("bound", "groups", "kind", "metadata", "monotonic", "name", "place", "points", "scrape")

    def __init__(self, name: str, metadata: Metadata, place: SeriesScope, trim: bool = False) -> None:
        self.kind = _KINDS[metadata.type]
        self.monotonic = metadata.type == "counter"
        self.bound = "le" if self.kind == "histogram" else "quantile"
        self.name = _short(name, metadata, self.monotonic) if trim else name
        self.metadata = metadata
        self.place = place
        self.points: list[dict[str, Any]] = []
        self.groups: list[HistogramParts] = []
        self.scrape = 0

    @property
    def idle(self) -> bool:
        return not self.points and not self.groups

    def begin(self, scrape: int) -> None:
        self.scrape = scrape
        self.points, self.groups = [], []

    def metric(self) -> tuple[dict[str, Any], int]:
        """The metric in OTLP, and how many points it has; they are handed over."""
        points = [point for group in self.groups if (point := group.point()) is not None] + self.points
        self.points, self.groups = [], []
        data: dict[str, Any] = {"data_points": points}
        if self.kind in ("sum", "histogram"):
            data["aggregation_temporality"] = _CUMULATIVE
        if self.kind == "sum":
            data["is_monotonic"] = self.monotonic
        metadata = self.metadata
        made = {
            "name": self.name,
            "description": metadata.help,
            "unit": ucum(metadata.unit),
            "metadata": {"prometheus.type": metadata.type},
            self.kind: data,
        }
        return made, len(points)


def ucum(unit: str) -> str:
    """The unit that a word means; the word itself where it is none."""
    what, per, each = unit.partition("_per_")
    found = _UNITS.get(what, what)
    return f"{found}/{_PER.get(each, each)}" if per and each else found


def _short(name: str, metadata: Metadata, monotonic: bool) -> str:
    """Without `_total` and unit."""
    if monotonic:
        name = name.removesuffix("_total") or name
    return name.removesuffix(f"_{metadata.unit}") if metadata.unit else name
