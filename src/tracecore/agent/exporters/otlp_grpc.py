"""The `otlp` exporter: OTLP over gRPC."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import msgspec

from tracecore.agent.auth import Auth
from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.exporters.otlp_http import proof
from tracecore.agent.exporters.queue_options import RetryOnFailure, SendingQueue
from tracecore.agent.exporters.sending import Rejected, RetryLater, Sender
from tracecore.agent.http_client import wrong_headers
from tracecore.agent.options import SECOND, Duration, Secret
from tracecore.agent.tls import ClientTls
from tracecore.signals.otlp.responses import rejected
from tracecore.signals.otlp.services import METHODS


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        endpoint: `host:port`; with `http://` before it no TLS is used.
        compression: how messages are compressed; gRPC for Python knows gzip only, which is used for the others.
        headers: sent with every request; never logged.
        auth: the extension that says who we are.
        timeout: for one attempt.
        tls: how the server is known.
        authority: the name the server is called by, where its address has another.
        sending_queue: what waits.
        retry_on_failure: how often it is tried again.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "balancer_name",
        "wait_for_ready",
        "read_buffer_size",
        "write_buffer_size",
        "keepalive",
        "middlewares",
    )

    endpoint: str
    compression: Literal["gzip", "zstd", "snappy", "none", ""] = "gzip"
    headers: dict[str, Secret] = {}
    auth: Auth | None = None
    timeout: Duration = 5 * SECOND
    tls: ClientTls = ClientTls()
    authority: str = ""
    sending_queue: SendingQueue = SendingQueue()
    retry_on_failure: RetryOnFailure = RetryOnFailure()

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        host, colon, port = self.address.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            yield ("endpoint",), f'"{self.endpoint}" is no address; write it like collector.example:4317'
        yield from wrong_headers(self.headers)

    @property
    def address(self) -> str:
        return self.endpoint.partition("://")[2] or self.endpoint

    @property
    def secure(self) -> bool:
        return not (self.tls.insecure or self.endpoint.startswith("http://"))


class OtlpGrpc(Sender):
    """Sends OTLP over gRPC; workers share one channel."""

    def __init__(self, options: Options, setting: Setting) -> None:
        super().__init__(self._post, setting, options.sending_queue, options.retry_on_failure, headers=options.headers)
        self._options = options
        self._channel: Any = None
        self._opening = threading.Lock()

    def stop(self, deadline: float) -> None:
        super().stop(deadline)
        if self._channel is not None:
            self._channel.close()

    def _post(self, batch: Batch) -> None:
        import grpc

        headers = {**self._options.headers, **proof(self._options.auth, self._setting)}
        call = self._open().unary_unary(METHODS[batch.signal])
        try:
            answer: bytes = call(
                batch.encoded(),
                timeout=self._options.timeout / SECOND or None,
                metadata=[
                    ("idempotency-key", batch.identity),
                    *((name.lower(), value) for name, value in headers.items()),
                ],
                compression=grpc.Compression.Gzip if self._options.compression not in ("none", "") else None,
            )
        except grpc.RpcError as error:
            code = error.code()
            message = f"{self._options.address}: {code.name} {error.details() or ''}"[:300]
            if code.name in _RETRYABLE:
                raise RetryLater(message) from None
            raise Rejected(message) from None
        found = rejected(batch.signal, answer, "")
        if found is not None and found[0]:
            self._setting.meter.drop("partial_success", min(found[0], batch.count))

    def _open(self) -> Any:
        import grpc

        with self._opening:
            if self._channel is None:
                tls = self._options.tls
                options: list[tuple[str, int | str]] = [
                    ("grpc.max_send_message_length", -1),
                    ("grpc.max_reconnect_backoff_ms", 5000),
                ]
                if self._options.authority:
                    options.append(("grpc.default_authority", self._options.authority))
                if not self._options.secure:
                    self._channel = grpc.insecure_channel(self._options.address, options)
                else:
                    if tls.server_name_override:
                        options.append(("grpc.ssl_target_name_override", tls.server_name_override))
                    cert, key = tls.certificate()
                    credentials = grpc.ssl_channel_credentials(tls.authorities(), key, cert)
                    self._channel = grpc.secure_channel(self._options.address, credentials, options)
            return self._channel


_RETRYABLE = {
    "CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE", "DATA_LOSS", "RESOURCE_EXHAUSTED",
}  # fmt: skip


def check(options: Options, node: Any, report: Any) -> None:
    if options.compression in ("zstd", "snappy"):
        report.warning(node.near("compression"), f"{options.compression} is not there for gRPC: gzip is used")
    if options.tls.insecure_skip_verify:
        report.error(node.near("tls", "insecure_skip_verify"), "gRPC cannot skip the check; name the server's ca_file")
