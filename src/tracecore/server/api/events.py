"""The stream of changes, as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from sse_starlette.sse import EventSourceResponse

from tracecore.server.answers import plain
from tracecore.server.events import TooManyViewers, Watcher
from tracecore.server.principal import Principal, require

STRUCTS: tuple[type, ...] = ()
router = APIRouter(tags=["events"])
READ: Any = require("read")


# Not in the description of the API: an answer that never ends is none that OpenAPI can describe.
@router.get("/events", include_in_schema=False)
async def events(request: Request, who: Principal = READ) -> Response:
    """Changes as they happen: `event: incident`, `data: {"name": ID, …}`; `event: reload` where some were lost."""
    watcher: Watcher = request.app.state.watcher
    viewer = watcher.viewer()
    try:
        queue = await viewer.__aenter__()
    except TooManyViewers:
        raise HTTPException(503, "too many viewers: try again later", headers={"Retry-After": "30"}) from None

    async def stream() -> AsyncIterator[dict[str, Any]]:
        try:
            yield {"event": "hello", "data": "{}", "retry": 3000}
            while (change := await queue.get()) is not None:
                if who.tenant is None or change.tenant in ("", who.tenant):
                    yield {
                        "event": change.kind,
                        "id": str(change.number),
                        "data": msgspec.json.encode(plain(change)).decode(),
                    }
            yield {"event": "reload", "data": "{}"}
        finally:
            await asyncio.shield(viewer.__aexit__(None, None, None))

    return EventSourceResponse(stream(), ping=15)
