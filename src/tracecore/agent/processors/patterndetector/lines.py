"""The choice of records that some recipe can use, and their layer of evidence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracecore.recent import Recent
from tracecore.recipes.live import warm
from tracecore.recipes.plan import LayerPlan, fresh
from tracecore.signals.logs.reader import layer_of
from tracecore.signals.record import LAYERS, LogSignal, Resource
from tracecore.signals.stream import Stream

if TYPE_CHECKING:
    from tracecore.signals.logs.selector import Selector

#: Streams whose steps are sampled; of a stream that is forgotten, sampling begins anew.
SAMPLED: Final = 1_000
#: Of so few records none is left out.
FEW: Final = 32

_Key = tuple[Any, ...]


class RecipeLines:
    """The recipes of a layer, and which lines they can do something with."""

    def __init__(self, layer: str) -> None:
        self.plan: LayerPlan = fresh(layer)
        self._stream = Stream(path="otlp", format="text", layer=layer, open=_nothing)
        self._every: Selector = self.plan.every(self._stream)
        self._selectors: Recent[_Key, Selector] = Recent(SAMPLED)
        warm(self.plan)

    def picked(self, streams: Sequence[_Key], records: Sequence[Any], *, selected: bool = False) -> set[int] | None:
        """Numbers of the records that some recipe can change; None for all. Of steps that merely follow, a sample.

        Args:
            streams: of each record, which stream it is of.
            selected: what reads files has sampled them already.
        """
        if selected or len(records) <= FEW:
            return _chosen(self._every, range(len(records)), records)
        groups: dict[_Key, list[int]] = {}
        for number, stream in enumerate(streams):
            groups.setdefault(stream, []).append(number)
        found: set[int] = set()
        for stream, numbers in groups.items():
            chosen = _chosen(self._sampler(stream), numbers, records)
            found.update(numbers if chosen is None else chosen)
        return found

    def _sampler(self, stream: _Key) -> Selector:
        select = self._selectors.get(stream) or self.plan.selector(self._stream, live=True)
        self._selectors[stream] = select
        return select


def _chosen(select: Selector, numbers: Sequence[int], records: Sequence[Any]) -> set[int] | None:
    """Return the records that a selector picks; None for all."""
    bodies = [body.encode("utf-8", "replace") if type(body := records[n].get("body")) is str else b"" for n in numbers]
    found = select(b"\n".join(bodies) + b"\n")
    if found is None:
        return None
    chosen: set[int] = set()
    at, end = 0, len(bodies[0]) if bodies else 0
    for place in found:
        while place > end and at + 1 < len(bodies):
            at += 1
            end += len(bodies[at]) + 1
        chosen.add(numbers[at])
    return chosen


def by_layer(layer: str, resource: Resource, records: Any) -> Iterator[tuple[str, Resource, Any]]:
    """Records, those of a journal apart: their text is a field, and says itself which layer it is of."""
    if not any(type(record.get("body")) is dict for record in records):
        yield layer, resource, records
        return
    groups: dict[tuple[str, str], list[Any]] = {}
    for record in records:
        body = record.get("body")
        if type(body) is not dict or type(body.get("MESSAGE")) is not str:
            groups.setdefault((layer, ""), []).append(record)
            continue
        kernel = body.get("_TRANSPORT") == "kernel"
        program = "kernel" if kernel else str(body.get("SYSLOG_IDENTIFIER") or body.get("_COMM") or "")
        place = "kernel" if kernel else layer_of(program, layer)
        groups.setdefault((place, str(body.get("_HOSTNAME") or "")), []).append({**record, "body": body["MESSAGE"]})
    for (place, host), held in groups.items():
        identity = {"host.name": host, **resource["attributes"]} if host else resource["attributes"]
        yield place, {"attributes": {**identity, "tracecore.layer": place}}, held


def layer_of_resource(resource: Mapping[str, Any]) -> str:
    """Return the layer of evidence of a resource's records."""
    attributes = resource.get("attributes") or {}
    named = attributes.get("tracecore.layer")
    if named in LAYERS:
        return str(named)
    program = attributes.get("service.name") or attributes.get("syslog.appname")
    return layer_of(program, "stdout") if isinstance(program, str) else "stdout"


def layer_of_signal(signal: LogSignal) -> str:
    return layer_of_resource(signal["resource"])


def _nothing() -> Any:
    raise OSError("a live stream has no file to open")
