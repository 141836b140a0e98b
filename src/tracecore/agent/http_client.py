"""HTTP connections of exporters and scrapers: their addresses, headers, credentials and TLS."""

from __future__ import annotations

import base64
import http.client
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from tracecore.agent.tls import ClientTls

log = logging.getLogger("tracecore.agent.http")

#: Seconds between two looks for connections that take too long.
LOOK: Final = 0.25


def wrong_url(url: str) -> str:
    """Return what is wrong with a URL; empty when nothing is."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 — raises for a port that is none
    except ValueError:
        # Its words quote the URL, which may have a password in it.
        return "not a URL: host and port cannot be told"
    if parts.scheme not in ("http", "https"):
        return "not a URL: it begins with http:// or https://"
    if any(char <= " " or char >= "\x7f" for char in url):
        return "not a URL: spaces and other than ASCII must be written with %"
    return "" if parts.hostname else "not a URL: it has no host"


def wrong_headers(headers: Mapping[str, str]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Headers that cannot be sent; said here, because whoever sends them would say them whole."""
    for name, value in headers.items():
        if not name or any(char <= " " or char >= "\x7f" or char == ":" for char in name):
            yield ("headers", name), "not the name of a header"
        elif any((char < " " and char != "\t") or char >= "\x7f" for char in value):
            # A file that ends with a line end, read into a variable, is the usual reason.
            yield ("headers", name), "the value of a header is one line of ASCII"


def credentials(parts: SplitResult) -> dict[str, str]:
    """The header for a user and password that stand in a URL."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def target_of(parts: SplitResult) -> str:
    """The path and query of a URL, as a request has them."""
    return (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def connection_to(
    parts: SplitResult, timeout: float | None, tls: ClientTls, proxy: SplitResult | None = None
) -> http.client.HTTPConnection:
    """A connection to the host of a URL, not yet open.

    Args:
        proxy: the HTTP proxy to go through.
    """
    host, port = (proxy.hostname or "", proxy.port or 80) if proxy else (parts.hostname or "", parts.port)
    if parts.scheme != "https":
        return http.client.HTTPConnection(host, port, timeout=timeout)
    connection = (
        _NamedServer(host, port, timeout, tls)
        if tls.server_name_override
        else (http.client.HTTPSConnection(host, port, timeout=timeout, context=tls.context()))
    )
    if proxy:
        connection.set_tunnel(parts.hostname or "", parts.port or 443, to_proxy(proxy))
    return connection


def to_proxy(proxy: SplitResult) -> dict[str, str]:
    """The headers for a proxy: who we are, where its URL says so."""
    return {f"Proxy-{name}": value for name, value in credentials(proxy).items()}


class _NamedServer(http.client.HTTPSConnection):
    """A connection whose server calls itself by another name than its address."""

    def __init__(self, host: str, port: int | None, timeout: float | None, tls: ClientTls) -> None:
        self._tls_context = tls.context()
        super().__init__(host, port, timeout=timeout, context=self._tls_context)
        self._server_name = tls.server_name_override

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self._tls_context.wrap_socket(self.sock, server_hostname=self._server_name)


class _Deadlines:
    """Ends connections that take too long. One thread, which runs while there is one to look at."""

    def __init__(self) -> None:
        self._until: dict[http.client.HTTPConnection, float] = {}
        self._lock = threading.Lock()
        self._running = False

    def begin(self, connection: http.client.HTTPConnection, seconds: float) -> None:
        with self._lock:
            self._until[connection] = time.monotonic() + seconds
            if not self._running:
                self._running = True
                threading.Thread(target=self._watch, name="http-deadlines", daemon=True).start()

    def met(self, connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            return self._until.pop(connection, None) is not None

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
                    hang_up(connection)


_DEADLINES = _Deadlines()


@contextmanager
def limited(connection: http.client.HTTPConnection, seconds: float | None) -> Iterator[None]:
    """Limit the time of everything done on the connection inside; None waits for ever.

    A server that answers a byte now and then passes every timeout of a single read.

    Raises:
        TimeoutError: it was ended; what was read until then is no answer, though it may look like one.
    """
    if seconds is None:
        yield
        return
    late = TimeoutError(f"no whole answer within {seconds:g} s")
    _DEADLINES.begin(connection, seconds)
    try:
        yield
    except (OSError, http.client.HTTPException):
        if _DEADLINES.met(connection):
            raise
        raise late from None
    except BaseException:
        _DEADLINES.met(connection)
        raise
    if not _DEADLINES.met(connection):
        raise late


def hang_up(connection: http.client.HTTPConnection) -> None:
    """End a connection from another thread: the thread that reads finds it ended; it alone closes it."""
    if (sock := connection.sock) is None:
        return
    try:
        # Not the method of a TLS socket, which would take its state away from the thread that reads.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError as error:
        log.debug("ending a connection: %s", error)
