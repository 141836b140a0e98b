"""Jobs: the list, and one with its attempts, progress and incidents."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from markupsafe import Markup
from starlette.responses import Response

from tracecore.facts.wording import counted
from tracecore.incidents.drawings import line_chart
from tracecore.server.pages.access import Held, Now, Reader
from tracecore.server.pages.charts import attempts_chart
from tracecore.server.pages.templating import render
from tracecore.server.pages.words import SECOND
from tracecore.store.records import IncidentRow, ProgressPoint

router = APIRouter()
#: Ranks with a line of their own in a chart.
LINES: Final = 8
#: A pause is a stall when it lasts this many times the usual one, and at least this long.
STALL: Final = 5
STALL_S: Final = 60
_CHARTS: Final = (("step_s", "Time of a step", "s"), ("loss", "Loss", ""))


@router.get("/jobs")
def jobs(
    request: Request,
    who: Reader,
    store: Held,
    q: str = Query("", max_length=300),
    state: str = Query("", max_length=16),
    cursor: str = Query("", max_length=600),
) -> Response:
    page = store.jobs.find(
        state=state or None, name=q.strip() or None, tenant=who.tenant, limit=50, cursor=cursor or None
    )
    given = {"q": q, "state": state, "cursor": cursor}
    return render(request, "jobs.html", rows=page.jobs, next=page.next, given=given)


@router.get("/jobs/{name:path}/progress.json")
def progress(name: str, who: Reader, store: Held) -> Response:
    """The points of the charts, as uPlot wants them."""
    if (detail := store.jobs.get(name, tenant=who.tenant)) is None:
        raise HTTPException(404, "no such job")
    points = store.jobs.progress(name)
    return Response(msgspec.json.encode(_plots(points, detail.incidents)), media_type="application/json")


@router.get("/jobs/{name:path}")
def job(request: Request, name: str, who: Reader, store: Held, now: Now) -> Response:
    detail = store.jobs.get(name, tenant=who.tenant)
    if detail is None:
        raise HTTPException(404, "no such job")
    points = store.jobs.progress(name)
    suspects = sorted({rank for row in detail.incidents for rank in row.ranks})
    ranks = _ranks(points, suspects)
    whole = len({point.rank for point in points})
    shown = f"{len(ranks)} of {counted(whole, 'rank')} drawn, suspects first" if whole > len(ranks) else ""
    plots = []
    for key, title, unit in _CHARTS:
        series: dict[int | None, list[tuple[float, float]]] = {
            rank: [(float(p.step), float(value)) for p in points if p.rank == rank and p.step is not None
                   and (value := getattr(p, key)) is not None]
            for rank in ranks
        }  # fmt: skip
        drawn = {rank: own for rank, own in series.items() if len({x for x, _ in own}) > 1}
        if drawn:
            svg = Markup("".join(line_chart(title, unit, drawn, suspects)))  # escaped by the drawing
            plots.append((key, f"{title}, seconds" if unit else title, svg))
    return render(
        request,
        "job.html",
        row=detail.job,
        attempts=detail.attempts,
        incidents=detail.incidents,
        nodes=detail.nodes,
        goodput=detail.goodput,
        chart=attempts_chart(detail.attempts, detail.incidents, now),
        plots=plots,
        ranks_shown=shown,
        stalls=_stalls(points),
    )


def _ranks(points: Sequence[ProgressPoint], suspects: Sequence[int]) -> list[int]:
    """The ranks to draw: suspects, then the others evenly chosen."""
    known = sorted({point.rank for point in points})
    chosen = [rank for rank in suspects if rank in set(known)][:LINES]
    rest = [rank for rank in known if rank not in chosen]
    room = LINES - len(chosen)
    if len(rest) > room > 0:
        rest = [rest[n * len(rest) // room] for n in range(room)]
    return sorted([*chosen, *rest[: max(0, room)]])


def _stalls(points: Sequence[ProgressPoint]) -> list[tuple[float, float]]:
    """Times within an attempt without a step, from and to in seconds, that lasted much longer than usual."""
    found: list[tuple[float, float]] = []
    for attempt in sorted({point.attempt for point in points}):
        times = sorted({point.time for point in points if point.attempt == attempt})
        gaps = [after - before for before, after in pairwise(times)]
        if len(gaps) >= 8:
            longest = max(STALL * statistics.median(gaps), STALL_S * SECOND)
            found += [
                (before / SECOND, after / SECOND) for before, after in pairwise(times) if after - before > longest
            ]
    return found[:50]


def _plots(points: Sequence[ProgressPoint], incidents: Sequence[IncidentRow]) -> dict[str, Any]:
    suspects = sorted({rank for row in incidents for rank in row.ranks})
    ranks = _ranks(points, suspects)
    times = sorted({point.time for point in points if point.rank in set(ranks)})
    place = {time: number for number, time in enumerate(times)}
    charts: dict[str, list[list[float | None]]] = {}
    for key, _, _ in _CHARTS:
        lines: dict[int, list[float | None]] = {rank: [None] * len(times) for rank in ranks}
        for point in points:
            if point.rank in lines:
                lines[point.rank][place[point.time]] = getattr(point, key)
        charts[key] = [lines[rank] for rank in ranks]
    return {
        "times": [time / SECOND for time in times],
        "ranks": ranks,
        "suspects": [rank for rank in ranks if rank in suspects],
        "charts": charts,
        "stalls": _stalls(points),
        "incidents": [{"at": row.first_seen / SECOND, "headline": row.headline[:200]} for row in incidents],
    }
