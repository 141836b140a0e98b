"""Nodes and GPUs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Query, Request, Response

from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import Body, Cursor, Id, Limit, Moment, Name, nanoseconds
from tracecore.server.audit import record
from tracecore.server.principal import Principal, require
from tracecore.store.records import NodeDetail, NodePage, NodeRow, NodeState
from tracecore.store.store import Store

STRUCTS = (NodePage, NodeDetail, NodeRow)
router = APIRouter(tags=["nodes"])
READ: Any = require("read")
OPERATE: Any = require("operate")


class NodeOverride(Body):
    """A state set by hand, which wins over what the facts say; empty takes it back."""

    state: Literal["", "healthy", "degraded", "failed", "silent"]


@router.get("/nodes", responses=says(NodePage))
def find(
    request: Request,
    state: Annotated[NodeState | None, Query()] = None,
    name: Name = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    who: Principal = READ,
) -> Response:
    """Nodes by name; `name` is the beginning of the name."""
    store: Store = request.app.state.store
    return answer(request, store.nodes.find(state=state, name=name, limit=limit, cursor=cursor, tenant=who.tenant))


@router.get("/nodes/{name}", responses=says(NodeDetail))
def show(request: Request, name: Id, since: Moment = None, who: Principal = READ) -> Response:
    """One node with its GPUs, incidents, events and jobs; `since` bounds its events."""
    store: Store = request.app.state.store
    detail = store.nodes.get(name, tenant=who.tenant, since=nanoseconds(since))
    if detail is None:
        raise HTTPException(404, f"there is no node {name}")
    return answer(request, detail)


@router.post("/nodes/{name}/override", responses=says(NodeDetail))
def override(request: Request, name: Id, body: NodeOverride, who: Principal = OPERATE) -> Response:
    """Set or clear a node's state by hand."""
    store: Store = request.app.state.store
    if not store.nodes.override(name, body.state, who.name, request.app.state.clock()):
        raise HTTPException(404, f"there is no node {name}")
    record(request, who, "override", name, body.state)
    return answer(request, store.nodes.get(name, tenant=who.tenant))
