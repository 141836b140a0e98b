"""Errors for people: a page where a browser asks for a page, problem+json for everybody else."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from tracecore.server.pages.templating import render
from tracecore.store.cursors import BadCursor

TITLES: Final = {
    400: ("That address does not work", "Something in it cannot be read."),
    401: ("Sign in first", "This server does not show anything to strangers."),
    403: ("Not allowed", "You may look, but not do this."),
    404: ("Not found", "There is nothing at this address. It may have been removed because of its age."),
    405: ("Not allowed", "This address cannot be used in this way."),
    413: ("Too large", "The upload is larger than this server takes."),
    429: ("Too many requests", "Wait a moment and try again."),
    500: ("Something failed", "The server's log says what. The incidents are safe in the store."),
    503: ("The store cannot be reached", "Try again in a moment."),
}


def install(app: FastAPI) -> None:
    """Show failed requests of browsers as pages; leave the answers of the API as they are."""
    for kind in (HTTPException, RequestValidationError, BadCursor):
        before = app.exception_handlers.get(kind)

        async def handler(request: Request, error: Exception, before: Any = before) -> Response:
            if not _wants_page(request):
                if before is None:
                    raise error
                answer: Response = await before(request, error)
                return answer
            status = error.status_code if isinstance(error, HTTPException) else 400
            detail = error.detail if isinstance(error, HTTPException) else str(error)
            return error_page(request, status, detail if isinstance(error, (HTTPException, BadCursor)) else "")

        app.add_exception_handler(kind, handler)


def error_page(request: Request, status: int, detail: str = "") -> Response:
    """A page that says what is wrong and where to go on."""
    title, text = TITLES.get(status, ("That did not work", "The server refused the request."))
    # Starlette's own words for a status say nothing new.
    said = f"{detail[:1].upper()}{detail[1:]}." if detail and " " in detail and status != 404 else text
    return render(request, "error.html", status, title=title, text=said)


def _wants_page(request: Request) -> bool:
    path = request.url.path
    return "text/html" in request.headers.get("accept", "") and not path.startswith(("/api/", "/static/", "/v1/"))
