"""The `filter` processor: drops what any condition holds for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Literal

import msgspec

from tracecore.agent.batch import LEVELS, Batch
from tracecore.agent.component import Setting
from tracecore.agent.document import ConfigReport, Node
from tracecore.agent.processors.matching import Match, Matcher, compiled
from tracecore.agent.processors.statements import check_text
from tracecore.ottl.compile import compile_condition
from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlError

log = logging.getLogger("tracecore.agent.filter")

Condition = Callable[[Context], bool]


class Logs(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        log_record: OTTL conditions; a record for which any holds is dropped.
        include: only records that match are kept.
        exclude: records that match are dropped.
    """

    log_record: list[str] = []
    include: Match | None = None
    exclude: Match | None = None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        metric: conditions on a metric.
        datapoint: conditions on one of its points.
        include: only metrics that match are kept.
        exclude: metrics that match are dropped.
    """

    metric: list[str] = []
    datapoint: list[str] = []
    include: Match | None = None
    exclude: Match | None = None


class Traces(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        span: conditions on a span.
        spanevent: conditions on one of its events.
    """

    span: list[str] = []
    spanevent: list[str] = []


class Spans(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        include: only spans that match are kept.
        exclude: spans that match are dropped.
    """

    include: Match | None = None
    exclude: Match | None = None


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        error_mode: what a condition that fails on a record does: `propagate` drops the batch, the others keep the
            record.
        logs: what to drop of logs.
        metrics: what to drop of metrics.
        traces: what to drop of traces.
        spans: the same, by matching.
        log_conditions: OTTL conditions; a record for which any holds is dropped. The same as `logs.log_record`.
        metric_conditions: on metrics, or, where a condition names `datapoint`, on points.
        trace_conditions: on spans, or, where a condition names `spanevent`, on events.
    """

    error_mode: Literal["ignore", "silent", "propagate"] = "propagate"
    logs: Logs = Logs()
    metrics: Metrics = Metrics()
    traces: Traces = Traces()
    spans: Spans = Spans()
    log_conditions: list[str] = []
    metric_conditions: list[str] = []
    trace_conditions: list[str] = []

    def texts(self, key: str) -> list[str]:
        """The conditions of one kind, wherever they are given."""
        signal = next(signal for signal, kinds in _KINDS.items() if key in kinds)
        own: list[str] = getattr(getattr(self, signal), key)
        return [*own, *(text for text in getattr(self, _INFERRED[signal]) if _kind(signal, text) == key)]


#: Kinds of conditions of each signal: on records, and on what is inside of them.
_KINDS: Final = {"logs": ("log_record",), "metrics": ("metric", "datapoint"), "traces": ("span", "spanevent")}
#: Conditions whose kind follows from what they name.
_INFERRED: Final = {"logs": "log_conditions", "metrics": "metric_conditions", "traces": "trace_conditions"}


def check(options: Options, node: Node, report: ConfigReport) -> None:
    """Every condition, compiled."""
    for signal, kinds in _KINDS.items():
        for kind in kinds:
            for item in _items(node.get(signal, kind)):
                check_text(item, report, partial(_compiled, kind))
        for item in _items(node.get(_INFERRED[signal])):
            check_text(item, report, partial(_compiled, _kind(signal, str(item.value))))


def _items(listed: Node | None) -> list[Node]:
    return [] if listed is None else listed.value or []


def _kind(signal: str, text: str) -> str:
    """Return what a condition without a place is about, by what it names."""
    inner = _KINDS[signal][-1]
    return inner if f"{inner}." in text else _KINDS[signal][0]


def _compiled(kind: str, text: str) -> Condition:
    return compile_condition(text, "log" if kind == "log_record" else kind)


class FilterProcessor:
    """Drops records, metrics, points, spans and events."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._meter = setting.meter
        self._mode = options.error_mode
        self._conditions: dict[str, list[tuple[str, Condition]]] = {
            kind: [(text, _compiled(kind, text)) for text in options.texts(kind)]
            for kinds in _KINDS.values()
            for kind in kinds
        }
        matches = {
            "logs": (options.logs.include, options.logs.exclude),
            "metrics": (options.metrics.include, options.metrics.exclude),
            "traces": (options.spans.include, options.spans.exclude),
        }
        self._matches: dict[str, list[tuple[bool, Matcher]]] = {
            signal: [(keeps, compiled(one)) for keeps, one in zip((True, False), both, strict=True) if one is not None]
            for signal, both in matches.items()
        }

    def process(self, batch: Batch) -> Iterable[Batch]:
        before = batch.count
        self._filter(batch)
        batch.recount()
        self._meter.drop("filtered", before - batch.count)
        if batch.count:
            return (batch,)
        batch.done()
        return ()

    def _filter(self, batch: Batch) -> None:
        payload = batch.payload
        resources, scopes, items = LEVELS[batch.signal]
        for entry in payload.get(resources) or ():
            resource = entry.setdefault("resource", {})
            for held in entry.get(scopes) or ():
                scope = held.setdefault("scope", {})
                held[items] = [
                    item for item in held.get(items) or () if self._keeps(batch.signal, resource, scope, item)
                ]
            entry[scopes] = [held for held in entry.get(scopes) or () if held[items]]
        payload[resources] = [entry for entry in payload.get(resources) or () if entry[scopes]]

    def _keeps(self, signal: str, resource: Any, scope: Any, item: dict[str, Any]) -> bool:
        for keeps, matches in self._matches[signal]:
            if matches(signal, resource, scope, item) is not keeps:
                return False
        if signal == "logs":
            return not self._holds("log_record", Context(resource, scope, item))
        if signal == "traces":
            if self._holds("span", Context(resource, scope, item)):
                return False
            if self._conditions["spanevent"] and item.get("events"):
                item["events"] = [
                    e for e in item["events"] if not self._holds("spanevent", Context(resource, scope, e, item))
                ]
            return True
        if self._holds("metric", Context(resource, scope, item)):
            return False
        if self._conditions["datapoint"]:
            for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
                data = item.get(kind)
                if isinstance(data, dict) and data.get("data_points"):
                    data["data_points"] = [
                        point
                        for point in data["data_points"]
                        if not self._holds("datapoint", Context(resource, scope, point, item))
                    ]
                    return bool(data["data_points"])
        return True

    def _holds(self, key: str, context: Context) -> bool:
        for text, condition in self._conditions[key]:
            try:
                if condition(context):
                    return True
            except OttlError as error:
                if self._mode == "propagate":
                    raise error.locate(text, 0)  # noqa: B904
                self._meter.failures += 1
                if self._mode == "ignore":
                    log.warning("a condition failed and its record is kept: %s: %s", text, error.message)
        return False
