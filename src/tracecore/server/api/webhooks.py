"""Webhooks: what other systems report becomes facts, joined with those of our own agents."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from tracecore.agent.batch import Refused
from tracecore.facts import wire
from tracecore.facts.fact import Fact
from tracecore.server.answers import answer, says
from tracecore.server.ingest import Ingest
from tracecore.server.principal import Principal, require
from tracecore.server.webhooks.report import HealthReport, mapped
from tracecore.server.webhooks.senders import MOST, BadPayload, alertmanager, in_one_piece, nvsentinel
from tracecore.signals.otlp import encoding


class Heard(msgspec.Struct, kw_only=True):
    """The result of a request.

    Args:
        facts: taken.
        new: of these, how many this server had not taken before.
        known: of these, how many it had; they change nothing.
        skipped: reports that gave no fact, by reason.
    """

    facts: int
    new: int
    known: int
    skipped: dict[str, int]


class TakenFacts:
    """The last facts that were taken by webhook, to say which ones are sent again."""

    def __init__(self, most: int = 100_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._uids: OrderedDict[tuple[str, str, str], None] = OrderedDict()

    def add(self, tenant: str, facts: Iterable[Fact]) -> int:
        """Remember facts; return how many were not known."""
        # Several facts of one report have one source.
        keys = [(tenant, type(fact).__name__, fact.uid) for fact in facts]
        with self._lock:
            new = sum(key not in self._uids for key in keys)
            for key in keys:
                self._uids[key] = None
                self._uids.move_to_end(key)
            while len(self._uids) > self._most:
                self._uids.popitem(last=False)
        return new


STRUCTS = (Heard,)
router = APIRouter(tags=["webhooks"])
INGEST: Any = require("ingest")
_SENDERS: Final[dict[str, Callable[[object, int], list[HealthReport]]]] = {
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
    "properties": {
        "version": {"const": "4"},
        "alerts": {"type": "array", "maxItems": MOST, "items": {"type": "object"}},
    },
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
            reports = _SENDERS[sender](in_one_piece(request.headers, msgspec.json.decode(body)), now)
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
        taken: TakenFacts = request.app.state.taken_facts
        new = taken.add(who.tenant or "", found.facts)
        return Heard(facts=len(found.facts), new=new, known=len(found.facts) - new, skipped=found.skipped)

    return answer(request, await run_in_threadpool(work))
