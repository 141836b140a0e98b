"""Read the identity of a record: node, pod, job, rank, GPU and attempt, and its source."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

import re2

from tracecore.facts import coerce
from tracecore.facts.wording import quote
from tracecore.signals.record import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_BUS = re2.compile(
    r"(?i)^(?:pci:)?(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$",
)
_I64 = 1 << 63
_SMALL = frozenset({type(None), int, float, bool, type})
_NOTHING: dict[str, Any] = {}


@functools.lru_cache(maxsize=8192)
def _bus_id(value: str) -> str | None:
    match = _BUS.match(value.strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    if int(device, 16) > 0x1F:
        return None
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{function or '0'}"


def bus_id(value: object) -> str | None:
    """Return a PCI bus id in its canonical form, `dddd:bb:dd.f` in lower case; None for an index, a UUID or nonsense.

    `00000000:3B:00.0` (nvidia-smi), `PCI:0000:3b:00` (the driver) and `3b:00.0` (lspci) are all `0000:3b:00.0`.
    """
    return _bus_id(value) if isinstance(value, str) and len(value) <= 32 and value.isascii() else None


@functools.lru_cache(maxsize=8192)
def _pod(namespace: str | None, name: str) -> str:
    return f"{namespace or 'default'}/{name}"


#: Cache of identities by raw attribute values, because each record of a stream repeats its identity.
_KNOWN: dict[tuple[Any, ...], dict[str, Any]] = {}
_KNOWN_LIMIT = 8192


def _identify(named: tuple[Any, ...]) -> dict[str, Any]:
    """Return the identity for raw attribute values, and cache it if the values are short."""
    node, host, namespace, pod, job, rank, _, gpu, attempt, _, inferred = named
    fields: dict[str, Any] = {}
    if (node := coerce.name(node) or coerce.name(host)) is not None:
        fields["node"] = node
    if (pod := coerce.name(pod)) is not None:
        fields["pod"] = _pod(coerce.name(namespace), pod)
    if (job := coerce.name(str(job) if type(job) is int else job)) is not None:
        fields["job"] = job
    if (rank := coerce.natural(rank)) is not None:
        fields["rank"] = rank
    if (gpu := bus_id(gpu)) is not None:
        fields["gpu"] = gpu
    if attempt := coerce.natural(attempt):
        fields["attempt"] = attempt
    if inferred:
        fields["approximate"] = True
    if all(type(value) in _SMALL or (type(value) is str and len(value) <= 256) for value in named):
        if len(_KNOWN) >= _KNOWN_LIMIT:
            _KNOWN.clear()
        _KNOWN[named] = fields
    return fields


class Stamped:
    """A stamped record, as projectors use it.

    Attributes:
        get: returns an attribute of the record, else of its resource, else None.
    """

    __slots__ = ("get", "log", "own", "resource", "signal", "time")

    def __init__(
        self,
        signal: Mapping[str, Any],
        log: Mapping[str, Any],
        own: dict[str, Any],
        resource: dict[str, Any],
        time: int,
    ) -> None:
        self.signal = signal
        self.log = log
        self.own = own
        self.resource = resource
        self.time = time
        if not resource:
            self.get: Callable[[str], Any] = own.get
        elif None in own.values():
            self.get = {**resource, **{name: value for name, value in own.items() if value is not None}}.get
        else:
            self.get = {**resource, **own}.get

    @property
    def body(self) -> str | None:
        """Return the line; for a block of lines the last line of a traceback, else the first line."""
        body = self.log.get("body")
        if not isinstance(body, str):
            return None
        if "\n" in body:
            lines = [line for line in body[-8192:].splitlines() if line.strip()]
            if not lines:
                return None
            if "Traceback (most recent call last):" in body:
                return coerce.text(lines[-1], 512)
        end = body.find("\n")
        if (len(body) if end < 0 else end) > 4096:
            # The important part of a long line may be at its beginning or its end.
            return coerce.text(quote(body if end < 0 else body[:end], 280), 512)
        return coerce.text(body.lstrip().partition("\n")[0], 512)

    def source(self) -> Source:
        """Return the source; a record without a source gets an id made from its content."""
        source = self.signal.get("source")
        event = self.own.get("k8s.event.uid")
        if event is None and type(source) is Source:
            return source
        if isinstance(source, Source):
            if source.ident or not isinstance(event, str) or not event:
                return source
            return Source(source.path, source.offset, source.line, source.length, coerce.name(event) or "")
        if isinstance(event, str) and event:
            return Source("k8s:events", ident=coerce.name(event) or "")
        content = repr((self.time, self.log.get("body"), sorted(self.own.items(), key=lambda item: str(item[0]))))
        digest = hashlib.blake2b(content.encode("utf-8", "replace"), digest_size=10).hexdigest()
        return Source("otlp", ident=f"otlp:{digest}")

    def identity(self) -> dict[str, Any]:
        """Return the known ones of the fields that every fact has.

        Node, pod and job come from the resource, which the reader of the record sets. Attributes of a log record may
        come from its text (a JSON line), and a text must not claim another job.
        """
        get = self.get
        rank = get("gen_ai.training.rank")
        # A container that was restarted in its pod is another attempt.
        attempt = get("tracecore.attempt") or get("k8s.container.restart_count")
        first = self.resource.get
        named = (
            first("k8s.node.name") or get("k8s.node.name"),
            first("host.name") or get("host.name"),
            first("k8s.namespace.name") or get("k8s.namespace.name"),
            first("k8s.pod.name") or get("k8s.pod.name"),
            first("gen_ai.training.job_id") or get("gen_ai.training.job_id"),
            rank,
            rank.__class__,  # True and 1 are equal keys, but True is not a rank
            get("gpu.id"),
            attempt,
            attempt.__class__,
            get("tracecore.time.inferred") is True,
        )
        try:
            known = _KNOWN.get(named)
        except TypeError:  # a value is a list or a map
            known = None
        if known is None:
            known = _identify(named)
        return {**known, "time": self.time, "source": self.source()}

    def event_identity(self) -> dict[str, Any]:
        """Return the same for a Kubernetes event, whose involved object is more precise than its collector."""
        fields = self.identity()
        involved = coerce.name(self.get("k8s.object.name"))
        kind = coerce.name(self.get("k8s.object.kind"))
        if involved is not None and kind == "Pod":
            space = coerce.name(self.get("k8s.namespace.name"))
            fields["pod"] = _pod(space, involved)
        elif involved is not None and kind == "Node":
            fields["node"] = involved
            fields.pop("pod", None)
        count = coerce.positive(self.get("k8s.event.count"))
        if count is not None and count > 1:
            fields["count"] = count
        return fields


def stamped(signal: object) -> Stamped | None:
    """Return the record, or None if it has no attributes or no time."""
    if not isinstance(signal, dict):
        return None
    log = signal.get("log")
    if not isinstance(log, dict):
        return None
    own = log.get("attributes")
    if not isinstance(own, dict):
        return None
    time = log.get("time_unix_nano") or log.get("observed_time_unix_nano")
    if (type(time) is not int or not 0 < time < _I64) and (time := coerce.positive(time)) is None:
        return None
    resource = signal.get("resource")
    attributes = resource.get("attributes") if isinstance(resource, dict) else None
    return Stamped(signal, log, own, attributes if isinstance(attributes, dict) else _NOTHING, time)
