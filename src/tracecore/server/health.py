"""Whether the server is alive and ready, and its metrics."""

from __future__ import annotations

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import PlainTextResponse, Response

from tracecore.server.principal import require

router = APIRouter(include_in_schema=False)


@router.get("/healthz")
def healthz() -> Response:
    """The process answers."""
    return PlainTextResponse("ok\n")


@router.get("/readyz")
def readyz(request: Request) -> Response:
    """The database answers."""
    try:
        with request.app.state.store.database.read() as connection:
            connection.execute(select(1))
    except SQLAlchemyError:
        return PlainTextResponse("the database does not answer\n", 503)
    return PlainTextResponse("ok\n")


@router.get("/metrics", dependencies=[require("read")])
def metrics() -> Response:
    """Prometheus metrics of this process."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)
