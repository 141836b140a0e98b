"""Decisions: what a launcher or scheduler asks after a failure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Request, Response
from pydantic import Field

from tracecore.actions.classify import classify
from tracecore.actions.exclusion import Exclusions, exclusions
from tracecore.actions.ledger import FailureLedger
from tracecore.actions.policy import standard, with_decision
from tracecore.server.answers import answer, says
from tracecore.server.api.parameters import TEXT, WHOLE, Body
from tracecore.server.audit import record
from tracecore.server.principal import Principal, require
from tracecore.store.store import Store
from tracecore.store.update import clean


class RestartDecision(msgspec.Struct, kw_only=True):
    """Whether to start the job again.

    Args:
        decision: `retry`, `stop`, or `none` where nothing failed.
        delay_s: how long to wait first.
        avoid_nodes, avoid_gpus: what the next attempt should do without.
        failure_class: infrastructure, code, data, resource, unknown or none.
        incident: the id of the incident that decided; empty where the exit status and the log did.
    """

    job: str
    attempt: int
    decision: str
    reason: str
    delay_s: float
    avoid_nodes: list[str]
    avoid_gpus: list[str]
    failure_class: str
    suggestion: str
    incident: str


STRUCTS = (RestartDecision,)
router = APIRouter(tags=["decisions"])
INGEST: Any = require("ingest")
Rank = Annotated[str, Field(max_length=20, pattern=r"^[0-9]+$")]
_ALONE: dict[str, Any] = {"additionalProperties": False}


class EndedAttempt(Body):
    """The end of an attempt."""

    job: Annotated[str, Field(min_length=1, max_length=300, pattern=TEXT)]
    attempt: Annotated[int, Field(ge=0, lt=1 << 31), WHOLE] = 0
    exit_codes: Annotated[
        dict[Rank, Annotated[int, Field(ge=-(1 << 31), lt=1 << 31), WHOLE]],
        Field(max_length=100_000, default_factory=dict, description="By rank.", json_schema_extra=_ALONE),
    ]
    signal: Annotated[str | None, Field(max_length=20, pattern=TEXT)] = None
    reason: Annotated[
        str | None, Field(max_length=100, pattern=TEXT, description="What Kubernetes or Slurm calls it.")
    ] = None
    log_tail: Annotated[str, Field(max_length=4 << 20)] = ""
    step: Annotated[int, Field(ge=0, lt=1 << 62), WHOLE] | None = None
    checkpoint: Annotated[str | None, Field(max_length=300, pattern=TEXT)] = None


@router.post("/decisions", responses=says(RestartDecision))
def decide(request: Request, body: EndedAttempt, who: Principal = INGEST) -> Response:
    """Retry or stop. Asking again about the same attempt gives the same answer."""
    store: Store = request.app.state.store
    now = request.app.state.clock()
    found = store.decisions.incident(body.job, body.attempt, tenant=who.tenant)
    told = store.decisions.decide(
        body.job, body.attempt, now, lambda ledger: _judge(body, found, ledger, now), tenant=who.tenant or ""
    )
    record(request, who, "decision", body.job, f"attempt {body.attempt}: {told['decision']}")
    return answer(request, told)


def _judge(
    body: EndedAttempt, found: tuple[str, dict[str, Any]] | None, ledger: FailureLedger, now: int
) -> dict[str, Any]:
    policy = standard()
    verdict: dict[str, Any] | None = None
    if found is not None:
        verdict = {"pattern.name": found[1]["root_cause"]["pattern"], "suspects": found[1].get("suspects")}
    codes = [code for _, code in sorted(body.exit_codes.items(), key=lambda item: int(item[0])) if code]
    code = codes[0] if codes else 0 if body.exit_codes else None
    info = classify(code, body.signal, body.log_tail, verdict, reason=body.reason, now=now, policy=policy)
    if info.failed:
        step = body.step if body.step is not None else info.step
        if body.step is not None:
            info = msgspec.structs.replace(info, context={**info.context, "step": str(body.step)})
        ledger.progress(step=step, checkpoint=body.checkpoint)
        chosen = policy.decide(info, ledger, now)
        ledger.record(info, chosen, now)
        info = with_decision(info, chosen)
    avoid = exclusions(verdict, policy) if verdict is not None else Exclusions()
    return msgspec.to_builtins(  # type: ignore[no-any-return]
        RestartDecision(
            job=body.job,
            attempt=body.attempt,
            decision=info.retry.decision,
            reason=clean(info.retry.reason),
            delay_s=info.retry.delay_s or 0.0,
            avoid_nodes=[*avoid.nodes],
            avoid_gpus=[*avoid.gpus],
            failure_class=info.failure_class if info.failed else "none",
            suggestion=clean(info.suggestion),
            incident=found[0] if found is not None else "",
        )
    )
