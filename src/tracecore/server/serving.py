"""Run the server: open the store, listen, detect, diagnose uploads, clean up; stop in order."""

from __future__ import annotations

import errno
import ipaddress
import logging
import os
import shlex
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
import uvicorn
from fastapi import FastAPI

from tracecore.agent.memory import tune
from tracecore.agent.options import address
from tracecore.agent.tls import ServerTls
from tracecore.notify.config import FileError, NotificationConfig, read
from tracecore.notify.notifier import Notifier
from tracecore.server import demo
from tracecore.server.app import make_app
from tracecore.server.detector import Detector
from tracecore.server.diagnosing import Diagnoses
from tracecore.server.otlp import grpc_server
from tracecore.server.settings import DEFAULT_LISTEN, Oidc, ServerSettings, is_loopback
from tracecore.store.database import default_url
from tracecore.store.retention import Retention
from tracecore.store.store import Store

log = logging.getLogger("tracecore.server")


class ServeError(Exception):
    """The server cannot run; the message says why and what to do."""


#: Where a proxy is expected: this machine and private networks.
PRIVATE: Final = "127.0.0.0/8,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,fc00::/7"


class ServeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The command line; see `tracecore serve --help`."""

    listen: str = DEFAULT_LISTEN
    otlp_listen: str = ""
    database: str | None = None
    notify: str | None = None
    demo: bool = False
    quiet: bool = False
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: bool = False
    proxy_from: str | None = None
    base_url: str = ""
    auth: bool = False
    oidc: Oidc | None = None
    keep_days: int = 0
    keep_mb: int = 0
    data: str | None = None
    max_upload_mb: int = 2048
    rate: float = 50.0


def settings_of(options: ServeOptions) -> ServerSettings:
    """The settings that options mean, where they are safe together.

    Raises:
        ServeError: they are not, or one of them is wrong.
    """
    if options.demo and options.notify:
        raise ServeError("a demo notifies nobody: its incidents are simulated")
    places = [place for place in (options.listen, options.otlp_listen) if place]
    hosts = []
    for place in places:
        found = address(place)
        if found is None:
            raise ServeError(f"{place!r} is not an address: write it like 127.0.0.1:8040")
        hosts.append(found[0])
    reachable = [host for host in hosts if not is_loopback(host)]
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ServeError("TLS needs both --tls-cert and --tls-key")
    for path in (options.tls_cert, options.tls_key):
        if path is not None and not Path(path).is_file():
            raise ServeError(f"{path}: there is no such file")
    if reachable and options.tls_cert is None and not options.behind_proxy:
        raise ServeError(
            f"{reachable[0]} can be reached from other machines: give --tls-cert and --tls-key, "
            "or --behind-proxy where a proxy in front ends TLS"
        )
    if options.base_url and not options.base_url.startswith(("https://", "http://")):
        raise ServeError("--base-url begins with https:// or http://")
    for network in filter(None, (options.proxy_from or "").split(",")):
        try:
            ipaddress.ip_network(network.strip(), strict=False)
        except ValueError as error:
            raise ServeError(f"--proxy-from {network!r}: {error}") from None
    if options.oidc is not None and (reachable or options.behind_proxy) and not options.base_url:
        raise ServeError("signing in needs --base-url: the address that the provider sends people back to")
    return ServerSettings(
        listen=options.listen,
        # A server that is reachable, directly or behind a proxy, authenticates every request.
        auth=options.auth or bool(reachable) or options.behind_proxy or options.oidc is not None,
        base_url=options.base_url.rstrip("/"),
        behind_proxy=options.behind_proxy,
        tls=options.tls_cert is not None,
        oidc=options.oidc,
        keep_days=options.keep_days,
        keep_bytes=options.keep_mb << 20,
        max_upload=options.max_upload_mb << 20,
        rate=options.rate,
        demo=options.demo,
    )


def serve(options: ServeOptions) -> int:
    """Serve until a signal says to stop.

    Raises:
        ServeError: it cannot.
        StoreError: the database cannot be used.
    """
    settings = settings_of(options)
    _check_free(settings)
    # Requests are read by many threads; with a heap for each of them memory grows by half.
    tune()
    with ExitStack() as stack:
        place = options.database or default_url()
        folder = Path(options.data) if options.data else Path(default_url()).parent / "uploads"
        if "://" in str(folder):
            folder = Path(tempfile.gettempdir()) / f"tracecore-uploads-{os.getuid()}"
        if options.demo:
            temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="tracecore-demo-"))
            place = options.database or str(Path(temporary) / "demo.db")
            folder = Path(temporary) / "uploads"
        store = Store.open(place)
        stack.callback(store.close)
        settings = msgspec.structs.replace(settings, secret=store.secret(), uploads=folder)
        if options.demo:
            if store.incidents.find(limit=1).incidents:
                raise ServeError(f"{place} holds incidents already: a demo needs a database of its own")
            if not options.quiet:
                print("making the simulated fleet…", file=sys.stderr, flush=True)
            demo.fill(store, time.time_ns())
            stack.enter_context(demo.running(store))
        if settings.auth and settings.oidc is None and not store.tokens.find():
            log.warning("nobody can sign in yet: make a token with `%s`", _token_command(store.database.place))
        app = make_app(store, settings)
        _start_workers(stack, app, store, settings, options)
        for number in (signal.SIGTERM, signal.SIGINT):
            # uvicorn stops at these, and then raises them again, which would end us before all is in order.
            signal.signal(number, lambda *_: None)
        scheme = "https" if settings.tls else "http"
        said = "" if options.quiet else f"tracecore serves {scheme}://{options.listen}/ (Ctrl-C stops it)"
        server = _Server(_config(app, settings, options), said)
        server.run()
        if not server.started:
            raise ServeError(f"cannot listen on {options.listen}")
    return 0


class _Server(uvicorn.Server):
    """A server that says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, said: str) -> None:
        super().__init__(config)
        self._said = said

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._said:
            print(self._said, file=sys.stderr, flush=True)


