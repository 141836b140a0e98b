"""`exit_codes.json`: rank → exit status as the launcher saw it, null where the process had not ended.

Read in the shapes people write: `{"0": 1}`, `{"0": "-9"}`, `{"0": "SIGKILL"}`, `{"0": {"exit_code": 1}}`,
`[{"rank": 0, "exit_code": 1}]`, `[1, 0]`, and any of these under a key. What is not used is said, entry by entry.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import msgspec
import re2

from tracecore.signals.record import Attributes, LogSignal, Resource, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 16 << 20
MAX_RANKS = 1_000_000
#: Maps and lists around the ranks.
MAX_DEPTH = 4
#: Entries that were not used and are named.
NAMED = 5
#: `3`, `rank3`, `worker-3`, `task 3`; the status of a launcher or a host is no rank's.
_RANK = re2.compile(r"(?i)^(?:(?:(?:global[_ -]?)?rank|task|worker|proc(?:ess)?)[_ :.-]{0,2})?(\d{1,7})$")
_NEGATIVE = re2.compile(r"^\s*-\s*\d+\s*$")
#: `1`, `-9`; Slurm's `0:9`, status and signal.
_NUMBER = re2.compile(r"^\s*(-?\d{1,10})(?::(\d{1,3}))?\s*$")
#: `SIGKILL`, `kill`, `signal 9`.
_SIGNAL = re2.compile(r"(?i)^\s*(?:signal[ :=#-]*(\d{1,2})|(?:SIG)?([A-Z]{2,8}\d?))\s*$")
#: No operating system has larger ones; Windows counts up to this.
_LARGEST = 1 << 32
_RANKS = ("rank", "global_rank", "task", "worker")
_STATUSES = ("exit_code", "exit_status", "exitcode", "returncode", "return_code", "status", "code")
_SIGNALS = ("signal", "term_signal", "termsig")


class Pairs(list[tuple[str, Any]]):
    """A map with its repeated keys."""


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """One record for each rank; the time is that of the end of the bundle, inferred.

    Raises:
        ValueError: it is not such a file, or entries were not used: after all that were.
    """
    with stream.open() as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise ValueError(f"larger than {MAX_BYTES} bytes")
    if (launcher := _launcher(raw, stream, clock)) is not None:
        yield launcher
        return
    resource: Resource = {"attributes": {**stream.resource, "tracecore.layer": stream.layer}}
    known: dict[int, int | None] = {}
    unused: list[str] = []
    offset = 0
    for name, rank, status in _entries(_decode(raw), unused):
        if rank in known:
            if known[rank] != status:
                unused.append(f"{name}: rank {rank} was given before, with another status")
            continue
        if len(known) >= MAX_RANKS:
            raise ValueError(f"more than {MAX_RANKS} ranks")
        known[rank] = status
        # Names come in the order of the file: each is looked for behind the one before it.
        offset = max(raw.find(b'"' + name.encode() + b'"', offset), offset)
        yield {
            "resource": resource,
            "log": {
                "body": _body(rank, status),
                "attributes": _attributes(rank, status),
                "time_unix_nano": clock.latest,
            },
            "source": Source(stream.path, offset, 0, 0, f"{stream.path}#{name}"),
        }
    if unused:
        more = f"; and {len(unused) - NAMED:,} more" if len(unused) > NAMED else ""
        raise ValueError(f"not used: {'; '.join(unused[:NAMED])}{more}")


def _launcher(raw: bytes, stream: Stream, clock: Clock) -> LogSignal | None:
    """Return how a supervised command itself ended, `{"launcher": 1}`: of which rank that is, nobody knows."""
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


def _decode(raw: bytes) -> Any:
    try:
        document = json.loads(raw, object_pairs_hook=Pairs)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, list):
        raise ValueError("neither a map of ranks nor a list")
    return document


def _entries(document: Any, unused: list[str], depth: int = 0) -> Iterator[tuple[str, int, int | None]]:
    """(name, rank, status) of each entry that says both; why not is added to `unused`."""
    if depth > MAX_DEPTH:
        unused.append("entries that are nested too deeply")
        return
    named = isinstance(document, Pairs)
    if named and (own := _object(document)) is not None:
        # One process, as it stands in a list.
        yield from _checked(*own, unused)
        return
    for name, value in document if named else ((str(place), value) for place, value in enumerate(document)):
        match = _RANK.match(name)
        if match is not None and not (isinstance(value, Pairs) and not named):
            yield from _checked(name, int(match.group(1)), value, unused)
        elif isinstance(value, list):
            yield from _entries(value, unused, depth + 1)
        elif _NEGATIVE.match(name):
            unused.append(f"{_shown(name)}: a rank is not negative")
        else:
            unused.append(f"{_shown(name)}: no rank")


def _object(pairs: Pairs) -> tuple[str, int, Any] | None:
    """Name, rank and status of a map that says its own rank; rank -1 where what it says is none."""
    found = _field(pairs, _RANKS)
    if found is None or _field(pairs, (*_STATUSES, *_SIGNALS)) is None:
        return None
    text = str(found[0])
    match = _RANK.match(text) if not isinstance(found[0], bool) else None
    return f"rank {_shown(text)}" if match is None else text, int(match.group(1)) if match else -1, pairs


def _checked(name: str, rank: int, value: Any, unused: list[str]) -> Iterator[tuple[str, int, int | None]]:
    try:
        if rank < 0:
            raise ValueError("is no rank")
        yield name, rank, _status(value)
    except ValueError as error:
        unused.append(f"{_shown(name)}: {error}")


def _status(value: Any) -> int | None:
    """The exit status that this stands for, negative for a signal; None where the process had not ended.

    Raises:
        ValueError: it stands for none.
    """
    if value is None:
        return None
    if isinstance(value, Pairs):
        number = _field(value, _SIGNALS)
        if number is not None and number[0] not in (None, 0, ""):
            return -abs(_signal(number[0]))
        status = _field(value, _STATUSES)
        if status is None:
            raise ValueError("says no exit status")
        return None if isinstance(status[0], Pairs | list) else _status(status[0])
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is no exit status")
    if isinstance(value, str):
        if (match := _NUMBER.match(value)) is not None:
            return -int(match.group(2)) if int(match.group(2) or 0) else _status(int(match.group(1)))
        return -_signal(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        raise ValueError(f"{_shown(json.dumps(value))} is no exit status")
    if not -_LARGEST < value < _LARGEST:
        raise ValueError("its status is too large")
    return value


def _signal(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and 0 < abs(value) < 65:
        return abs(value)
    match = _SIGNAL.match(value) if isinstance(value, str) else None
    if match is not None and match.group(1):
        return int(match.group(1))
    if isinstance(value, str) and value.strip().isdigit() and 0 < int(value) < 65:
        return int(value)
    if match is not None and f"SIG{match.group(2).upper()}" in signal.Signals.__members__:
        return int(signal.Signals[f"SIG{match.group(2).upper()}"])
    raise ValueError(f"{_shown(json.dumps(value))} is neither a status nor a signal")


def _field(pairs: Pairs, names: tuple[str, ...]) -> tuple[Any] | None:
    """The value of the first of these keys that is there."""
    for name, value in pairs:
        if name.lower().replace("-", "_") in names or _snake(name) in names:
            return (value,)
    return None


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in name).lstrip("_")


def _shown(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "…"


def _attributes(rank: int, status: int | None) -> Attributes:
    attributes: Attributes = {"gen_ai.training.rank": rank, "tracecore.time.inferred": True}
    if status is not None:
        attributes["tracecore.process.exit_code"] = status
    attributes["tracecore.process.alive"] = status is None
    return attributes


def _body(rank: int, status: int | None) -> str:
    return f"rank {rank} had not ended" if status is None else f"rank {rank} ended with status {status}"
