"""Whether the server is alive and ready, and its metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from sqlalchemy import func, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import PlainTextResponse, Response

from tracecore.server.principal import require
from tracecore.store.retention import used
from tracecore.store.store import Store
from tracecore.store.tables import incidents

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

    from tracecore.notify.notifier import Notifier

router = APIRouter(include_in_schema=False)


@router.get("/healthz")
def healthz() -> Response:
    """The process answers."""
    return PlainTextResponse("ok\n")


@router.get("/readyz")
def readyz(request: Request) -> Response:
    """The database answers."""
    try:
        with request.app.state.store.database.read() as connection:
            connection.execute(select(1))
    except SQLAlchemyError:
        return PlainTextResponse("the database does not answer\n", 503)
    return PlainTextResponse("ok\n")


@router.get("/metrics", dependencies=[require("read")])
def metrics(request: Request) -> Response:
    """Prometheus metrics of this process, and of the store it works on."""
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    state = request.app.state
    records = CounterMetricFamily("tracecore_server_records", "Records that ingest took or skipped.", labels=["what"])
    for what, count in sorted(state.ingest.counts.items()):
        records.add_metric([what], count)
    detector = getattr(state, "detector", None)
    found: list[Metric] = [
        records,
        _gauge(
            GaugeMetricFamily, "inbox_requests", "Requests with facts that wait for the detector.", state.ingest.waiting
        ),
        _gauge(GaugeMetricFamily, "viewers", "Open event streams.", state.watcher.viewers),
        _gauge(
            GaugeMetricFamily,
            "detector_running",
            "1 where this process joins the facts of the fleet.",
            int(detector is not None and detector.running),
        ),
        _gauge(GaugeMetricFamily, "database_bytes", "Size of the database.", used(state.store.database)),
        _gauge(GaugeMetricFamily, "open_incidents", "Incidents that are not resolved.", _open(state.store)),
    ]
    notifier: Notifier | None = getattr(state, "notifier", None)
    if notifier is not None:
        told = CounterMetricFamily(
            "tracecore_server_notifications", "Deliveries of notifications, by how they ended.", labels=["outcome"]
        )
        for outcome in ("sent", "failed", "retried"):
            told.add_metric([outcome], notifier.counts[outcome])
        overdue = notifier.overdue_s()
        found += [
            told,
            _gauge(GaugeMetricFamily, "notifications_overdue_seconds", "How long the oldest one waits to go.", overdue),
        ]
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Found(found))
    return Response(generate_latest() + generate_latest(registry), media_type=CONTENT_TYPE_LATEST)


class _Found:
    """Metrics that were just read."""

    def __init__(self, found: list[Metric]) -> None:
        self._found = found

    def collect(self) -> list[Metric]:
        return self._found


def _gauge(kind: Any, name: str, said: str, value: float) -> Metric:
    made: Metric = kind(f"tracecore_server_{name}", said, value=value)
    return made


def _open(store: Store) -> int:
    with store.database.read() as connection:
        query = select(func.count()).select_from(incidents).where(incidents.c.active == 1)
        return connection.execute(query).scalar_one()
