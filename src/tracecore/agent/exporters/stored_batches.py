"""Batches of the sending queue that are kept on disk until they are delivered."""

from __future__ import annotations

import secrets
import threading
from typing import Any, Final

import msgspec

from tracecore.agent.batch import SIGNALS, Batch

#: Bytes before the encoded request of a stored batch: its signal and its number of records.
HEAD: Final = 5


class StoredBatch(msgspec.Struct, frozen=True):
    """A batch that waits in a storage.

    Args:
        key: where.
        count: its records.
        size: bytes of its encoded request.
    """

    key: str
    count: int
    size: int


class Shelf:
    """The batches of one exporter in a storage.

    A value is a byte for the signal, four for the number of records, and the encoded request. The key says what a
    batch is called, which stays the same for as long as it is there, over restarts too.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._last = 0
        self._lock = threading.Lock()
        self._done: dict[str, None] = {}
        # Another one at every start: numbers may begin anew, and no two batches may be called the same.
        self._name = secrets.token_hex(8)

    def waiting(self) -> list[StoredBatch]:
        """Return what an earlier run left, oldest first."""
        found = [
            StoredBatch(key, int.from_bytes(value[1:5], "big"), max(len(value) - HEAD, 0))
            for key, value in self._store.items("batch/")
        ]
        self._last = max((int(entry.key[6:22], 16) for entry in found), default=0)
        return found

    def put(self, batch: Batch) -> StoredBatch:
        """Store a batch.

        Raises:
            StorageError: it cannot be stored now.
        """
        self._last += 1
        key = f"batch/{self._last:016x}-{self._name}"
        head = bytes((SIGNALS.index(batch.signal),)) + min(batch.count, 0xFFFFFFFF).to_bytes(4, "big")
        encoded = batch.encoded()
        self._store.set(key, head + encoded)
        return StoredBatch(key, batch.count, len(encoded))

    def get(self, entry: StoredBatch) -> Batch | None:
        value = self._store.get(entry.key)
        if value is None or not value or value[0] >= len(SIGNALS):
            return None
        return Batch(SIGNALS[value[0]], raw=value[HEAD:], count=entry.count, identity=entry.key[6:])

    def remove(self, entry: StoredBatch) -> None:
        """A batch is not needed any more; where that cannot be noted now, it is with the next one.

        Raises:
            StorageError: it cannot be noted now.
        """
        with self._lock:
            self._done[entry.key] = None
        self.catch_up()

    def catch_up(self) -> None:
        """Notes what could not be noted before.

        Raises:
            StorageError: it still cannot.
        """
        if self._done:
            with self._lock:
                self._store.update(self._done)
                self._done = {}
