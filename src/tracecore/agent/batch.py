"""Batches: records of one signal that travel together, and the callbacks for their arrival."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import msgspec

from tracecore.ottl.otlpjson import LEVELS as LEVELS
from tracecore.ottl.otlpjson import encode
from tracecore.ottl.values import copy_value

Signal: TypeAlias = Literal["logs", "metrics", "traces"]
SIGNALS: Final[tuple[Signal, ...]] = ("logs", "metrics", "traces")


class Refused(Exception):
    """Somebody downstream cannot take more now: the source keeps what it has, and tries again later."""


class Ack:
    """Tells a source once that everything made of what it gave has left the agent, or was dropped and counted.

    Args:
        done: called once, by whichever thread is last.
        then: called after it, but once for all acks of a batch that have the same.
    """

    __slots__ = ("_count", "_done", "_lock", "then")

    def __init__(self, done: Callable[[], None], then: Callable[[], None] | None = None) -> None:
        self._done = done
        self.then = then
        self._count = 1
        self._lock = threading.Lock()

    def hold(self, more: int = 1) -> None:
        with self._lock:
            self._count += more

    def release(self) -> bool:
        """One less waits; true when it was the last."""
        with self._lock:
            self._count -= 1
            last = self._count == 0
        if last:
            self._done()
        return last


class Batch:
    """Records of one signal.

    It has a payload of plain values (the shape `tracecore.ottl.Processor` works on), its OTLP encoding, or both; the
    one that is missing is made when somebody asks for it.

    Args:
        signal: `logs`, `metrics` or `traces`.
        payload: `{"resource_logs": [{"resource", "scope_logs": [{"scope", "log_records"}]}]}`, or that of the others.
        raw: an encoded OTLP export request.
        source: something that can give both (`signals.logs.tail.batch.LogBatch`).
        count: log records, metric points or spans; counted when not given.
        acks: who waits for it.
        identity: what it is called when it is sent, and sent again.
        peer: the address it was sent from, where it was sent.
        pause: nanoseconds after which at the latest its receiver has what follows; 0 where nobody knows.
    """

    __slots__ = ("_count", "_payload", "_raw", "_source", "acks", "identity", "pause", "peer", "selected", "signal")

    def __init__(
        self,
        signal: Signal,
        payload: dict[str, Any] | None = None,
        *,
        raw: bytes | None = None,
        source: Any = None,
        count: int | None = None,
        acks: tuple[Ack, ...] = (),
        identity: str = "",
        peer: str = "",
        pause: int = 0,
    ) -> None:
        self.signal: Signal = signal
        self._payload = payload
        self._raw = raw
        self._source = source
        self._count = count
        self.acks = acks
        self.identity = identity
        self.peer = peer
        self.pause = pause
        #: Its receiver has left out lines that no recipe can do anything with, and sampled steps.
        self.selected: bool = bool(getattr(source, "selected", False))

    @property
    def payload(self) -> dict[str, Any]:
        """The records, to be read or changed; the encoding is made anew when it is asked for next."""
        if self._payload is None and self._source is not None:
            self._payload, self._source = self._source.payload(), None
        if self._payload is None:
            from tracecore.signals.otlp import decoding

            self._payload = decoding.decode(self.signal, self._raw or b"")
        self._raw = None
        return self._payload

    def view(self) -> dict[str, Any]:
        """The records, to be read only."""
        raw = self._raw
        payload = self.payload
        self._raw = raw
        return payload

    @property
    def untouched(self) -> bool:
        """Nobody has asked for its records: its encoding costs less than its payload."""
        return self._payload is None

    def encoded(self) -> bytes:
        """The OTLP export request."""
        if self._raw is None and self._source is not None:
            raw: bytes = self._source.encoded()
            self._raw = raw
        if self._raw is None:
            from tracecore.signals.otlp import encoding

            self._raw = encoding.encode(self.signal, self._payload or {})
        return self._raw

    def json(self) -> bytes:
        """OTLP in JSON, on one line."""
        return msgspec.json.encode(encode(self.view()))

    def pack(self) -> int:
        """Keep the encoded request alone, which takes far less memory than records; return its size in bytes."""
        self._count = self.count
        raw = self.encoded()
        self._raw, self._payload, self._source = raw, None, None
        return len(raw)

    @property
    def count(self) -> int:
        if self._count is None:
            self._count = count(self.signal, self.view())
        return self._count

    def recount(self) -> None:
        """The payload was changed: count again when asked."""
        self._count = None

    def copy(self) -> Batch:
        """The same for somebody else, who may change it; the acks wait for both."""
        for ack in self.acks:
            ack.hold()
        if self._payload is None and self._raw is None:
            payload, source = None, self._source
        else:
            payload = None if self._payload is None or self._raw is not None else copy_value(self._payload)
            source = None
        copied = Batch(
            self.signal,
            payload,
            raw=self._raw,
            source=source,
            count=self._count,
            acks=self.acks,
            peer=self.peer,
            pause=self.pause,
        )
        copied.selected = self.selected
        return copied

    def hold(self, more: int) -> None:
        for ack in self.acks:
            ack.hold(more)

    def done(self) -> None:
        """It has arrived, or was dropped and counted."""
        finished = [ack for ack in self.acks if ack.release()]
        for then in {ack.then for ack in finished if ack.then is not None}:
            then()


def count(signal: str, payload: dict[str, Any]) -> int:
    """Log records, metric points or spans of a payload."""
    resources, scopes, items = LEVELS[signal]
    total = 0
    for resource in payload.get(resources) or ():
        for scope in resource.get(scopes) or ():
            held = scope.get(items) or ()
            total += sum(map(_points, held)) if signal == "metrics" else len(held)
    return total


def _points(metric: dict[str, Any]) -> int:
    for kind in ("gauge", "sum", "histogram", "exponential_histogram", "summary"):
        data = metric.get(kind)
        if isinstance(data, dict):
            return len(data.get("data_points") or ())
    return 0
