"""Uploads: a bundle in, its diagnosis out, with progress."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from tracecore.server.headers import REPORT_CSP
from tracecore.server.pages.access import Held, Reader
from tracecore.server.pages.templating import render
from tracecore.server.principal import Principal
from tracecore.store.store import Store

router = APIRouter()


@router.get("/upload")
def upload(request: Request, who: Reader, store: Held) -> Response:
    return render(
        request,
        "upload.html",
        rows=store.uploads.find(limit=30, tenant=who.tenant).diagnoses,
        limit=request.app.state.settings.max_upload,
        can_ingest=who.may("ingest"),
        error="",
    )


@router.get("/parts/uploads")
def part(request: Request, who: Reader, store: Held) -> Response:
    return render(request, "uploads_part.html", rows=store.uploads.find(limit=30, tenant=who.tenant).diagnoses)


@router.get("/upload/{id}")
def one(request: Request, id: str, who: Reader, store: Held) -> Response:
    return render(request, "upload_one.html", **_one(store, who, id))


@router.get("/parts/upload/{id}")
def one_part(request: Request, id: str, who: Reader, store: Held) -> Response:
    return render(request, "upload_progress.html", **_one(store, who, id))


@router.get("/upload/{id}/document.json")
def document(id: str, who: Reader, store: Held) -> Response:
    if store.uploads.get(id, tenant=who.tenant) is None or (found := store.uploads.document(id)) is None:
        raise HTTPException(404, "no such diagnosis")
    said = msgspec.json.format(msgspec.json.encode(found), indent=2)
    headers = {"Content-Disposition": 'attachment; filename="diagnosis.json"'}
    return Response(said, media_type="application/json", headers=headers)


@router.get("/upload/{id}/page.html")
def page(id: str, who: Reader, store: Held) -> Response:
    if store.uploads.get(id, tenant=who.tenant) is None or (found := store.uploads.page(id)) is None:
        raise HTTPException(404, "no such diagnosis")
    headers = {
        "Content-Disposition": 'attachment; filename="diagnosis.html"',
        "Content-Security-Policy": REPORT_CSP,
    }
    return Response(found, media_type="text/html", headers=headers)


def _one(store: Store, who: Principal, id: str) -> dict[str, Any]:
    row = store.uploads.get(id, tenant=who.tenant)
    if row is None:
        raise HTTPException(404, "no such upload")
    rows = [store.incidents.row(name, tenant=who.tenant) for name in row.incidents[:20]]
    return {
        "row": row,
        "incidents": [found for found in rows if found is not None],
        "has_document": row.state == "done" and store.uploads.document(id) is not None,
        "has_page": row.state == "done" and store.uploads.page(id) is not None,
    }
