"""The queue itself: what may happen to a task, each in one transaction.

    submit → queued → claim → running → finish → completed | failed | dead | cancelled
                ↑                 │
                └── retry, requeue, reap ──┘

A claim is a lease: it is kept up by heartbeats, and carries a token that rises with every claim of the task. Whatever
a former holder still wants to say carries an older token and is refused, so a task has one owner at any time. A lease
that runs out is taken away by whoever looks next (`reap`).

On SQLite the clock is this machine's; on PostgreSQL the server's, since the clocks of two machines differ.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from sqlalchemy import and_, bindparam, delete, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError

from tracecore.queue.database import attempts, tasks
from tracecore.queue.rows import attempt_of, task_of
from tracecore.queue.task import STATUSES, Spec, SpecError, Status, Task, TaskAttempt, check
from tracecore.queue.tracking import environment as check_tracking
from tracecore.signals import private

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Connection, Engine, Row

SECOND: Final = 1_000_000_000
#: So many attempts in a row may lose their worker: the task may be what kills it. Where as many attempts of other
#: tasks lost theirs in the same time it is not, and tries again, each time a little later; but not for ever.
LOST_LIMIT: Final = 5
LOST_AT_MOST: Final = 50
_FINAL: Final = ("completed", "failed", "dead", "cancelled")

_TASK = (
    tasks.c.id, tasks.c.spec, tasks.c.status, tasks.c.submitted_at, tasks.c.updated_at, tasks.c.not_before,
    tasks.c.attempts, tasks.c.token, tasks.c.lost, tasks.c.worker, tasks.c.lease_until, tasks.c.cancel_requested,
    tasks.c.reason, tasks.c.failure_class, tasks.c.ledger, tasks.c.excluded,
)  # fmt: skip
_NEXT = (
    select(*_TASK)
    .where(tasks.c.status == "queued", tasks.c.not_before <= bindparam("now"))
    .order_by(tasks.c.priority.desc(), tasks.c.id)
    .limit(1)
    .with_for_update(skip_locked=True)
)
_TAKE = (
    update(tasks)
    .where(tasks.c.id == bindparam("task"), tasks.c.status == "queued")
    .values(
        status="running",
        worker=bindparam("by"),
        updated_at=bindparam("now"),
        lease_until=bindparam("until"),
        attempts=tasks.c.attempts + 1,
        token=tasks.c.token + 1,
        reason="",
    )
)
_RENEW = (
    update(tasks)
    .where(tasks.c.id == bindparam("task"), tasks.c.token == bindparam("held"), tasks.c.status == "running")
    .values(lease_until=bindparam("until"))
    .returning(tasks.c.cancel_requested)
)
_EXPIRED = (
    select(*_TASK)
    .where(tasks.c.status == "running", tasks.c.lease_until < bindparam("now"))
    .order_by(tasks.c.id)
    .limit(100)
    .with_for_update(skip_locked=True)
)


class LeaseLost(Exception):
    """The task is somebody else's by now, or nobody's."""


class NoSuchTask(LookupError):
    """There is no task of this number."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The right to run a task, until the lease ends.

    Args:
        task: as it was when it was taken, its `attempts` and `token` already raised.
        worker: who holds it.
        lease_s: for how long each renewal keeps it.
    """

    task: Task
    worker: str
    lease_s: float

    @property
    def token(self) -> int:
        return self.task.token


class AttemptOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """Record how an attempt ended, and what becomes of the task.

    Args:
        status: of the task from now on; `queued` to try again.
        reason: why, in a sentence.
        delay_s: how long a retry waits.
        failure: the failure record.
        ledger: what the policy wants to remember.
        excluded: what the next attempt keeps away from.
    """

    status: Literal["completed", "failed", "dead", "cancelled", "queued"]
    exit_code: int | None = None
    signal: str = ""
    reason: str = ""
    delay_s: float = 0.0
    failure: dict[str, Any] | None = None
    ledger: dict[str, Any] = {}
    excluded: dict[str, Any] = {}


class Queue:
    """A queue in an opened database (`database.connect`).

    Args:
        clock: nanoseconds since the epoch; by default this machine's on SQLite and the server's on PostgreSQL.
        slack_s: how long after the end of a lease it is taken away: what a holder that cannot renew needs to stop
            what it runs.
    """

    def __init__(self, engine: Engine, clock: Callable[[], int] | None = None, *, slack_s: float = 5.0) -> None:
        self._engine = engine
        self._server_clock = clock is None and engine.dialect.name == "postgresql"
        self._clock = time.time_ns if clock is None else clock
        self._slack = int(slack_s * SECOND)
        self._reading = engine.execution_options(reading=True)
        self._gate = f"{engine.url.database}.gate" if engine.dialect.name == "sqlite" else None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        """A transaction that writes.

        SQLite has one writer at a time, and lets the others sleep and ask again, for longer each time. Behind a lock
        of the kernel's they are woken when it is their turn; a killed process gives it up.
        """
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(self._engine.connect())
            if self._gate is not None:
                fcntl.flock(stack.enter_context(private.opened(self._gate, "ab")), fcntl.LOCK_EX)
            stack.enter_context(connection.begin())
            yield connection

    def _now(self, connection: Connection) -> int:
        if not self._server_clock:
            return self._clock()
        row = connection.execute(text("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint * 1000"))
        return int(row.scalar_one())

    def now(self) -> int:
        """The queue's time, in nanoseconds."""
        if not self._server_clock:
            return self._clock()
        with self._reading.begin() as connection:
            return self._now(connection)

    # What users do.

    def submit(self, spec: Spec, key: str | None = None) -> int:
        """Put a task in and give its number.

        Args:
            key: submitting again with the same key gives the same task.

        Raises:
            SpecError: the task cannot be accepted.
        """
        check(spec)
        check_tracking(spec.tracking)
        if key is not None and not 0 < len(key) <= 200:
            raise SpecError("a key has 1 to 200 characters")
        try:
            with self._writing() as connection:
                now = self._now(connection)
                values = {
                    "key": key,
                    "name": spec.name,
                    "spec": msgspec.json.encode(spec).decode(),
                    "priority": spec.priority,
                    "status": "queued",
                    "submitted_at": now,
                    "updated_at": now,
                }
                result = connection.execute(insert(tasks).returning(tasks.c.id), values)
                return int(result.scalar_one())
        except IntegrityError:
            with self._reading.begin() as connection:
                known = connection.execute(select(tasks.c.id, tasks.c.spec).where(tasks.c.key == key)).one()
            if msgspec.json.decode(known.spec, type=Spec) != spec:
                raise SpecError(f"the key {key!r} belongs to task {known.id}, which is another task") from None
            return int(known.id)

    def cancel(self, task: int) -> Status:
        """Cancel it: at once where it waits; where it runs, its worker stops it. Gives the status it has now."""
        with self._writing() as connection:
            row = self._locked(connection, task)
            now = self._now(connection)
            if row.status == "queued":
                values = {"status": "cancelled", "reason": "cancelled while it waited", "updated_at": now}
            elif row.status == "running":
                values = {"cancel_requested": True, "reason": "cancel requested"}
            else:
                return row.status  # type: ignore[no-any-return]
            connection.execute(update(tasks).where(tasks.c.id == task).values(**values))
            return "cancelled" if row.status == "queued" else "running"

    def retry(self, task: int) -> Status:
        """Queue it again with a clean slate, whatever became of it; a task that waits for a retry waits no longer.

        Raises:
            SpecError: it is running.
        """
        with self._writing() as connection:
            row = self._locked(connection, task)
            if row.status == "running":
                raise SpecError(f"task {task} is running: cancel it first")
            if row.status == "completed":
                raise SpecError(f"task {task} is completed: submit it again to run it again")
            connection.execute(
                update(tasks)
                .where(tasks.c.id == task)
                .values(
                    status="queued", not_before=0, lost=0, ledger="{}", cancel_requested=False, failure_class="",
                    reason="retry asked for", updated_at=self._now(connection),
                )
            )  # fmt: skip
            return "queued"

    def prune(self, older_s: float) -> int:
        """Forget tasks that ended longer ago than that; how many."""
        with self._writing() as connection:
            before = self._now(connection) - int(older_s * SECOND)
            gone = select(tasks.c.id).where(tasks.c.status.in_(_FINAL), tasks.c.updated_at < before)
            connection.execute(delete(attempts).where(attempts.c.task.in_(gone)))
            return connection.execute(delete(tasks).where(tasks.c.id.in_(gone))).rowcount

    # What users see.

    def get(self, task: int) -> Task:
        """One task."""
        with self._reading.begin() as connection:
            row = connection.execute(select(*_TASK).where(tasks.c.id == task)).one_or_none()
        if row is None:
            raise NoSuchTask(f"no task {task}")
        return task_of(row)

    def attempts(self, task: int) -> list[TaskAttempt]:
        """All attempts at a task, the first first."""
        with self._reading.begin() as connection:
            rows = connection.execute(select(attempts).where(attempts.c.task == task).order_by(attempts.c.number))
            return [attempt_of(row) for row in rows]

    def tasks(self, statuses: Sequence[Status] = (), *, name: str = "", limit: int = 1000) -> list[Task]:
        """Tasks: running ones first, then those that wait in the order they would run, then the ended, newest first."""
        query = select(*_TASK).limit(limit)
        if statuses:
            query = query.where(tasks.c.status.in_(statuses))
        if name:
            query = query.where(tasks.c.name.contains(name, autoescape=True))
        waiting = tasks.c.status.in_(("queued", "running"))
        with self._reading.begin() as connection:
            # "running" sorts after "queued".
            live = connection.execute(
                query.where(waiting).order_by(tasks.c.status.desc(), tasks.c.priority.desc(), tasks.c.id)
            ).all()
            ended = connection.execute(
                query.where(~waiting).order_by(tasks.c.updated_at.desc(), tasks.c.id.desc()).limit(limit - len(live))
            ).all()
        return [task_of(row) for row in (*live, *ended)]

    def counts(self) -> dict[Status, int]:
        """Return how many tasks have each status; every status is there."""
        with self._reading.begin() as connection:
            rows = connection.execute(select(tasks.c.status, func.count()).group_by(tasks.c.status)).all()
        counted = {row[0]: int(row[1]) for row in rows}
        return {status: counted.get(status, 0) for status in STATUSES}

    # What workers do.

    def claim(self, worker: str, host: str, lease_s: float, log: str = "") -> Claim | None:
        """Take the next task: the highest priority, then the oldest. None when nothing waits.

        Args:
            worker: a name no other worker has.
            log: where the output will be; `{task}` and `{attempt}` are filled in.
        """
        with self._writing() as connection:
            now = self._now(connection)
            row = connection.execute(_NEXT, {"now": now}).one_or_none()
            if row is None:
                return None
            until = now + int(lease_s * SECOND) + self._slack
            connection.execute(_TAKE, {"task": row.id, "by": worker, "now": now, "until": until})
            number, token = row.attempts + 1, row.token + 1
            where = log.replace("{task}", str(row.id)).replace("{attempt}", str(number))
            connection.execute(
                insert(attempts),
                {"task": row.id, "number": number, "status": "running", "worker": worker, "host": host,
                 "token": token, "started_at": now, "log": where},
            )  # fmt: skip
        changes = {"status": "running", "attempts": number, "token": token, "worker": worker, "lease_until": until}
        return Claim(task=msgspec.structs.replace(task_of(row), **changes), worker=worker, lease_s=lease_s)

    def renew(self, claim: Claim) -> bool:
        """Keep the lease up; whether the task was cancelled meanwhile.

        Raises:
            LeaseLost: too late.
        """
        with self._writing() as connection:
            until = self._now(connection) + int(claim.lease_s * SECOND) + self._slack
            values = {"task": claim.task.id, "held": claim.token, "until": until}
            cancelled = connection.execute(_RENEW, values).scalar_one_or_none()
        if cancelled is None:
            raise LeaseLost(f"task {claim.task.id} is no longer held by {claim.worker}")
        return bool(cancelled)

    def finish(self, claim: Claim, outcome: AttemptOutcome) -> None:
        """Say how the attempt ended, and give the task up.

        Raises:
            LeaseLost: the task is no longer held; nothing was changed.
        """
        retried = outcome.status == "queued"
        status = "failed" if outcome.status in ("queued", "failed", "dead") else outcome.status
        self._end(claim, outcome, status, retried, lost=0)

    def requeue(self, claim: Claim, reason: str) -> None:
        """Give the task back unfinished, at no cost to it: the worker was asked to stop.

        Raises:
            LeaseLost: the task is no longer held; nothing was changed.
        """
        task = claim.task
        outcome = AttemptOutcome(status="queued", reason=reason, ledger=task.ledger, excluded=task.excluded)
        self._end(claim, outcome, "preempted", retried=False, lost=task.lost)

    def _end(self, claim: Claim, outcome: AttemptOutcome, status: str, retried: bool, lost: int) -> None:
        task = claim.task.id
        failure_class = str((outcome.failure or {}).get("class", ""))
        with self._writing() as connection:
            now = self._now(connection)
            values: dict[str, Any] = {
                "status": outcome.status,
                "updated_at": now,
                "not_before": now + int(outcome.delay_s * SECOND) if outcome.status == "queued" else 0,
                "worker": "",
                "lease_until": None,
                "lost": lost,
                "reason": outcome.reason,
                "failure_class": failure_class,
                "ledger": msgspec.json.encode(outcome.ledger).decode(),
                "excluded": msgspec.json.encode(outcome.excluded).decode(),
            }
            # A cancel that came while the attempt was ending is honoured rather than run again.
            held = and_(tasks.c.id == task, tasks.c.token == claim.token, tasks.c.status == "running")
            if outcome.status == "queued":
                asked = connection.execute(select(tasks.c.cancel_requested).where(held).with_for_update()).scalar()
                if asked:
                    values |= {"status": "cancelled", "reason": "cancelled while it ran", "not_before": 0}
                    retried = False
            if connection.execute(update(tasks).where(held).values(**values)).rowcount != 1:
                raise LeaseLost(f"task {task} is no longer held by {claim.worker}")
            self._close(connection, task, claim.task.attempts, now, status, outcome, retried)

    def _close(
        self,
        connection: Connection,
        task: int,
        number: int,
        now: int,
        status: str,
        outcome: AttemptOutcome,
        retried: bool,
    ) -> None:
        failure = outcome.failure
        connection.execute(
            update(attempts)
            .where(attempts.c.task == task, attempts.c.number == number)
            .values(
                status=status,
                ended_at=now,
                run_s=(now - attempts.c.started_at) / float(SECOND),
                exit_code=outcome.exit_code,
                signal=outcome.signal,
                retried=retried,
                failure_class=str((failure or {}).get("class", "")),
                failure=None if failure is None else msgspec.json.encode(failure).decode(),
            )
        )

    def reap(self) -> list[int]:
        """Take away the leases that ran out, and queue their tasks again; which tasks.

        A task whose workers keep vanishing goes to the dead letters in the end: it may be what kills them.
        """
        reaped: list[int] = []
        with self._reading.begin() as connection:
            now = self._now(connection)
            due = select(tasks.c.id).where(tasks.c.status == "running", tasks.c.lease_until < now).limit(1)
            if connection.execute(due).first() is None:
                return reaped
        with self._writing() as connection:
            now = self._now(connection)
            for row in connection.execute(_EXPIRED, {"now": now}).all():
                lost = row.lost + 1
                blamed = lost >= LOST_LIMIT and (lost >= LOST_AT_MOST or self._others_lost(connection, row) < lost)
                outcome = _lost(task_of(row), blamed=blamed)
                # Others have their turn first.
                later = now + min(lost - LOST_LIMIT + 1, 60) * SECOND if lost >= LOST_LIMIT else 0
                connection.execute(
                    update(tasks)
                    .where(tasks.c.id == row.id, tasks.c.token == row.token, tasks.c.status == "running")
                    .values(
                        status=outcome.status, updated_at=now, not_before=later, worker="", lease_until=None,
                        lost=row.lost + 1, reason=outcome.reason,
                        failure_class="" if outcome.failure is None else outcome.failure["class"],
                    )
                )  # fmt: skip
                self._close(connection, row.id, row.attempts, now, "lost", outcome, outcome.status == "queued")
                reaped.append(int(row.id))
        return reaped

    def _others_lost(self, connection: Connection, row: Any) -> int:
        """Return how many attempts of other tasks lost their worker since the first of this task's in a row."""
        first = attempts.alias()
        began = (
            select(first.c.started_at)
            .where(first.c.task == row.id, first.c.number == row.attempts - row.lost)
            .scalar_subquery()
        )
        others = select(func.count()).where(
            attempts.c.status == "lost", attempts.c.task != row.id, attempts.c.ended_at >= began
        )
        return int(connection.execute(others).scalar_one())

    def _locked(self, connection: Connection, task: int) -> Row[Any]:
        row = connection.execute(select(tasks).where(tasks.c.id == task).with_for_update()).one_or_none()
        if row is None:
            raise NoSuchTask(f"no task {task}")
        return row


def _lost(task: Task, *, blamed: bool) -> AttemptOutcome:
    if task.cancel_requested:
        return AttemptOutcome(status="cancelled", reason="cancelled while it ran; its worker is gone")
    lost = task.lost + 1
    failure = {
        "class": "infrastructure",
        "suggestion": "The worker fell silent: look at its machine, and at the kernel's log for a memory kill.",
        "retry_count": task.lost,
        "retry_cap": LOST_LIMIT - 1,
        "context": {"reason": "worker_lost", "worker": task.worker},
    }
    if blamed:
        reason = f"{lost} workers in a row fell silent while they ran it"
        return AttemptOutcome(status="dead", reason=reason, failure=failure)
    failure["auto_retried"] = True
    return AttemptOutcome(status="queued", reason=f"{task.worker} fell silent", failure=failure)
