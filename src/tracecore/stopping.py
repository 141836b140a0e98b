"""A request to stop that a handler of a signal may make."""

from __future__ import annotations

import contextlib
import queue


class StopRequest:
    """Tells a worker to stop, and wakes it.

    An `Event` may not be set in a handler: whoever is interrupted while holding its lock would wait for himself.
    """

    def __init__(self) -> None:
        self._made = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._made = True
        self._wake.put(None)

    def is_set(self) -> bool:
        return self._made

    def wait(self, seconds: float) -> bool:
        """Wait until the request is made, at most so long; return whether it is."""
        if not self._made:
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=seconds)
        return self._made
