"""The `otlp` receiver: OTLP over gRPC and HTTP."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from tracecore.pipeline.agent.auth import CHALLENGE, Auth, Authenticator
from tracecore.pipeline.agent.batch import Batch, Refused, Signal
from tracecore.pipeline.agent.component import Consumer, Factory, Setting
from tracecore.pipeline.agent.options import Count, Duration, Size
from tracecore.pipeline.agent.tls import ServerTls, read_bytes
from tracecore.signals.otlp import bounds
from tracecore.signals.otlp.messages import OtlpError, parse
from tracecore.signals.otlp.responses import success
from tracecore.signals.otlp.services import METHODS

log = logging.getLogger("tracecore.agent.otlp")
MIB = 1 << 20
#: Bytes from which a request is large.
LARGE: Final = MIB


class Keepalive(msgspec.Struct, frozen=True, kw_only=True):
    """Accepted for configurations written for the Collector; gRPC's own settings are used."""

    server_parameters: dict[str, Any] = {}
    enforcement_policy: dict[str, Any] = {}


class Grpc(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        endpoint: where to listen; port 0 takes a free one.
        tls: without it, connections are not encrypted.
        auth: the extension that knows whom to believe.
        max_recv_msg_size_mib: the largest message.
        max_concurrent_streams: requests of one connection at a time; 0 leaves it to gRPC.
    """

    IGNORED: ClassVar[tuple[str, ...]] = (
        "transport",
        "read_buffer_size",
        "write_buffer_size",
        "include_metadata",
        "middlewares",
    )

    endpoint: str = "localhost:4317"
    tls: ServerTls | None = None
    auth: Auth | None = None
    max_recv_msg_size_mib: Count = 4
    max_concurrent_streams: Count = 0
    keepalive: Keepalive | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if address(self.endpoint) is None:
            yield ("endpoint",), f'"{self.endpoint}" is no address; write it like localhost:4317'


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
        max_connections: open connections at a time.
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

    endpoint: str = "localhost:4318"
    tls: ServerTls | None = None
    auth: Auth | None = None
    max_request_body_size: Size = 20 * MIB
    logs_url_path: str = "/v1/logs"
    metrics_url_path: str = "/v1/metrics"
    traces_url_path: str = "/v1/traces"
    read_timeout: Duration = 0
    max_connections: Count = 256

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if address(self.endpoint) is None:
            yield ("endpoint",), f'"{self.endpoint}" is no address; write it like localhost:4318'
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


def address(endpoint: str) -> tuple[str, int] | None:
    """Host and port of `localhost:4317`, `:4317`, `[::1]:4317`."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        return None
    return host.strip("[]") or "0.0.0.0", int(port)


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
        from tracecore.pipeline.receivers.otlp_http import HttpServer

        take = _Taking(consume, self._setting)
        http, grpc = self._options.protocols.http, self._options.protocols.grpc
        grpc_server: Any = None
        http_server: HttpServer | None = None
        try:
            if grpc is not None:
                grpc_server, self.ports["grpc"] = serve_grpc(grpc, take, self._believed(grpc.auth))
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
                grpc_server.stop(grace=1.0).wait(2.0)

    def _believed(self, auth: Auth | None) -> Authenticator | None:
        found: Authenticator | None = None if auth is None else self._setting.extension(auth.authenticator)
        return found


class _Taking:
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


def peer_address(peer: str) -> str:
    """The address of gRPC's `ipv4:10.0.0.1:5555` or `ipv6:%5B::1%5D:5555`; nothing for another kind."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")
    return host if kind in ("ipv4", "ipv6") else ""


def serve_grpc(options: Grpc, take: _Taking, believed: Authenticator | None = None) -> tuple[Any, int]:
    """A running gRPC server, and its port."""
    from concurrent.futures import ThreadPoolExecutor

    import grpc

    def handler(signal: Signal) -> Any:
        def export(raw: bytes, context: Any) -> bytes:
            if believed is not None and not believed.allows(
                {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
            ):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, CHALLENGE)
            try:
                take(signal, raw, peer_address(context.peer()))
            except OtlpError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error)[:300])
            except Refused as error:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"try again later: {error}")
            return success(signal, json=False)

        return grpc.unary_unary_rpc_method_handler(export)

    settings = [
        ("grpc.max_receive_message_length", options.max_recv_msg_size_mib * MIB or -1),
        ("grpc.so_reuseport", 0),
    ]
    if options.max_concurrent_streams:
        settings.append(("grpc.max_concurrent_streams", options.max_concurrent_streams))
    server = grpc.server(ThreadPoolExecutor(8, "otlp-grpc"), options=settings, maximum_concurrent_rpcs=64)
    for signal, method in METHODS.items():
        service, _, name = method[1:].partition("/")
        handlers = grpc.method_handlers_generic_handler(service, {name: handler(signal)})  # type: ignore[arg-type]
        server.add_generic_rpc_handlers((handlers,))
    found = address(options.endpoint)
    assert found is not None
    host = f"[{found[0]}]" if ":" in found[0] else found[0]
    where = f"{host}:{found[1]}"
    try:
        if options.tls is None:
            port = server.add_insecure_port(where)
        else:
            tls = options.tls
            credentials = grpc.ssl_server_credentials(
                [(read_bytes(tls.key_file), read_bytes(tls.cert_file))],
                read_bytes(tls.client_ca_file),
                tls.client_ca_file is not None,
            )
            port = server.add_secure_port(where, credentials)
    except RuntimeError as error:
        server.stop(None)
        raise OSError(f"cannot listen on {where}: {error}") from None
    if not port:
        server.stop(None)
        raise OSError(f"cannot listen on {where}")
    server.start()
    return server, port


FACTORY = Factory(
    kind="receiver",
    type="otlp",
    summary="Receives OTLP over gRPC and HTTP, protobuf and JSON, gzip and zstd.",
    options=Options,
    create=Otlp,
)
