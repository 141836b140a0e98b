"""Render a template: one environment, everything escaped, and a form token for the pages that have forms."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from tracecore import __version__
from tracecore.server.csrf import form_token, remember
from tracecore.server.pages import words
from tracecore.server.pages.hostile import finalize
from tracecore.server.principal import Principal

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


def render(request: Request, name: str, status: int = 200, **context: Any) -> Response:
    """A page, or the part of one that htmx asked for."""
    clock = getattr(request.app.state, "clock", words.now)
    frame = {"here": request.url.path, "now": clock(), "csrf": form_token(request), "viewer": viewer(request)}
    page = environment().get_template(name).render(**frame | context)
    return remember(request, HTMLResponse(page, status))


def viewer(request: Request) -> Principal | None:
    """Return the person who looks at a page; None if the server asks for no login, or before the login."""
    found = getattr(request.state, "principal", None)
    return found if isinstance(found, Principal) and found.how != "none" else None
