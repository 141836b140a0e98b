"""Write to the audit log who did what."""

from __future__ import annotations

from fastapi import Request

from tracecore.server.principal import Principal
from tracecore.store.store import Store


def record(request: Request, who: Principal, what: str, target: str, detail: str = "") -> None:
    """Note what somebody did."""
    store: Store = request.app.state.store
    address = request.client.host if request.client is not None else ""
    store.people.record(who.name, what, target, request.app.state.clock(), address=address, detail=detail)
