"""Exports of log services: one document with entries of many writers, each with its time, its text and its origin.

Supported are exports of Google Cloud, Amazon, Azure, Loki (logcli, Grafana, its API), Datadog and Elasticsearch, and
lines as Fluent Bit and Beats ship them; as JSON, lines of JSON, or CSV. An export is read like an archive: each writer
becomes one log, in order of time, in the format of a container runtime.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.record import Attributes

#: A document is read as a whole; larger documents are not read.
MAX_SIZE = 64 << 20
#: Writers in one export; entries of further writers are left out.
MAX_WRITERS = 10_000
SECOND = 1_000_000_000

Shape: TypeAlias = Literal["document", "lines", "table"]
Entry: TypeAlias = Mapping[str, Any]

_OPENS = re2.compile(rb'^\s*(?:\[\s*)?\{\s*"')
#: An export has all words of one of these rows near its beginning.
_MARKS: tuple[tuple[bytes, ...], ...] = (
    (b'"textPayload"', b'"timestamp"'),
    (b'"jsonPayload"', b'"timestamp"'),
    (b'"protoPayload"', b'"timestamp"'),
    (b'"events"', b'"ingestionTime"', b'"message"'),
    (b'"resultType"', b'"streams"', b'"values"'),
    (b'"labels"', b'"line"', b'"timestamp"'),
    (b'"fields"', b'"line"', b'"timestamp"'),
    (b'"data"', b'"attributes"', b'"message"', b'"log"'),
    (b'"_source"', b'"@timestamp"'),
    (b'"kubernetes"', b'"pod_name"', b'"log"'),
    (b'"kubernetes"', b'"pod"', b'"message"', b'"@timestamp"'),
)
_TEXT = ("textPayload", "line", "log", "LogMessage", "LogEntry", "message", "@message", "Message")
_TIME = ("timestamp", "@timestamp", "time", "date", "Date", "TimeGenerated", "TimeGenerated [UTC]")
#: The names that services use for the origin of an entry, by attribute.
_CALLED = {
    "k8s.pod.name": ("pod_name", "pod", "PodName", "kubernetes_pod_name", "k8s_pod_name", "k8s.pod.name"),
    "k8s.namespace.name": (
        "namespace_name", "namespace", "kube_namespace", "PodNamespace", "kubernetes_namespace_name",
    ),
    "k8s.container.name": (
        "container_name", "container", "ContainerName", "kube_container_name", "kubernetes_container_name",
    ),
    "host.name": ("host", "hostname", "node_name", "Host", "Computer", "compute.googleapis.com/resource_name"),
    "stream": ("logStreamName", "@logStream", "filename", "Service", "service"),
}  # fmt: skip
_ORIGIN = {called: name for name, names in _CALLED.items() for called in names}
#: The name of a log is made of these.
_PARTS = ("k8s.namespace.name", "k8s.pod.name", "k8s.container.name", "host.name", "stream")
#: Fields that loggers write beside a message.
_LOGGERS = frozenset(
    {
        "message", "rank", "level", "levelname", "severity", "logger", "name", "time", "timestamp", "ts", "asctime",
        "pid", "process", "processName", "thread", "threadName", "module", "filename", "pathname", "lineno", "funcName",
    }
)  # fmt: skip
#: `6/21/2026, 10:47:09.123 PM`, as Azure's portal writes it.
_TWELVE = re2.compile(r"^(\d{1,2})/(\d{1,2})/(\d{4}),? (\d{1,2}):(\d\d):(\d\d)(?:\.(\d{1,9}))? ([AP])M$")


class ExportedLog(NamedTuple):
    """One log of an export.

    Args:
        name: the name of the file that it stands for.
        resource: attributes of the writer, from the entries.
    """

    name: str
    data: bytes
    resource: Attributes


class Export(NamedTuple):
    """The logs of a document, by name, and the number of entries that could not be read."""

    logs: list[ExportedLog]
    left_out: int


def shape(head: bytes) -> Shape | None:
    """Return what an export is made of, by the beginning of the file; None if the file is no export."""
    if _OPENS.match(head):
        if not any(all(word in head for word in words) for words in _MARKS):
            return None
        first, _, rest = head.lstrip().partition(b"\n")
        entry = _entry(first) if first[:1] == b"{" and rest.strip() else None
        if entry is None:
            return "document"
        return "lines" if _is_exported(entry) else None
    first = head[:4096].lstrip(b"\xef\xbb\xbf").partition(b"\n")[0]
    if b"," not in first:
        return None
    columns = {column.strip().strip('"') for column in first.decode("utf-8", "replace").split(",")}
    return "table" if not columns.isdisjoint(_TIME) and not columns.isdisjoint(_TEXT) else None


def _is_exported(entry: Entry) -> bool:
    """Return whether a line was written by a service, not by a program that logs JSON with similar names."""
    if isinstance(entry.get("textPayload"), str):
        return True
    if isinstance(entry.get("jsonPayload"), dict) or isinstance(entry.get("protoPayload"), dict):
        return True
    if isinstance(entry.get("_source"), dict) or (entry.get("type") == "log" and "attributes" in entry):
        return True
    if isinstance(entry.get("line"), str):
        return isinstance(entry.get("labels"), dict) or isinstance(entry.get("fields"), dict)
    text = entry.get("log", entry.get("message"))
    return isinstance(text, str) and isinstance(entry.get("kubernetes"), dict)


def read(data: bytes, made_of: Shape) -> Export:
    """Return the logs of an export.

    Raises:
        ValueError: the export is damaged.
    """
    writers: dict[tuple[tuple[str, Any], ...], list[tuple[int | None, str]]] = {}
    events: list[Any] = []
    journal: list[bytes] = []
    left_out = 0
    for entry in _entries(data, made_of):
        payload = entry.get("jsonPayload") if entry is not None else None
        if entry is None:
            left_out += 1
        elif isinstance(payload, dict) and payload.get("kind") == "Event" and "involvedObject" in payload:
            events.append(payload)
        elif isinstance(payload, dict) and isinstance(payload.get("MESSAGE"), str):
            journal.append(_journaled(payload, _time(entry)))
        elif (text := _text(entry)) is None:
            left_out += 1
        else:
            whose = tuple(_origin(entry).items())
            if whose in writers or len(writers) < MAX_WRITERS:
                writers.setdefault(whose, []).append((_time(entry), text))
            else:
                left_out += 1
    logs = [_log(dict(whose), told) for whose, told in writers.items()]
    if events:
        whole = msgspec.json.encode({"apiVersion": "v1", "kind": "EventList", "items": events})
        logs.append(ExportedLog("events.json", whole, {}))
    if journal:
        logs.append(ExportedLog("journal.json", b"\n".join(sorted(journal)) + b"\n", {}))
    return Export(sorted(logs, key=lambda log: log.name), left_out)


def _entry(raw: bytes | msgspec.Raw) -> dict[str, Any] | None:
    try:
        entry = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _entries(data: bytes, made_of: Shape) -> Iterator[Entry | None]:
    """Return the entries of a document; None for anything that is no entry."""
    if made_of == "lines":
        for line in data.split(b"\n"):
            if line.strip():
                entry = _entry(line)
                yield None if entry is None else _unwrapped(entry)
    elif made_of == "table":
        yield from _rows(data)
    else:
        for raw in _listed(msgspec.Raw(data)):
            entry = _entry(raw)
            if entry is not None and isinstance(entry.get("values"), list):
                yield from _told(entry)
            else:
                yield None if entry is None else _unwrapped(entry)


def _rows(data: bytes) -> Iterator[Entry | None]:
    text = io.StringIO(data.decode("utf-8-sig", "replace"), newline="")
    rows = csv.DictReader(text)
    while True:
        try:
            row = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field that is too long, a quote that is not closed
            yield None
            continue
        yield {name.strip(): value for name, value in row.items() if name and isinstance(value, str)}


def _listed(raw: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the list of entries, which may be nested in the answer of a service."""
    for _ in range(3):
        try:
            if bytes(raw).lstrip()[:1] == b"[":
                return msgspec.json.decode(raw, type=list[msgspec.Raw])
            parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        except RecursionError as error:
            raise ValueError("nested too deep") from error
        inner = next(
            (parts[name] for name in ("events", "hits", "data", "result", "entries", "logs") if name in parts), None
        )
        if inner is None:
            return [raw]
        raw = inner
    return msgspec.json.decode(raw, type=list[msgspec.Raw]) if bytes(raw).lstrip()[:1] == b"[" else []


