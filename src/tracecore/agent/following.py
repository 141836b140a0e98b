"""A thread that follows objects of one kind, and keeps account of which there are.

    following = Following(way, Collection("pods"), pods, state)

What is told comes as a list, then as changes, then perhaps as a list again: whoever keeps the objects hears which are
there and which are gone, and nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Protocol

import msgspec

from tracecore.signals.kubernetes.api import Way
from tracecore.signals.kubernetes.watch import BACK_OFF, Collection, CollectionFollower, ObjectChange

log = logging.getLogger("tracecore.agent.kubernetes")

#: Objects of one collection that are remembered.
MOST: Final = 50_000

Object = dict[str, Any]


class ObjectKeeper(Protocol):
    """The keeper of the objects. An object at which it raises an error is counted as malformed."""

    def key(self, found: Object) -> str:
        """Return what an object is known by."""

    def kept(self) -> Iterable[str]:
        """Return the objects that are kept."""

    def put(self, key: str, found: Object) -> bool:
        """It is there, or has changed; false where there is no room for it."""

    def drop(self, key: str) -> None:
        """It is gone; it may never have been known."""


class Following:
    """Follows a collection for all who share it.

    Args:
        way: to the server.
        collection: which objects.
        keeper: keeps them.
        state: told what is wrong, or nothing when all is well.
        meanwhile: called whenever something is told, if only that nothing has changed.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        collection: Collection,
        keeper: ObjectKeeper,
        state: Callable[[str], None],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        #: Set once all objects are known, as far as they ever will be.
        self.synced = threading.Event()
        #: How often something was learned; and how often that was the end of a list, or a change after it.
        self.learned = self.settled = 0
        #: Objects that found no room, and objects that were none.
        self.overflow = self.malformed = 0
        self._keeper = keeper
        self._state = state
        self._meanwhile = meanwhile
        self._listed: set[str] = set()
        self._stop = threading.Event()
        self._users = 0
        self._name = collection.name
        self._follower = CollectionFollower(way, collection, stop=self._stop, state=state)
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)

    def start(self) -> None:
        """Begin, when the first of those who share it asks."""
        self._users += 1
        if self._users == 1:
            self._thread.start()

    def stop(self) -> None:
        """End it, when the last of them asks."""
        self._users -= 1
        if self._users > 0:
            return
        self._stop.set()
        self._follower.wake()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def apply(self, change: ObjectChange) -> None:
        """Take in what was told."""
        self._meanwhile()
        if change.kind == "BOOKMARK":
            return
        if change.kind == "SYNCED":
            for key in [key for key in self._keeper.kept() if key not in self._listed]:
                self._keeper.drop(key)
            self._listed = set()
            self.synced.set()
        elif not self._take(change):
            self.malformed += 1
            return
        self.learned += 1
        self.settled += change.kind != "ITEM"

    def _take(self, change: ObjectChange) -> bool:
        """Take in an object; false where it is none."""
        try:
            found = msgspec.json.decode(change.object)
            key = self._keeper.key(found)
            if change.kind == "DELETED":
                self._keeper.drop(key)
            elif not self._keeper.put(key, found):
                self.overflow += 1
        except (msgspec.DecodeError, RecursionError, LookupError, TypeError, AttributeError, ValueError):
            return False
        if change.kind == "ITEM":
            self._listed.add(key)
        else:
            self.synced.set()  # without the right to list, the watch is all there is
        return True

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for change in self._follower.changes():
                    self.apply(change)
            except Exception as error:
                # Our own mistake: it is said, and what is known stays known.
                log.exception("%s", self._name)
                self._state(f"{type(error).__name__}: {error}")
                self._stop.wait(BACK_OFF[1])


class Objects:
    """The objects of one collection by name or uid, as they are now.

    Args:
        way: to the server.
        collection: which objects.
        key: what they are known by: `name` or `uid`.
        extract: what is kept of one.
        state: told what is wrong, or nothing when all is well.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        collection: Collection,
        key: Literal["name", "uid"],
        extract: Callable[[Object], Object],
        state: Callable[[str], None],
    ) -> None:
        self._key = key
        self._extract = extract
        self.known: dict[str, Object] = {}
        self.following = Following(way, collection, self, state)

    def key(self, found: Object) -> str:
        return str(found["metadata"][self._key])

    def kept(self) -> Iterable[str]:
        return self.known

    def put(self, key: str, found: Object) -> bool:
        if key not in self.known and len(self.known) >= MOST:
            return False
        self.known[key] = self._extract(found)
        return True

    def drop(self, key: str) -> None:
        self.known.pop(key, None)
