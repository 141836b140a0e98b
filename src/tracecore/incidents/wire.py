"""Incidents as OTLP log records, so that any OTLP transport carries them (docs/incidents.md).

A record holds one revision of one incident. Its document is an entry of `incidents` in `tracecore/diagnosis/v1` with
the life-cycle fields `state`, `revision`, `updated_at` and `reason`. The receiver keeps the highest revision of each
id, so a record that arrives twice or late changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from tracecore.facts.coerce import moment
from tracecore.signals.record import LogSignal

#: Raised when a reader of the version before could misread an incident. New optional fields do not raise it.
VERSION: Final = 1
EVENT: Final = "tracecore.incident"
SCOPE: Final = "tracecore.incidents"
#: Bytes of one document. Verdicts that do not fit are left out and counted in `verdicts_left_out`.
MAX_DOCUMENT: Final = 256 << 10
#: Characters of a document that are read; the suspects of a very large job need more than `MAX_DOCUMENT`.
MAX_READ: Final = 2 << 20

State: TypeAlias = Literal["open", "diagnosed", "acknowledged", "resolved"]
STATES: Final = get_args(State)

_ID, _REVISION, _STATE = "incident.id", "incident.revision", "incident.state"
_VERSION, _JSON = "incident.version", "incident.json"
_JOB: Final = "gen_ai.training.job_id"
#: Attributes that repeat a field of the document, for programs that route records without reading documents.
_SAME: Final = ((_ID, "id"), (_REVISION, "revision"), (_STATE, "state"))
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])

_Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
_Names: TypeAlias = Annotated[list[_Name], msgspec.Meta(max_length=100_000)]


class _Suspects(msgspec.Struct):
    ranks: Annotated[list[Annotated[int, msgspec.Meta(ge=0)]], msgspec.Meta(max_length=100_000)]
    nodes: _Names
    gpus: _Names
    pods: _Names


class _RootCause(msgspec.Struct):
    pattern: _Name
    verdict: _Name


class _Failure(msgspec.Struct):
    class_: _Name = msgspec.field(name="class")


class _Required(msgspec.Struct):
    """The fields that every reader may rely on, with their types."""

    id: Annotated[str, msgspec.Meta(pattern="^incident-[0-9a-f]{12}$")]
    status: Literal["diagnosed", "insufficient_evidence"]
    headline: Annotated[str, msgspec.Meta(min_length=1)]
    root_cause: _RootCause | None
    suspects: _Suspects
    explains: list[str]
    not_measured: list[str]
    failure: _Failure
    first_seen: str
    last_seen: str
    state: State
    revision: Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
    updated_at: str
    reason: str = ""
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] = 0
    fingerprint: str = ""
    remediation: str = ""
    verdicts: list[dict[str, Any]] = []

    def __post_init__(self) -> None:
        for time in (self.first_seen, self.last_seen, self.updated_at):
            _nanoseconds(time)


def to_record(document: Mapping[str, Any]) -> LogSignal:
    """Return one revision of an incident as a log record.

    Args:
        document: an entry of `tracecore/diagnosis/v1` with `state`, `revision` and `updated_at`
            (`incidents.live.Update.document()`).
    """
    text = _encoded(dict(document))
    over = document["state"] == "resolved"
    root = document["root_cause"]
    attributes: dict[str, Any] = {
        _ID: document["id"],
        _REVISION: document["revision"],
        _STATE: document["state"],
        _VERSION: VERSION,
        "incident.fingerprint": document.get("fingerprint", ""),
        "incident.headline": document["headline"],
        "incident.remediation": document.get("remediation", ""),
        "incident.class": document["failure"]["class"],
        "incident.patterns": _patterns(document),
        _JSON: text,
    }
    if root is not None:
        attributes["pattern.name"] = root["pattern"]
    return {
        "resource": {"attributes": _resource(document)},
        "scope": {"name": SCOPE, "version": str(VERSION)},
        "log": {
            "body": document["headline"],
            "attributes": attributes,
            "time_unix_nano": _nanoseconds(document["first_seen"]),
            "observed_time_unix_nano": _nanoseconds(document["updated_at"]),
            "severity_number": 9 if over else 17,
            "severity_text": "INFO" if over else "ERROR",
            "event_name": EVENT,
        },
    }


def _nanoseconds(time: str) -> int:
    """Parse a time of a document. A bundle whose logs have no times begins at the epoch."""
    found = 0 if time == "1970-01-01T00:00:00Z" else moment(time)
    if found is None:
        raise ValueError(f"not a time: {time[:64]!r}")
    return found


def _encoded(document: dict[str, Any]) -> str:
    """Encode the document; leave out verdicts from the last one on until it fits."""
    verdicts = list(document.get("verdicts") or ())
    text = _ENCODER.encode(document)
    left_out = document.get("verdicts_left_out", 0)
    while len(text) > MAX_DOCUMENT and verdicts:
        verdicts.pop()
        left_out += 1
        text = _ENCODER.encode({**document, "verdicts": verdicts, "verdicts_left_out": left_out})
    return text.decode()


def _patterns(document: Mapping[str, Any]) -> list[str]:
    root = document["root_cause"]
    named = [verdict["pattern.name"] for verdict in document.get("verdicts") or () if "pattern.name" in verdict]
    return list(dict.fromkeys([*([root["pattern"]] if root else []), *named]))


def _resource(document: Mapping[str, Any]) -> dict[str, Any]:
    """Name the job, and the node and pod where there is only one of each."""
    found: dict[str, Any] = {"service.name": "tracecore"}
    nodes, pods = document["suspects"]["nodes"], document["suspects"]["pods"]
    if len(nodes) == 1:
        found["k8s.node.name" if pods else "host.name"] = nodes[0]
    if len(pods) == 1:
        namespace, _, name = pods[0].rpartition("/")
        found |= {"k8s.namespace.name": namespace, "k8s.pod.name": name} if namespace else {"k8s.pod.name": name}
    if document.get("job"):
        found[_JOB] = document["job"]
    return found


def is_incident(log: Mapping[str, Any]) -> bool:
    """Tell whether a log record says that it is an incident."""
    return _ID in (log.get("attributes") or ())


def decoded(log: Mapping[str, Any], resource: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the document of a log record, or the reason why it has none.

    The job is the one that the resource names: what an authenticated sender may speak for is decided there. Fields
    that a newer sender knows are kept.
    """
    attributes = log.get("attributes") or {}
    version, text = attributes.get(_VERSION), attributes.get(_JSON)
    if type(version) is not int or not isinstance(text, str):
        return "malformed"
    if version > VERSION:
        return "newer_version"
    if len(text) > MAX_READ:
        return "too_large"
    try:
        document = _DECODER.decode(text)
        msgspec.convert(document, _Required)
    except (msgspec.DecodeError, RecursionError, UnicodeError, ValueError):
        return "malformed"
    if any(attributes.get(name) != document[field] for name, field in _SAME):
        return "malformed"
    job = resource.get(_JOB)
    if job is not None and not (isinstance(job, str) and 0 < len(job) <= 1024):
        return "malformed"
    document.pop("job", None)
    return {**document, "job": job} if job else document
