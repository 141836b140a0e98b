"""Render a template: one environment, everything escaped, the headers that keep a page to itself."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from tracecore import __version__
from tracecore.server.pages import words
from tracecore.server.pages.hostile import finalize

FOLDER: Final = Path(__file__).parent
STATIC: Final = FOLDER / "static"


@cache
def static(name: str) -> str:
    """The address of a static file; another version of it has another address."""
    digest = hashlib.blake2b((STATIC / name).read_bytes(), digest_size=6).hexdigest()
    return f"/static/{name}?v={digest}"


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(words.FILTERS)
    made.globals.update(words.GLOBALS, static=static, version=__version__)
    return made


def render(request: Request, name: str, status: int = 200, **context: Any) -> HTMLResponse:
    """A page, or the part of one that htmx asked for."""
    now = words.now()
    page = environment().get_template(name).render(request=request, here=request.url.path, now=now, **_frame(request), **context)
    return HTMLResponse(page, status, headers={"Cache-Control": "no-store"})


def _frame(request: Request) -> dict[str, Any]:
    """What every page needs: who looks at it, and what a form has to send along."""
    state = request.state
    return {"viewer": getattr(state, "viewer", None), "csrf": getattr(state, "csrf", "")}
