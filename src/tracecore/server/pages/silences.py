"""Silences: no notifications about incidents that match, for a time."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tracecore.server.audit import record
from tracecore.server.pages.access import Form, Held, Now, Operator, Reader, back
from tracecore.server.pages.templating import render
from tracecore.server.pages.words import SECOND
from tracecore.server.principal import Principal
from tracecore.store.people import LABELS, BadMatcher
from tracecore.store.records import Matcher
from tracecore.store.store import Store

router = APIRouter()
#: Lines of the form.
MATCHERS: Final = 3
HOURS: Final = (1, 4, 24, 72, 168)
_OPERATORS: Final = ("=", "!=", "=~", "!~")


@router.get("/silences")
def silences(
    request: Request,
    who: Reader,
    store: Held,
    now: Now,
    job: str = Query("", max_length=300),
    pattern: str = Query("", max_length=80),
    node: str = Query("", max_length=300),
) -> Response:
    asked = {"job": job, "pattern": pattern, "node": node}
    wanted = [Matcher(name=name, value=value) for name, value in asked.items() if value]
    return _page(request, who, store, now, wanted)


@router.post("/silences")
async def create(request: Request, who: Operator, store: Held, now: Now, form: Form) -> Response:
    given = [[str(one) for one in form.getlist(name)][:MATCHERS] for name in ("name", "op", "value")]
    wanted = [
        Matcher(name=name, op=op if op in _OPERATORS else "=", value=value)
        for name, op, value in zip(*given, strict=False)
        if name and value
    ]
    comment = str(form.get("comment", "")).strip()
    hours = str(form.get("hours", ""))
    length = int(hours) if hours.isascii() and hours.isdigit() and int(hours[:9]) in HOURS else 4
    try:
        made = await run_in_threadpool(
            store.silences.create,
            wanted,
            who=who.name,
            now=now,
            ends_at=now + length * 3600 * SECOND,
            comment=comment,
            tenant=who.tenant or "",
        )
    except BadMatcher as error:
        said = f"{error}."
        return await run_in_threadpool(_page, request, who, store, now, wanted, said[:1].upper() + said[1:], comment)
    await run_in_threadpool(record, request, who, "silence", made.id)
    return back("/silences")


@router.post("/silences/{id}/expire")
async def expire(request: Request, id: str, who: Operator, store: Held, now: Now, form: Form) -> Response:
    if not await run_in_threadpool(store.silences.expire, id, now, tenant=who.tenant):
        raise HTTPException(404, "no such silence")
    await run_in_threadpool(record, request, who, "end silence", id)
    return back("/silences")


def _page(
    request: Request,
    who: Principal,
    store: Store,
    now: int,
    wanted: list[Matcher],
    error: str = "",
    comment: str = "",
) -> Response:
    lines: list[Any] = [*wanted[:MATCHERS], *(Matcher(name="") for _ in range(MATCHERS - len(wanted)))]
    return render(
        request,
        "silences.html",
        400 if error else 200,
        active=store.silences.find(now, tenant=who.tenant),
        ended=store.silences.find(now, ended=True, tenant=who.tenant),
        labels=LABELS,
        wanted=lines,
        error=error,
        comment=comment,
        can_operate=who.may("operate"),
    )
