"""Metrics of a target: which type they are, whose they are, and how they look in OTLP."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
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

    @property
    def kind(self) -> str:
        """OTLP's type of the metric."""
        return _KINDS[self.type]

    @property
    def counts(self) -> bool:
        return self.type == "counter"

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
        self.target = (job, instance)
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


class Family:
    """A metric of one resource and scope, with its points of one scrape.

    Args:
        name: as its series have it.
        metadata: what its target says of it.
        place: where it belongs.
        trim: leave out `_total` and unit.
    """

    def __init__(self, name: str, metadata: Metadata, place: SeriesScope, trim: bool = False) -> None:
        self.name = _short(name, metadata) if trim else name
        self.metadata = metadata
        self.place = place
        self.points: list[dict[str, Any]] = []

    def metric(self) -> dict[str, Any]:
        """The metric in OTLP."""
        metadata = self.metadata
        data: dict[str, Any] = {"data_points": self.points}
        if metadata.kind in ("sum", "histogram"):
            data["aggregation_temporality"] = _CUMULATIVE
        if metadata.kind == "sum":
            data["is_monotonic"] = metadata.counts
        return {
            "name": self.name,
            "description": metadata.help,
            "unit": ucum(metadata.unit),
            "metadata": {"prometheus.type": metadata.type},
            metadata.kind: data,
        }


def payload(families: Iterable[Family]) -> tuple[dict[str, Any], int]:
    """OTLP metrics of a scrape, and how many points they are."""
    resources: dict[tuple[str, str], dict[SeriesScope, list[dict[str, Any]]]] = {}
    count = 0
    for family in families:
        if family.points:
            count += len(family.points)
            resources.setdefault(family.place.target, {}).setdefault(family.place, []).append(family.metric())
    made = [
        {
            "resource": {"attributes": next(iter(scopes)).attributes()},
            "scope_metrics": [place.scope_metrics(metrics) for place, metrics in scopes.items()],
        }
        for scopes in resources.values()
    ]
    return {"resource_metrics": made}, count


def ucum(unit: str) -> str:
    """The unit that a word means; the word itself where it is none."""
    what, per, each = unit.partition("_per_")
    found = _UNITS.get(what, what)
    return f"{found}/{_PER.get(each, each)}" if per and each else found


def _short(name: str, metadata: Metadata) -> str:
    if metadata.counts:
        name = name.removesuffix("_total") or name
    return name.removesuffix(f"_{metadata.unit}") if metadata.unit else name
