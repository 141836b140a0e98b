"""What is around a pod: namespaces and nodes, as the Kubernetes API tells them, kept as the attributes they give."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from tracecore.pipeline.processors.following import Following
from tracecore.signals.kubernetes.api import Way
from tracecore.signals.kubernetes.watch import Change, Collection

#: Namespaces, or nodes, remembered.
MOST: Final = 50_000

Attributes = dict[str, Any]


class Surroundings:
    """Namespaces, or nodes, by name.

    Args:
        way: to the server.
        collection: which of them.
        extract: what records get of one.
        state: told what is wrong, or nothing when all is well.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        collection: Collection,
        extract: Callable[[dict[str, Any]], Attributes],
        state: Callable[[str], None],
    ) -> None:
        self._extract = extract
        self.by_name: dict[str, Attributes] = {}
        self.synced = threading.Event()
        #: Objects that found no room, and objects that were none.
        self.overflow = self.malformed = 0
        self._listed: set[str] = set()
        self.following = Following(way, collection, self.apply, state)

    def apply(self, change: Change) -> None:
        """Take in what was told."""
        if change.kind == "SYNCED":
            for name in self.by_name.keys() - self._listed:
                del self.by_name[name]
            self._listed = set()
            self.synced.set()
            return
        if change.kind == "BOOKMARK":
            return
        try:
            told = msgspec.json.decode(change.object)
            name = str(told["metadata"]["name"])
            given = self._extract(told)
        except (msgspec.DecodeError, RecursionError, LookupError, TypeError, AttributeError, ValueError):
            self.malformed += 1
            return
        if change.kind == "ITEM":
            self._listed.add(name)
        else:
            self.synced.set()  # without the right to list, the watch is all there is
        if change.kind == "DELETED":
            self.by_name.pop(name, None)
        elif name in self.by_name or len(self.by_name) < MOST:
            self.by_name[name] = given
        else:
            self.overflow += 1
