"""An HTTP server that a slow, a silent or a greedy client cannot stop: bounds on connections, headers and time.

One thread for each connection. What the standard library bounds is each read; here the whole of a request has a time,
else a client that sends a byte now and then holds its connection for ever.
"""

from __future__ import annotations

import http.client
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any, Final

log = logging.getLogger("tracecore.agent")

#: Bytes of a request's head: its line and all headers.
MAX_HEAD: Final = 64 << 10
#: Seconds in which a connection that was closed makes room for another one.
ROOM: Final = 0.5
#: Seconds for the greeting of TLS.
GREETING: Final = 10.0


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Listens until it is closed.

    Args:
        where: host and port; port 0 takes a free one.
        handler: a class derived from `Handler`.
        connections: how many at a time; for one more, the one is closed that its client has let wait for longest.
        tls: a context, for encryption.
        refused: called for each connection that was closed for want of a place.
    """

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        where: tuple[str, int],
        handler: Any,
        connections: int,
        tls: Any = None,
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self.address_family = socket.getaddrinfo(where[0], where[1], type=socket.SOCK_STREAM)[0][0]
        self._slots = threading.BoundedSemaphore(connections)
        self._tls = tls
        self._refused = refused
        #: Until when each connection may take; and since when it waits for its client.
        self._open: dict[socket.socket, float] = {}
        self._since: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(where, handler)

    def allow(self, connection: socket.socket, seconds: float | None) -> None:
        """So long it may take from now on; None while it is us who work."""
        now = time.monotonic()
        with self._lock:
            self._open[connection] = now + seconds if seconds is not None else float("inf")
            if seconds is None:
                self._since.pop(connection, None)
            else:
                self._since[connection] = now

    def service_actions(self) -> None:
        """Called several times in a second: ends what takes too long."""
        now = time.monotonic()
        with self._lock:
            late = [one for one, until in self._open.items() if until < now]
            for one in late:
                del self._open[one]
        for one in late:
            _end(one)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self._refused()
            self._end_slowest()
            if not self._slots.acquire(timeout=ROOM):
                request.close()
                return
        try:
            super().process_request(request, client_address)
        except RuntimeError as error:  # no more threads
            log.warning("a connection cannot be served: %s", error)
            self._slots.release()
            request.close()

    def _end_slowest(self) -> None:
        """Close the connection that has waited for its client for longest, so that slow ones shut nobody out."""
        with self._lock:
            slowest = min(self._since, key=self._since.__getitem__, default=None)
            if slowest is not None:
                del self._since[slowest]
                self._open.pop(slowest, None)
        if slowest is not None:
            _end(slowest)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            if self._tls is not None:
                # Here, not where connections are accepted: a client that never shakes hands holds up only itself.
                request = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                self.allow(request, GREETING)
                request.settimeout(GREETING)
                request.do_handshake()
            super().process_request_thread(request, client_address)
        except OSError as error:
            log.debug("a connection of %s ended: %s", client_address[0], error)
            request.close()
        finally:
            self._slots.release()
            with self._lock:
                self._open.pop(request, None)
                self._since.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a connection of %s failed", client_address[0], exc_info=True)

    def hang_up(self) -> None:
        """End what clients keep open."""
        with self._lock:
            found = list(self._open)
        for one in found:
            _end(one, socket.SHUT_RD)


def _end(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    try:
        # Not the method of a TLS socket, which would take its state away from the thread that reads.
        socket.socket.shutdown(connection, how)
    except OSError as error:
        log.debug("ending a connection: %s", error)


class Handler(BaseHTTPRequestHandler):
    """Reads requests whose head is bounded, each within `timeout` seconds in all."""

    server: Server
    server_version = "tracecore"
    sys_version = ""
    timeout = 10.0

    def handle_one_request(self) -> None:
        self.server.allow(self.connection, self.timeout)
        super().handle_one_request()

    def parse_request(self) -> bool:
        whole = self.rfile
        self.rfile = _Head(whole, MAX_HEAD)  # type: ignore[assignment]  # of a file, only its lines are read here
        try:
            return super().parse_request()
        finally:
            self.rfile = whole

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _Head:
    """The lines of a head, of which there may be so many bytes."""

    def __init__(self, file: Any, left: int) -> None:
        self._file = file
        self._left = left

    def readline(self, most: int = -1) -> bytes:
        if self._left <= 0:
            raise http.client.LineTooLong("head")
        line: bytes = self._file.readline(min(most, self._left) if most >= 0 else self._left)
        self._left -= len(line)
        return line
