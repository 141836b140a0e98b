"""The `otlp` receiver: OTLP over gRPC and HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec

from tracecore.agent.auth import CHALLENGE, Auth, Authenticator
from tracecore.agent.batch import Batch, Signal
from tracecore.agent.component import Consumer, Setting
from tracecore.agent.options import Count, Duration, Size, address
from tracecore.agent.tls import ServerTls
from tracecore.signals.otlp import bounds
from tracecore.signals.otlp.messages import OtlpError, parse

if TYPE_CHECKING:
    from tracecore.agent.receivers.otlp_grpc import GrpcServer

log = logging.getLogger("tracecore.agent.otlp")
MIB = 1 << 20
#: Bytes from which a request is large.
LARGE: Final = MIB


class ServerParameters(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        max_connection_idle: a connection without requests is closed after so long; 0 is five minutes.
        max_connection_age: any connection is closed after so long; 0 for never.
        max_connection_age_grace: what requests under way have then.
        time: how often a silent client is asked whether it is there; 0 leaves it to gRPC.
        timeout: how long it has to answer.
    """

    max_connection_idle: Duration = 0
    max_connection_age: Duration = 0
    max_connection_age_grace: Duration = 0
    time: Duration = 0
    timeout: Duration = 0


class Keepalive(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        server_parameters: how long connections live.
        enforcement_policy: accepted for configurations written for the Collector; gRPC's own is used.
    """

    server_parameters: ServerParameters | None = None
    enforcement_policy: dict[str, Any] = {}


class Grpc(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        endpoint: where to listen; port 0 takes a free one.
        tls: without it, connections are not encrypted.
        auth: the extension that knows whom to believe.
        max_recv_msg_size_mib: the largest message.
        max_concurrent_streams: requests of one connection at a time; 0 leaves it to gRPC.
        max_connections: open connections at a time.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "transport",
        "read_buffer_size",
        "write_buffer_size",
        "include_metadata",
        "middlewares",
    )

    endpoint: Annotated[str, msgspec.Meta(extra={"address": "localhost:4317"})] = "localhost:4317"
    tls: ServerTls | None = None
    auth: Auth | None = None
    max_recv_msg_size_mib: Count = 4
    max_concurrent_streams: Count = 0
    max_connections: Count = 256
    keepalive: Keepalive | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.max_connections:
            yield ("max_connections",), "at least one connection is needed"


class Cors(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        allowed_origins: `https://app.example`, `https://*.example`, or `*`.
        allowed_headers: beside those that need no permission and Content-Type.
        exposed_headers: of an answer, that a page may read.
        max_age: seconds for which a browser remembers the answer; 0 leaves it to the browser.
    """

    allowed_origins: tuple[str, ...] = ()
    allowed_headers: tuple[str, ...] = ()
    exposed_headers: tuple[str, ...] = ()
    max_age: Count = 0

    def allows(self, origin: str) -> bool:
        """Return whether a page of this origin may send."""
        return any(
            origin == allowed
            or allowed == "*"
            or ("*" in allowed and origin.startswith(allowed.partition("*")[0]) and _ends(origin, allowed))
            for allowed in self.allowed_origins
        )


def _ends(origin: str, allowed: str) -> bool:
    before, _, after = allowed.partition("*")
    return len(origin) >= len(before) + len(after) and origin.endswith(after)


class Http(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        endpoint: where to listen; port 0 takes a free one.
        tls: without it, connections are not encrypted.
        auth: the extension that knows whom to believe.
        max_request_body_size: the largest body, and what it may become when decompressed.
        logs_url_path: where logs are taken.
        metrics_url_path: where metrics are taken.
        traces_url_path: where traces are taken.
        read_timeout: how long a request may take to arrive; 0 is a minute.
        max_connections: open connections at a time; where one more comes, the one that its client has let wait for
            longest is closed.
        cors: which pages of browsers may send; none when not given.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "include_metadata",
        "response_headers",
        "compression_algorithms",
        "read_header_timeout",
        "write_timeout",
        "idle_timeout",
        "keep_alives_enabled",
        "middlewares",
    )

    endpoint: Annotated[str, msgspec.Meta(extra={"address": "localhost:4318"})] = "localhost:4318"
    tls: ServerTls | None = None
    auth: Auth | None = None
    max_request_body_size: Size = 20 * MIB
    logs_url_path: str = "/v1/logs"
    metrics_url_path: str = "/v1/metrics"
    traces_url_path: str = "/v1/traces"
    read_timeout: Duration = 0
    max_connections: Count = 256
    cors: Cors | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not self.max_connections:
            yield ("max_connections",), "at least one connection is needed"


class Protocols(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        grpc: OTLP over gRPC; `grpc:` alone switches it on.
        http: OTLP over HTTP, protobuf and JSON, gzip and zstd.
    """

    PRESENT: ClassVar[tuple[str, ...]] = ("grpc", "http")

    grpc: Grpc | None = None
    http: Http | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.grpc is None and self.http is None:
            yield (), "grpc, http or both are needed"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        protocols: how to receive.
    """

    protocols: Protocols


def _is_loopback(endpoint: str) -> bool:
    found = address(endpoint)
    assert found is not None
    return found[0] in ("localhost", "::1") or found[0].startswith("127.")


class Otlp:
    """Listens until it is told to stop."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        #: Ports that are listened on, once they are.
        self.ports: dict[str, int] = {}
        #: Whether clients can connect.
        self.listening = False

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        from tracecore.agent.receivers.otlp_http import HttpServer

        take = _RequestIntake(consume, self._setting)
        http, grpc = self._options.protocols.http, self._options.protocols.grpc
        grpc_server: GrpcServer | None = None
        http_server: HttpServer | None = None
        try:
            if grpc is not None:
                from tracecore.agent.receivers.otlp_grpc import GrpcServer

                believed = self._believed(grpc.auth)
                grpc_server = GrpcServer(
                    grpc,
                    grpc_endpoint(grpc.endpoint),
                    take,
                    believed.allows if believed is not None else lambda metadata: True,
                    partial(self._setting.meter.note, "connection_refused"),
                    CHALLENGE,
                )
                grpc_server.start()
                self.ports["grpc"] = grpc_server.port
            if http is not None:
                http_server = HttpServer(
                    http, take, partial(self._setting.meter.note, "connection_refused"), self._believed(http.auth)
                )
                self.ports["http"] = http_server.port
                http_server.start()
            for protocol, port in self.ports.items():
                log.info("%s: listening for OTLP over %s on port %d", self._setting.id, protocol, port)
            for options in (grpc, http):
                open_ = options is not None and options.tls is None and options.auth is None
                if options is not None and open_ and not _is_loopback(options.endpoint):
                    text = (
                        "%s: %s takes records from anybody who can reach it, unencrypted; set tls, or a network policy"
                    )
                    log.warning(text, self._setting.id, options.endpoint)
            self.listening = True
            stop.wait()
        finally:
            self.listening = False
            if http_server is not None:
                http_server.stop()
            if grpc_server is not None:
                grpc_server.stop(2.0)

    def _believed(self, auth: Auth | None) -> Authenticator | None:
        found: Authenticator | None = None if auth is None else self._setting.extension(auth.authenticator)
        return found


class _RequestIntake:
    """Takes an encoded request: checks it, counts it, hands it on."""

    def __init__(self, consume: Consumer, setting: Setting) -> None:
        self._consume = consume
        self._setting = setting
        # A large request takes many times its size while it is decoded: one such at a time.
        self._large = threading.Lock()
        setting.meter.declare(dropped=("malformed",), events=("connection_refused",))

    def __call__(self, signal: Signal, raw: bytes, peer: str = "") -> int:
        """Gives how many records were taken.

        Args:
            peer: the address that sent it.

        Raises:
            OtlpError: it is no request.
            Refused: not now.
        """
        try:
            with self._large if len(raw) >= LARGE else nullcontext():
                bounds.check(signal, raw)
                total = _count(signal, parse(signal, raw))
        except OtlpError:
            self._setting.meter.drop("malformed", 1)
            raise
        if total:
            self._consume(Batch(signal, raw=raw, count=total, peer=peer))
        return total


def _count(signal: str, message: Any) -> int:
    if signal == "logs":
        return sum(len(s.log_records) for r in message.resource_logs for s in r.scope_logs)
    if signal == "traces":
        return sum(len(s.spans) for r in message.resource_spans for s in r.scope_spans)
    total = 0
    for resource in message.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                total += len(getattr(metric, kind).data_points) if kind else 0
    return total


def grpc_endpoint(endpoint: str) -> str:
    """An endpoint as gRPC writes it."""
    found = address(endpoint)
    assert found is not None
    host = f"[{found[0]}]" if ":" in found[0] else found[0]
    return f"{host}:{found[1]}"
