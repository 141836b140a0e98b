"""Incidents: the list with its search, and one with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from tracecore.incidents.drawings import DrawnRow, moment, read_rows, timeline_picture
from tracecore.patterns import types
from tracecore.server.answers import plain
from tracecore.server.audit import record
from tracecore.server.headers import REPORT_CSP
from tracecore.server.notified import detail_of
from tracecore.server.pages import words
from tracecore.server.pages.access import Form, Held, Now, Operator, Reader, back, found
from tracecore.server.pages.patterns import runbook_of
from tracecore.server.pages.templating import STATIC, environment, render
from tracecore.server.principal import Principal
from tracecore.store.incidents import IncidentQuery
from tracecore.store.people import Deed
from tracecore.store.records import IncidentDetail, IncidentRow, Notification
from tracecore.store.store import Store

router = APIRouter()
#: Sections of a runbook that an operator needs at three in the morning.
_RUNBOOK: Final = ("What to do", "False positives", "Escalation")
_SIMILAR: Final = 8
Lanes = Literal["rank", "node", "layer"]
_DID: Final = {
    "acknowledge": "acknowledged it", "unacknowledge": "took the acknowledgement back", "resolve": "resolved it",
    "reopen": "reopened it",
}  # fmt: skip


@router.get("/incidents")
def incidents(
    request: Request,
    who: Reader,
    store: Held,
    q: str = Query("", max_length=300),
    state: str = "",
    pattern: str = Query("", max_length=80),
    failure_class: str = Query("", alias="class", max_length=20),
    job: str = Query("", max_length=300),
    node: str = Query("", max_length=300),
    fingerprint: str = Query("", max_length=120),
    cursor: str = Query("", max_length=400),
) -> Response:
    given = {
        "q": q, "state": state, "class": failure_class, "pattern": pattern, "job": job, "node": node,
        "fingerprint": fingerprint, "cursor": cursor,
    }  # fmt: skip
    query = IncidentQuery(
        state=state if state in ("active", "open", "diagnosed", "acknowledged", "resolved") else None,  # type: ignore[arg-type]
        text=q.strip() or None, pattern=pattern or None, failure_class=failure_class or None, job=job or None,
        node=node or None, fingerprint=fingerprint or None, tenant=who.tenant,
    )  # fmt: skip
    page = store.incidents.find(query, limit=50, cursor=cursor or None)
    named = q.strip() if q.strip() and not cursor else ""
    return render(
        request,
        "incidents.html",
        given=given,
        rows=page.incidents,
        next=page.next,
        jobs=store.jobs.find(name=named, limit=8, tenant=who.tenant).jobs if named else [],
        nodes=store.nodes.find(name=named, limit=8, tenant=who.tenant).nodes if named else [],
        patterns=sorted(kind.name for kind in types()),
        filtered=any(value for value in given.values()),
    )


@router.get("/search")
def search(q: str = Query("", max_length=300)) -> Response:
    return back(words.query("/incidents", {"q": q}))


@router.get("/incidents/{id}")
def incident(request: Request, id: str, who: Reader, lanes: Lanes = "rank", start: int = 0, end: int = 0) -> Response:
    return render(request, "incident.html", **_one(request, who, id, lanes, start, end))


@router.get("/parts/incidents/{id}")
def part(request: Request, id: str, who: Reader) -> Response:
    return render(request, "incident_part.html", **_one(request, who, id))


@router.get("/parts/incidents/{id}/timeline")
def timeline_part(
    request: Request, id: str, who: Reader, lanes: Lanes = "rank", start: int = 0, end: int = 0
) -> Response:
    return render(request, "timeline_part.html", **_one(request, who, id, lanes, start, end))


@router.get("/incidents/{id}/export.json")
def export_json(request: Request, id: str, who: Reader) -> Response:
    detail = _detail(request, who, id)
    said = msgspec.json.format(msgspec.json.encode(plain(detail)), indent=2)
    return _attachment(said, "application/json", f"{id}.json")


@router.get("/incidents/{id}/export.html")
def export_html(request: Request, id: str, who: Reader, now: Now) -> Response:
    """The incident as one file that needs nothing else and can be sent to anybody."""
    style = Markup((STATIC / "app.css").read_text(encoding="utf-8"))
    context = {**_one(request, who, id), "export": True, "can_operate": False}
    page = environment().get_template("export.html").render(style=style, now=now, csrf="", **context)
    answer = _attachment(page.encode(), "text/html", f"{id}.html")
    answer.headers["Content-Security-Policy"] = REPORT_CSP
    return answer


def _attachment(content: bytes, kind: str, name: str) -> Response:
    plain_name = "".join(letter for letter in name if letter.isascii() and (letter.isalnum() or letter in "-._"))
    return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{plain_name}"'})


@router.post("/incidents/{id}/note")
async def note(request: Request, id: str, who: Operator, store: Held, now: Now, form: Form) -> Response:
    said = str(form.get("text", "")).strip()
    if not said:
        raise HTTPException(400, "a note needs some text")
    made = await run_in_threadpool(store.people.note, id, who.name, said, now, tenant=who.tenant)
    found(made, "incident")
    await run_in_threadpool(record, request, who, "note", id)
    return back(f"{words.path('incidents', id)}#notes")


@router.post("/incidents/{id}/{what}")
async def act(request: Request, id: str, what: Deed, who: Operator, store: Held, now: Now, form: Form) -> Response:
    comment = str(form.get("comment", ""))
    done = await run_in_threadpool(store.people.act, id, what, who.name, now, comment=comment, tenant=who.tenant)
    found(done or None, "incident")
    await run_in_threadpool(record, request, who, what, id)
    return back(words.path("incidents", id))


# -- what the page of one incident shows -------------------------------------------------------------------------------


def _detail(request: Request, who: Principal, id: str) -> IncidentDetail:
    detail = detail_of(request.app.state, id, who.tenant)
    if detail is None:
        raise HTTPException(404, "no such incident")
    return detail


def _one(
    request: Request, who: Principal, id: str, lanes: Lanes = "rank", start: int = 0, end: int = 0
) -> dict[str, Any]:
    store: Store = request.app.state.store
    detail = _detail(request, who, id)
    row, document = detail.incident, detail.document
    verdicts = {str(one.get("verdict.id")): one for one in detail.verdicts}
    failure = _dict(document.get("failure"))
    root = verdicts.get(str(_dict(document.get("root_cause")).get("verdict")), {})
    return {
        "row": row,
        "doc": document,
        "suspects": words.suspects(document),
        "suggestion": failure.get("suggestion"),
        "retry": {"reason": "", "delay_s": 0} | _dict(failure.get("retry")),
        "confidence": root.get("confidence", ""),
        "quotes": _quotes(detail),
        "facts": [one for one in detail.evidence if not one.lines],
        "explains": _explained(document, verdicts),
        "rejected": _rejected(document, verdicts),
        "gaps": _gaps(document),
        "beside": [str(one) for one in _list(document.get("notes"))[:20]],
        "runbook": runbook_of(row.pattern, _RUNBOOK) if row.pattern else [],
        "similar": store.incidents.similar(row.fingerprint, but=id, limit=_SIMILAR, tenant=who.tenant)
        if row.fingerprint
        else [],
        "history": _history(detail),
        "messages": _messages(detail.notifications),
        "not_sent": detail.not_sent,
        "actions": detail.actions,
        "revisions": _revisions(detail),
        "deeds": _deeds(row),
        "can_operate": who.may("operate"),
        "export": False,
        **_timeline(detail, lanes, start, end),
    }


def _dict(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _dicts(value: object) -> list[dict[str, Any]]:
    return [one for one in _list(value) if isinstance(one, dict)]


class SentMessage(msgspec.Struct):
    """One message, and everybody it was sent to."""

    title: str
    why: str
    revision: int
    to: list[Notification]


_WHY: Final = {
    "opened": "New", "joined": "Added to the thread", "updated": "Changed in place", "resolved": "Resolution",
    "repeated": "Reminder",
}  # fmt: skip


def _messages(notifications: list[Notification]) -> list[SentMessage]:
    """Notifications that say the same at about the same time as one message, newest first."""
    return [
        SentMessage(title=title, why=_WHY.get(reason, reason), revision=revision, to=[*told])
        for (title, reason, revision), told in groupby(notifications, lambda one: (one.title, one.reason, one.revision))
    ]


class Quote(msgspec.Struct):
    """Quoted lines, each with its number where it is known."""

    text: str
    place: str
    lines: list[tuple[int, str]]


def _quotes(detail: IncidentDetail) -> list[Quote]:
    """The lines that prove it: what the suspects wrote last, what the diagnosis quotes, what agents sent along."""
    quotes: list[Quote] = []
    for own in _dicts(detail.document.get("last_lines"))[:8]:
        first = own.get("line")
        first = first if type(first) is int else 0
        doing = f" (it {own['doing']})" if own.get("doing") else ""
        said = own.get("text")
        lines = [
            (first + n if first else 0, str(line)) for n, line in enumerate(said if isinstance(said, list) else [])
        ]
        quotes.append(Quote(f"The last lines of rank {own.get('rank')}{doing}", f"{own.get('file')}:{first}", lines))
    for own in _dicts(detail.document.get("quotes"))[:8]:
        lines = [
            (one["number"] if type(one.get("number")) is int else 0, str(one.get("text", "")))
            for one in _dicts(own.get("lines"))
        ]
        place = f"{own.get('file')}:{lines[0][0]}" if lines and lines[0][0] else str(own.get("file"))
        quotes.append(Quote(str(own.get("description", "")), place, lines))
    if not quotes or not detail.document.get("quotes"):
        quotes += [
            Quote(one.text, one.uid, [(0, line) for line in one.lines])
            for one in detail.evidence
            if one.lines and one.kind != "last_lines"
        ][:8]
    return [quote for quote in quotes if quote.lines]


class Weighed(msgspec.Struct):
    """A verdict that the root cause explains, or that lost against it."""

    pattern: str
    headline: str
    reason: str


def _explained(document: dict[str, Any], verdicts: dict[str, dict[str, Any]]) -> list[Weighed]:
    why = {str(edge.get("effect")): str(edge.get("reason", "")) for edge in _dicts(document.get("edges"))}
    return [
        Weighed(
            str(verdicts.get(name, {}).get("pattern.name") or name.rpartition("-")[0] or name),
            str(verdicts.get(name, {}).get("headline", "")),
            why.get(name, ""),
        )
        for name in map(str, _list(document.get("explains")))
    ]


def _rejected(document: dict[str, Any], verdicts: dict[str, dict[str, Any]]) -> list[Weighed]:
    return [
        Weighed(
            str(one.get("pattern", "")),
            str(verdicts.get(str(one.get("verdict")), {}).get("headline", "")),
            str(one.get("reason", "")),
        )
        for one in _dicts(document.get("alternatives"))
    ]


def _gaps(document: dict[str, Any]) -> list[tuple[str, str]]:
    how = _dict(document.get("how_to_measure"))
    return [(str(layer), str(how.get(str(layer), ""))) for layer in _list(document.get("not_measured"))]


class HistoryEntry(msgspec.Struct):
    """Something that a person did or wrote."""

    at: int
    who: str
    did: str
    text: str


def _history(detail: IncidentDetail) -> list[HistoryEntry]:
    lines = [HistoryEntry(one.at, one.author, "wrote", one.text) for one in detail.notes]
    lines += [
        HistoryEntry(one.at, one.who, _DID.get(one.what, one.what), one.comment) for one in detail.acknowledgements
    ]
    return sorted(lines, key=lambda line: line.at)


class ShownRevision(msgspec.Struct):
    """A revision, and whether its headline differs from the one before."""

    revision: int
    state: str
    at: int
    reason: str
    headline: str
    changed: bool


def _revisions(detail: IncidentDetail) -> list[ShownRevision]:
    ordered = sorted(detail.revisions, key=lambda one: one.revision)
    said = [
        ShownRevision(
            one.revision, one.state, one.at, one.reason, one.headline, n == 0 or ordered[n - 1].headline != one.headline
        )
        for n, one in enumerate(ordered)
    ]
    return said[::-1]


def _deeds(row: IncidentRow) -> list[tuple[str, str, bool]]:
    """Buttons: action, name, whether it is the one to press."""
    if row.state == "resolved":
        return [("reopen", "Reopen", False)]
    if row.acknowledged_at is None:
        return [("acknowledge", "Acknowledge", True), ("resolve", "Resolve", False)]
    return [("resolve", "Resolve", True), ("unacknowledge", "Take back", False)]


class TimelineRow(msgspec.Struct):
    """A row of the timeline's table."""

    when: str
    who: str
    layer: str
    role: str
    text: str


