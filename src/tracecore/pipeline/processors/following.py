"""A thread that follows objects of one kind and hands over what it is told."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tracecore.signals.kubernetes.api import Way
from tracecore.signals.kubernetes.watch import BACK_OFF, Change, Collection, Follower

log = logging.getLogger("tracecore.agent.k8sattributes")


class Following:
    """Follows a collection for all who share it.

    Args:
        way: to the server.
        collection: which objects.
        apply: takes in what was told.
        state: told what is wrong, or nothing when all is well.
    """

    def __init__(
        self,
        way: Callable[[], Way],
        collection: Collection,
        apply: Callable[[Change], None],
        state: Callable[[str], None],
    ) -> None:
        self._apply = apply
        self._state = state
        self._stop = threading.Event()
        self._users = 0
        self._name = collection.name
        self._follower = Follower(way, collection, stop=self._stop, state=state)
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

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                for change in self._follower.changes():
                    self._apply(change)
            except Exception as error:
                # Our own mistake: it is said, and what is known stays known.
                log.exception("%s", self._name)
                self._state(f"{type(error).__name__}: {error}")
                self._stop.wait(BACK_OFF[1])
