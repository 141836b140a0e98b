"""The `k8sobjects` receiver: objects of the Kubernetes API as log records, pulled or watched.

One thread follows each collection and puts what it is told on a backlog that is bounded in bytes; the receiver's own
thread makes records of it. While nobody takes more, nothing is read: the server keeps it, and a watch that the server
gives up on is taken up again where it ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Consumer, Setting
from tracecore.agent.options import SECOND, Interval, StorageId
from tracecore.agent.receivers.delivery import DeliveredPositions, deliver
from tracecore.agent.tally import Growth
from tracecore.signals.kubernetes import api
from tracecore.signals.kubernetes.watch import BACK_OFF, Collection, CollectionFollower, ObjectChange, discover, listing

log = logging.getLogger("tracecore.agent.k8sobjects")

#: Objects that wait to become records: so many, or so many bytes.
BACKLOG: Final = (8_192, 16 << 20)
#: Records of one batch: so many, or so many bytes of JSON.
BATCH: Final = (512, 4 << 20)
#: Seconds between two notes of how far it got.
NOTES: Final = 1.0
SCOPE: Final = "github.com/open-telemetry/opentelemetry-collector-contrib/receiver/k8sobjectsreceiver"

Watched = Literal["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"]


class Object(msgspec.Struct, frozen=True, kw_only=True):
    """Objects of one kind.

    Args:
        name: the resource: `events`, `pods`, `nodes`, …
        group: of the API; the first that has the resource when not given.
        mode: `pull` lists all at an interval, `watch` tells changes as they happen.
        interval: between two pulls.
        namespaces: only these; all when not given.
        label_selector: only objects with these labels.
        field_selector: only objects with these fields.
        exclude_watch_type: kinds of change that are left out.
        resource_version: where a watch begins.
        include_initial_state: a watch begins with the objects there are, as ADDED.
    """

    name: str
    group: str = ""
    mode: Literal["pull", "watch"] = "pull"
    interval: Interval = 3600 * SECOND
    namespaces: list[str] = []
    label_selector: str = ""
    field_selector: str = ""
    exclude_watch_type: list[Watched] = []
    resource_version: str = ""
    include_initial_state: bool | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.name or not self.name.replace("-", "").isalnum():
            yield ("name",), "the name of a resource, like events, pods or nodes"
        if self.mode == "pull" and self.exclude_watch_type:
            yield ("exclude_watch_type",), "is for mode: watch only"
        if self.mode == "pull" and self.include_initial_state:
            yield ("include_initial_state",), "is for mode: watch only"
        if self.mode == "watch" and self.interval != 3600 * SECOND:
            yield ("interval",), "is for mode: pull only"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        auth_type: `serviceAccount` inside a pod, `kubeConfig` as kubectl does, `none` for a server that asks nothing.
        context: of the kubeconfig; its current one when not given.
        objects: what to collect.
        error_mode: `propagate` and `ignore` log what does not work, `silent` does not. None of them stops the others.
        include_initial_state: watches begin with the objects there are, as ADDED.
        storage: the extension that remembers how far watches got, so that a restart misses nothing.
        k8s_leader_elector: of the Collector, where several run; here one agent for the cluster reads objects.
    """

    auth_type: api.AuthType = "serviceAccount"
    context: str = ""
    objects: list[Object]
    error_mode: Literal["propagate", "ignore", "silent"] = "propagate"
    include_initial_state: bool = False
    storage: StorageId | None = None
    k8s_leader_elector: str = ""

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.objects:
            yield ("objects",), "name at least one kind of object"
        if self.context and self.auth_type != "kubeConfig":
            yield ("context",), "is for auth_type: kubeConfig only"


class _Told(NamedTuple):
    feed: _Feed
    kind: str
    version: str
    object: bytes


