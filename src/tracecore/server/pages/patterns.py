"""The catalogue of patterns with their runbooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import msgspec
from fastapi import APIRouter, HTTPException, Request
from starlette.responses import Response

from tracecore.patterns import runbook, types
from tracecore.patterns.cases import CaseError
from tracecore.server.pages.access import Held, Now, Reader
from tracecore.server.pages.overview import DAYS, lately
from tracecore.server.pages.templating import render
from tracecore.store.incidents import IncidentQuery

router = APIRouter()


class Described(msgspec.Struct):
    """A pattern as the catalogue shows it."""

    name: str
    title: str
    role: str
    maturity: str
    sections: dict[str, str]
    count: int = 0


@cache
def catalogue() -> dict[str, Described]:
    """All patterns by name."""
    found = {}
    for kind in sorted(types(), key=lambda kind: kind.name):
        try:
            text = runbook.show(kind())
        except (CaseError, TypeError, OSError):
            text = ""
        title = text.partition("\n")[0].removeprefix("# ").removeprefix(f"{kind.name}: ")
        said = f"{title[:1].upper()}{title[1:]}" or kind.name
        found[kind.name] = Described(kind.name, said, kind.role, kind.maturity, runbook.sections(text))
    return found


def runbook_of(name: str, wanted: Sequence[str] = runbook.SECTIONS) -> list[tuple[str, str]]:
    """Titles and bodies of a pattern's runbook; nothing where the pattern is not known here."""
    known = catalogue().get(name)
    return [(title, known.sections[title]) for title in wanted if known.sections.get(title)] if known else []


@router.get("/patterns")
def patterns(request: Request, who: Reader, store: Held, now: Now) -> Response:
    counts: Counter[str] = Counter()
    for cause in lately(request, store, who, now).seen.causes:
        counts[cause.pattern] += cause.incidents
    rows = [msgspec.structs.replace(one, count=counts[one.name]) for one in catalogue().values()]
    return render(request, "patterns.html", rows=rows, days=DAYS)


@router.get("/patterns/{name}")
def pattern(request: Request, name: str, who: Reader, store: Held) -> Response:
    known = catalogue().get(name)
    if known is None:
        raise HTTPException(404, "no such pattern")
    recent = store.incidents.find(IncidentQuery(pattern=name, tenant=who.tenant), limit=8).incidents
    return render(request, "pattern.html", row=known, sections=runbook_of(name), rows=recent)
