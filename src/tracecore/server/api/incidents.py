"""Incidents: list, show, acknowledge, resolve, note."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response
from pydantic import Field

from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import TEXT, Body, BodyText, Cursor, Id, Limit, Moment, Name, nanoseconds
from tracecore.server.audit import record
from tracecore.server.notified import detail_of
from tracecore.server.principal import Principal, require
from tracecore.store.incidents import IncidentQuery
from tracecore.store.people import Deed
from tracecore.store.records import IncidentDetail, IncidentPage, IncidentRow, Note, Overview, RevisionPage
from tracecore.store.store import Found, Store

STRUCTS = (IncidentPage, IncidentDetail, IncidentRow, RevisionPage, Note, Overview, Found)
router = APIRouter(tags=["incidents"])
READ: Any = require("read")
OPERATE: Any = require("operate")


class Comment(Body):
    """Why something is done."""

    comment: BodyText = ""


class NewNote(Body):
    text: Annotated[str, Field(min_length=1, max_length=4_000, pattern=TEXT)]


@router.get("/overview", responses=says(Overview))
def overview(request: Request, days: Annotated[int, Query(ge=1, le=365)] = 30, who: Principal = READ) -> Response:
    """Return open incidents, the health of the fleet, interruptions and recurring causes."""
    store: Store = request.app.state.store
    return answer(request, store.overview(request.app.state.clock(), days=days, tenant=who.tenant))


@router.get("/search", responses=says(Found))
def search(
    request: Request,
    q: Annotated[str, Query(min_length=1, max_length=300, pattern=TEXT)],
    limit: Limit = 50,
    cursor: Cursor = None,
    who: Principal = READ,
) -> Response:
    """Incidents by the words of their headline, job, places, fingerprint and evidence; jobs and nodes by name."""
    store: Store = request.app.state.store
    return answer(request, store.search(q, limit=limit, cursor=cursor, tenant=who.tenant))


@router.get("/incidents", responses=says(IncidentPage))
def find(
    request: Request,
    state: Annotated[Literal["active", "open", "diagnosed", "acknowledged", "resolved"] | None, Query()] = None,
    job: Name = None,
    node: Name = None,
    gpu: Name = None,
    pattern: Name = None,
    failure_class: Annotated[str | None, Query(alias="class", min_length=1, max_length=40, pattern=TEXT)] = None,
    fingerprint: Name = None,
    acknowledged: Annotated[bool | None, Query()] = None,
    since: Moment = None,
    until: Moment = None,
    q: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    who: Principal = READ,
) -> Response:
    """Incidents, those that began last first."""
    query = IncidentQuery(
        state=state, job=job, node=node, gpu=gpu, pattern=pattern, failure_class=failure_class,
        fingerprint=fingerprint, acknowledged=acknowledged, since=nanoseconds(since), until=nanoseconds(until), text=q,
        tenant=who.tenant,
    )  # fmt: skip
    store: Store = request.app.state.store
    return answer(request, store.incidents.find(query, limit=limit, cursor=cursor))


@router.get("/incidents/{id}", responses=says(IncidentDetail))
def show(request: Request, id: Id, who: Principal = READ) -> Response:
    """One incident with its verdicts, evidence, notes and all else that belongs to it."""
    return answer(request, _found(detail_of(request.app.state, id, who.tenant), id))


@router.get("/incidents/{id}/revisions", responses=says(RevisionPage))
def revisions(request: Request, id: Id, who: Principal = READ) -> Response:
    """Return earlier revisions of an incident, newest first, at most 200."""
    store: Store = request.app.state.store
    detail: IncidentDetail = _found(store.incidents.get(id, tenant=who.tenant), id)
    return answer(request, RevisionPage(revisions=detail.revisions))


@router.get("/incidents/{id}/revisions/{revision}", responses={200: {"description": "The incident's document."}})
def revision(request: Request, id: Id, revision: int, who: Principal = READ) -> Response:
    """The document of one revision."""
    store: Store = request.app.state.store
    known = 0 < revision < 1 << 31
    return answer(request, _found(store.incidents.revision(id, revision, tenant=who.tenant) if known else None, id))


@router.get("/incidents/{id}/similar", responses=says(IncidentPage))
def similar(request: Request, id: Id, limit: Limit = 10, who: Principal = READ) -> Response:
    """Incidents with the same fingerprint, newest first."""
    store: Store = request.app.state.store
    row: IncidentRow = _found(store.incidents.row(id, tenant=who.tenant), id)
    found = store.incidents.similar(row.fingerprint, but=id, limit=limit, tenant=who.tenant)
    return answer(request, IncidentPage(incidents=found if row.fingerprint else []))


@router.post("/incidents/{id}/acknowledge", responses=says(IncidentRow))
def acknowledge(request: Request, id: Id, body: Comment | None = None, who: Principal = OPERATE) -> Response:
    """Say that somebody looks after it."""
    return _do(request, id, "acknowledge", body, who)


@router.post("/incidents/{id}/unacknowledge", responses=says(IncidentRow))
def unacknowledge(request: Request, id: Id, body: Comment | None = None, who: Principal = OPERATE) -> Response:
    """Take an acknowledgement back."""
    return _do(request, id, "unacknowledge", body, who)


@router.post("/incidents/{id}/resolve", responses=says(IncidentRow))
def resolve(request: Request, id: Id, body: Comment | None = None, who: Principal = OPERATE) -> Response:
    """Say that it is over. New evidence opens it again."""
    return _do(request, id, "resolve", body, who)


@router.post("/incidents/{id}/reopen", responses=says(IncidentRow))
def reopen(request: Request, id: Id, body: Comment | None = None, who: Principal = OPERATE) -> Response:
    """Say that it is not over."""
    return _do(request, id, "reopen", body, who)


@router.post("/incidents/{id}/notes", status_code=201, responses=says(Note, 201, "The note."))
def note(request: Request, id: Id, body: NewNote, who: Principal = OPERATE) -> Response:
    """Add a note."""
    store: Store = request.app.state.store
    made = _found(store.people.note(id, who.name, body.text, request.app.state.clock(), tenant=who.tenant), id)
    record(request, who, "note", id)
    return answer(request, made, 201)


def _do(request: Request, id: str, what: Deed, body: Comment | None, who: Principal) -> Response:
    store: Store = request.app.state.store
    comment = body.comment if body is not None else ""
    if not store.people.act(id, what, who.name, request.app.state.clock(), comment=comment, tenant=who.tenant):
        _found(None, id)
    record(request, who, what, id)
    return answer(request, store.incidents.row(id, tenant=who.tenant))


def _found(value: Any, id: str) -> Any:
    if value is None:
        raise HTTPException(404, f"there is no incident {id}")
    return value
