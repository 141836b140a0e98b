"""Recorded incidents, given another time, job and place. `examples/demo-fleet/record.py` writes them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any, Final

import msgspec
import re2
import zstandard

from tracecore.facts.coerce import moment
from tracecore.patterns.contract import rfc3339

SECOND: Final = 1_000_000_000
_TIME: Final = re2.compile(r"(\d{4}-\d\d-\d\d)([ T])(\d\d:\d\d:\d\d)((?:\.\d{1,9})?)(Z?)")
_VERDICT: Final = re2.compile(r"\b([a-z_]+)-([0-9a-f]{12})\b")


class Recording(msgspec.Struct, frozen=True):
    """One recorded incident.

    Args:
        name: of the recording.
        pattern: its root cause; empty where none was found.
        ranks: of the job.
        incident: its document.
        verdicts: documents of its verdicts, the root first.
    """

    name: str
    pattern: str
    ranks: int
    incident: dict[str, Any]
    verdicts: list[dict[str, Any]]


@cache
def recordings() -> dict[str, Recording]:
    """All recordings by name."""
    packed = (resources.files("tracecore.server.demo") / "incidents.json.zst").read_bytes()
    found = msgspec.json.decode(zstandard.decompress(packed), type=list[Recording])
    return {one.name: one for one in found}


def lasted(one: Recording) -> int:
    """Nanoseconds from the first to the last evidence."""
    first, last = moment(one.incident["first_seen"]), moment(one.incident["last_seen"])
    return max(0, (last or 0) - (first or 0))


def restamped(one: Recording, *, key: str, at: int, job: str, attempt: int, nodes: list[str]) -> dict[str, Any]:
    """A recording as the document of another incident, with its verdicts.

    Args:
        key: tells this incident apart from others; the same key gives the same id.
        at: when it begins.
        nodes: of the job, eight ranks on each; the first is the suspect's where the recording names one.
    """
    text = msgspec.json.encode({**one.incident, "verdicts": one.verdicts}).decode()
    began = (moment(one.incident["first_seen"]) or at) // SECOND * SECOND

    def moved(found: Any) -> str:
        day, between, clock, fraction, zone = found.groups()
        new = rfc3339(max(1, (moment(f"{day}T{clock}{fraction}Z") or began) - began + at))
        if zone:
            return new
        # A log line keeps its own way of writing times.
        digits = f"{new.partition('.')[2].rstrip('Z'):0<9}"
        return f"{new[:10]}{between}{new[11:19]}{'.' + digits[: len(fraction) - 1] if fraction else ''}"

    text = _TIME.sub(moved, text)
    for number in range(8):
        text = text.replace(f"demo-node-{number}", nodes[number % len(nodes)])
    if one.incident.get("job"):
        text = text.replace(one.incident["job"], job)
    text = text.replace("localhost", nodes[0])
    fresh = hashlib.blake2b(key.encode(), digest_size=6).hexdigest()
    fingerprint = one.incident.get("fingerprint", "")
    text = _VERDICT.sub(lambda found: _renamed(found, fresh, fingerprint), text)
    document: dict[str, Any] = msgspec.json.decode(text)
    document |= {"id": f"incident-{fresh}", "job": job, "attempt": attempt}
    document.pop("times_inferred", None)
    suspects = document["suspects"]
    if not suspects["nodes"] and suspects["ranks"] and document["failure"]["class"] in ("infrastructure", "resource"):
        suspects["nodes"] = sorted({nodes[rank // 8 % len(nodes)] for rank in suspects["ranks"]})
    for row in document.get("timeline", ()):
        if row.get("ranks") and len(nodes) == 1:
            row.setdefault("node", nodes[0])
    return document


def _renamed(found: Any, fresh: str, fingerprint: str) -> str:
    """A verdict's id for this incident; a fingerprint stays, because it says what incidents have in common."""
    name, digits = found.group(1), found.group(2)
    if f"{name}-{digits}" in fingerprint:
        return str(found.group())
    return f"{name}-{hashlib.blake2b(f'{digits}{fresh}'.encode(), digest_size=6).hexdigest()}"
