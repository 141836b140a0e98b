"""The `filter` processor: drops what any condition holds for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal

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
        signal = next(signal for signal, name, _ in _PLACES if name == key)
        own: list[str] = getattr(getattr(self, signal), key)
        inferred = {"logs": self.log_conditions, "metrics": self.metric_conditions, "traces": self.trace_conditions}
        return [*own, *(text for text in inferred[signal] if _kind(signal, text) == key)]


_PLACES = (
    ("logs", "log_record", "log"),
    ("metrics", "metric", "metric"),
    ("metrics", "datapoint", "datapoint"),
    ("traces", "span", "span"),
    ("traces", "spanevent", "spanevent"),
)


def check(options: Options, node: Node, report: ConfigReport) -> None:
    """Every condition, compiled."""
    for signal, key, context in _PLACES:
        listed = node.get(signal, key)
        for item in listed.value or [] if listed is not None else []:
            check_text(item, report, _compiler(context))
    for signal, key in (("logs", "log_conditions"), ("metrics", "metric_conditions"), ("traces", "trace_conditions")):
        listed = node.get(key)
        for item in listed.value or [] if listed is not None else []:
            kind = _kind(signal, str(item.value))
            check_text(item, report, _compiler(next(context for _, name, context in _PLACES if name == kind)))


def _kind(signal: str, text: str) -> str:
    """Return what a condition without a place is about, by what it names."""
    inner = {"metrics": ("datapoint.", "datapoint", "metric"), "traces": ("spanevent.", "spanevent", "span")}.get(
        signal
    )
    if inner is None:
        return "log_record"
    return inner[1] if inner[0] in text else inner[2]


def _compiler(context: str) -> Callable[[str], Any]:
    return lambda text: compile_condition(text, context)


class FilterProcessor:
    """Drops records, metrics, points, spans and events."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._meter = setting.meter
        self._mode = options.error_mode
        self._conditions: dict[str, tuple[tuple[str, Condition], ...]] = {
            key: tuple((text, compile_condition(text, context)) for text in options.texts(key))
            for _, key, context in _PLACES
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