def _rows(detail: IncidentDetail) -> list[DrawnRow]:
    """The document's timeline; where it has none, the evidence in order of time."""
    if rows := read_rows(detail.document.get("timeline")):
        return rows
    root = str(_dict(detail.document.get("root_cause")).get("verdict"))
    said = [
        DrawnRow(
            time=one.time, text=one.text, layer="", role="cause" if one.verdict == root else "symptom", where=one.kind
        )
        for one in detail.evidence
        if one.verdict
    ]
    return sorted(said, key=lambda row: row.time)


def _timeline(detail: IncidentDetail, lanes: Lanes, start: int, end: int) -> dict[str, Any]:
    rows = _rows(detail)
    times = [row.time for row in rows if row.timed]
    first, last = (min(times), max(times)) if times else (0, 0)
    window = (max(start, first - 1), min(end, last + 1)) if first <= start < end <= last + 1 else None
    zoom = {"lanes": lanes, "start": start or "", "end": end or ""}
    return {
        "timeline": [
            TimelineRow(moment(one.time) if one.timed else "no time", one.who, one.layer, one.role, one.text)
            for one in rows
        ],
        "drawing": Markup("".join(timeline_picture(rows, lanes, window))),  # escaped by the drawing
        "lanes": lanes,
        "zoom": zoom,
        "zooms": _zooms(lanes, first, last, window) if len(set(times)) > 1 else [],
    }


def _zooms(
    lanes: Lanes, first: int, last: int, window: tuple[int, int] | None
) -> Sequence[tuple[str, str, dict[str, Any]]]:
    """Links that zoom and move: sign, words, settings."""
    low, high = window or (first, last)
    width = high - low
    middle = (low + high) // 2

    def link(begin: int, end: int) -> dict[str, Any]:
        begin, end = max(first, begin), min(last, end)
        return {"lanes": lanes} if (begin, end) == (first, last) else {"lanes": lanes, "start": begin, "end": end}

    links = [("+", "Zoom in", link(middle - width // 4, middle + width // 4))] if width > 1_000_000 else []
    if window is not None:
        links += [
            ("−", "Zoom out", link(middle - width, middle + width)),
            ("←", "Earlier", link(low - width // 2, high - width // 2)),
            ("→", "Later", link(low + width // 2, high + width // 2)),
            ("All", "Show all of it", {"lanes": lanes}),
        ]
    return links
