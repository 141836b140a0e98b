"""Limits on how much and how often a caller may ask."""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracecore.server.problems import problem

#: Callers that are remembered.
CALLERS: Final = 10_000
UPLOAD_PATHS: Final = frozenset({"/api/v1/diagnoses", "/upload"})
#: Asked for again and again by probes and monitors, and cheap.
FREE: Final = frozenset({"/healthz", "/readyz", "/metrics"})


class BodyLimit:
    """Refuses bodies that are too large, whether or not the caller says how large they are."""

    def __init__(self, app: ASGIApp, most: int, uploads: int) -> None:
        self._app = app
        self._most = most
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        most = self._uploads if scope["path"] in UPLOAD_PATHS else self._most
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > most:
            await problem(413, f"at most {most:,} bytes are taken")(scope, receive, send)
            return
        left = most

        async def bounded() -> Message:
            nonlocal left
            message = await receive()
            if message["type"] == "http.request":
                left -= len(message.get("body", b""))
                if left < 0:
                    raise _TooLarge
            return message

        started = False

        async def noted(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, bounded, noted)
        except _TooLarge:
            if not started:
                await problem(413, f"at most {most:,} bytes are taken", headers={"Connection": "close"})(
                    scope, receive, send
                )


class _TooLarge(Exception):
    pass


class RateLimit:
    """A token bucket for each caller: by API token where there is one, else by address."""

    def __init__(self, app: ASGIApp, rate: float, burst: int) -> None:
        self._app = app
        self._rate = rate
        self._burst = float(burst)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._rate or scope["path"] in FREE or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        wait = self._wait(_caller(scope))
        if wait > 0:
            answer = problem(429, "too many requests: wait a moment", headers={"Retry-After": str(int(wait) + 1)})
            await answer(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _wait(self, caller: str) -> float:
        """Take one request; seconds to wait where there is none left."""
        now = time.monotonic()
        left, at = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        wait = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[caller] = (left - 1 if wait == 0 else left, now)
        while len(self._buckets) > CALLERS:
            self._buckets.popitem(last=False)
        return wait


def _caller(scope: Scope) -> str:
    authorization = Headers(scope=scope).get("authorization", "")
    client = scope.get("client")
    # The public part of a token; a wrong secret must not give a fresh bucket.
    ident = authorization.removeprefix("Bearer tc_").partition("_")[0][:24] if "tc_" in authorization else ""
    return f"{client[0] if client else ''} {ident}"
