"""The audit log of an API server: who evicted a pod, deleted it, cordoned or tainted a node.

Of the millions of requests in such a log only those matter that were granted and end work. Each becomes a record with
the reason that the cluster's own event about the same thing has.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from tracecore.signals import stamps
from tracecore.signals.kubernetes.objects import record
from tracecore.signals.record import Attributes, LogSignal
from tracecore.signals.stream import Clock, Stream

#: A longer line is read as several, none of which says anything.
MAX_LINE = 4 << 20


class _Users(msgspec.Struct, frozen=True):
    tidy: tuple[str, ...]
    lost: tuple[str, ...]
    scheduler: tuple[str, ...]


class _TaintMeaning(msgspec.Struct, frozen=True):
    key: str
    reason: str
    effects: tuple[str, ...]


class _Meanings(msgspec.Struct, frozen=True):
    """The table beside this module (`audit.toml`)."""

    worth: tuple[str, ...]
    work: frozenset[str]
    users: _Users
    taints: tuple[_TaintMeaning, ...]


_KNOWN: Final = msgspec.toml.decode(Path(__file__).with_suffix(".toml").read_bytes(), type=_Meanings)
#: Asking for these costs less than decoding.
_WORTH: Final = tuple(word.encode() for word in _KNOWN.worth)
_REASONS: Final = {(taint.key, effect): taint.reason for taint in _KNOWN.taints for effect in taint.effects}


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _Reference(msgspec.Struct, frozen=True):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 200


class _Taint(msgspec.Struct, frozen=True):
    key: str = ""
    effect: str = ""


class _Spec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None
    taints: list[_Taint] | None = None


class _Body(msgspec.Struct, frozen=True):
    spec: _Spec = _Spec()


class _Request(msgspec.Struct, frozen=True):
    verb: str = ""
    stage: str = ""
    user: _User = _User()
    objectRef: _Reference = _Reference()
    responseStatus: _Status = _Status()
    requestObject: _Body | None = None
    stageTimestamp: str = ""
    requestReceivedTimestamp: str = ""


_decoder = msgspec.json.Decoder(_Request)


def read(stream: Stream, clock: Clock) -> Iterator[LogSignal]:
    """One record for each request that ended work or says that a node is lost."""
    for here, raw in _lines(stream):
        if not any(word in raw for word in _WORTH):
            continue
        try:
            request = _decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
        if request.stage not in ("", "ResponseComplete") or not 200 <= request.responseStatus.code < 300:
            continue
        stated = _stated(request)
        if stated:
            about = request.objectRef
            attributes: Attributes = {"k8s.object.name": about.name, **stated}
            identity: Attributes = {"k8s.node.name": about.name} if about.resource == "nodes" else {}
            if about.resource == "pods":
                identity = {"k8s.pod.name": about.name, "k8s.namespace.name": about.namespace}
            when = stamps.parse(request.stageTimestamp or request.requestReceivedTimestamp)
            body = f"{request.user.username} {request.verb} {about.resource} {about.name} {about.subresource}".rstrip()
            attributes.setdefault("k8s.event.note", body)
            yield record(stream, clock, identity, attributes, body, when, f"{stream.path}@{here}", here)


def _lines(stream: Stream) -> Iterator[tuple[int, bytes]]:
    """Each line with its place; such a log may be larger than memory."""
    offset = 0
    with stream.open() as file:
        while raw := file.readline(MAX_LINE):
            yield offset, raw
            offset += len(raw)


def _stated(request: _Request) -> Attributes:
    """Return what a request means, in the words of events; nothing where it ends no work."""
    about, who = request.objectRef, request.user.username
    if about.resource == "pods" and about.subresource == "eviction" and request.verb == "create":
        return {"k8s.object.kind": "Pod", "k8s.event.reason": "EvictionByEvictionAPI"}
    if request.verb == "delete" and about.resource in _KNOWN.work and not about.subresource:
        kind = "Pod" if about.resource == "pods" else "Job"
        if who.endswith(_KNOWN.users.lost):
            return {
                "k8s.object.kind": kind,
                "k8s.event.reason": "TaintManagerEviction",
                "k8s.event.note": f"Deleting pod {about.namespace}/{about.name}",
            }
        if who in _KNOWN.users.scheduler:
            return {"k8s.object.kind": kind, "k8s.event.reason": "Preempted"}
        if who.startswith(_KNOWN.users.tidy):
            return {}
        return {"k8s.object.kind": kind, "tracecore.stop.reason": "cancelled", "tracecore.stop.source": "kubernetes"}
    if about.resource == "nodes" and not about.subresource and request.verb in ("patch", "update"):
        spec = request.requestObject.spec if request.requestObject is not None else _Spec()
        for taint in spec.taints or ():
            if (reason := _REASONS.get((taint.key, taint.effect))) is not None:
                return {"k8s.object.kind": "Node", "k8s.event.reason": reason}
        if spec.unschedulable:
            detail = f"{who} has cordoned it"
            return {
                "k8s.object.kind": "Node",
                "kernelevents.host": "node_unavailable",
                "kernelevents.host.detail": detail,
            }
    return {}
