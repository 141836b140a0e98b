"""Jobs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request, Response

from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import Cursor, Limit, Moment, Name, PathName, nanoseconds
from tracecore.server.principal import Principal, require
from tracecore.store.records import JobDetail, JobPage, JobState, ProgressPoint
from tracecore.store.store import Store


class JobProgress(msgspec.Struct, kw_only=True):
    """Reports of progress, oldest first; of many, evenly chosen ones."""

    points: list[ProgressPoint]


STRUCTS = (JobPage, JobDetail, JobProgress)
router = APIRouter(tags=["jobs"])
READ: Any = require("read")


@router.get("/jobs", responses=says(JobPage))
def find(
    request: Request,
    state: Annotated[JobState | None, Query()] = None,
    name: Name = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    who: Principal = READ,
) -> Response:
    """Jobs, those heard last first; `name` is the beginning of the name."""
    store: Store = request.app.state.store
    return answer(request, store.jobs.find(state=state, name=name, tenant=who.tenant, limit=limit, cursor=cursor))


@router.get("/jobs/{name:path}/progress", responses=says(JobProgress))
def progress(
    request: Request,
    name: PathName,
    since: Moment = None,
    who: Principal = READ,
) -> Response:
    """Step time and loss of each rank over time."""
    store: Store = request.app.state.store
    if store.jobs.get(name, tenant=who.tenant) is None:
        raise HTTPException(404, f"there is no job {name}")
    return answer(request, JobProgress(points=store.jobs.progress(name, since=nanoseconds(since))))


@router.get("/jobs/{name:path}", responses=says(JobDetail))
def show(
    request: Request,
    name: PathName,
    who: Principal = READ,
) -> Response:
    """One job with its attempts, nodes and incidents. The name may hold slashes."""
    store: Store = request.app.state.store
    detail = store.jobs.get(name, tenant=who.tenant)
    if detail is None:
        raise HTTPException(404, f"there is no job {name}")
    return answer(request, detail)
