"""The web application: API and pages over one store."""

from __future__ import annotations

import importlib.util
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.middleware.sessions import SessionMiddleware
from starlette.routing import Route

from tracecore import __version__
from tracecore.server import health, login, oauth, otlp, problems
from tracecore.server.answers import schemas
from tracecore.server.api import ROUTERS, STRUCTS, diagnoses
from tracecore.server.api.webhooks import TakenFacts
from tracecore.server.events import Watcher
from tracecore.server.headers import SecurityHeaders
from tracecore.server.identity import SESSION, SESSION_S, Identity
from tracecore.server.ingest import Ingest
from tracecore.server.limits import BodyLimit, RateLimit
from tracecore.server.settings import ServerSettings
from tracecore.store.store import Store

if TYPE_CHECKING:
    from tracecore.server.mcp.http import McpEndpoint


def make_app(
    store: Store, settings: ServerSettings | None = None, *, clock: Callable[[], int] = time.time_ns
) -> FastAPI:
    """The application.

    Handlers find `app.state.store`, `app.state.settings`, `app.state.clock` (nanoseconds), `app.state.watcher`
    and `app.state.ingest`; who asks is `request.state.principal`.
    """
    settings = settings or ServerSettings()
    if not settings.secret:
        settings = msgspec.structs.replace(settings, secret=secrets.token_bytes(32))
    watcher = Watcher(store)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(watcher.running())
            if assistants is not None:
                await stack.enter_async_context(assistants.running())
            yield

    app = FastAPI(
        title="tracecore",
        version=__version__,
        description="What broke in the fleet's training runs, and what to do.",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.ingest = Ingest(store, clock)
    app.state.taken_facts = TakenFacts()
    app.state.store, app.state.settings, app.state.clock, app.state.watcher = store, settings, clock, watcher
    assistants = _assistants(app, store, settings)
    problems.install(app)
    app.include_router(health.router)
    app.include_router(otlp.router)
    app.include_router(login.router)
    app.include_router(oauth.router)
    app.state.oidc = login.client(settings.oidc) if settings.oidc is not None else None
    for router in ROUTERS:
        app.include_router(router, prefix="/api/v1")
    app.include_router(diagnoses.form_router)
    # The pages are a part of their own: the API works without them.
    if importlib.util.find_spec("tracecore.server.pages") is not None:
        importlib.import_module("tracecore.server.pages").install(app)
    app.add_middleware(Identity, settings=settings, store=store, clock=clock)
    app.add_middleware(
        SessionMiddleware,
        secret_key=settings.secret.hex(),
        session_cookie=SESSION,
        max_age=SESSION_S,
        same_site="lax",
        https_only=settings.secure,
    )
    app.add_middleware(RateLimit, rate=settings.rate, burst=settings.burst)
    app.add_middleware(BodyLimit, most=settings.max_body, uploads=settings.max_upload)
    app.add_middleware(SecurityHeaders, settings=settings)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _assistants(app: FastAPI, store: Store, settings: ServerSettings) -> McpEndpoint | None:
    """Give AI assistants a way in, where the package for it is installed."""
    try:
        from tracecore.server.mcp.http import McpEndpoint
    except ModuleNotFoundError:
        return None
    endpoint = McpEndpoint(app, store, settings)
    app.router.routes.append(Route("/mcp", endpoint, methods=["GET", "POST", "DELETE"], include_in_schema=False))
    return endpoint


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description of the API, with the structs that answers are made of."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas(*STRUCTS))
        for path in document["paths"].values():
            for operation in path.values():
                _say_problems(operation)
        app.openapi_schema = document
    return app.openapi_schema


def _say_problems(operation: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Problem"}
    said = {"description": "Why it failed.", "content": {problems.TYPE: {"schema": schema}}}
    operation["responses"].pop("422", None)
    for status in ("400", "401", "403", "404", "409", "413", "422", "429"):
        operation["responses"].setdefault(status, said)
