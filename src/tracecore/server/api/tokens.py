"""API tokens and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import Field

from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import TEXT, WHOLE, Body, Id
from tracecore.server.audit import record
from tracecore.server.principal import Principal, require
from tracecore.store.records import ApiToken, AuditEntry, TokenPage
from tracecore.store.store import Store
from tracecore.store.tokens import Scope


class MadeToken(msgspec.Struct, kw_only=True):
    """A new token. `secret` is shown once and is not kept."""

    token: ApiToken
    secret: str


class AuditPage(msgspec.Struct, kw_only=True):
    entries: list[AuditEntry]
    next: int | None = None


STRUCTS = (TokenPage, MadeToken, AuditPage)
router = APIRouter(tags=["tokens"])
ADMIN: Any = require("admin")


class NewToken(Body):
    name: Annotated[str, Field(min_length=1, max_length=100, pattern=TEXT)]
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=4)]
    days: Annotated[int, Field(ge=1, le=3650), WHOLE] | None = None
    tenant: Annotated[str, Field(max_length=80, pattern=TEXT)] = ""


@router.get("/tokens", responses=says(TokenPage))
def find(request: Request, who: Principal = ADMIN) -> Response:
    """All tokens, without their secrets."""
    store: Store = request.app.state.store
    return answer(request, TokenPage(tokens=store.tokens.find()))


@router.post("/tokens", status_code=201, responses=says(MadeToken, 201, "The token with its secret."))
def create(request: Request, body: NewToken, who: Principal = ADMIN) -> Response:
    """Make a token."""
    store: Store = request.app.state.store
    now = request.app.state.clock()
    expires = None if body.days is None else now + body.days * 86_400 * 10**9
    # A user of one tenant makes tokens for that tenant only.
    tenant = who.tenant if who.tenant is not None else body.tenant
    token, secret = store.tokens.create(
        body.name, body.scopes, who=who.name, now=now, expires_at=expires, tenant=tenant
    )
    record(request, who, "token", token.id, body.name)
    return answer(request, MadeToken(token=token, secret=secret), 201, headers={"Cache-Control": "no-store"})


@router.delete("/tokens/{id}", status_code=204, responses={204: {"description": "It is revoked."}})
def revoke(request: Request, id: Id, who: Principal = ADMIN) -> Response:
    """Revoke a token."""
    store: Store = request.app.state.store
    if not store.tokens.revoke(id, request.app.state.clock()):
        raise HTTPException(404, f"there is no token {id}")
    record(request, who, "revoke", id)
    return Response(status_code=204)


@router.get("/audit", responses=says(AuditPage))
def audit(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
    before: Annotated[int | None, Query(ge=1, lt=1 << 62)] = None,
    who: Principal = ADMIN,
) -> Response:
    """Return the audit log, newest first."""
    store: Store = request.app.state.store
    found = store.people.audit(limit=limit, before=before)
    return answer(request, AuditPage(entries=found, next=found[-1].number if len(found) == limit else None))
