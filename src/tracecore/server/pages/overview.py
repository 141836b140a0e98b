"""The overview: what is open, how the fleet is, what interrupts it."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, Response

from tracecore.server.pages.access import Held, Now, Reader
from tracecore.server.pages.charts import days_of, shares
from tracecore.server.pages.templating import render
from tracecore.server.pages.words import SECOND
from tracecore.server.principal import Principal
from tracecore.store.records import Overview
from tracecore.store.store import Store

router = APIRouter()
DAYS: Final = 14
#: Nanoseconds for which the history (causes, what comes back) and a rendered part are shown again.
KEPT: Final = 15 * SECOND
#: Tenants whose overview is kept.
TENANTS: Final = 100
_NODES: Final = ("failed", "degraded", "silent", "healthy")
_JOBS: Final = ("failed", "unknown", "running", "finished")


class CachedOverview(msgspec.Struct):
    """The last overview of a tenant. Everybody who looks shares it, so that ten viewers cost as much as one.

    Args:
        counted_at: when its history was counted.
        change: the number of the last change that it shows.
        part: as it was rendered for that change.
    """

    seen: Overview
    counted_at: int
    change: int = -1
    part: bytes = b""


@router.get("/")
def overview(request: Request, who: Reader, store: Held, now: Now) -> Response:
    return render(request, "overview.html", **_shown(lately(request, store, who, now).seen, now))


@router.get("/parts/overview")
def part(request: Request, who: Reader, store: Held, now: Now) -> Response:
    change = store.changes.last()
    kept: CachedOverview | None = _cache(request).get(who.tenant)
    if kept is None or kept.change != change or not 0 <= now - kept.seen.at < KEPT:
        kept = lately(request, store, who, now)
        kept.part = bytes(render(request, "overview_part.html", **_shown(kept.seen, now)).body)
        kept.change = change
    return HTMLResponse(kept.part)


def lately(request: Request, store: Store, who: Principal, now: int) -> CachedOverview:
    """Return what is open now, with a history that is at most some seconds old."""
    cache = _cache(request)
    kept = cache.get(who.tenant)
    fresh = kept is not None and 0 <= now - kept.counted_at < KEPT
    before = kept.seen if kept is not None and fresh else None
    seen = store.overview(now, days=DAYS, tenant=who.tenant, before=before)
    made = CachedOverview(seen, kept.counted_at if kept is not None and fresh else now)
    if len(cache) >= TENANTS:
        cache.clear()
    cache[who.tenant] = made
    return made


def _cache(request: Request) -> dict[str | None, CachedOverview]:
    state = request.app.state
    if not hasattr(state, "overviews"):
        state.overviews = {}
    held: dict[str | None, CachedOverview] = state.overviews
    return held


def _shown(seen: Overview, now: int) -> dict[str, Any]:
    live = {name: count for name, count in seen.jobs.items() if name != "finished"}
    return {
        "seen": seen,
        "days": days_of(seen.causes, seen.days, now),
        "node_count": sum(seen.nodes.values()),
        "node_bar": shares(seen.nodes, _NODES),
        "job_bar": shares(live, _JOBS),
    }
