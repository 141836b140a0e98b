"""Errors as problem+json (RFC 9457)."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

if TYPE_CHECKING:
    from fastapi import FastAPI, Request
    from fastapi.exceptions import RequestValidationError

TYPE = "application/problem+json"


class Problem(msgspec.Struct, kw_only=True):
    """Why a request failed.

    Args:
        title: the status in words.
        detail: what is wrong and what to do.
        errors: for each wrong field its place and what is wrong.
    """

    status: int
    title: str
    detail: str = ""
    errors: list[dict[str, Any]] = []


def problem(
    status: int, detail: str = "", *, errors: list[dict[str, Any]] | None = None, headers: dict[str, str] | None = None
) -> Response:
    """An answer that says what is wrong."""
    body = Problem(status=status, title=HTTPStatus(status).phrase, detail=detail, errors=errors or [])
    return Response(msgspec.json.encode(body), status, media_type=TYPE, headers=headers)


def install(app: FastAPI) -> None:
    """Answer every failed API request with problem+json."""
    from fastapi.exceptions import RequestValidationError

    from tracecore.store.cursors import BadCursor
    from tracecore.store.people import BadMatcher
    from tracecore.store.update import BadIncident

    app.add_exception_handler(HTTPException, _http)  # type: ignore[arg-type]
    app.add_exception_handler(RequestValidationError, _invalid)  # type: ignore[arg-type]
    app.add_exception_handler(BadCursor, _no_page)
    app.add_exception_handler(BadIncident, _refused)
    app.add_exception_handler(BadMatcher, _conflict)


async def _http(request: Request, error: HTTPException) -> Response:
    detail = error.detail if isinstance(error.detail, str) else ""
    title = HTTPStatus(error.status_code).phrase
    said = "" if detail == title else detail
    return problem(error.status_code, said, headers=dict(error.headers) if error.headers else None)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    errors = [
        {"in": str(one["loc"][0]), "field": ".".join(map(str, one["loc"][1:])), "problem": str(one["msg"])}
        for one in error.errors()[:20]
    ]
    said = "; ".join(f"{one['field'] or one['in']}: {one['problem']}" for one in errors[:3])
    return problem(422, said, errors=errors)


async def _refused(request: Request, error: Exception) -> Response:
    return problem(400, str(error))


async def _no_page(request: Request, error: Exception) -> Response:
    return problem(404, str(error))


async def _conflict(request: Request, error: Exception) -> Response:
    return problem(409, str(error))
