"""The overview: what is open, how the fleet is, what interrupts it."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from tracecore.server.pages.access import Held, Now, Reader
from tracecore.server.pages.charts import days_of, shares
from tracecore.server.pages.templating import render
from tracecore.server.principal import Principal
from tracecore.store.store import Store

router = APIRouter()
DAYS: Final = 14
_NODES: Final = ("failed", "degraded", "silent", "healthy")
_JOBS: Final = ("failed", "unknown", "running", "finished")


@router.get("/")
def overview(request: Request, who: Reader, store: Held, now: Now) -> Response:
    return render(request, "overview.html", **_seen(store, who, now))


@router.get("/parts/overview")
def part(request: Request, who: Reader, store: Held, now: Now) -> Response:
    return render(request, "overview_part.html", **_seen(store, who, now))


def _seen(store: Store, who: Principal, now: int) -> dict[str, Any]:
    seen = store.overview(now, days=DAYS, tenant=who.tenant)
    live = {name: count for name, count in seen.jobs.items() if name != "finished"}
    return {
        "seen": seen,
        "days": days_of(seen.causes, seen.days, now),
        "node_count": sum(seen.nodes.values()),
        "node_bar": shares(seen.nodes, _NODES),
        "job_bar": shares(live, _JOBS),
    }
