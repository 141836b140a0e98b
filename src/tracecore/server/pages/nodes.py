"""Nodes: the grid of nodes and GPUs, and one node over time."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, HTTPException, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tracecore.server.audit import record
from tracecore.server.pages import words
from tracecore.server.pages.access import Form, Held, Now, Operator, Reader, back
from tracecore.server.pages.charts import DAY, EVENT_KINDS, events_chart, gpu_squares
from tracecore.server.pages.overview import DAYS
from tracecore.server.pages.templating import render
from tracecore.store.records import Gpu, IncidentRow, NodeRow

router = APIRouter()
#: Tiles of one state on a page.
TILES: Final = 160
ORDER: Final = ("failed", "degraded", "silent", "healthy")


@router.get("/nodes")
def nodes(
    request: Request,
    who: Reader,
    store: Held,
    q: str = Query("", max_length=300),
    state: str = Query("", max_length=16),
    cursor: str = Query("", max_length=600),
) -> Response:
    name = q.strip() or None
    asked = (state,) if state else ORDER
    groups: list[tuple[str, list[NodeRow]]] = []
    after = None
    for one in asked:
        # Nodes in trouble stand on the first page, however many healthy ones there are.
        last = one == asked[-1]
        if last or not cursor:
            page = store.nodes.find(state=one, name=name, limit=TILES, cursor=cursor or None, tenant=who.tenant)
            groups += [(one, page.nodes)] if page.nodes else []
            after = page.next if last else after
    return render(
        request,
        "nodes.html",
        groups=groups,
        next=after,
        given={"q": q, "state": state, "cursor": cursor},
        counts=store.nodes.counts(who.tenant),
        squares=_squares,
    )


def _squares(gpus: list[Gpu]) -> object:
    return gpu_squares(tuple((gpu.gpu, gpu.state) for gpu in gpus[:16]))


@router.get("/nodes/{name:path}")
def node(request: Request, name: str, who: Reader, store: Held, now: Now) -> Response:
    since = now - DAYS * DAY
    detail = store.nodes.get(name, tenant=who.tenant, since=since)
    if detail is None:
        raise HTTPException(404, "no such node")
    return render(
        request,
        "node.html",
        row=detail.node,
        events=detail.events,
        incidents=detail.incidents[:20],
        died=_died(detail.incidents)[:20],
        jobs=detail.jobs,
        actions=detail.actions,
        chart=events_chart(detail.events, detail.incidents, since, now),
        days=DAYS,
        kinds=EVENT_KINDS,
        can_operate=who.may("operate"),
    )


def _died(incidents: list[IncidentRow]) -> list[tuple[IncidentRow, int]]:
    """The newest incident of each job that this node is blamed for, and how many there are."""
    by_job: dict[str, list[IncidentRow]] = {}
    for row in incidents:
        if row.job and row.decision != "none":
            by_job.setdefault(row.job, []).append(row)
    return [(own[0], len(own)) for own in by_job.values()]


@router.post("/nodes/{name:path}/state")
async def set_state(request: Request, name: str, who: Operator, store: Held, now: Now, form: Form) -> Response:
    wanted = str(form.get("state", ""))
    if wanted not in ("", "healthy", "degraded", "failed"):
        raise HTTPException(400, "a node is healthy, degraded or failed")
    if not await run_in_threadpool(store.nodes.override, name, wanted, who.name, now):
        raise HTTPException(404, "no such node")
    await run_in_threadpool(record, request, who, "node state", name)
    return back(words.path("nodes", name))
