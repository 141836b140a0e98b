"""The pages of `tracecore serve`: rendered on the server, readable without JavaScript, nothing fetched elsewhere."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.staticfiles import StaticFiles

from tracecore.server.pages import errors, incidents, jobs, nodes, overview, patterns, silences, tokens, uploads
from tracecore.server.pages.templating import STATIC


def install(app: FastAPI) -> None:
    """Add the pages to the application."""
    app.mount("/static", _Files(directory=STATIC), name="static")
    for part in (overview, incidents, jobs, nodes, patterns, uploads, silences, tokens):
        app.include_router(part.router, include_in_schema=False)
    errors.install(app)


class _Files(StaticFiles):
    """Static files, whose addresses change with their content: a browser keeps them."""

    def file_response(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response
