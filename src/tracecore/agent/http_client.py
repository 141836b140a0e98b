"""HTTP connections of exporters and scrapers: their addresses, headers, credentials and TLS."""

from __future__ import annotations

import base64
import http.client
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from tracecore.agent.tls import ClientTls


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
