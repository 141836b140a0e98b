"""An update of an incident as it is handed to the store: read from a document, checked and bounded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec

from tracecore.signals.redaction import redacted
from tracecore.store.records import IncidentState
from tracecore.store.times import moment

STATES: Final = get_args(IncidentState)
#: Bytes of one document.
MAX_DOCUMENT: Final = 2 << 20
#: Of each kind of suspect, and pieces of evidence, verdicts and quoted lines of an incident.
MAX_ENTITIES: Final = 256
MAX_EVIDENCE: Final = 64
MAX_VERDICTS: Final = 32
MAX_LINES: Final = 8
#: Characters.
MAX_NAME: Final = 300
MAX_TEXT: Final = 4_000
#: Suspects of a kind that a list shows.
SHOWN: Final = 8
_I31: Final = 1 << 31


class BadIncident(ValueError):
    """The document is not an incident; the message says what is wrong with it."""


class IncidentUpdate(msgspec.Struct, kw_only=True):
    """One revision of one incident.

    Args:
        revision: the sender's; None where it has none, and then what differs from what is stored is the next one.
        at: when it was said.
        reason: why there is an update.
        document: the incident as in `docs/diagnosis.schema.json`, without state, revision and verdicts.
        verdicts: documents of its verdicts, the root first.
        lines: quoted lines by the uid of the evidence.
        origin: `live`, `publish` or `upload`.
        gpus: GPUs of the job, where the sender knows.
        acknowledged: the sender says that somebody looks after it.
        encoded, digest: of the document, the digest with its verdicts; filled in by `read_update`.
    """

    id: str
    revision: int | None
    state: IncidentState
    at: int
    reason: str
    headline: str
    pattern: str
    fingerprint: str
    failure_class: str
    decision: str
    job: str
    attempt: int
    first_seen: int
    last_seen: int
    entities: list[tuple[str, str]]
    document: dict[str, Any]
    verdicts: list[dict[str, Any]]
    lines: Mapping[str, Sequence[str]] = {}
    tenant: str = ""
    origin: str = "live"
    gpus: int = 0
    acknowledged: bool = False
    encoded: str = ""
    digest: str = ""


def read_update(
    document: Mapping[str, Any],
    *,
    now: int,
    revision: int | None = None,
    verdicts: Sequence[Mapping[str, Any]] | None = None,
    lines: Mapping[str, Sequence[str]] | None = None,
    tenant: str = "",
    origin: str = "live",
    gpus: int = 0,
) -> IncidentUpdate:
    """Read an incident's document, with or without where its life stands (`incidents.live.Update.document`).

    Args:
        now: stands for `updated_at` where the document has none.
        revision: stands for the document's.
        verdicts: stand for the document's.

    Raises:
        BadIncident: it is not an incident.
    """
    own = {str(name): value for name, value in document.items()}
    told = own.pop("revision", None) if revision is None else (own.pop("revision", None), revision)[1]
    state = own.pop("state", None)
    reason = own.pop("reason", "")
    at = moment(own.pop("updated_at", None)) or now
    inner = own.pop("verdicts", None)
    found = [*(verdicts if verdicts is not None else inner if isinstance(inner, list) else ())]
    root = own.get("root_cause")
    pattern = _text(root.get("pattern"), 80) if isinstance(root, dict) else ""
    # Senders may say that somebody acknowledged it; here that is kept beside the state.
    acknowledged = state == "acknowledged"
    if state is None or acknowledged:
        state = "diagnosed" if pattern else "open"
    if state not in STATES:
        raise BadIncident(f"state is {state!r}, not one of {', '.join(STATES)}")
    if isinstance(told, float) and told.is_integer():
        told = int(told)
    if told is not None and (type(told) is not int or not 0 < told < _I31):
        raise BadIncident("revision is not a positive integer")
    identity = own.get("id")
    if not isinstance(identity, str) or not 0 < len(identity) <= 80 or not identity.isprintable():
        raise BadIncident("id is missing, empty or over 80 characters")
    headline = own.get("headline")
    if not isinstance(headline, str) or not headline:
        raise BadIncident("headline is missing")
    failure = own.get("failure")
    failure = failure if isinstance(failure, dict) else {}
    retry = failure.get("retry")
    first = moment(own.get("first_seen")) or at
    attempt = own.get("attempt")
    update = IncidentUpdate(
        id=identity,
        revision=told,
        state=state,
        at=at,
        reason=_text(reason, MAX_TEXT),
        headline=_text(headline, MAX_TEXT),
        pattern=pattern,
        fingerprint=_text(own.get("fingerprint"), 120),
        failure_class=_text(failure.get("class"), 20) or "unknown",
        decision=_text(retry.get("decision"), 16) if isinstance(retry, dict) else "",
        job=_text(own.get("job"), MAX_NAME),
        attempt=attempt if type(attempt) is int and 0 <= attempt < _I31 else 0,
        first_seen=first,
        last_seen=max(moment(own.get("last_seen")) or first, first),
        entities=[*_entities(own.get("suspects"))],
        document=own,
        verdicts=[dict(verdict) for verdict in found[:MAX_VERDICTS] if isinstance(verdict, Mapping)],
        lines=lines or {},
        tenant=_text(tenant, 80),
        origin=origin,
        gpus=gpus,
        acknowledged=acknowledged,
    )
    encoded = encode(own)
    if len(encoded) > MAX_DOCUMENT:
        raise BadIncident(f"the document has {len(encoded):,} bytes, and {MAX_DOCUMENT:,} are allowed")
    update.encoded = encoded.decode()
    # A detector that was started again counts the revisions of its verdicts from the beginning.
    uncounted = [{k: v for k, v in verdict.items() if k != "verdict.revision"} for verdict in update.verdicts]
    said = encoded + state.encode() + encode(uncounted)
    update.digest = hashlib.blake2b(said, digest_size=16).hexdigest()
    return update


def encode(document: object) -> bytes:
    """A document as JSON, also where a string in it is not proper Unicode."""
    try:
        return msgspec.json.encode(document)
    except (UnicodeEncodeError, msgspec.EncodeError, TypeError, ValueError) as error:
        try:
            import json

            return json.dumps(document, default=str, allow_nan=False).encode("ascii")
        except (TypeError, ValueError, RecursionError):
            raise BadIncident(f"the document cannot be stored: {error}") from error


def _entities(suspects: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(suspects, dict):
        return
    for kind, key in (("node", "nodes"), ("pod", "pods"), ("gpu", "gpus"), ("rank", "ranks")):
        names = suspects.get(key)
        if isinstance(names, list):
            yield from {(kind, _text(str(name), MAX_NAME)): None for name in names[:MAX_ENTITIES] if name != ""}


def _text(value: object, most: int) -> str:
    """Text that any database takes, without secrets."""
    return clean(value, most) if isinstance(value, str) else ""


def clean(value: str, most: int = MAX_TEXT) -> str:
    """Text that any database takes."""
    if "\x00" in value:
        value = value.replace("\x00", "\ufffd")
    if not value.isascii():
        value = value.encode("utf-8", "replace").decode()
    return value[:most]


def quoted_lines(document: Mapping[str, Any], quoted: Callable[[str], Sequence[str]]) -> dict[str, Sequence[str]]:
    """Find the lines that the evidence of an incident rests on.

    Args:
        quoted: the lines of the fact with this uid; none where they are not known.
    """
    found: dict[str, Sequence[str]] = {}
    for verdict in document.get("verdicts") or ():
        for piece in (verdict.get("evidence_trail") or ())[:MAX_EVIDENCE]:
            if lines := quoted(str(piece.get("uid", ""))):
                found[piece["uid"]] = lines
    return found


def excerpts(update: IncidentUpdate) -> Iterator[tuple[str, str, str, int, str, list[str]]]:
    """Verdict, kind, uid, time, text and quoted lines of each piece of evidence, the root's first."""
    seen: set[str] = set()
    count = 0
    for verdict in update.verdicts:
        trail = verdict.get("evidence_trail")
        for piece in trail if isinstance(trail, list) else ():
            uid = piece.get("uid") if isinstance(piece, dict) else None
            if not isinstance(uid, str) or uid in seen:
                continue
            seen.add(uid)
            count += 1
            if count > MAX_EVIDENCE:
                return
            quoted = [redacted(clean(line)) for line in [*update.lines.get(uid, ())][:MAX_LINES]]
            yield (
                _text(verdict.get("verdict.id"), 120),
                _text(piece.get("kind"), 40),
                clean(uid),
                moment(piece.get("timestamp")) or update.first_seen,
                _text(piece.get("description"), MAX_TEXT),
                quoted,
            )
    said = update.document.get("last_lines")
    for lines in said if isinstance(said, list) else ():
        if isinstance(lines, dict) and isinstance(lines.get("text"), list) and count < MAX_EVIDENCE:
            count += 1
            place = f"{lines.get('file')}:{lines.get('line')}"
            text = f"the last lines of rank {lines.get('rank')}"
            quoted = [clean(str(line)) for line in lines["text"][:MAX_LINES]]
            yield "", "last_lines", clean(place), update.last_seen, text, quoted
