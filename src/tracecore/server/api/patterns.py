"""The catalogue of patterns."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response

from tracecore.patterns import catalogue, runbook, types
from tracecore.patterns.contract import Pattern
from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import Id
from tracecore.server.principal import Principal, require


class PatternRow(msgspec.Struct, kw_only=True):
    """A named root cause.

    Args:
        role: `cause`, `symptom` or `outcome`.
        needs: types of facts it looks at.
    """

    name: str
    id: str
    role: str
    maturity: str
    needs: list[str]


class PatternPage(msgspec.Struct, kw_only=True):
    patterns: list[PatternRow]


class PatternDetail(msgspec.Struct, kw_only=True):
    """A pattern with its runbook, in Markdown."""

    pattern: PatternRow
    runbook: str


STRUCTS = (PatternPage, PatternDetail)
router = APIRouter(tags=["patterns"])
READ: Any = require("read")


@router.get("/patterns", responses=says(PatternPage))
def find(request: Request, who: Principal = READ) -> Response:
    """The catalogue, in the order in which patterns are looked for."""
    return answer(request, PatternPage(patterns=[_row(kind) for kind in types()]))


@router.get("/patterns/{name}", responses=says(PatternDetail))
def show(request: Request, name: Id, who: Principal = READ) -> Response:
    """One pattern with its runbook."""
    for pattern in catalogue():
        if pattern.name == name:
            return answer(request, PatternDetail(pattern=_row(type(pattern)), runbook=runbook.show(pattern)))
    raise HTTPException(404, f"there is no pattern {name}")


def _row(kind: type[Pattern[Any]]) -> PatternRow:
    return PatternRow(
        name=kind.name, id=kind.id, role=kind.role, maturity=kind.maturity, needs=[need.__name__ for need in kind.needs]
    )
