"""`/mcp`: the same tools over streamable HTTP, behind the server's own authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from fastapi import FastAPI
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tracecore.server.mcp.tools import make_mcp
from tracecore.server.principal import UNKNOWN_TOKEN
from tracecore.server.settings import Settings
from tracecore.store.store import Store

MAX_BODY = 1 << 20


class McpEndpoint:
    """The protocol at one path of the application."""

    def __init__(self, app: FastAPI, store: Store, settings: Settings) -> None:
        self._server = make_mcp(store, app.state.clock, local=False)
        hosts = {settings.listen, f"localhost:{settings.port}"}
        if settings.base_url:
            hosts.add(urlsplit(settings.base_url).netloc)
        origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
        self._app: ASGIApp = self._server.streamable_http_app(
            streamable_http_path="/mcp",
            stateless_http=True,
            json_response=True,
            max_request_body_size=MAX_BODY,
            # Pages of other sites cannot speak to a server on this machine.
            transport_security=TransportSecuritySettings(
                enable_dns_rebinding_protection=not settings.behind_proxy,
                allowed_hosts=sorted(hosts),
                allowed_origins=sorted(origins),
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._server.session_manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (scope.get("state") or {}).get("principal") is None:
            unknown = (scope.get("state") or {}).get("unknown_token")
            said = UNKNOWN_TOKEN if unknown else "send an API token"
            answer = JSONResponse({"detail": said}, 401, headers={"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        await self._app({**scope, "path": "/mcp", "root_path": ""}, receive, send)
