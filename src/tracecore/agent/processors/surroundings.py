"""What is around a pod: namespaces and nodes, as the Kubernetes API tells them, kept as the attributes they give."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from tracecore.agent.following import Following
from tracecore.signals.kubernetes.api import Way
from tracecore.signals.kubernetes.watch import Collection

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
        self.following = Following(way, collection, self, state)

    def key(self, found: dict[str, Any]) -> str:
        return str(found["metadata"]["name"])

    def kept(self) -> Iterable[str]:
        return self.by_name

    def put(self, key: str, found: dict[str, Any]) -> bool:
        if key not in self.by_name and len(self.by_name) >= MOST:
            return False
        self.by_name[key] = self._extract(found)
        return True

    def drop(self, key: str) -> None:
        self.by_name.pop(key, None)
