"""Tokens in forms, so that only our own pages can send them.

A cookie holds a random value, and the form its signature. Both come from the server; another site can read neither.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Final

from fastapi import HTTPException, Request
from starlette.datastructures import FormData
from starlette.responses import Response

COOKIE: Final = "tracecore_form"
FIELD: Final = "csrf"
#: Characters of a text field, and fields of a form.
MAX_FIELDS: Final = 50


def form_token(request: Request) -> str:
    """The token for the forms of a page; `remember` the answer's cookie with it."""
    value = request.cookies.get(COOKIE, "")
    if len(value) != 43:
        value = getattr(request.state, "form_cookie", "") or secrets.token_urlsafe(32)
        request.state.form_cookie = value
    return _signed(request, value)


def remember(request: Request, response: Response) -> Response:
    """Set the cookie that a page's form tokens belong to, where it is new."""
    value = getattr(request.state, "form_cookie", "")
    if value:
        secure = request.app.state.settings.secure
        response.set_cookie(COOKIE, value, httponly=True, samesite="strict", secure=secure, path="/")
    return response


async def checked_form(request: Request) -> FormData:
    """The form of a request that came from one of our pages.

    Raises:
        HTTPException: it did not.
    """
    form = await request.form(max_files=1, max_fields=MAX_FIELDS)
    value, given = request.cookies.get(COOKIE, ""), form.get(FIELD)
    right = (
        len(value) == 43
        and isinstance(given, str)
        and hmac.compare_digest(given.encode("utf-8", "replace"), _signed(request, value).encode())
    )
    if not right:
        await form.close()
        raise HTTPException(403, "this form is out of date: reload the page and send it again")
    return form


def _signed(request: Request, value: str) -> str:
    secret: bytes = request.app.state.settings.secret
    return hmac.new(secret, b"form\x00" + value.encode("utf-8", "replace"), hashlib.sha256).hexdigest()
