"""Webhooks: what other systems report becomes facts, joined with those of our own agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from tracecore.agent.batch import Refused
from tracecore.facts import wire
from tracecore.server.answers import answer, says
from tracecore.server.ingest import Ingest
from tracecore.server.principal import Principal, require
from tracecore.server.webhooks.report import Report, mapped
from tracecore.server.webhooks.senders import MOST, BadPayload, alertmanager, nvsentinel
from tracecore.signals.otlp import encoding


class Heard(msgspec.Struct, kw_only=True):
    """The result of a request.

    Args:
        facts: taken.
        skipped: reports that gave no fact, by reason.
    """

    facts: int
    skipped: dict[str, int]


STRUCTS = (Heard,)
router = APIRouter(tags=["webhooks"])
INGEST: Any = require("ingest")
_SENDERS: Final[dict[str, Callable[[object, int], list[Report]]]] = {
    "nvsentinel": nvsentinel,
    "alertmanager": alertmanager,
}
_EVENT: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["specversion", "id", "data"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "pattern": "^[!-~]+$", "maxLength": 100},
        "data": {"type": "object", "required": ["healthEvent"], "properties": {"healthEvent": {"type": "object"}}},
    },
}
_ALERTS: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["alerts"],
    "properties": {"alerts": {"type": "array", "maxItems": MOST, "items": {"type": "object"}}},
}


def _body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@router.post("/webhooks/nvsentinel", responses=says(Heard), openapi_extra=_body(_EVENT))
async def from_nvsentinel(request: Request, who: Principal = INGEST) -> Response:
    """CloudEvents of NVSentinel's event exporter."""
    return await _take("nvsentinel", request, who)


@router.post("/webhooks/alertmanager", responses=says(Heard), openapi_extra=_body(_ALERTS))
async def from_alertmanager(request: Request, who: Principal = INGEST) -> Response:
    """Alerts that Alertmanager posts to a webhook receiver."""
    return await _take("alertmanager", request, who)


async def _take(sender: str, request: Request, who: Principal) -> Response:
    body, now = await request.body(), request.app.state.clock()

    def work() -> Heard:
        try:
            reports = _SENDERS[sender](msgspec.json.decode(body), now)
        except (msgspec.DecodeError, RecursionError):
            raise HTTPException(400, "the body is not JSON") from None
        except BadPayload as error:
            raise HTTPException(422, str(error)) from None
        found = mapped(reports)
        if found.facts:
            ingest: Ingest = request.app.state.ingest
            try:
                ingest.take("logs", encoding.encode("logs", wire.payload(found.facts, now)), who.tenant or "")
            except Refused as error:
                raise HTTPException(503, f"try again later: {error}", headers={"Retry-After": "1"}) from None
        return Heard(facts=len(found.facts), skipped=found.skipped)

    return answer(request, await run_in_threadpool(work))
