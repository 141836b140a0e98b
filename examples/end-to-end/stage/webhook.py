"""Where incidents arrive."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple


class Delivery(NamedTuple):
    """A document that was posted, and when it came (seconds since the epoch)."""

    time: float
    document: dict[str, Any]


class Webhook:
    """Takes what the agent's `webhook` exporter posts: one document for each revision of an incident."""

    def __init__(self) -> None:
        inbox = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                inbox.deliveries.append(Delivery(time.time(), json.loads(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: what was delivered is kept."""

        self.deliveries: list[Delivery] = []
        self._serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._serving.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._serving.server_address[1]}/incidents"
        self._thread = threading.Thread(target=self._serving.serve_forever, args=(0.1,), daemon=True)
        self._thread.start()

    def of(self, pattern: str) -> list[Delivery]:
        """The incidents of which a pattern is the root or a part, in order."""
        return [one for one in list(self.deliveries) if pattern in one.document["patterns"]]

    def standing(self) -> dict[str, dict[str, Any]]:
        """The last revision of every incident, by its id."""
        return {one.document["id"]: one.document for one in list(self.deliveries)}

    def close(self) -> None:
        self._serving.shutdown()
        self._serving.server_close()
        self._thread.join()


def until(condition: Callable[[], bool], seconds: float, pause: float = 0.1) -> bool:
    """Whether a condition came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True