def _told(stream: Entry) -> Iterator[Entry | None]:
    """Yield the entries of a stream from Loki's API, which has the labels once, and pairs of time and line."""
    for pair in stream["values"]:
        if isinstance(pair, list) and len(pair) >= 2:
            yield {"labels": stream.get("stream"), "timestamp": pair[0], "line": pair[1]}
        else:
            yield None


def _unwrapped(entry: Entry) -> Entry:
    """Return the entry itself, which Elasticsearch and Datadog put into a field."""
    inner = entry.get("_source", entry.get("attributes") if entry.get("type") == "log" else None)
    return inner if isinstance(inner, dict) else entry


def _text(entry: Entry) -> str | None:
    payload = entry.get("jsonPayload")
    if isinstance(payload, dict):
        # The service parsed a line of JSON. If only a logger's fields are in it, the message is the line.
        said, rank = payload.get("message"), payload.get("rank")
        if not isinstance(said, str) or not payload.keys() <= _LOGGERS:
            return msgspec.json.encode(payload).decode()
        return f"[rank{rank}]: {said}" if type(rank) is int and rank >= 0 else said
    if isinstance(audited := entry.get("protoPayload"), dict):
        return msgspec.json.encode({"protoPayload": audited}).decode()  # an entry of the cloud's audit log
    return next((value for name in _TEXT if isinstance(value := entry.get(name), str)), None)