class Backlog:
    """Bounded queue of objects that were read and are not records yet.

    Args:
        most: entries.
        size: bytes of them together; one that is larger alone still goes through.
    """

    def __init__(self, most: int = BACKLOG[0], size: int = BACKLOG[1]) -> None:
        self._most = most
        self._size = size
        self._held: deque[_Told] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self._closed = False

    def __len__(self) -> int:
        return len(self._held)

    def put(self, told: _Told) -> bool:
        """Add one when there is room; false when nobody will take it any more."""
        with self._changed:
            while not self._closed and self._held and (len(self._held) >= self._most or self._bytes >= self._size):
                self._changed.wait()
            if self._closed:
                return False
            self._held.append(told)
            self._bytes += len(told.object)
            if len(self._held) == 1:
                self._changed.notify_all()
            return True

    def take(self, timeout: float) -> list[_Told]:
        """The oldest ones, as many as make a batch; none when none came in time."""
        with self._changed:
            if not self._held:
                self._changed.wait(timeout)
            taken: list[_Told] = []
            size = 0
            while self._held and len(taken) < BATCH[0] and size < BATCH[1]:
                one = self._held.popleft()
                taken.append(one)
                size += len(one.object)
            self._bytes -= size
            if taken:
                self._changed.notify_all()
            return taken

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _Feed:
    """One collection, followed in a thread."""

    def __init__(self, receiver: K8sObjects, wanted: Object, namespace: str) -> None:
        self._receiver = receiver
        self._wanted = wanted
        self._namespace = namespace
        self.resource = wanted.name
        selectors = f"?{wanted.label_selector}&{wanted.field_selector}"
        place = f"{wanted.group}/{wanted.name}@{namespace}"
        self.key = place + (selectors if len(selectors) > 2 else "")
        self.watches = wanted.mode == "watch"
        initial = wanted.include_initial_state
        self._initial = receiver.options.include_initial_state if initial is None else initial
        self._excluded = frozenset(wanted.exclude_watch_type)

    def run(self, backlog: Backlog, halt: threading.Event, version: str) -> None:
        """Follow it until `halt`.

        Args:
            version: how far an earlier run got.
        """
        wait = BACK_OFF[0]
        while not halt.is_set():
            try:
                collection = self._collection()
                if self.watches:
                    # `include_initial_state` asks for all objects at each start, not only for changes.
                    version = "" if self._initial else version
                    self._watch(collection, backlog, halt, version or self._wanted.resource_version)
                    return
                self._pull(collection, backlog, halt)
            except api.ApiError as error:
                self._receiver.tell(self.key, str(error))
                if halt.wait(error.retry_after or wait):
                    return
                wait = min(wait * 2, BACK_OFF[1])
            except Exception as error:
                # Our own mistake: it is said, and this collection is followed anew from where it got to.
                log.exception("%s of %s", self.key, self._receiver.options.auth_type)
                self._receiver.tell(self.key, f"{type(error).__name__}: {error}")
                if halt.wait(BACK_OFF[1]):
                    return

    def _collection(self) -> Collection:
        wanted = self._wanted
        group, version = discover(self._receiver.way(), wanted.name, wanted.group)
        return Collection(wanted.name, group, version, self._namespace, wanted.label_selector, wanted.field_selector)

    def _watch(self, collection: Collection, backlog: Backlog, halt: threading.Event, version: str) -> None:
        receiver = self._receiver
        follower = CollectionFollower(
            receiver.way, collection, stop=halt, state=lambda wrong: receiver.tell(self.key, wrong), version=version
        )
        receiver.waking(follower)
        for change in follower.changes():
            told = self._told(change)
            if told is not None and not backlog.put(told):
                return

    def _told(self, change: ObjectChange) -> _Told | None:
        if change.kind == "ITEM":
            # Items come in the order of their names: only the whole list reaches a version.
            wanted = self._initial if change.first else not change.repeat and "ADDED" not in self._excluded
            return _Told(self, "ADDED", "", change.object) if wanted else None
        if change.repeat:
            return None
        return _Told(self, change.kind, change.version, b"" if change.kind in self._excluded else change.object)

    def _pull(self, collection: Collection, backlog: Backlog, halt: threading.Event) -> None:
        interval = self._wanted.interval / SECOND
        while not halt.is_set():
            began = time.monotonic()
            for change in listing(self._receiver.way(), collection, self._wanted.resource_version):
                if change.kind == "ITEM" and not backlog.put(_Told(self, "", change.version, change.object)):
                    return
            self._receiver.tell(self.key, "")
            if halt.wait(max(began + interval - time.monotonic(), 0.0)):
                return


