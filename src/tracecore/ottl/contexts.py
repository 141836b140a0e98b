"""The contexts: which paths and symbols a statement may use, and where in a record they lead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tracecore.ottl import fields
from tracecore.ottl.datapoints import DATAPOINT_FIELDS, METRIC_FIELDS
from tracecore.ottl.errors import OttlCompileError, nearest
from tracecore.ottl.fields import Field, Owner
from tracecore.ottl.keys import Keys
from tracecore.ottl.signature import GetSetter
from tracecore.ottl.tracestate import trace_state
from tracecore.ottl.values import SpanID, TraceID

_SPAN_KINDS: Final = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")

_ATTRIBUTES: Final[dict[str, Field]] = {
    "attributes": fields.mapping("attributes"),
    "dropped_attributes_count": fields.scalar("dropped_attributes_count", int, bits=32),
}

#: For each part of a record, its fields by their dotted name.
FIELDS: Final[dict[str, Mapping[str, Field]]] = {
    "resource": {**_ATTRIBUTES, "schema_url": fields.scalar("schema_url", str)},
    "scope": {
        **_ATTRIBUTES,
        "name": fields.scalar("name", str),
        "version": fields.scalar("version", str),
        "schema_url": fields.scalar("schema_url", str),
    },
    "log": {
        **_ATTRIBUTES,
        "time_unix_nano": fields.unix_nano("time_unix_nano"),
        "observed_time_unix_nano": fields.unix_nano("observed_time_unix_nano"),
        "time": fields.time("time_unix_nano"),
        "observed_time": fields.time("observed_time_unix_nano"),
        "severity_number": fields.scalar("severity_number", int, bits=-32),
        "severity_text": fields.scalar("severity_text", str),
        "body": fields.body,
        "body.string": fields.body_text,
        "flags": fields.scalar("flags", int, bits=32),
        "trace_id": fields.identifier("trace_id", TraceID),
        "trace_id.string": fields.identifier_text("trace_id", TraceID),
        "span_id": fields.identifier("span_id", SpanID),
        "span_id.string": fields.identifier_text("span_id", SpanID),
        "event_name": fields.scalar("event_name", str),
    },
    "span": {
        **_ATTRIBUTES,
        "trace_id": fields.identifier("trace_id", TraceID),
        "trace_id.string": fields.identifier_text("trace_id", TraceID),
        "span_id": fields.identifier("span_id", SpanID),
        "span_id.string": fields.identifier_text("span_id", SpanID),
        "parent_span_id": fields.identifier("parent_span_id", SpanID),
        "parent_span_id.string": fields.identifier_text("parent_span_id", SpanID),
        "trace_state": trace_state,
        "name": fields.scalar("name", str),
        "kind": fields.scalar("kind", int, bits=-32),
        "kind.string": fields.names("kind", _SPAN_KINDS, "span kind string"),
        "kind.deprecated_string": fields.names(
            "kind", tuple(f"SPAN_KIND_{kind.upper()}" for kind in _SPAN_KINDS), "span kind deprecated string"
        ),
        "start_time_unix_nano": fields.unix_nano("start_time_unix_nano"),
        "end_time_unix_nano": fields.unix_nano("end_time_unix_nano"),
        "start_time": fields.time("start_time_unix_nano"),
        "end_time": fields.time("end_time_unix_nano"),
        "events": fields.records("events"),
        "dropped_events_count": fields.scalar("dropped_events_count", int, bits=32),
        "links": fields.records("links"),
        "dropped_links_count": fields.scalar("dropped_links_count", int, bits=32),
        "status": fields.whole("status"),
        "status.code": fields.inside("status", fields.scalar("code", int, bits=-32)),
        "status.message": fields.inside("status", fields.scalar("message", str)),
        "flags": fields.bounded("flags", (1 << 32) - 1),
    },
    "spanevent": {
        **_ATTRIBUTES,
        "time_unix_nano": fields.unix_nano("time_unix_nano"),
        "time": fields.time("time_unix_nano"),
        "name": fields.scalar("name", str),
        "event_index": fields.read_only("event_index"),
    },
    "metric": METRIC_FIELDS,
    "datapoint": {"attributes": _ATTRIBUTES["attributes"], **DATAPOINT_FIELDS},
}

#: Fields that may be indexed.
INDEXABLE: Final = frozenset(("attributes", "body", "metadata", "trace_state", "cache"))

_LEVELS: Final = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
_SEVERITIES: Final = {
    "SEVERITY_NUMBER_UNSPECIFIED": 0,
    **{
        f"SEVERITY_NUMBER_{level}{step if step > 1 else ''}": 4 * rank + step
        for rank, level in enumerate(_LEVELS)
        for step in (1, 2, 3, 4)
    },
}
_SPAN_SYMBOLS: Final = {
    **{f"SPAN_KIND_{kind.upper()}": number for number, kind in enumerate(_SPAN_KINDS)},
    "STATUS_CODE_UNSET": 0,
    "STATUS_CODE_OK": 1,
    "STATUS_CODE_ERROR": 2,
}
_METRIC_SYMBOLS: Final = {
    "AGGREGATION_TEMPORALITY_UNSPECIFIED": 0,
    "AGGREGATION_TEMPORALITY_DELTA": 1,
    "AGGREGATION_TEMPORALITY_CUMULATIVE": 2,
    "METRIC_DATA_TYPE_NONE": 0,
    "METRIC_DATA_TYPE_GAUGE": 1,
    "METRIC_DATA_TYPE_SUM": 2,
    "METRIC_DATA_TYPE_HISTOGRAM": 3,
    "METRIC_DATA_TYPE_EXPONENTIAL_HISTOGRAM": 4,
    "METRIC_DATA_TYPE_SUMMARY": 5,
}
_DATAPOINT_SYMBOLS: Final = {**_METRIC_SYMBOLS, "FLAG_NONE": 0, "FLAG_NO_RECORDED_VALUE": 1}

_item: Final[Owner] = attrgetter("item")
_parent: Final[Owner] = attrgetter("parent")
_resource: Final[Owner] = attrgetter("resource")
_scope: Final[Owner] = attrgetter("scope")
_ABOVE: Final = {"resource": _resource, "scope": _scope, "instrumentation_scope": _scope}


@dataclass(frozen=True)
class ContextType:
    """Everything that a statement of one context can see.

    Args:
        name: `log`, `span`, ...
        owners: for each name a path may start with, what selects that part of a record.
        symbols: the enum symbols.
    """

    name: str
    owners: Mapping[str, Owner]
    symbols: Mapping[str, int]

    def accessor(self, prefix: str, names: tuple[str, ...], keys: Keys, text: str) -> GetSetter:
        """The accessor of a path.

        Args:
            prefix: the part of the record, one of `owners`.
            names: the names behind it.
            keys: the keys behind the last name.
            text: the path as written, for messages.

        Raises:
            OttlCompileError: there is no such path here.
        """
        part = "scope" if prefix == "instrumentation_scope" else prefix
        table = FIELDS[part]
        if names[0] == "cache" and len(names) == 1:
            if prefix != self.name:
                raise OttlCompileError(
                    f'access to cache must be performed using the same context, please replace "{text}" with '
                    f'"{self.name}.{text.partition(".")[2]}"'
                )
            return fields.cache(self.owners[prefix], keys)
        dotted = ".".join(names)
        if (field := table.get(dotted)) is None:
            raise self._unknown(names, part, text)
        if keys and dotted not in INDEXABLE:
            raise OttlCompileError(
                f'the keys indexing "{names[-1]}" were not used by the context - this likely means you are trying to '
                "index a path that does not support indexing"
            )
        return field(self.owners[prefix], keys)

    def _unknown(self, names: tuple[str, ...], part: str, text: str) -> OttlCompileError:
        table = FIELDS[part]
        wrong = names[0]
        known = [*table, "cache"]
        if names[0] in table and len(names) > 1:
            if not any(name.startswith(f"{names[0]}.") for name in table):
                return OttlCompileError(
                    f'the path section "{names[1]}" was not used by the context - this likely means you are using '
                    "extra path sections"
                )
            wrong = names[1]
            known = [name.partition(".")[2] for name in table if name.startswith(f"{names[0]}.")]
        return OttlCompileError(
            f'segment "{wrong}" from path "{text}" is not a valid path nor a valid OTTL keyword for the '
            f"{self.name} context",
            hint=nearest(wrong, [name.partition(".")[0] for name in known]),
        )


def _context(name: str, symbols: Mapping[str, int], owners: Mapping[str, Owner]) -> ContextType:
    return ContextType(name, {**owners, **_ABOVE}, symbols)


CONTEXTS: Final[dict[str, ContextType]] = {
    "resource": ContextType("resource", {"resource": _resource}, {}),
    "scope": _context("scope", {}, {}),
    "log": _context("log", _SEVERITIES, {"log": _item}),
    "span": _context("span", _SPAN_SYMBOLS, {"span": _item}),
    "spanevent": _context("spanevent", _SPAN_SYMBOLS, {"spanevent": _item, "span": _parent}),
    "metric": _context("metric", _METRIC_SYMBOLS, {"metric": _item}),
    "datapoint": _context("datapoint", _DATAPOINT_SYMBOLS, {"datapoint": _item, "metric": _parent}),
}


def context_type(name: str) -> ContextType:
    """The context of a name.

    Raises:
        OttlCompileError: there is none.
    """
    found = CONTEXTS.get("scope" if name == "instrumentation_scope" else name)
    if found is None:
        raise OttlCompileError(f'unknown context "{name}"', hint=nearest(name, CONTEXTS))
    return found