def _time(entry: Entry) -> int | None:
    for name in _TIME:
        value = entry.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, str) and value:
            return _clock(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and 1e9 <= value < 1e19:
            # The value may be in seconds, milliseconds, microseconds or nanoseconds. Its size tells which.
            scale = next(scale for scale in (1, 10**3, 10**6, 10**9) if value < 1e11 * scale)
            return (
                int(value) * (SECOND // scale)
                if isinstance(value, int)
                else int(value * 1000) * (SECOND // scale // 1000 or 1)
            )
    return None


def _clock(text: str) -> int | None:
    if (match := _TWELVE.match(text.strip())) is None:
        return stamps.parse(text)
    month, day, year, hour, minute, second, fraction, half = match.groups()
    try:
        moment = datetime(
            int(year),
            int(month),
            int(day),
            int(hour) % 12 + (12 if half == "P" else 0),
            int(minute),
            int(second),
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return int(moment.timestamp()) * SECOND + int((fraction or "0").ljust(9, "0"))


def _origin(entry: Entry) -> dict[str, str]:
    """Return the writer of an entry: pod and container, else host and stream."""
    resource = entry.get("resource")
    parts = (resource.get("labels") if isinstance(resource, dict) else None, entry.get("labels"), entry.get("fields"))
    places: list[Entry] = [entry, *(part for part in parts if isinstance(part, dict))]
    tags = entry.get("tags")
    if isinstance(tags, list):
        pairs = (tag.partition(":") for tag in tags[:200] if isinstance(tag, str))
        places.append({name: value for name, _, value in pairs})
    kubernetes = entry.get("kubernetes")
    if isinstance(kubernetes, dict):
        nested = {name: part.get("name") for name, part in kubernetes.items() if isinstance(part, dict)}
        places.append({**kubernetes, **nested, "host": kubernetes.get("host", nested.get("node"))})
    found: dict[str, str] = {}
    for place in places:
        for called, value in place.items():
            name = _ORIGIN.get(called)
            if name is not None and name not in found and isinstance(value, str) and value:
                found[name] = value[:253]
    return {name: found[name] for name in _CALLED if name in found}


def _log(whose: dict[str, str], told: list[tuple[int | None, str]]) -> ExportedLog:
    """Make the log of one writer, in order of time. The service may have listed the latest entry first."""
    times = [time for time, _ in told if time is not None]
    if len(times) > 1 and times[0] > times[-1]:
        told.reverse()
    name = "/".join(whose[part] for part in _PARTS if part in whose).replace("\\", "/").strip("/") or "log"
    whose.pop("stream", None)
    if len(times) < len(told):
        text = "\n".join(line for _, line in told)
        return ExportedLog(f"{name}.log", text.encode("utf-8", "surrogatepass") + b"\n", dict(whose))
    told.sort(key=lambda entry: entry[0] or 0)
    lines = [f"{_stamp(time or 0)} stdout F {line}" for time, text in told for line in text.rstrip("\r\n").split("\n")]
    return ExportedLog(f"{name}.log", "\n".join(lines).encode("utf-8", "surrogatepass") + b"\n", dict(whose))


def _stamp(time: int) -> str:
    seconds, nanos = divmod(time, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{nanos:09d}Z"


def _journaled(payload: Entry, time: int | None) -> bytes:
    """Return an entry of a node's journal in the format of journalctl."""
    return msgspec.json.encode({"__REALTIME_TIMESTAMP": f"{(time or 0) // 1000:016d}", **payload})