class K8sObjects:
    """Collects objects."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self.options = options
        self._setting = setting
        self._feeds = [_Feed(self, wanted, space) for wanted in options.objects for space in wanted.namespaces or [""]]
        self._lock = threading.Lock()
        self._wrong: dict[str, str] = {}
        self._said = ""
        self._followers: list[CollectionFollower] = []
        self._growth = Growth()
        #: Up to which version what each feed told has left the agent, and of that what is stored.
        self._reached: dict[str, str] = {}
        self._noted: dict[str, str] = {}
        self._delivered = DeliveredPositions(self._reached.update)
        self._store: Any = None

    def way(self) -> api.Way:
        return api.connect(self.options.auth_type, self.options.context)

    def tell(self, feed: str, wrong: str) -> None:
        """Note what is wrong with a feed, or with an empty text that nothing is, and report it."""
        with self._lock:
            if wrong:
                self._wrong[feed] = wrong
            else:
                self._wrong.pop(feed, None)
        self._report()

    def _report(self) -> None:
        meter = self._setting.meter
        with self._lock:
            wrong = "; ".join(dict.fromkeys(self._wrong.values()))
            news, self._said = wrong != self._said, wrong
        if wrong:
            meter.degrade(wrong)
            if news and self.options.error_mode != "silent":
                log.warning("%s: %s", self._setting.id, wrong)
        elif news and meter.recover():
            log.info("%s: works again", self._setting.id)

    def waking(self, follower: CollectionFollower) -> None:
        with self._lock:
            self._followers.append(follower)

    def _count(self) -> None:
        """Count what followers could not read."""
        malformed = sum(follower.malformed for follower in self._followers)
        self._setting.meter.drop("malformed", self._growth.of("malformed", malformed))

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        known: dict[str, str] = {}
        self._store = self._setting.store(self.options.storage)
        if self._store is not None:
            known = {key: value.decode("ascii", "replace") for key, value in self._store.items()}
        halt, backlog = threading.Event(), Backlog()
        meter = self._setting.meter
        meter.queue_depth, meter.queue_capacity = backlog.__len__, BACKLOG[0]
        self._followers, self._reached = [], {}
        self._growth.restart()
        self._delivered = DeliveredPositions(self._reached.update)
        threads = [
            threading.Thread(target=f.run, args=(backlog, halt, known.get(f.key, "")), name=f.key, daemon=True)
            for f in self._feeds
        ]
        for thread in threads:
            thread.start()
        try:
            noted = time.monotonic()
            while not stop.is_set():
                told = backlog.take(0.2)
                if told and not self._deliver(consume, self._batch(told), stop):
                    return
                if time.monotonic() - noted > NOTES:
                    noted = time.monotonic()
                    self._note()
                    self._count()
                    self._report()
        finally:
            halt.set()
            backlog.close()
            with self._lock:
                followers = list(self._followers)
            for follower in followers:
                follower.wake()
            for thread in threads:
                thread.join(2.0)
            self._note()

    def _deliver(self, consume: Consumer, batch: Batch, stop: threading.Event) -> bool:
        if batch.count:
            return deliver(consume, batch, stop)
        batch.done()  # it only says how far a watch got
        return True

    def close(self) -> None:
        """Close after the last batch has left."""
        self._note()

    def _note(self) -> None:
        reached = dict(self._reached)
        if self._store is not None and reached != self._noted:
            self._store.update({feed: version.encode("ascii", "replace") for feed, version in reached.items()})
            self._noted = reached

    def _batch(self, told: list[_Told]) -> Batch:
        now = self._setting.clock()
        spaces: dict[str, list[dict[str, Any]]] = {}
        reached: dict[str, str] = {}
        for feed, kind, version, raw in told:
            if feed.watches and version:
                reached[feed.key] = version
            if not raw:
                continue
            try:
                found = msgspec.json.decode(raw)
            except (msgspec.DecodeError, RecursionError):
                found = None
            if not isinstance(found, dict):
                self._setting.meter.drop("malformed", 1)
                continue
            space, record = _record(feed.resource, kind, found, now)
            spaces.setdefault(space, []).append(record)
        entries = [
            {
                "resource": {"attributes": {"k8s.namespace.name": space} if space else {}},
                "scope_logs": [{"scope": {"name": SCOPE}, "log_records": records}],
            }
            for space, records in spaces.items()
        ]
        ack = self._delivered.ack(reached)
        return Batch("logs", {"resource_logs": entries}, count=sum(map(len, spaces.values())), acks=(ack,))


def _record(resource: str, kind: str, found: dict[str, Any], now: int) -> tuple[str, dict[str, Any]]:
    """Namespace and record of an object, in the shape of the Collector's receiver."""
    metadata = found.get("metadata")
    named = metadata if isinstance(metadata, dict) else {}
    attributes: dict[str, Any] = {"k8s.resource.name": resource}
    if kind and named.get("name"):
        attributes |= {"event.domain": "k8s", "event.name": str(named["name"])}
    body = {"type": kind, "object": found} if kind else found
    record = {"body": body, "attributes": attributes, "observed_time_unix_nano": now}
    return str(named.get("namespace") or ""), record
