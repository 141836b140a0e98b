"""Points of OTLP metrics, in the plain shape that `tracecore.ottl` transforms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from tracecore.signals.metrics.point import Point
from tracecore.signals.record import Source

#: A sum's temporality, as OTLP numbers it: each point counts since the one before, or since the start.
DELTA: Final = (1, "AGGREGATION_TEMPORALITY_DELTA")
_NO_VALUE: Final = 1
#: Values as the protocol names them, and as OTTL does.
_VALUES: Final = ("as_int", "value_double", "value_int")
_TEXT: Final = frozenset({str})
#: What the resource of a scrape says about an exporter's series: the machine.
_WHERE: Final = ("host.name", "k8s.node.name", "service.instance.id")
#: Series of a training program about itself.
_OWN: Final = ("gen_ai", "tracecore")


def points(payload: Mapping[str, Any], path: str = "otlp") -> Iterator[Point]:
    """The number points of `{"resource_metrics": [...]}`; histograms and summaries have none.

    A sum of differences has no total that could be compared with an earlier one: it is left out. A point without a time
    cannot be put in order: it is left out too.

    Args:
        path: what the points are cited as.
    """
    place = 0
    for resource in payload.get("resource_metrics") or ():
        whole = (resource.get("resource") or {}).get("attributes") or {}
        if not whole.get("host.name") and not whole.get("k8s.node.name") and (host := _nodename(resource)):
            whole = {**whole, "host.name": host}
        # The pod of a scraped resource is the exporter's, which is not who its GPUs work for.
        where = whole if "service.instance.id" not in whole else {n: whole[n] for n in _WHERE if whole.get(n)}
        # Two targets may be asked in the same millisecond.
        owner = next((str(whole[n]) for n in ("service.instance.id", "k8s.node.name", "host.name") if whole.get(n)), "")
        origin = f"{path}:{owner}" if owner else path
        for scope in resource.get("scope_metrics") or ():
            for metric in scope.get("metrics") or ():
                kind = next((name for name in ("gauge", "sum") if name in metric), None)
                if kind is None:
                    continue
                data = metric[kind] or {}
                if data.get("aggregation_temporality") in DELTA:
                    continue
                name = str(metric.get("name", ""))
                shared = whole if name.startswith(_OWN) else where
                declared = "counter" if kind == "sum" and data.get("is_monotonic") else "gauge"
                for point in data.get("data_points") or ():
                    place += 1
                    get = point.get
                    value = get("as_double")
                    if value is None:
                        value = next((point[other] for other in _VALUES if get(other) is not None), None)
                    time = get("time_unix_nano")
                    if value is None or not time or int(get("flags") or 0) & _NO_VALUE:
                        continue
                    labels = {**shared, **(get("attributes") or {})}
                    if not _TEXT.issuperset(map(type, labels.values())):
                        labels = {str(label): str(given) for label, given in labels.items() if given is not None}
                    yield Point(
                        name=name,
                        labels=labels,
                        value=float(value),
                        time=int(time),
                        source=Source(origin, place, ident=f"{origin}@{time}#{place}"),
                        declared=declared,
                    )


def _nodename(resource: Mapping[str, Any]) -> str:
    """The machine that node_exporter says it is on: one series has its name, which holds for all of its target."""
    for scope in resource.get("scope_metrics") or ():
        for metric in scope.get("metrics") or ():
            if metric.get("name") == "node_uname_info":
                for point in (metric.get("gauge") or {}).get("data_points") or ():
                    name = (point.get("attributes") or {}).get("nodename")
                    if isinstance(name, str) and name and not int(point.get("flags") or 0) & _NO_VALUE:
                        return name
    return ""
