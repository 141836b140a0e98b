"""Delivery of a receiver's batches: try again until somebody takes one, then note how far it got."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from tracecore.agent.batch import Ack, Batch, Refused
from tracecore.agent.component import Consumer
from tracecore.signals.storage.journal import JournalError

log = logging.getLogger("tracecore.agent")

P = TypeVar("P")

#: Seconds between two attempts: at first, and at most. A reader of files looks around in between, for those that are
#: deleted soon.
WAIT: Final = (0.02, 0.25)


def deliver(
    consume: Consumer,
    batch: Batch,
    stop: threading.Event,
    meanwhile: Callable[[], None] = lambda: None,
    patience: float = 0.0,
) -> bool:
    """Hand a batch on, however long that takes; false when the receiver was told to stop before.

    Args:
        meanwhile: called as long as nobody takes it.
        patience: seconds to try it for although the receiver was told to stop.
    """
    wait = WAIT[0]
    deadline = time.monotonic() + patience
    while True:
        try:
            consume(batch)
            return True
        except Refused:
            if stop.wait(wait):
                if time.monotonic() >= deadline:
                    return False
                time.sleep(wait)
            meanwhile()
            wait = min(wait * 2, WAIT[1])


class DeliveredPositions(Generic[P]):
    """Writes how far a source was delivered: a position is written when everything up to it has arrived.

    Args:
        write: stores a position.
    """

    def __init__(self, write: Callable[[P], None]) -> None:
        self._write = write
        self._lock = threading.Lock()
        self._under_way: collections.deque[list[Any]] = collections.deque()

    def ack(self, position: P) -> Ack:
        """Return what a batch that ends at this position carries."""
        entry = [position, False]
        with self._lock:
            self._under_way.append(entry)
        return Ack(partial(self._arrived, entry))

    def _arrived(self, entry: list[Any]) -> None:
        with self._lock:
            entry[1] = True
            try:
                while self._under_way and self._under_way[0][1]:
                    self._write(self._under_way.popleft()[0])
            except JournalError as error:
                log.warning("a position is not written: %s", error)


def logs(resource: dict[str, Any], records: list[dict[str, Any]], scope: str = "", acks: tuple[Ack, ...] = ()) -> Batch:
    """Records of one resource as a batch."""
    entry = {
        "resource": {"attributes": resource},
        "scope_logs": [{"scope": {"name": scope} if scope else {}, "log_records": records}],
    }
    return Batch("logs", {"resource_logs": [entry]}, count=len(records), acks=acks)
