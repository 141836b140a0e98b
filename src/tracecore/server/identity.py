"""Find out who a request is from: an API token, a session, or anybody on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tracecore.server.principal import LOCAL, Principal
from tracecore.server.settings import ServerSettings
from tracecore.store.records import ApiToken
from tracecore.store.store import Store
from tracecore.store.tokens import SCOPES

#: A session lasts so many seconds.
SESSION_S: Final = 12 * 3600
SESSION: Final = "tracecore_session"
#: What is answered without knowing who asks, or with an error that programs understand.
_NOT_PAGES: Final = (
    "/api/",
    "/mcp",
    "/v1/",
    "/static/",
    "/login",
    "/auth/",
    "/oauth2/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/favicon.ico",
)


class Identity:
    """Sets `request.state.principal` where it is known who asks; sends strangers with a browser to the sign-in page."""

    def __init__(self, app: ASGIApp, settings: ServerSettings, store: Store, clock: Callable[[], int]) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            found = await self._who(headers, scope.get("session") or {})
            if found is not None:
                scope.setdefault("state", {})["principal"] = found
            elif self._is_page(scope, headers):
                path = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
                await RedirectResponse(f"/login?next={quote(path[:1000], safe='')}", 303)(scope, receive, send)
                return
            elif headers.get("authorization", "").lower().startswith("bearer "):
                scope.setdefault("state", {})["unknown_token"] = True
        await self._app(scope, receive, send)

    def _is_page(self, scope: Scope, headers: Headers) -> bool:
        asks = scope["method"] in ("GET", "HEAD") and "text/html" in headers.get("accept", "")
        return asks and not scope["path"].startswith(_NOT_PAGES)

    async def _who(self, headers: Headers, session: Mapping[str, Any]) -> Principal | None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and given:
            token = await run_in_threadpool(self._store.tokens.verify, given.strip(), self._clock())
            return None if token is None else of_token(token)
        if not self._settings.auth:
            return LOCAL
        return await run_in_threadpool(self._of_session, session)

    def _of_session(self, session: Mapping[str, Any]) -> Principal | None:
        who = session.get("who")
        if not isinstance(who, dict) or who.get("until", 0) < self._clock() // 10**9:
            return None
        if ident := who.get("token"):
            # A revoked token ends its sessions too.
            token = self._store.tokens.live(str(ident), self._clock())
            return None if token is None else of_token(token, how="session")
        scopes = frozenset(who.get("scopes") or ()) & frozenset(SCOPES)
        return Principal(
            name=str(who.get("name", ""))[:300], scopes=scopes, tenant=who.get("tenant") or None, how="session"
        )


def of_token(token: ApiToken, how: str = "token") -> Principal:
    """Return the user of a token."""
    return Principal(name=f"token {token.name}", scopes=frozenset(token.scopes), tenant=token.tenant or None, how=how)
