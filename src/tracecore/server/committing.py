"""Commit what many requests bring in one transaction: a commit waits for the disk, and they wait together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class _Entry(Generic[T]):
    __slots__ = ("done", "error", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self.done = False
        self.error: Exception | None = None


class Committer(Generic[T]):
    """Writes values in groups.

    Args:
        write: writes several in one transaction.
        most: values of one group.
    """

    def __init__(self, write: Callable[[Sequence[T]], None], most: int = 256) -> None:
        self._write = write
        self._most = most
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._pending: list[_Entry[T]] = []

    def submit(self, value: T) -> None:
        """Return when the value is durable.

        Raises:
            Exception: what `write` raised for it.
        """
        entry = _Entry(value)
        with self._lock:
            self._pending.append(entry)
        while not entry.done:
            # The first thread writes all that has gathered; the others find their part written.
            with self._writing:
                if not entry.done:
                    self._flush()
        if entry.error is not None:
            raise entry.error

    def _flush(self) -> None:
        with self._lock:
            group, self._pending = self._pending[: self._most], self._pending[self._most :]
        try:
            self._write([entry.value for entry in group])
        except Exception as error:
            if len(group) == 1:
                group[0].error = error
            else:
                # One of them may be at fault for all.
                for entry in group:
                    try:
                        self._write([entry.value])
                    except Exception as own:
                        entry.error = own
        finally:
            for entry in group:
                entry.done = True
