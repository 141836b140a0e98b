"""Silences: no notifications about incidents that match, for a time."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import AwareDatetime, Field

from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import TEXT, Body, BodyText, Id, nanoseconds
from tracecore.server.audit import record
from tracecore.server.principal import Principal, require
from tracecore.store.people import LABELS
from tracecore.store.records import Matcher, Silence, SilencePage
from tracecore.store.store import Store

STRUCTS = (Silence, SilencePage)
router = APIRouter(tags=["silences"])
READ: Any = require("read")
OPERATE: Any = require("operate")


class NewMatcher(Body):
    name: Annotated[str, Field(json_schema_extra={"enum": list(LABELS)}, max_length=40)]
    op: Literal["=", "!=", "=~", "!~"] = "="
    value: Annotated[str, Field(max_length=300, pattern=TEXT)]


class NewSilence(Body):
    """At least one matcher has to say what to silence."""

    matchers: Annotated[list[NewMatcher], Field(min_length=1, max_length=20)]
    ends_at: Annotated[AwareDatetime, Field(strict=False)]
    starts_at: Annotated[AwareDatetime | None, Field(strict=False)] = None
    comment: BodyText = ""


@router.get("/silences", responses=says(SilencePage))
def find(request: Request, ended: Annotated[bool, Query()] = False, who: Principal = READ) -> Response:
    """Silences that last or begin later; with `ended` those that are over."""
    store: Store = request.app.state.store
    found = store.silences.find(request.app.state.clock(), ended=ended, tenant=who.tenant)
    return answer(request, SilencePage(silences=found))


@router.post("/silences", status_code=201, responses=says(Silence, 201, "The silence."))
def create(request: Request, body: NewSilence, who: Principal = OPERATE) -> Response:
    """Begin a silence."""
    store: Store = request.app.state.store
    now = request.app.state.clock()
    ends, starts = nanoseconds(body.ends_at), nanoseconds(body.starts_at)
    if ends is None or ends <= max(now, starts or 0):
        raise HTTPException(409, "ends_at has to be later than now and than starts_at")
    made = store.silences.create(
        [Matcher(name=one.name, op=one.op, value=one.value) for one in body.matchers],
        who=who.name,
        now=now,
        ends_at=ends,
        starts_at=starts,
        comment=body.comment,
        tenant=who.tenant or "",
    )
    record(request, who, "silence", made.id, body.comment)
    return answer(request, made, 201)


@router.delete("/silences/{id}", responses=says(Silence))
def expire(request: Request, id: Id, who: Principal = OPERATE) -> Response:
    """End a silence now."""
    store: Store = request.app.state.store
    if not store.silences.expire(id, request.app.state.clock(), tenant=who.tenant):
        raise HTTPException(404, f"there is no silence {id}")
    record(request, who, "expire", id)
    return answer(request, store.silences.get(id, tenant=who.tenant))
