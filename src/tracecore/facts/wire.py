"""Convert facts to OTLP log records and back, so that any OTLP transport can carry them (docs/facts.md).

A record has plain attributes for routing and search, and all fields of the fact in one JSON attribute. Node, pod and
job are only in the resource, which the sending agent sets, so text in a log cannot claim another job.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import msgspec

from tracecore.facts.catalog import BY_NAME, snake
from tracecore.facts.fact import Fact
from tracecore.facts.host import Heartbeat
from tracecore.facts.quotes import MAX_LINE, MAX_LINES
from tracecore.facts.tenants import owned
from tracecore.facts.training import Progress
from tracecore.signals.record import Source
from tracecore.signals.redaction import redacted

#: Increase it when an older reader could misread a fact. New kinds and new optional fields need no increase.
VERSION: Final = 1
EVENT: Final = "tracecore.fact"
SCOPE: Final = "tracecore.facts"
#: Maximum number of characters of the JSON of one fact.
MAX_FACT: Final = 64 << 10

_KIND, _UID = "tracecore.fact.kind", "tracecore.fact.uid"
_JSON, _LINES = "tracecore.fact.json", "tracecore.fact.lines"
_JOB, _RANK, _GPU = "gen_ai.training.job_id", "gen_ai.training.rank", "gpu.id"
_PATH: Final = "log.file.path"
#: Fields of a fact that are in the record or its resource, not in the JSON.
_IN_RECORD: Final = frozenset({"fact", "time", "node", "pod", "job", "rank", "gpu", "source"})
#: Fields of a progress report that no pattern reads.
_UNSENT: Final = frozenset({"learning_rate", "total_steps"})
#: The path of a source that is not a file.
_NO_FILE: Final = "otlp"
#: Kinds that are sent all the time. They are sent without their sentence, uid and lines.
FREQUENT: Final = frozenset({Progress, Heartbeat})
_I31, _I53, _I63 = 1 << 31, 1 << 53, 1 << 63
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(dict[str, Any])


class ReceivedFacts(msgspec.Struct):
    """The facts of a payload, and the records that could not be used.

    Args:
        facts: in the order of the records.
        lines: the quoted lines of each fact, by its uid.
        skipped: number of records that were not used, by reason.
        others: the payload has records that are not facts.
    """

    facts: list[Fact]
    lines: dict[str, tuple[str, ...]]
    skipped: Counter[str]
    others: bool = False


def uid(fact: Fact) -> str:
    """Return an id of a fact that is the same whenever and wherever it is sent: from node, type, source and time."""
    name = "\x00".join((fact.node or "", type(fact).__name__, fact.uid, str(fact.time)))
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def payload(
    facts: Iterable[Fact],
    now: int,
    lines: Callable[[Fact], Sequence[str]] = lambda fact: (),
    redact: Callable[[str], str] | None = redacted,
) -> dict[str, Any]:
    """Return an OTLP logs payload with one record for each fact.

    Args:
        now: the time of sending.
        lines: returns the quoted lines of a fact. The first few are sent, cut to a maximum length.
        redact: applied to all text before it is sent.
    """
    by_resource: dict[tuple[tuple[str, Any], ...], list[dict[str, Any]]] = {}
    for fact in facts:
        by_resource.setdefault(tuple(_resource(fact).items()), []).append(_record(fact, now, lines(fact), redact))
    return {
        "resource_logs": [
            {
                "resource": {"attributes": dict(resource)},
                "scope_logs": [{"scope": {"name": SCOPE, "version": str(VERSION)}, "log_records": records}],
            }
            for resource, records in by_resource.items()
        ]
    }


def _resource(fact: Fact) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if fact.node is not None:
        found["k8s.node.name" if fact.pod is not None else "host.name"] = fact.node
    if fact.pod is not None:
        namespace, _, name = fact.pod.rpartition("/")
        found |= {"k8s.namespace.name": namespace or "default", "k8s.pod.name": name}
    if fact.job is not None:
        found[_JOB] = fact.job
    if fact.source.path != _NO_FILE:
        found[_PATH] = fact.source.path
    return found


def _record(fact: Fact, now: int, lines: Sequence[str], redact: Callable[[str], str] | None) -> dict[str, Any]:
    # Most sent facts are progress reports, which nobody reads one by one, so they have only the necessary fields.
    frequent = type(fact) in FREQUENT
    unsent = _IN_RECORD | _UNSENT if frequent else _IN_RECORD
    own = {name: value for name, value in msgspec.to_builtins(fact).items() if name not in unsent}
    said = "" if frequent else fact.describe()
    if redact is not None:
        own, said, lines = _redacted(own, redact), redact(said), [*map(redact, lines)]
    if place := _place(fact, frequent=frequent):
        own["source"] = place
    attributes: dict[str, Any] = {_KIND: snake(type(fact).__name__), _JSON: _ENCODER.encode(own).decode()}
    if fact.rank is not None:
        attributes[_RANK] = fact.rank
    if fact.gpu is not None:
        attributes[_GPU] = fact.gpu
    if lines:
        attributes[_LINES] = [line[:MAX_LINE] for line in lines[:MAX_LINES]]
    record: dict[str, Any] = {"attributes": attributes, "time_unix_nano": fact.time}
    if not frequent:
        attributes[_UID] = uid(fact)
        record |= {"observed_time_unix_nano": now, "event_name": EVENT}
    if said:
        record["body"] = said[:MAX_LINE]
    return record


def _place(fact: Fact, *, frequent: bool) -> dict[str, Any]:
    """Return the source of a fact without its file, which is in the resource.

    The name of a live record is made from its time and a number. Only the number is sent.
    """
    source = fact.source
    found: dict[str, Any] = {}
    for name in ("offset", "line") if frequent else ("offset", "line", "length"):
        if value := getattr(source, name):
            found[name] = value
    prefix = _numbered(fact.time, "")
    if source.ident.startswith(prefix) and (number := source.ident[len(prefix) :]).isdecimal() and len(number) == 9:
        found["record"] = int(number)
    elif source.ident:
        found["ident"] = source.ident
    return found


def _numbered(time: int, number: int | str) -> str:
    """Return the name of a live record, as `Records._source` makes it."""
    return f"record:{time:019d}-{number:09d}" if isinstance(number, int) else f"record:{time:019d}-{number}"


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    """Return plain values with every string redacted, except field names."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {name: _redacted(held, redact) for name, held in value.items()}
    return [_redacted(held, redact) for held in value] if isinstance(value, list | tuple) else value


