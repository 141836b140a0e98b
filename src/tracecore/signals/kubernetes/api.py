"""The way to a Kubernetes API server: who we are there, and one request.

way = api.connect("serviceAccount")
with way.get("/api/v1/pods", {"limit": "500"}, verb="list", resource="pods") as answer:
    document = answer.read()
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

import msgspec

AuthType: TypeAlias = Literal["serviceAccount", "kubeConfig", "none"]

#: Where a pod finds its token and its cluster's certificate.
ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
#: Seconds to wait for an answer to begin.
TIMEOUT: Final = 30.0
#: What is read of an answer that says no: bytes, and for how many seconds.
MAX_REFUSAL: Final = 64 << 10
REFUSAL: Final = 5.0
#: A peer that vanished without a word is noticed after idle + interval × count seconds.
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class ApiError(OSError):
    """The server did not do what was asked.

    Args:
        status: of HTTP; 0 where it could not be asked at all.
        retry_after: seconds the server wants us to wait.
    """

    def __init__(self, text: str, status: int = 0, retry_after: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.retry_after = retry_after


class Forbidden(ApiError):
    """The account lacks a right; says which."""


class Gone(ApiError):
    """A resource version that the server no longer, or not yet, knows: list again."""

    #: The server is behind what we have seen: its store was replaced, and versions began anew.
    ahead = False


class Credentials(msgspec.Struct, frozen=True):
    """Credentials of a client.

    Args:
        headers: made anew for each request, since tokens are renewed on disk.
        context: of TLS, made anew too; None for plain HTTP.
    """

    headers: Callable[[], dict[str, str]]
    context: Callable[[], ssl.SSLContext] | None


class Way:
    """A server and who we are there.

    Args:
        host: its name or address.
        prefix: of every path, for servers behind a proxy.
        server_name: for TLS, where it is not the host.
        guess_tls: plain HTTP is tried first; a server that speaks TLS only is then spoken to so, unverified.
    """

    def __init__(
        self, host: str, port: int, credentials: Credentials, *, prefix: str = "", server_name: str = "",
        guess_tls: bool = False,
    ) -> None:  # fmt: skip
        self._host = host
        self._port = port
        self._credentials = credentials
        self._prefix = prefix.rstrip("/")
        self._server_name = server_name
        self._guess_tls = guess_tls

    @contextlib.contextmanager
    def get(
        self,
        path: str,
        query: Mapping[str, str],
        *,
        verb: str,
        resource: str,
        timeout: float = TIMEOUT,
        opened: Callable[[socket.socket], None] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """An answer, open for reading.

        Args:
            verb: `list` or `watch`: what the right is called.
            resource: `pods`: of what.
            opened: told the socket, which another thread may shut down to end a reading that waits.

        Raises:
            ApiError: it cannot be reached, or says no.
        """
        try:
            connection, answer = self._request(path, query, timeout, opened)
            if answer.status == 400 and self._guess_tls and b"HTTPS" in answer.read(MAX_REFUSAL):
                connection.close()
                self._guess_tls = False
                self._credentials = msgspec.structs.replace(self._credentials, context=unverified)
                connection, answer = self._request(path, query, timeout, opened)
        except (http.client.HTTPException, ValueError) as error:
            raise ApiError(f"the API server: {type(error).__name__}: {error}") from None
        except ApiError:
            raise
        except OSError as error:
            raise ApiError(f"the API server at {self._host}:{self._port}: {error}") from None
        try:
            if answer.status != 200:
                raise _refusal(answer, verb, resource)
            yield answer
        finally:
            # The unread rest of the answer is dropped.
            connection.close()
            answer.close()

    def _request(
        self, path: str, query: Mapping[str, str], timeout: float, opened: Callable[[socket.socket], None] | None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        credentials = self._credentials
        headers = {"Accept": "application/json", "User-Agent": "tracecore", **credentials.headers()}
        connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        try:
            connection.connect()
            if credentials.context is not None:
                name = self._server_name or self._host
                connection.sock = credentials.context().wrap_socket(connection.sock, server_hostname=name)
            held: socket.socket = connection.sock
            _keep_alive(held)
            if opened is not None:
                opened(held)
            target = self._prefix + quote(path) + (f"?{urlencode(query)}" if query else "")
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                held.settimeout(REFUSAL)
            return connection, answer
        except BaseException:
            connection.close()
            raise


def _keep_alive(held: socket.socket) -> None:
    held.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if (option := getattr(socket, name, None)) is not None:
            held.setsockopt(socket.IPPROTO_TCP, option, value)


def _refusal(answer: http.client.HTTPResponse, verb: str, resource: str) -> ApiError:
    """The error that an answer means."""
    try:
        words = _message(answer.read(MAX_REFUSAL))
    except (OSError, http.client.HTTPException):
        words = ""  # the status says enough
    if answer.status == 401:
        return Forbidden(f"the API server does not know who asks (401 on {verb} {resource}): {words}", 401)
    if answer.status == 403:
        return Forbidden(f"missing right: {verb} {resource}", 403)
    if answer.status == 410:
        return Gone(f"the version is gone: {words}", 410)
    text = f"the API server answers {answer.status} to {verb} {resource}" + (f": {words}" if words else "")
    if "Too large resource version" in words:
        found = Gone(text, answer.status)
        found.ahead = True
        return found
    after = answer.headers.get("Retry-After", "")
    return ApiError(text, answer.status, float(min(int(after), 300)) if after.isascii() and after.isdigit() else 0.0)


def _message(raw: bytes) -> str:
    try:
        document = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        document = None
    found = document.get("message") if isinstance(document, dict) else None
    text = found if isinstance(found, str) else raw.decode("utf-8", "replace")
    return " ".join(text.split())[:300]


# -- who we are --------------------------------------------------------------------------------------------------------


def connect(auth_type: AuthType, context: str = "") -> Way:
    """The way to the cluster's server.

    Args:
        auth_type: `serviceAccount` inside a pod, `kubeConfig` as kubectl does, `none` for a server that asks nothing.
        context: of the kubeconfig; its current one when empty.

    Raises:
        ApiError: there is no such way; says why.
    """
    if auth_type == "kubeConfig":
        from tracecore.signals.kubernetes import kubeconfig

        return kubeconfig.way(context)
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        raise ApiError("KUBERNETES_SERVICE_HOST is not set: this is no pod")
    if auth_type == "none":
        return Way(host, int(port), Credentials(dict, None), guess_tls=True)
    account = ACCOUNT

    def headers() -> dict[str, str]:
        try:
            return {"Authorization": f"Bearer {(account / 'token').read_text().strip()}"}
        except OSError as error:
            raise ApiError(f"the service account's token cannot be read: {error}") from None

    def verified() -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=str(account / "ca.crt"))
        except OSError as error:
            raise ApiError(f"the service account's certificate cannot be read: {error}") from None

    return Way(host, int(port), Credentials(headers, verified))


def unverified() -> ssl.SSLContext:
    """TLS with whoever answers."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def basic(name: str, password: str) -> str:
    """The header of a name and a password."""
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode("ascii")


def refused(status: Mapping[str, Any]) -> ApiError:
    """The error of a `Status` object in the middle of a watch."""
    code = status.get("code")
    words = str(status.get("message") or status.get("reason") or "")[:300]
    if code == 410 or status.get("reason") in ("Expired", "Gone"):
        return Gone(f"the version is gone: {words}", 410)
    if "Too large resource version" in words:
        found = Gone(words, 504)
        found.ahead = True
        return found
    return ApiError(f"the watch ended: {words}", code if isinstance(code, int) else 0)