def _check_free(settings: ServerSettings) -> None:
    """Refuse an address that cannot be listened on, before anything is opened or made.

    Raises:
        ServeError: it is in use, or is none of this machine.
    """
    try:
        places = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in places:
            with socket.socket(family, kind, protocol) as trial:
                # As asyncio does it: a connection that has just ended does not keep the address.
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    trial.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                trial.bind(place)
                trial.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ServeError(
                f"the address {settings.listen} is in use: stop the program that listens there, or give --listen"
            ) from None
        raise ServeError(f"cannot listen on {settings.listen}: {error.strerror}") from None


def _token_command(database: str) -> str:
    """Return a command that makes a token in the database of this server."""
    return f"tracecore tokens create --database {shlex.quote(database)} --scope admin NAME"


def _config(app: FastAPI, settings: ServerSettings, options: ServeOptions) -> uvicorn.Config:
    more: dict[str, Any] = {}
    if options.tls_cert is not None:
        more = {"ssl_certfile": options.tls_cert, "ssl_keyfile": options.tls_key}
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        # Only a proxy that was announced is believed about who asks.
        proxy_headers=settings.behind_proxy,
        forwarded_allow_ips=(options.proxy_from or PRIVATE) if settings.behind_proxy else None,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
        limit_concurrency=2_000,
        h11_max_incomplete_event_size=64 << 10,
        **more,
    )


def _start_workers(
    stack: ExitStack, app: FastAPI, store: Store, settings: ServerSettings, options: ServeOptions
) -> None:
    """Start the workers beside the web application."""
    ingest, clock = app.state.ingest, app.state.clock
    detector = Detector(store, clock, counted=ingest.counted)
    ingest.woken = detector.wake
    app.state.detector = detector
    detector.start()
    stack.callback(detector.stop)
    assert settings.uploads is not None
    app.state.diagnoses = Diagnoses(store, settings, settings.uploads, clock)
    app.state.diagnoses.start()
    stack.callback(app.state.diagnoses.stop)
    retention = Retention(store, clock, days=settings.keep_days, size=settings.keep_bytes)
    retention.start()
    stack.callback(retention.stop)
    if options.otlp_listen:
        tls = None
        if options.tls_cert is not None and options.tls_key is not None:
            tls = ServerTls(cert_file=options.tls_cert, key_file=options.tls_key)
        server = grpc_server(store, ingest, settings, options.otlp_listen, clock, tls)
        try:
            server.start()
        except OSError as error:
            raise ServeError(str(error)) from None
        stack.callback(server.stop, 2.0)
    if options.notify:
        notifier = Notifier(store, _notifications(options.notify), clock)
        app.state.notifier = notifier
        notifier.start()
        stack.callback(notifier.stop)


def _notifications(path: str) -> NotificationConfig:
    try:
        return read(Path(path))
    except FileError as error:
        raise ServeError(str(error)) from None
    except OSError as error:
        raise ServeError(f"cannot read {path}: {error.strerror}") from None
