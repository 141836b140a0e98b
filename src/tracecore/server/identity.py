"""Find out who a request is from: an API token, a session, or anybody on this machine."""

from __future__ import annotations

from collections.abc import Callable

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from tracecore.server.principal import LOCAL, Principal
from tracecore.server.settings import Settings
from tracecore.store.records import Token
from tracecore.store.store import Store


class Identity:
    """Sets `request.state.principal` where it is known who asks."""

    def __init__(self, app: ASGIApp, settings: Settings, store: Store, clock: Callable[[], int]) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = await self._who(Headers(scope=scope))
            if found is not None:
                scope.setdefault("state", {})["principal"] = found
        await self._app(scope, receive, send)

    async def _who(self, headers: Headers) -> Principal | None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and given:
            token = await run_in_threadpool(self._store.tokens.verify, given.strip(), self._clock())
            return None if token is None else of_token(token)
        return None if self._settings.auth else LOCAL


def of_token(token: Token) -> Principal:
    return Principal(
        name=f"token {token.name}", scopes=frozenset(token.scopes), tenant=token.tenant or None, how="token"
    )
