"""Events taken from objects while they change: each once, however often its object is told again.

The reading of an object is that of `kubectl get -o json` in a bundle (`objects.records`). A watch repeats itself: a pod
whose label changes still has the container that was killed an hour ago, and an event that happens again is the same
object with a larger count.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final

from tracecore.signals.kubernetes import objects
from tracecore.signals.record import Attributes, LogSignal, Source
from tracecore.signals.stream import Clock, Stream

#: Statements and events that are known again when they come twice, and pods whose identity their events get.
REMEMBERED: Final = 131_072
PODS: Final = 50_000
KINDS: Final = frozenset({"Event", "Pod", "Node"})
#: What an event gets of its pod.
_NO_DIGITS: Final = str.maketrans("", "", "0123456789")
_INHERITED: Final = ("k8s.node.name", "gen_ai.training.job_id", "gen_ai.training.rank", "gpu.id", "k8s.job.name")


def unwrapped(body: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Kind of change and object of a `k8sobjects` record's body; None where it has no object that says something."""
    found: Any = body
    kind = ""
    if "kind" not in body and isinstance(body.get("object"), dict):
        found, kind = body["object"], str(body.get("type") or "")
    if isinstance(found, dict) and found.get("kind") in KINDS and "metadata" in found:
        return kind, found
    return None


def likeness(item: Mapping[str, Any]) -> tuple[object, ...] | None:
    """Return what an event has in common with those that say the same of another pod or at another time.

    A busy cluster tells thousands of events a second that mean nothing to anybody here: whoever has seen that one of
    them does need not look at the next. None for what is no event.
    """
    if item.get("kind") != "Event":
        return None
    about = item.get("involvedObject") or item.get("regarding")
    origin = item.get("source") or item.get("deprecatedSource")
    note = item.get("message") or item.get("note")
    reason = item.get("reason")
    if not isinstance(about, dict) or not isinstance(note, str) or not isinstance(reason, str) or len(note) > 1024:
        return None
    component = origin.get("component") if isinstance(origin, dict) else None
    by = component or item.get("reportingComponent") or item.get("reportingController")
    where = bool(origin.get("host")) if isinstance(origin, dict) else False
    kind = about.get("kind")
    if not isinstance(kind, str) or (by is not None and not isinstance(by, str)):
        return None
    return reason, note.translate(_NO_DIGITS), kind, by, where or bool(item.get("reportingInstance")), "name" in about


class Live:
    """Remembers what was told, in bounded memory."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._pods: OrderedDict[str, Attributes] = OrderedDict()
        self._streams: dict[str, Stream] = {}

    def signals(self, change: str, item: dict[str, Any], now: int) -> Iterator[LogSignal]:
        """Yield what this object says that had not been said.

        Args:
            change: ADDED, MODIFIED, DELETED; nothing for an object that was pulled.
            now: for what has no time of its own.
        """
        kind = str(item.get("kind"))
        if kind == "Event" and change == "DELETED":
            return  # it was kept for its hour and is forgotten now
        stream = self._streams.get(kind)
        if stream is None:
            stream = self._streams[kind] = Stream(
                path=f"k8s:{kind.lower()}s", format="kubernetes_json", layer="kubernetes", open=_nothing
            )
        if kind == "Pod":
            self._learn(item)
        for signal in objects.records(item, stream, Clock(now, True), 0):
            if kind == "Event":
                if (fresh := self._event(signal)) is not None:
                    yield fresh
            elif self._is_news(signal):
                yield signal

    def _learn(self, item: dict[str, Any]) -> None:
        identity = objects.pod_identity(item)
        if uid := str(identity.get("k8s.pod.uid") or ""):
            _remember(self._pods, uid, {name: identity[name] for name in _INHERITED if name in identity}, PODS)

    def _is_news(self, signal: LogSignal) -> bool:
        inferred = signal["log"]["attributes"].get("tracecore.time.inferred")
        # Without a time of its own it is the same statement for as long as it is made.
        key = (signal["source"].uid, 0 if inferred else signal["log"]["time_unix_nano"])
        if key in self._told:
            self._told.move_to_end(key)
            return False
        _remember(self._told, key, None, REMEMBERED)
        return True

    def _event(self, signal: LogSignal) -> LogSignal | None:
        """The event with whom it is about; of one that happened again, only what is new of it."""
        attributes, source = signal["log"]["attributes"], signal["source"]
        uid, count = source.ident, attributes.get("k8s.event.count")
        count = count if isinstance(count, int) else 1
        before = self._counts.get(uid)
        if before is not None:
            if count <= before:
                return None
            attributes["k8s.event.count"] = count - before
            attributes.pop("k8s.event.first_time", None)
            signal["source"] = Source(source.path, source.offset, ident=f"{uid}#{count}")
        _remember(self._counts, uid, count, REMEMBERED)
        resource = signal["resource"]["attributes"]
        if known := self._pods.get(str(resource.get("k8s.pod.uid") or "")):
            signal["resource"] = {"attributes": {**known, **resource}}
        return signal


def _remember(held: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    held[key] = value
    held.move_to_end(key)
    if len(held) > most:
        held.popitem(last=False)


def _nothing() -> BinaryIO:
    raise OSError("a live stream has no file to open")
