"""Read error files of torchelastic (`error.json`): the exception of a worker and its time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tracecore.signals import whole
from tracecore.signals.record import Attributes, LogSignal, Source
from tracecore.signals.stream import Clock, Stream

MAX_BYTES = 16 << 20


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """Yield one record: the worker's traceback or message."""
    raw = whole.content(stream, MAX_BYTES)
    document: Any = msgspec.json.decode(raw)
    message: Any = document.get("message") if isinstance(document, dict) else None
    extra: Any = message.get("extraInfo") if isinstance(message, dict) else None
    if not isinstance(extra, dict):
        raise ValueError("not an error file of torchelastic")
    text = str(message.get("message", ""))
    stack = str(extra.get("py_callstack", ""))
    attributes: Attributes = {}
    try:
        when = int(float(extra.get("timestamp", ""))) * 1_000_000_000
    except ValueError:
        when = clock.latest
        attributes["tracecore.time.inferred"] = True
    yield {
        "resource": {"attributes": {**stream.resource, "tracecore.layer": stream.layer}},
        "log": {
            "body": stack.strip() if "Traceback" in stack else text,
            "attributes": attributes,
            "time_unix_nano": when,
        },
        "source": Source(stream.path, 0, 1, len(raw)),
    }
