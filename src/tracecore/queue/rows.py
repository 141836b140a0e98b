"""Tasks and attempts from rows of the database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tracecore.queue.task import Spec, Task, TaskAttempt

if TYPE_CHECKING:
    from sqlalchemy import Row


def task_of(row: Any) -> Task:
    """Return the task of a row."""
    return Task(
        id=row.id,
        spec=msgspec.json.decode(row.spec, type=Spec),
        status=row.status,
        submitted_at=row.submitted_at,
        updated_at=row.updated_at,
        not_before=row.not_before,
        attempts=row.attempts,
        token=row.token,
        lost=row.lost,
        worker=row.worker,
        lease_until=row.lease_until,
        cancel_requested=bool(row.cancel_requested),
        reason=row.reason,
        failure_class=row.failure_class,
        ledger=msgspec.json.decode(row.ledger),
        excluded=msgspec.json.decode(row.excluded),
    )


def attempt_of(row: Row[Any]) -> TaskAttempt:
    """Return the attempt of a row."""
    return TaskAttempt(
        number=row.number,
        status=row.status,
        worker=row.worker,
        host=row.host,
        token=row.token,
        started_at=row.started_at,
        ended_at=row.ended_at,
        exit_code=row.exit_code,
        signal=row.signal,
        retried=bool(row.retried),
        log=row.log,
        failure=None if row.failure is None else msgspec.json.decode(row.failure),
    )
