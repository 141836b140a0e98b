"""The `otlphttp` exporter."""

from __future__ import annotations

import gzip
import http.client
import threading
from collections.abc import Iterator
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

import msgspec

from tracecore.agent.auth import Auth
from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.exporters.sending import Rejected, RetryLater, Sender
from tracecore.agent.http_client import (
    connection_to,
    credentials,
    limited,
    target_of,
    to_proxy,
    wrong_headers,
    wrong_url,
)
from tracecore.agent.options import SECOND, Duration, Secret
from tracecore.agent.tls import ClientTls
from tracecore.signals.otlp.responses import error_message, rejected

#: Of an answer so much is read.
MAX_ANSWER = 1 << 20


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        endpoint: the base URL; `/v1/logs` and its like are appended.
        logs_endpoint: the whole URL for logs.
        metrics_endpoint: the whole URL for metrics.
        traces_endpoint: the whole URL for traces.
        compression: how bodies are compressed.
        encoding: `proto`, or `json`.
        headers: sent with every request; never logged.
        auth: the extension that says who we are.
        timeout: for one attempt.
        tls: for https.
        proxy_url: the HTTP proxy to go through, `http://[user:password@]host:port`; none when not given.
        sending_queue: what waits.
        retry_on_failure: how often it is tried again.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "max_idle_conns",
        "max_idle_conns_per_host",
        "max_conns_per_host",
        "idle_conn_timeout",
        "disable_keep_alives",
        "http2_read_idle_timeout",
        "http2_ping_timeout",
        "read_buffer_size",
        "write_buffer_size",
        "compression_params",
        "force_attempt_http2",
        "cookies",
        "profiles_endpoint",
        "middlewares",
    )

    endpoint: str | None = None
    logs_endpoint: str | None = None
    metrics_endpoint: str | None = None
    traces_endpoint: str | None = None
    compression: Literal["gzip", "zstd", "none", ""] = "gzip"
    encoding: Literal["proto", "json"] = "proto"
    headers: dict[str, Secret] = {}
    auth: Auth | None = None
    timeout: Duration = 30 * SECOND
    tls: ClientTls = ClientTls()
    proxy_url: Secret = ""
    sending_queue: SendingQueue = SendingQueue()
    retry_on_failure: RetryOnFailure = RetryOnFailure()

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        names = ("endpoint", "logs_endpoint", "metrics_endpoint", "traces_endpoint")
        if not any(getattr(self, name) for name in names):
            yield (), '"endpoint" is missing'
        for name in names:
            if (url := getattr(self, name)) is not None and (wrong := wrong_url(url)):
                yield (name,), wrong
        if self.proxy_url and (wrong := wrong_url(self.proxy_url)):
            yield ("proxy_url",), wrong
        elif self.proxy_url.startswith("https:"):
            yield ("proxy_url",), "a proxy that is spoken to by TLS is not supported here; write http://"
        yield from wrong_headers(self.headers)

    def url(self, signal: str) -> str | None:
        """Return where a signal is sent."""
        own: str | None = getattr(self, f"{signal}_endpoint")
        return own or (f"{self.endpoint.rstrip('/')}/v1/{signal}" if self.endpoint else None)


def proof(auth: Auth | None, setting: Setting) -> dict[str, str]:
    """The headers of the extension that says who we are.

    Raises:
        Retry: it cannot say now.
    """
    if auth is None:
        return {}
    try:
        made: dict[str, str] = setting.extension(auth.authenticator).headers()
    except OSError as error:
        raise RetryLater(f"{auth.authenticator}: {error}") from None
    return made


class OtlpHttp(Sender):
    """Sends OTLP over HTTP; each worker has a connection of its own."""

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(
            self._post, setting, options.sending_queue, options.retry_on_failure, self._hang_up, options.headers
        )
        self._options = options
        self._local = threading.local()

    def _post(self, batch: Batch) -> None:
        url = self._options.url(batch.signal)
        if url is None:
            raise Rejected(f"no endpoint for {batch.signal}")
        json = self._options.encoding == "json"
        body = batch.json() if json else batch.encoded()
        headers = {"Content-Type": "application/json" if json else "application/x-protobuf", "User-Agent": "tracecore"}
        headers["Idempotency-Key"] = batch.identity
        if self._options.compression == "gzip":
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        elif self._options.compression == "zstd":
            body = self._zstd().compress(body)
            headers["Content-Encoding"] = "zstd"
        parts = urlsplit(url)
        headers |= {**credentials(parts), **self._options.headers, **proof(self._options.auth, self._setting)}
        path = target_of(parts)
        if self._options.proxy_url and parts.scheme == "http":
            # A proxy wants the whole address; https goes through a tunnel instead.
            path = f"http://{parts.netloc.rpartition('@')[2]}{path}"
            headers |= to_proxy(urlsplit(self._options.proxy_url))
        try:
            connection = self._connection(parts)
            with limited(connection, self._options.timeout / SECOND or None):
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                content = answer.read(MAX_ANSWER)
        except (OSError, http.client.HTTPException) as error:
            self._hang_up()
            raise RetryLater(f"{parts.hostname}: {error or type(error).__name__}") from None
        if answer.will_close or not answer.isclosed():
            answer.close()
            self._hang_up()
        self._judge(batch, answer.status, answer.headers, content)

    def _judge(self, batch: Batch, status: int, headers: Any, content: bytes) -> None:
        kind = headers.get("Content-Type", "")
        if 200 <= status < 300:
            if (found := rejected(batch.signal, content, kind)) is not None and found[0]:
                self._setting.meter.drop("partial_success", min(found[0], batch.count))
            return
        message = f"HTTP {status} {error_message(content, kind)}".strip()
        if status in (429, 502, 503, 504):
            after = headers.get("Retry-After", "")
            raise RetryLater(message, min(float(after), 600.0) if after.isascii() and after.isdigit() else 0.0)
        raise Rejected(message)

    def _zstd(self) -> Any:
        import zstandard

        if not hasattr(self._local, "zstd"):
            self._local.zstd = zstandard.ZstdCompressor(level=1)
        return self._local.zstd

    def _connection(self, parts: Any) -> http.client.HTTPConnection:
        known: dict[str, http.client.HTTPConnection] = self._local.__dict__.setdefault("connections", {})
        connection = known.get(parts.netloc)
        if connection is None:
            proxy = urlsplit(self._options.proxy_url) if self._options.proxy_url else None
            connection = connection_to(parts, self._options.timeout / SECOND or None, self._options.tls, proxy)
            known[parts.netloc] = connection
        return connection

    def _hang_up(self) -> None:
        for connection in self._local.__dict__.pop("connections", {}).values():
            connection.close()
