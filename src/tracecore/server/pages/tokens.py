"""API tokens: make, list and revoke them."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tracecore.server.audit import record
from tracecore.server.pages.access import Admin, Form, Held, Now, Reader, back
from tracecore.server.pages.charts import DAY
from tracecore.server.pages.templating import render
from tracecore.server.principal import Principal
from tracecore.store.records import ApiToken
from tracecore.store.store import Store

router = APIRouter()
SCOPES: Final = (
    ("read", "see everything"),
    ("ingest", "send facts, incidents and bundles"),
    ("operate", "acknowledge, resolve, note, silence"),
    ("admin", "make and revoke tokens"),
)
_DAYS: Final = (0, 30, 90, 365)


@router.get("/tokens")
def tokens(request: Request, who: Reader, store: Held) -> Response:
    return _page(request, who, store)


@router.post("/tokens")
async def create(request: Request, who: Admin, store: Held, now: Now, form: Form) -> Response:
    name = str(form.get("name", "")).strip()
    scopes = [str(scope) for scope in form.getlist("scope")]
    days = str(form.get("days", ""))
    length = int(days) if days.isascii() and days.isdigit() and int(days[:9]) in _DAYS else 90
    if not name or not scopes or not set(scopes) <= {scope for scope, _ in SCOPES}:
        said = "A token needs a name and at least one thing that it may do."
        return await run_in_threadpool(_page, request, who, store, error=said)
    made, secret = await run_in_threadpool(
        store.tokens.create, name, scopes, who=who.name, now=now, expires_at=now + length * DAY if length else None
    )
    await run_in_threadpool(record, request, who, "make token", made.id)
    return await run_in_threadpool(_page, request, who, store, made=made, secret=secret)


@router.post("/tokens/{id}/revoke")
async def revoke(request: Request, id: str, who: Admin, store: Held, now: Now, form: Form) -> Response:
    if not await run_in_threadpool(store.tokens.revoke, id, now):
        raise HTTPException(404, "no such token")
    await run_in_threadpool(record, request, who, "revoke token", id)
    return back("/tokens")


def _page(
    request: Request, who: Principal, store: Store, made: ApiToken | None = None, secret: str = "", error: str = ""
) -> Response:
    return render(
        request,
        "tokens.html",
        400 if error else 200,
        rows=store.tokens.find() if who.may("admin") else [],
        scopes=SCOPES,
        made=made,
        secret=secret,
        error=error,
        can_admin=who.may("admin"),
    )
