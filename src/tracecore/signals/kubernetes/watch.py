"""Following the objects of one kind: listed once, then watched, whatever happens to the connection.

    follower = Follower(lambda: api.connect("serviceAccount"), PODS, stop=stop, state=print)
    for change in follower.changes():
        ...

What a server can do to a watch, and what is done about it:

| what | then |
|---|---|
| it ends the watch, restarts, cannot be reached | watched again from the last version seen; nothing is lost |
| the version is too old (410) | listed again; those who want no repeats compare versions |
| its store was replaced, versions began anew | listed again, and every object counts as new |
| the right to list is missing | watched from version 0: what exists comes as ADDED |
| the right to watch is missing | listed again and again |
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from tracecore.signals.kubernetes.api import ApiError, Forbidden, Gone, Way, refused

#: Seconds between attempts: at first, and at most.
BACK_OFF: Final = (1.0, 30.0)
#: Seconds between two lists where there is no right to watch.
POLL: Final = 30.0
#: Seconds after which a watch is renewed, as the API asks its clients to. Some of it is chance: not all at once.
WATCH: Final = (240, 360)
#: Objects of one page, and the most bytes a page may have; of objects so large that it has more, fewer are asked for.
PAGE: Final = 500
MAX_PAGE: Final = 64 << 20
#: An object may have 1.5 MiB in etcd; a line longer than this is no object.
MAX_LINE: Final = 16 << 20

Kind: TypeAlias = Literal["ITEM", "SYNCED", "ADDED", "MODIFIED", "DELETED", "BOOKMARK"]
T = TypeVar("T")
_KINDS: Final = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})


class Collection(msgspec.Struct, frozen=True):
    """The objects of one kind.

    Args:
        resource: `pods`.
        group: of the API; empty for the core.
        namespace: one namespace; all when empty.
        labels: a selector.
        fields: a selector.
    """

    resource: str
    group: str = ""
    version: str = "v1"
    namespace: str = ""
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{base}/namespaces/{self.namespace}/{self.resource}" if self.namespace else f"{base}/{self.resource}"

    @property
    def query(self) -> dict[str, str]:
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in chosen.items() if value}

    @property
    def name(self) -> str:
        """As a role would say it."""
        return f"{self.resource}.{self.group}" if self.group else self.resource


class ObjectChange(msgspec.Struct, frozen=True, gc=False):
    """Something that was told.

    Args:
        kind: `ITEM` of a list, `SYNCED` after a whole one, or what a watch says.
        version: the resource version after it: what a watch can be taken up from.
        object: as JSON; nothing with `SYNCED` and `BOOKMARK`.
        first: nothing had been seen before: this is how things are, not how they changed.
        repeat: it was told before.
    """

    kind: Kind
    version: str
    object: bytes = b""
    first: bool = False
    repeat: bool = False


class _Meta(msgspec.Struct):
    resourceVersion: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    kind: str = ""
    apiVersion: str = ""
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    items: list[msgspec.Raw] | None = None


class _Headed(msgspec.Struct):
    kind: str = ""
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_page = msgspec.json.Decoder(_Page)
_headed = msgspec.json.Decoder(_Headed)
_event = msgspec.json.Decoder(_Event)


def order(version: str) -> int | None:
    """A place among versions; None where a server's versions have none."""
    return int(version) if version.isascii() and version.isdigit() and len(version) < 20 else None


def version_of(raw: bytes) -> str:
    """The resource version of an object."""
    return _headed.decode(raw).metadata.resourceVersion


