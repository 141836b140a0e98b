"""A token endpoint (RFC 6749, client credentials) for senders that fetch their bearer token instead of being given one.

The secret is an API token, and so is what it is exchanged for: nothing is gained by asking here but the form that such
senders expect.
"""

from __future__ import annotations

import base64
import binascii
from typing import Final
from urllib.parse import unquote_plus

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData

from tracecore.store.store import Store

router = APIRouter(include_in_schema=False)
#: Seconds after which a sender asks again; the token itself can last longer.
LASTS_S: Final = 3600


@router.post("/oauth2/token")
async def token(request: Request) -> Response:
    """Exchange a client's secret for a bearer token."""
    form = await request.form(max_files=0, max_fields=20)
    if form.get("grant_type") != "client_credentials":
        return _answer(400, {"error": "unsupported_grant_type"})
    store: Store = request.app.state.store
    secret = _secret(request.headers.get("authorization", ""), form)
    known = await run_in_threadpool(store.tokens.verify, secret, request.app.state.clock()) if secret else None
    if known is None:
        return _answer(401, {"error": "invalid_client", "error_description": "the client secret is not an API token"})
    said = {"access_token": secret, "token_type": "Bearer", "expires_in": LASTS_S, "scope": " ".join(known.scopes)}
    return _answer(200, said)


def _secret(authorization: str, form: FormData) -> str:
    """The client's secret, of the form or of basic authentication."""
    kind, _, given = authorization.partition(" ")
    if kind.lower() == "basic":
        try:
            return unquote_plus(base64.b64decode(given, validate=True).decode().partition(":")[2])
        except (binascii.Error, UnicodeDecodeError):
            return ""
    secret = form.get("client_secret")
    return secret if isinstance(secret, str) else ""


def _answer(status: int, said: dict[str, object]) -> Response:
    headers = {"Cache-Control": "no-store", "Pragma": "no-cache"}
    if status == 401:
        headers["WWW-Authenticate"] = "Basic"
    return Response(msgspec.json.encode(said), status, media_type="application/json", headers=headers)
