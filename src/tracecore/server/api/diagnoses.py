"""Diagnoses: upload a bundle, or publish one that was made elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import UploadFile
from starlette.responses import RedirectResponse

from tracecore.incidents.diagnosis import SCHEMA
from tracecore.notify.groups import STALE
from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import TEXT, Cursor, Id, Limit
from tracecore.server.audit import record
from tracecore.server.csrf import checked_form
from tracecore.server.diagnosing import Busy, Diagnoses
from tracecore.server.headers import REPORT_CSP
from tracecore.server.notified import config_of
from tracecore.server.principal import Principal, require
from tracecore.store.records import Upload, UploadPage
from tracecore.store.store import Store
from tracecore.store.update import BadIncident


class Published(msgspec.Struct, kw_only=True):
    """The ids under which incidents of a diagnosis are stored.

    Args:
        new: how many of them said something new.
        not_sent: those that nobody is notified of because nothing happened in them for an hour.
    """

    incidents: list[str]
    new: int
    not_sent: list[str] = []


STRUCTS = (Upload, UploadPage, Published)
router = APIRouter(tags=["diagnoses"])
#: The form of the upload page, outside `/api/v1`.
form_router = APIRouter(include_in_schema=False)
READ: Any = require("read")
INGEST: Any = require("ingest")
_BINARY: Any = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary", "minLength": 1}}},
    }
}
#: The part of `docs/diagnosis.schema.json` that has to be right.
_DOCUMENT: Any = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "required": ["schema", "incidents"],
                    "properties": {
                        "schema": {"const": SCHEMA},
                        "incidents": {
                            "type": "array",
                            "maxItems": 1_000,
                            "items": {
                                "type": "object",
                                "required": ["id", "headline"],
                                "properties": {
                                    "id": {"type": "string", "pattern": "^incident-[0-9a-f]{12}$"},
                                    "headline": {"type": "string", "minLength": 1},
                                    "state": {"enum": ["open", "diagnosed", "acknowledged", "resolved"]},
                                    "revision": {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1},
                                },
                            },
                        },
                        "verdicts": {"type": "array", "items": {"type": "object"}},
                    },
                }
            }
        },
    }
}
_CHUNK = 1 << 20


@router.get("/diagnoses", responses=says(UploadPage))
def find(request: Request, limit: Limit = 50, cursor: Cursor = None, who: Principal = READ) -> Response:
    """Uploaded bundles, newest first."""
    store: Store = request.app.state.store
    return answer(request, store.uploads.find(limit=limit, cursor=cursor, tenant=who.tenant))


@router.post("/diagnoses", status_code=202, responses=says(Upload, 202, "It is taken."), openapi_extra=_BINARY)
async def upload(
    request: Request,
    name: Annotated[str, Query(max_length=300, pattern=TEXT, description="The file's name.")] = "bundle",
    who: Principal = INGEST,
) -> Response:
    """Upload a bundle (the body is the file: an archive or a log), to be diagnosed by the server."""
    made = await _take(request, name, request.stream(), who)
    return answer(request, made, 202, headers={"Location": f"/api/v1/diagnoses/{made.id}"})


@router.post("/diagnoses/published", responses=says(Published), openapi_extra=_DOCUMENT)
async def publish(request: Request, who: Principal = INGEST) -> Response:
    """Store the incidents of a diagnosis that was made elsewhere (`tracecore/diagnosis/v1`)."""
    body = await request.body()
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HTTPException(400, f"not a JSON object: {error}") from None
    if document.get("schema") != SCHEMA:
        raise HTTPException(400, f"schema is not {SCHEMA}")
    held = document.get("incidents")
    if not isinstance(held, list) or len(held) > 1_000 or not all(isinstance(one, dict) for one in held):
        raise HTTPException(400, "incidents is not a list of at most 1,000 incidents")
    store: Store = request.app.state.store

    def work() -> Published:
        now = request.app.state.clock()
        stored = store.put_diagnosis(document, now, tenant=who.tenant or "")
        rows = [store.incidents.row(one.id) for one in stored] if config_of(request.app.state) is not None else []
        old = [row.id for row in rows if row is not None and row.state != "resolved" and now - row.last_seen > STALE]
        return Published(incidents=[one.id for one in stored], new=sum(one.new for one in stored), not_sent=old)

    try:
        return answer(request, await run_in_threadpool(work))
    except (BadIncident, AttributeError, TypeError) as error:
        raise HTTPException(400, f"not an incident: {error}") from None


@router.get("/diagnoses/{id}", responses=says(Upload))
def show(request: Request, id: Id, who: Principal = READ) -> Response:
    """Return the state of the diagnosis of an upload."""
    return answer(request, _found(request, id, who))


@router.get("/diagnoses/{id}/document", responses={200: {"description": "The diagnosis."}})
def document(request: Request, id: Id, who: Principal = READ) -> Response:
    """The diagnosis (`tracecore/diagnosis/v1`)."""
    _found(request, id, who)
    held = request.app.state.store.uploads.document(id)
    if held is None:
        raise HTTPException(404, "there is no result")
    return answer(request, held)


@router.get("/diagnoses/{id}/page", response_class=Response, responses={200: {"content": {"text/html": {}}}})
def page(request: Request, id: Id, who: Principal = READ) -> Response:
    """The diagnosis as one HTML page."""
    _found(request, id, who)
    held = request.app.state.store.uploads.page(id)
    if held is None:
        raise HTTPException(404, "there is no result")
    return Response(held, media_type="text/html", headers={"Content-Security-Policy": REPORT_CSP})


@form_router.post("/upload")
async def from_form(request: Request, who: Principal = INGEST) -> Response:
    """The form of the upload page."""
    form = await checked_form(request)
    file = form.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise HTTPException(400, "choose a file")

    async def chunks() -> AsyncIterator[bytes]:
        while chunk := await file.read(_CHUNK):
            yield chunk

    try:
        made = await _take(request, file.filename, chunks(), who)
    finally:
        await form.close()
    return RedirectResponse(f"/upload/{made.id}", 303)


async def _take(request: Request, name: str, chunks: AsyncIterator[bytes], who: Principal) -> Upload:
    diagnoses: Diagnoses | None = getattr(request.app.state, "diagnoses", None)
    if diagnoses is None:
        raise HTTPException(404, "this server takes no uploads")
    try:
        made = await diagnoses.take(name, chunks, who=who.name, tenant=who.tenant or "")
    except Busy as error:
        raise HTTPException(429, str(error), headers={"Retry-After": "60"}) from None
    except ValueError as error:
        raise HTTPException(400, str(error)) from None
    await run_in_threadpool(record, request, who, "upload", made.id, made.name)
    return made


def _found(request: Request, id: str, who: Principal) -> Upload:
    found: Upload | None = request.app.state.store.uploads.get(id, tenant=who.tenant)
    if found is None:
        raise HTTPException(404, f"there is no diagnosis {id}")
    return found