def listing(way: Way, collection: Collection, version: str = "") -> Iterator[ObjectChange]:
    """Every object there is, as `ITEM`s in pages, then `SYNCED`. Its memory is that of one page.

    Args:
        version: as things were then; as they are now when empty.

    Raises:
        ApiError: it cannot be had.
    """
    limit, more = PAGE, ""
    exact = {"resourceVersion": version, "resourceVersionMatch": "Exact"} if version else {}
    while True:
        query = {**collection.query, "limit": str(limit), **({"continue": more} if more else exact)}
        with way.get(collection.path, query, verb="list", resource=collection.name) as answer:
            raw = _read(answer)
        if raw is None:
            if limit == 1:
                raise ApiError(f"one of the {collection.name} is larger than {MAX_PAGE >> 20} MiB")
            limit = max(limit // 8, 1)
            continue
        try:
            page = _page.decode(raw)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ApiError(f"the list of {collection.name} is malformed: {error}") from None
        # Items of a list do not say what they are: the list does.
        said = msgspec.json.encode({"kind": page.kind.removesuffix("List"), "apiVersion": page.apiVersion})[1:-1]
        for item in page.items or ():
            body = bytes(item)
            try:
                head = _headed.decode(body)
            except (msgspec.DecodeError, RecursionError):
                continue
            yield ObjectChange("ITEM", head.metadata.resourceVersion, body if head.kind else _headed_with(said, body))
        more = page.metadata.continue_
        if not more:
            yield ObjectChange("SYNCED", page.metadata.resourceVersion)
            return


def _headed_with(said: bytes, body: bytes) -> bytes:
    rest = body[1:].lstrip()
    return b"{" + said + (b"," if rest[:1] != b"}" else b"") + rest


def _read(answer: http.client.HTTPResponse) -> bytes | None:
    """The whole answer; None where it is too large."""
    try:
        raw = answer.read(MAX_PAGE + 1)
    except (http.client.HTTPException, OSError) as error:
        raise ApiError(f"the API server broke off: {type(error).__name__}") from None
    return raw if len(raw) <= MAX_PAGE else None


class CollectionFollower:
    """Follows one collection until it is told to stop.

    Args:
        way: asked for before each attempt, since credentials change.
        version: where a watch begins; empty to list first.
        stop: ends it, also while it waits for the server, once `wake` was called.
        state: told what is wrong, or nothing when all is well.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        collection: Collection,
        *,
        stop: threading.Event,
        state: Callable[[str], None],
        version: str = "",
        poll: float | None = None,
        back_off: tuple[float, float] = BACK_OFF,
    ) -> None:
        self._way = way
        self.collection = collection
        self._stop = stop
        self._state = state
        self._poll = POLL if poll is None else poll
        self._back_off = back_off
        self._held: socket.socket | None = None
        self._missing: dict[str, str] = {}
        #: The version to go on from.
        self.version = version
        known = order(version)
        #: The newest version seen, and that of when the present list or watch began.
        self._seen = self._floor = -1 if known is None else known
        #: Times a version was gone; connections made; lines that could not be read.
        self.expired = self.connections = self.malformed = 0

    def wake(self) -> None:
        """End a reading that waits, after `stop` was set."""
        if (held := self._held) is not None:
            try:
                held.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself

    def changes(self) -> Iterator[ObjectChange]:
        """Yield what is told, for ever."""
        wait = self._back_off[0]
        suspect = bool(self.version)
        while not self._stop.is_set():
            before, began = self.connections, time.monotonic()
            pause = 0.0
            try:
                if not self.version:
                    for change in self._list():
                        yield change
                        if self._stop.is_set():
                            return
                if "watch" in self._missing and self._stop.wait(self._poll):
                    return
                if suspect and self.version:
                    self._compare()
                    suspect = False
                yield from self._watch()
                if time.monotonic() - began >= self._back_off[0]:
                    wait = self._back_off[0]
                else:
                    pause = wait  # a server that ends watches at once is not asked without a pause
            except Gone as error:
                self.expired += 1
                self.version = ""
                if error.ahead:  # versions began anew: what was seen says nothing about what is old
                    self._seen = -1
                pause = wait
            except Forbidden as error:
                pause = 0.0 if self._forbidden(error) else wait
            except (OSError, http.client.HTTPException, ValueError) as error:
                if self._stop.is_set():
                    return
                self._state(str(error) or type(error).__name__)
                suspect = True
                if self.connections > before:
                    wait = self._back_off[0]
                pause = getattr(error, "retry_after", 0.0) or wait
            if pause:
                if self._stop.wait(pause * random.uniform(0.5, 1.0)):
                    return
                wait = min(wait * 2, self._back_off[1])

    def _compare(self) -> None:
        """Look whether the server is behind us, which a watch does not tell: it would wait for our version to come.

        Raises:
            Gone: its store was replaced, and versions began anew.
        """
        if (known := order(self.version)) is None or "list" in self._missing:
            return
        query = {**self.collection.query, "limit": "1"}
        try:
            with self._way().get(self.collection.path, query, verb="list", resource=self.collection.name) as answer:
                page = _page.decode(_read(answer) or b"{}")
        except (Forbidden, msgspec.DecodeError, RecursionError):
            return  # the watch will tell
        present = order(page.metadata.resourceVersion)
        if present is not None and present < known:
            found = Gone(f"the API server is at version {present}, behind {known}")
            found.ahead = True
            raise found

    def _forbidden(self, error: Forbidden) -> bool:
        """Return whether it is known what to do without this right."""
        name = self.collection.name
        for verb in ("list", "watch"):
            if str(error) == f"missing right: {verb} {name}":
                self._missing[verb] = str(error)
        if error.status != 403 or len(self._missing) == 2:
            self._state("; ".join(self._missing.values()) if self._missing else str(error))
            # Both rights are asked for again: they may have been given.
            self._missing.clear()
            self.version = ""
            return False
        if "watch" in self._missing:
            self.version = ""
            self._state(f"{self._missing['watch']}: {name} are listed every {self._poll:.0f} s instead")
        return True

    def _list(self) -> Iterator[ObjectChange]:
        """The objects there are, and with them a version to watch from; nothing where listing is not allowed."""
        if "list" in self._missing:
            return
        self._floor = self._seen
        for change in listing(self._way(), self.collection):
            if change.kind == "SYNCED":
                self.version = change.version
                self._note(change.version)
            yield self._placed(change)
        if "watch" not in self._missing:
            self._state("")

    def _watch(self) -> Iterator[ObjectChange]:
        """Changes from the version on, until the server ends it."""
        seconds = random.randint(*WATCH)
        query = {**self.collection.query, "watch": "1", "timeoutSeconds": str(seconds)}
        if self.version:
            query |= {"resourceVersion": self.version, "allowWatchBookmarks": "true"}
        else:
            # From 0 a watch begins with what there is. Not with bookmarks: an older etcd cannot have both.
            query["resourceVersion"] = "0"
        name = self.collection.name
        before = self.connections
        try:
            with self._way().get(
                self.collection.path, query, verb="watch", resource=name, timeout=seconds + 30.0, opened=self._opened
            ) as answer:
                self.connections += 1
                self._floor = self._seen
                if "watch" in self._missing:
                    del self._missing["watch"]
                self._state(f"{self._missing['list']}: {name} are watched without a list" if self._missing else "")
                while not self._stop.is_set():
                    try:
                        line = answer.readline(MAX_LINE)
                    except (OSError, http.client.HTTPException, ValueError):
                        return  # broken off: watched again from the last version
                    if not line.endswith(b"\n") and len(line) < MAX_LINE:
                        return
                    if (change := self._change(line)) is not None:
                        yield change
        finally:
            self._held = None
            # Without the right to list, each watch tells everything anew; the right is asked for again.
            if self.connections > before and self._missing.pop("list", ""):
                self.version = ""

    def _opened(self, held: socket.socket) -> None:
        self._held = held
        if self._stop.is_set():
            self.wake()

    def _change(self, line: bytes) -> ObjectChange | None:
        """Return what a line says; None for one that says nothing.

        Raises:
            ApiError: the server says that the watch cannot go on.
        """
        try:
            event = _event.decode(line)
            body = bytes(event.object)
            if event.type == "ERROR":
                status = msgspec.json.decode(body)
                raise refused(status if isinstance(status, dict) else {})
            version = version_of(body)
        except (msgspec.DecodeError, RecursionError):
            self.malformed += 1
            return None
        if event.type not in _KINDS or not version:
            self.malformed += 1
            return None
        self.version = version
        self._note(version)
        kind: Kind = event.type  # type: ignore[assignment]
        return self._placed(ObjectChange(kind, version, b"" if kind == "BOOKMARK" else body))

    def _note(self, version: str) -> None:
        if (place := order(version)) is not None and place > self._seen:
            self._seen = place

    def _placed(self, change: ObjectChange) -> ObjectChange:
        """The change, and whether it says something new."""
        if self._floor < 0:
            # A watch without a version begins with all there is, and does not say where that ends.
            return msgspec.structs.replace(change, first=True) if change.kind == "ITEM" else change
        place = order(change.version)
        if place is not None and place <= self._floor and change.kind in ("ITEM", "ADDED", "MODIFIED"):
            return msgspec.structs.replace(change, repeat=True)
        return change


# -- which collection a name means -------------------------------------------------------------------------------------

#: Names everyone uses, for which the server need not be asked.
_CORE: Final = frozenset(
    {"events", "pods", "nodes", "namespaces", "services", "configmaps", "endpoints", "persistentvolumeclaims",
     "persistentvolumes", "replicationcontrollers", "resourcequotas", "serviceaccounts"}
)  # fmt: skip


class _ApiResource(msgspec.Struct):
    name: str = ""


class _ApiResources(msgspec.Struct):
    resources: list[_ApiResource] = []


class _Version(msgspec.Struct):
    version: str = ""


class _ApiGroup(msgspec.Struct):
    name: str = ""
    preferredVersion: _Version = msgspec.field(default_factory=_Version)


class _ApiGroups(msgspec.Struct):
    groups: list[_ApiGroup] = []


def discover(way: Way, name: str, group: str = "") -> tuple[str, str]:
    """Group and version of a resource; the first group that has it where none is given.

    Raises:
        ApiError: the server has none of this name, or cannot be asked.
    """
    if name in _CORE and not group:
        return "", "v1"
    if name == "events" and group == "events.k8s.io":
        return group, "v1"
    if not group and name in _names(way, "/api/v1"):
        return "", "v1"
    for found in _asked(way, "/apis", _ApiGroups).groups:
        if group in ("", found.name) and name in _names(way, f"/apis/{found.name}/{found.preferredVersion.version}"):
            return found.name, found.preferredVersion.version
    raise ApiError(f'the API server has no resource "{name}"' + (f" in the group {group}" if group else ""), 404)


def _names(way: Way, path: str) -> frozenset[str]:
    try:
        return frozenset(resource.name for resource in _asked(way, path, _ApiResources).resources)
    except ApiError as error:
        if error.status in (404, 503):
            return frozenset()  # a group whose own server is away
        raise


def _asked(way: Way, path: str, kind: type[T]) -> T:
    with way.get(path, {}, verb="get", resource=path) as answer:
        raw = _read(answer)
    try:
        return msgspec.json.decode(raw or b"", type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError(f"{path} is malformed: {error}") from None