def is_fact(record: Mapping[str, Any]) -> bool:
    """Return whether a log record is a fact."""
    return _KIND in (record.get("attributes") or ())


def read(logs: Mapping[str, Any]) -> ReceivedFacts:
    """Return the facts of an OTLP logs payload.

    Records that cannot be used are counted by reason and never fatal: `newer_version`, `unknown_kind`, `too_large`,
    `malformed`.
    """
    found = ReceivedFacts([], {}, Counter())
    for entry in logs.get("resource_logs") or ():
        whose = (entry.get("resource") or {}).get("attributes") or {}
        for held in entry.get("scope_logs") or ():
            version = _version(held.get("scope") or {})
            for record in held.get("log_records") or ():
                if not is_fact(record):
                    found.others = True
                    continue
                fact = _fact(record, whose, version)
                if isinstance(fact, str):
                    found.skipped[fact] += 1
                    continue
                found.facts.append(fact)
                if quoted := _quoted(record["attributes"].get(_LINES)):
                    found.lines[fact.uid] = quoted
    return found


def _version(scope: Mapping[str, Any]) -> int | None:
    """Return the version that a scope names; None if it names none."""
    text = scope.get("version")
    return int(text) if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) < 8 else None


def _fact(record: Mapping[str, Any], whose: Mapping[str, Any], version: int | None) -> Fact | str:
    """Return the fact, or the reason why there is none."""
    attributes = record["attributes"]
    kind, data = attributes.get(_KIND), attributes.get(_JSON)
    if version is None or not isinstance(kind, str) or not isinstance(data, str):
        return "malformed"
    if version > VERSION:
        return "newer_version"
    if kind not in BY_NAME:
        return "unknown_kind"
    if len(data) > MAX_FACT:
        return "too_large"
    try:
        fields = _DECODER.decode(data)
        identity = _identity(attributes, whose)
        identity["source"] = _source(fields.get("source"), whose, record.get("time_unix_nano"))
        # Unknown fields of a newer sender are ignored.
        fact = msgspec.convert({**fields, **identity, "time": record.get("time_unix_nano")}, BY_NAME[kind])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return "malformed"
    return owned(_placed(fact)) if _is_sane(fact) else "malformed"


def _is_sane(fact: Fact) -> bool:
    """Return whether the numbers of a fact are within the bounds that an agent keeps."""
    if not 0 < fact.time < _I63 or not (fact.last_time is None or fact.time <= fact.last_time < _I63):
        return False
    if not (fact.rank is None or 0 <= fact.rank < _I31) or not 0 <= fact.attempt < _I31 or not 0 < fact.count < _I53:
        return False
    return all(_fits(value) for value in (*msgspec.structs.astuple(fact), *msgspec.structs.astuple(fact.source)))


def _fits(value: object) -> bool:
    """Return whether every number in a value is finite and fits into 64 bits."""
    if isinstance(value, int):
        return -_I63 <= value < _I63
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, dict):
        return all(_fits(held) for held in (*value, *value.values()))
    return all(map(_fits, value)) if isinstance(value, list | tuple | set | frozenset) else True


def _identity(attributes: Mapping[str, Any], whose: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a fact. Node, pod and job come from the resource of the sender, never from a text."""
    pod = _name(whose.get("k8s.pod.name"))
    return {
        "fact": BY_NAME[attributes[_KIND]].__name__,
        "node": _name(whose.get("k8s.node.name")) or _name(whose.get("host.name")),
        "pod": f"{_name(whose.get('k8s.namespace.name')) or 'default'}/{pod}" if pod is not None else None,
        "job": _name(whose.get(_JOB)),
        "rank": attributes.get(_RANK),
        "gpu": attributes.get(_GPU),
    }


def _source(place: object, whose: Mapping[str, Any], time: object) -> dict[str, Any]:
    """Return the fields of the source of a fact."""
    found: dict[str, Any] = dict(place) if isinstance(place, dict) else {}
    found["path"] = _name(whose.get(_PATH)) or _NO_FILE
    number = found.pop("record", None)
    if type(number) is int and type(time) is int and 0 <= number < 10**9:
        found["ident"] = _numbered(time, number)
    return found


def _placed(fact: Fact) -> Fact:
    """Return the fact with a source that includes the node where it was read."""
    source, node = fact.source, fact.node
    # Facts from the Kubernetes API have the same uid in all agents. All other sources are unique only in one agent.
    if node is None or fact.layer == "kubernetes" or source.path.startswith(f"{node}:"):
        return fact
    ident = f"{node}:{source.ident}" if source.ident else ""
    source = Source(f"{node}:{source.path}", source.offset, source.line, source.length, ident)
    return msgspec.structs.replace(fact, source=source)


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 1024 else None


def _quoted(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(line[:MAX_LINE] for line in value[:MAX_LINES] if isinstance(line, str))
