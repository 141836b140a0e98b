"""Run the server: open the store, listen, stop in order."""

from __future__ import annotations

import secrets
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec
import uvicorn

from tracecore.notify.config import Config, FileError, read
from tracecore.notify.notifier import Notifier
from tracecore.server import demo
from tracecore.server.app import make_app
from tracecore.server.settings import Settings, is_loopback
from tracecore.store.database import default_url
from tracecore.store.store import Store


class ServeError(Exception):
    """The server cannot run; the message says why and what to do."""


class ServeOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What the command line says."""

    listen: str
    database: str | None = None
    notify: str | None = None
    demo: bool = False
    quiet: bool = False


def serve(options: ServeOptions) -> int:
    """Serve until a signal says to stop.

    Raises:
        ServeError: it cannot.
        StoreError: the database cannot be used.
    """
    host, _, port = options.listen.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ServeError(f"{options.listen!r} is not an address: write it like 127.0.0.1:8040")
    host = host.strip("[]") or "0.0.0.0"
    if not is_loopback(host):
        raise ServeError(f"{host} can be reached from other machines: that needs authentication")
    with ExitStack() as stack:
        place = options.database or default_url()
        if options.demo:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tracecore-demo-"))
            place = options.database or str(Path(folder) / "demo.db")
        store = Store.open(place)
        stack.callback(store.close)
        if options.demo:
            demo.fill(store, time.time_ns())
            stack.enter_context(demo.running(store))
        settings = Settings(listen=options.listen, secret=secrets.token_bytes(32), demo=options.demo)
        if options.notify:
            notifier = Notifier(store, _notifications(options.notify), time.time_ns)
            notifier.start()
            stack.callback(notifier.stop)
        app = make_app(store, settings)
        if not options.quiet:
            print(f"tracecore serves http://{options.listen}/ (Ctrl-C stops it)", file=sys.stderr, flush=True)
        uvicorn.run(app, host=host, port=int(port), log_level="warning", access_log=False, server_header=False)
    return 0


def _notifications(path: str) -> Config:
    try:
        return read(Path(path))
    except FileError as error:
        raise ServeError(str(error)) from None
    except OSError as error:
        raise ServeError(f"cannot read {path}: {error.strerror}") from None
