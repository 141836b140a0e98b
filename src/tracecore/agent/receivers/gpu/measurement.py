"""Values under the names of docs/attributes.md, and how they look in OTLP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

SCOPE: Final = "tracecore/receiver/gpu"
_CUMULATIVE: Final = 2
#: OTLP's mark for a series that has no value any more.
_NO_VALUE: Final = 1


class Value(NamedTuple):
    """One measured value; what could not be measured is none.

    Args:
        name: `hw.gpu.temperature` and so on.
        value: in the unit.
        unit: UCUM.
        attributes: what tells series of one name apart.
        counts: it counts since the driver was loaded.
    """

    name: str
    value: float
    unit: str
    attributes: Mapping[str, str | int]
    counts: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        return self.name, self.unit, self.counts, tuple(sorted(self.attributes.items()))


def payload(
    values: Sequence[Value], ended: Sequence[Value], resource: Mapping[str, str], time: int
) -> tuple[dict[str, Any], int]:
    """OTLP metrics of one collection, and how many points they are.

    Args:
        ended: series of the collection before that are not in this one.
        time: nanoseconds since the epoch.
    """
    metrics: dict[tuple[str, str, bool], list[dict[str, Any]]] = {}
    said: list[tuple[Value, dict[str, Any]]] = [(value, {"as_double": float(value.value)}) for value in values]
    said += [(value, {"flags": _NO_VALUE}) for value in ended]
    for value, what in said:
        point = {"attributes": dict(value.attributes), "time_unix_nano": time, **what}
        metrics.setdefault((value.name, value.unit, value.counts), []).append(point)
    made: list[dict[str, Any]] = []
    for (name, unit, counts), points in metrics.items():
        data: dict[str, Any] = {"data_points": points}
        if counts:
            data |= {"aggregation_temporality": _CUMULATIVE, "is_monotonic": True}
        made.append({"name": name, "unit": unit, "sum" if counts else "gauge": data})
    entry = {
        "resource": {"attributes": dict(resource)},
        "scope_metrics": [{"scope": {"name": SCOPE}, "metrics": made}],
    }
    return {"resource_metrics": [entry]}, len(values) + len(ended)
