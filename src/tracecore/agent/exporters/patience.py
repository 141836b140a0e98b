"""A bound on a whole attempt: a server that answers a byte now and then passes every timeout of a single read."""

from __future__ import annotations

import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

log = logging.getLogger("tracecore.agent.sending")

#: Seconds between two looks.
LOOK: Final = 0.25


class Patience:
    """Ends connections on which an attempt takes too long. One thread, started when it is first needed.

    Args:
        seconds: for one attempt; None waits for ever.
    """

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._until: dict[http.client.HTTPConnection, float] = {}
        self._lock = threading.Lock()
        self._running = False

    @contextmanager
    def __call__(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Limit the time of everything done on the connection inside.

        Raises:
            TimeoutError: it was ended; what was read until then is no answer, though it may look like one.
        """
        if self._seconds is None:
            yield
            return
        with self._lock:
            self._until[connection] = time.monotonic() + self._seconds
            if not self._running:
                self._running = True
                threading.Thread(target=self._watch, name="patience", daemon=True).start()
        try:
            yield
        finally:
            with self._lock:
                ended = self._until.pop(connection, None) is None
        if ended:
            raise TimeoutError(f"no whole answer within {self._seconds:g} s")

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK)
            now = time.monotonic()
            with self._lock:
                if not self._until:
                    self._running = False
                    return
                late = [connection for connection, until in self._until.items() if until < now]
                for connection in late:
                    del self._until[connection]
                    _end(connection)


def _end(connection: http.client.HTTPConnection) -> None:
    """The thread that reads finds the connection ended; it alone closes it."""
    if connection.sock is None:
        return
    try:
        # Not the method of a TLS socket, which would take its state away from the thread that reads.
        socket.socket.shutdown(connection.sock, socket.SHUT_RDWR)
    except OSError as error:
        log.debug("ending a connection: %s", error)
