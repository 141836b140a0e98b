"""The pods of a node or cluster, as the Kubernetes API tells them, kept as the attributes they give.

What a pod gives is worked out once, when it is told: a look-up for a record finds a finished dictionary. Nothing else
of a pod is kept.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from tracecore.agent.following import Following
from tracecore.signals.kubernetes.api import Way
from tracecore.signals.kubernetes.watch import Collection

#: Pods remembered; a larger cluster wants a filter by node.
MOST: Final = 50_000
_ENDED: Final = frozenset({"Succeeded", "Failed"})

Pod = dict[str, Any]
Attributes = dict[str, Any]


class KnownPod:
    """A pod.

    Args:
        uid: its own.
        name: namespace and name.
        node: where it runs.
        addresses: by which it can be known: none for one on its node's network, or one that has ended.
        attributes: for records that do not say which container they are of.
        containers: beside them, by container.
        ids: of its containers, as the runtime calls them.
    """

    __slots__ = ("_merged", "addresses", "attributes", "containers", "ids", "name", "node", "uid")

    def __init__(
        self, uid: str, name: tuple[str, str], node: str, addresses: tuple[str, ...], attributes: Attributes,
        containers: dict[str, Attributes], ids: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.uid = uid
        self.name = name
        self.node = node
        self.addresses = addresses
        self.attributes = attributes
        self.containers = containers
        self.ids = ids
        self._merged: dict[str, Attributes] = {}

    def of(self, container: object) -> Attributes:
        """Return what records of this container get; not to be changed."""
        try:
            return self._merged[container]  # type: ignore[index]
        except (KeyError, TypeError):
            more = self.containers.get(container) if isinstance(container, str) else None
            if more is None:
                return self.attributes
            made = self._merged[str(container)] = {**self.attributes, **more}
            return made


Extract = Callable[[Pod], tuple[Attributes, dict[str, Attributes]] | None]


class Pods:
    """Follows pods in a thread of its own.

    Args:
        way: to the server.
        collection: which pods.
        extract: what records get of a pod; None for a pod nobody wants.
        state: told what is wrong, or nothing when all is well.
        grace: seconds for which a pod that is gone is still known: its last lines still come.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        collection: Collection,
        extract: Extract,
        state: Callable[[str], None],
        grace: float = 120.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._extract = extract
        self._grace = grace
        self._now = now
        self.by_uid: dict[str, KnownPod] = {}
        self.by_name: dict[tuple[str, str], KnownPod] = {}
        self.by_address: dict[str, KnownPod] = {}
        self.by_container: dict[str, KnownPod] = {}
        self._gone: deque[tuple[float, KnownPod]] = deque()
        self.following = Following(way, collection, self, state, self._forget)

    def __len__(self) -> int:
        return len(self.by_uid)

    def key(self, found: Pod) -> str:
        return str(found["metadata"]["uid"])

    def kept(self) -> Iterable[str]:
        return self.by_uid

    def put(self, key: str, found: Pod) -> bool:
        if key not in self.by_uid and len(self.by_uid) >= MOST:
            return False
        made = self._known(key, found)
        if made is not None:
            self._place(made)
        return True

    def drop(self, key: str) -> None:
        if (known := self.by_uid.get(key)) is not None:
            self._leave(known)

    def _known(self, uid: str, pod: Pod) -> KnownPod | None:
        extracted = self._extract(pod)
        if extracted is None:
            return None
        metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        addresses: tuple[str, ...] = ()
        if not spec.get("hostNetwork") and status.get("phase") not in _ENDED:
            several = [str(entry.get("ip")) for entry in status.get("podIPs") or ()]
            addresses = tuple(several or ([str(status["podIP"])] if status.get("podIP") else []))
        name = str(metadata.get("namespace")), str(metadata.get("name"))
        ids = tuple(
            id
            for state in status.get("containerStatuses") or ()
            if isinstance(state, dict) and (id := str(state.get("containerID") or "").partition("://")[2])
        )
        return KnownPod(uid, name, str(spec.get("nodeName") or ""), addresses, *extracted, ids)

    def _place(self, made: KnownPod) -> None:
        before = self.by_uid.get(made.uid)
        self.by_uid[made.uid] = made
        self.by_name[made.name] = made
        for address in made.addresses:
            self.by_address[address] = made
        for id in made.ids:
            self.by_container[id] = made
        if before is not None:
            for id in before.ids:
                if self.by_container.get(id) is before:
                    del self.by_container[id]
            for address in before.addresses:
                if self.by_address.get(address) is before:
                    del self.by_address[address]

    def _leave(self, known: KnownPod) -> None:
        self._gone.append((self._now() + self._grace, known))
        # Its address is given to another at once.
        for address in known.addresses:
            if self.by_address.get(address) is known:
                del self.by_address[address]

    def _forget(self) -> None:
        while self._gone and self._gone[0][0] <= self._now():
            _, known = self._gone.popleft()
            if self.by_uid.get(known.uid) is known:
                del self.by_uid[known.uid]
            if self.by_name.get(known.name) is known:
                del self.by_name[known.name]
            for id in known.ids:
                if self.by_container.get(id) is known:
                    del self.by_container[id]
