"""`/mcp`: the same tools over streamable HTTP, behind the server's own authentication."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

from fastapi import FastAPI
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecuritySettings
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tracecore.server.mcp.subscriptions import IncidentEvents, Subscriptions
from tracecore.server.mcp.tools import make_mcp
from tracecore.server.principal import UNKNOWN_TOKEN, Principal
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store

MAX_BODY: Final = 1 << 20
MAX_SESSIONS: Final = 500
SESSION_IDLE_S: Final = 600.0


class McpEndpoint:
    """The protocol at one path of the application."""

    def __init__(self, app: FastAPI, store: Store, settings: ServerSettings) -> None:
        self._changes = IncidentEvents(app.state.watcher)
        self._server = make_mcp(store, app.state.clock, local=False)
        Subscriptions(self._server, self._changes)
        hosts = {settings.listen, f"localhost:{settings.port}"}
        if settings.base_url:
            hosts.add(urlsplit(settings.base_url).netloc)
        origins = [f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
        self._app: ASGIApp = self._server.streamable_http_app(
            streamable_http_path="/mcp",
            # Of several servers any can get a session's next request; one that has its database alone gets them all.
            stateless_http=not store.database.is_sqlite,
            max_request_body_size=MAX_BODY,
            session_idle_timeout=SESSION_IDLE_S,
            max_sessions=MAX_SESSIONS,
            # Pages of other sites cannot speak to a server on this machine.
            transport_security=TransportSecuritySettings(
                enable_dns_rebinding_protection=not settings.behind_proxy,
                allowed_hosts=sorted(hosts),
                allowed_origins=sorted(origins),
            ),
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._changes.running(), self._server.session_manager.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope.get("state") or {}
        found: Principal | None = state.get("principal")
        if found is None:
            said = UNKNOWN_TOKEN if state.get("unknown_token") else "send an API token"
            answer = JSONResponse({"detail": said}, 401, headers={"WWW-Authenticate": "Bearer"})
            await answer(scope, receive, send)
            return
        # A session is its owner's: with another token its id is unknown.
        token = AccessToken(token="", client_id=f"{found.how}:{found.tenant}:{found.name}", scopes=[])
        user = AuthenticatedUser(token)
        under_way = False

        async def passed_on(message: Message) -> None:
            nonlocal under_way
            under_way = message["type"] == "http.response.start" or bool(message.get("more_body"))
            await send(message)

        await self._app({**scope, "path": "/mcp", "root_path": "", "user": user}, receive, passed_on)
        if under_way:
            # The library leaves streams without an end when the server stops, of which uvicorn complains.
            await send({"type": "http.response.body", "body": b"", "more_body": False})
