"""The agent's own pages: `/metrics`, `/healthz`, `/readyz`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

import msgspec

from tracecore.agent.serving import Handler, Server
from tracecore.agent.telemetry import Telemetry

log = logging.getLogger("tracecore.agent")

#: Connections at a time: a few probes and a scraper.
CONNECTIONS: Final = 32

Health = Callable[[], tuple[bool, dict[str, str]]]


class OwnServer:
    """Answers a few GET requests.

    Args:
        where: host and port; port 0 takes a free one.
        telemetry: the numbers.
        health: whether all is well, and what is not.
        ready_path: where readiness is told beside `/readyz`.
    """

    def __init__(
        self, where: tuple[str, int], telemetry: Telemetry | None, health: Health, ready_path: str = ""
    ) -> None:
        pages: dict[str, Callable[[], tuple[int, str, bytes]]] = {"/healthz": _alive, "/readyz": lambda: _ready(health)}
        if telemetry is not None:
            pages["/metrics"] = lambda: (200, "text/plain; version=0.0.4; charset=utf-8", telemetry.render().encode())
        if ready_path:
            pages[ready_path] = lambda: _ready(health)
        handler = type("Handler", (_PageHandler,), {"pages": pages})
        self._server = Server(where, handler, CONNECTIONS)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="own-http", daemon=True)

    def start(self) -> None:
        self._thread.start()
        log.info("own metrics and health on http://%s:%d", self._server.server_address[0], self.port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _alive() -> tuple[int, str, bytes]:
    return 200, "application/json", b'{"status":"alive"}'


def _ready(health: Health) -> tuple[int, str, bytes]:
    good, degraded = health()
    status = "not ready" if not good else "degraded" if degraded else "ready"
    body = msgspec.json.encode({"status": status, "degraded": degraded})
    return 200 if good else 503, "application/json", body


class _PageHandler(Handler):
    pages: dict[str, Callable[[], tuple[int, str, bytes]]]

    def do_GET(self) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        status, kind, body = page() if page is not None else (404, "text/plain", b"/metrics /healthz /readyz\n")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
