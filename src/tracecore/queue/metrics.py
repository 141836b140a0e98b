"""The queue in numbers, as Prometheus text. All of them are read from the tables, so every worker tells the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from sqlalchemy import case, func, select

from tracecore.queue.database import attempts, tasks
from tracecore.queue.task import STATUSES
from tracecore.signals import private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from prometheus_client import Metric
    from sqlalchemy import Connection, Engine

    from tracecore.queue.store import Queue

SECOND: Final = 1_000_000_000
#: Upper edges of run times, in seconds: a smoke test to a week's training.
EDGES: Final = (1, 10, 60, 300, 1800, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600)
_ENDED: Final = ("completed", "failed", "lost", "preempted", "cancelled")


def text(queue: Queue, engine: Engine) -> str:
    """All metrics, in the text format."""
    registry = CollectorRegistry()
    registry.register(_Collector(queue, engine))
    return generate_latest(registry).decode()


def write(path: Path, metrics: str, mode: int = private.FILE) -> None:
    """Write them for node_exporter's textfile collector, which must never see half a file.

    Args:
        mode: who may read them; the collector usually runs as another user.
    """
    private.write(path, metrics.encode(), mode=mode)


class _Collector:
    def __init__(self, queue: Queue, engine: Engine) -> None:
        self.queue = queue
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        now = self.queue.now()
        with self.engine.execution_options(reading=True).begin() as connection:
            yield from _tasks(connection, now)
            yield from _attempts(connection)
            yield _run_time(connection)


def _tasks(connection: Connection, now: int) -> Iterator[Metric]:
    counts: dict[str, int] = dict(
        connection.execute(select(tasks.c.status, func.count()).group_by(tasks.c.status)).all()
    )
    family = GaugeMetricFamily("tracecore_queue_tasks", "Tasks by status.", labels=["status"])
    for status in STATUSES:
        family.add_metric([status], counts.get(status, 0))
    yield family
    waiting = select(func.count(), func.min(tasks.c.updated_at)).where(
        tasks.c.status == "queued", tasks.c.not_before <= now
    )
    ready, oldest = connection.execute(waiting).one()
    yield GaugeMetricFamily("tracecore_queue_depth", "Tasks that a free worker would take now.", value=ready)
    age = 0.0 if oldest is None else max(0.0, (now - oldest) / SECOND)
    yield GaugeMetricFamily("tracecore_queue_oldest_seconds", "How long the oldest of them has waited.", value=age)
    busy = select(func.count(tasks.c.worker.distinct())).where(tasks.c.status == "running")
    workers = connection.execute(busy).scalar_one()
    yield GaugeMetricFamily("tracecore_queue_busy_workers", "Workers that run a task.", value=workers)


def _attempts(connection: Connection) -> Iterator[Metric]:
    by_status = select(attempts.c.status, func.count()).group_by(attempts.c.status)
    counts: dict[str, int] = dict(connection.execute(by_status).all())
    family = CounterMetricFamily("tracecore_queue_attempts", "Attempts by how they ended.", labels=["status"])
    for status in _ENDED:
        family.add_metric([status], counts.get(status, 0))
    yield family
    by_class = (
        select(
            attempts.c.failure_class,
            func.count(),
            func.sum(case((attempts.c.retried, 1), else_=0)),
        )
        .where(attempts.c.failure_class != "")
        .group_by(attempts.c.failure_class)
        .order_by(attempts.c.failure_class)
    )
    failures = CounterMetricFamily("tracecore_queue_failures", "Failed attempts by failure class.", labels=["class"])
    retries = CounterMetricFamily("tracecore_queue_retries", "Automatic retries by failure class.", labels=["class"])
    for failure_class, failed, retried in connection.execute(by_class):
        failures.add_metric([failure_class], failed)
        retries.add_metric([failure_class], int(retried))
    yield failures
    yield retries


def _run_time(connection: Connection) -> HistogramMetricFamily:
    below: list[Any] = [func.sum(case((attempts.c.run_s <= edge, 1), else_=0)) for edge in EDGES]
    query = select(func.count(), func.coalesce(func.sum(attempts.c.run_s), 0.0), *below).where(
        attempts.c.run_s.is_not(None)
    )
    count, total, *buckets = connection.execute(query).one()
    family = HistogramMetricFamily("tracecore_queue_run_seconds", "Run time of ended attempts.")
    edges = [(str(float(edge)), int(value or 0)) for edge, value in zip(EDGES, buckets, strict=True)]
    family.add_metric([], [*edges, ("+Inf", count)], total)
    return family
