"""`exit_codes.json`: rank → exit status as the launcher saw it, null where the process had not ended."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import re2

from tracecore.signals.record import Attributes, LogSignal, Resource, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 16 << 20
MAX_RANKS = 1_000_000
#: `3`, `rank3`, `worker-3`, `task 3`; the status of a launcher or a host is no rank's.
_RANK = re2.compile(r"(?i)^(?:(?:global[_ -]?)?rank|task|worker|proc(?:ess)?)?[_ :.-]{0,2}(\d{1,7})$")


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """One record for each rank; the time is that of the end of the bundle, inferred.

    Raises:
        ValueError: it is not such a file.
    """
    with stream.open() as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    if (launcher := _launcher(raw, stream, clock)) is not None:
        yield launcher
        return
    document = msgspec.json.decode(raw)
    if not isinstance(document, dict | list):
        raise ValueError("neither a map of ranks nor a list")
    entries = document.items() if isinstance(document, dict) else enumerate(document)
    resource: Resource = {"attributes": {**stream.resource, "tracecore.layer": stream.layer}}
    for sequence, (name, status) in enumerate(entries):
        if sequence >= MAX_RANKS:
            raise ValueError(f"more than {MAX_RANKS} ranks")
        match = _RANK.match(str(name))
        if match is None or isinstance(status, bool) or not isinstance(status, int | None):
            continue
        rank = int(match.group(1))
        attributes: Attributes = {"gen_ai.training.rank": rank, "tracecore.time.inferred": True}
        if status is None:
            attributes["tracecore.process.alive"] = True
            body = f"rank {rank} had not ended"
        else:
            attributes["tracecore.process.exit_code"] = status
            attributes["tracecore.process.alive"] = False
            body = f"rank {rank} ended with status {status}"
        yield {
            "resource": resource,
            "log": {"body": body, "attributes": attributes, "time_unix_nano": clock.latest},
            "source": Source(stream.path, _offset(raw, str(name)), 0, 0, f"{stream.path}#{name}"),
        }


def _launcher(raw: bytes, stream: Stream, clock: Clock) -> LogSignal | None:
    """How a supervised command itself ended, `{"launcher": 1}`: of which rank that is, nobody knows."""
    try:
        status = msgspec.json.decode(raw, type=_Supervised).launcher
    except msgspec.DecodeError:
        return None
    ended: Attributes = {"tracecore.process.alive": status is None, "tracecore.time.inferred": True}
    if status is not None:
        ended["tracecore.process.exit_code"] = status
    body = "the command had not ended" if status is None else f"the command ended with status {status}"
    return {
        "resource": {"attributes": {**stream.resource, "tracecore.layer": stream.layer}},
        "log": {"body": body, "attributes": ended, "time_unix_nano": clock.latest},
        "source": Source(stream.path, 0, 0, 0, f"{stream.path}#launcher"),
    }


class _Supervised(msgspec.Struct, forbid_unknown_fields=True):
    launcher: int | None


def _offset(raw: bytes, name: str) -> int:
    return max(raw.find(b'"' + name.encode() + b'"'), 0)
