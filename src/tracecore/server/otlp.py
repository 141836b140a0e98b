"""OTLP over HTTP on the server's own address, and over gRPC on a port of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request, Response
from starlette.concurrency import run_in_threadpool

from tracecore.agent.auth import CHALLENGE
from tracecore.agent.batch import Refused, Signal
from tracecore.agent.receivers.otlp import Grpc, grpc_endpoint
from tracecore.agent.receivers.otlp_grpc import GrpcServer
from tracecore.agent.receivers.otlp_http import decompress, from_json
from tracecore.agent.tls import ServerTls
from tracecore.server.identity import of_token
from tracecore.server.ingest import TENANT, Ingest
from tracecore.server.principal import Principal, require
from tracecore.server.settings import ServerSettings
from tracecore.signals.otlp.messages import OtlpError
from tracecore.signals.otlp.responses import failure, success
from tracecore.store.store import Store

router = APIRouter(include_in_schema=False)
INGEST: Any = require("ingest")
#: Codes of gRPC that OTLP's answers carry.
_INVALID: Final = 3
_UNAVAILABLE: Final = 14
_SIGNALS: Final[dict[str, Signal]] = {"logs": "logs", "metrics": "metrics", "traces": "traces"}


@router.post("/v1/{signal}")
async def export(request: Request, signal: str, who: Principal = INGEST) -> Response:
    """An OTLP export request: protobuf or JSON, plain, gzip or zstd."""
    kind = _SIGNALS.get(signal)
    if kind is None:
        raise HTTPException(404)
    json = request.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
    media = "application/json" if json else "application/x-protobuf"
    settings: ServerSettings = request.app.state.settings
    encoding = request.headers.get("content-encoding", "").strip().lower()
    body = await request.body()

    def work() -> tuple[int, bytes]:
        try:
            raw = decompress(body, encoding, settings.max_body)
            ingest: Ingest = request.app.state.ingest
            skipped = ingest.take(kind, from_json(kind, raw) if json else raw, who.tenant or "")
        except OverflowError:
            return 413, failure(_INVALID, f"larger than {settings.max_body} bytes", json)
        except OtlpError as error:
            return 400, failure(_INVALID, str(error)[:300], json)
        except Refused as error:
            return 503, failure(_UNAVAILABLE, f"try again later: {error}", json)
        count = sum(skipped.values())
        why = ", ".join(f"{number} {reason}" for reason, number in sorted(skipped.items()))
        return 200, success(kind, json, count, why)

    status, answer = await run_in_threadpool(work)
    return Response(answer, status, media_type=media, headers={"Retry-After": "1"} if status == 503 else None)


def grpc_server(
    store: Store,
    ingest: Ingest,
    settings: ServerSettings,
    where: str,
    clock: Callable[[], int],
    tls: ServerTls | None = None,
) -> GrpcServer:
    """A gRPC server that takes the same requests; `start` it."""

    def allows(metadata: dict[str, str]) -> bool:
        kind, _, given = metadata.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and given:
            token = store.tokens.verify(given.strip(), clock())
            if token is None or not of_token(token).may("ingest"):
                return False
            TENANT.set(token.tenant)
            return True
        TENANT.set("")
        return not settings.auth

    def take(signal: Signal, raw: bytes, peer: str) -> int:
        ingest.take(signal, raw, TENANT.get())
        return 0

    options = Grpc(endpoint=where, tls=tls, max_recv_msg_size_mib=max(settings.max_body >> 20, 1))
    return GrpcServer(options, grpc_endpoint(where), take, allows, lambda: None, CHALLENGE)
