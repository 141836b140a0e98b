"""Jobs: their attempts, progress, nodes and incidents."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, case, func, or_, select

from tracecore.store import cursors
from tracecore.store.database import Database
from tracecore.store.incidents import MOST, IncidentQuery, Incidents
from tracecore.store.records import Attempt, JobDetail, JobPage, JobRow, ProgressPoint
from tracecore.store.tables import attempts, incidents, job_nodes, job_progress, jobs
from tracecore.store.update import MAX_NAME, clean

#: Points of a chart; of more, evenly chosen ones are shown.
POINTS: Final = 2_000


class JobReport(msgspec.Struct, kw_only=True):
    """The current state of a job.

    Args:
        state: empty where nothing new is known.
    """

    name: str
    at: int
    state: str = ""
    tenant: str = ""
    ranks: int = 0
    gpus: int = 0
    step: int | None = None
    total_steps: int | None = None


class Jobs:
    """The jobs of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        tenant: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> JobPage:
        """Jobs, those heard last first.

        Args:
            name: the beginning of the name.
        """
        limit = max(1, min(limit, MOST))
        table = jobs.c
        statement = select(jobs)
        if state is not None:
            statement = statement.where(table.state == state)
        if tenant is not None:
            statement = statement.where(table.tenant == tenant)
        if name:
            statement = statement.where(table.name.startswith(name, autoescape=True))
        if cursor:
            time, after = cursors.decode(cursor, int, str)
            statement = statement.where(
                table.last_seen <= time,
                or_(table.last_seen < time, and_(table.last_seen == time, table.name > after)),
            )
        statement = statement.order_by(table.last_seen.desc(), table.name).limit(limit + 1)
        with self._database.read() as connection:
            rows = connection.execute(statement).all()
            found = job_rows(connection, rows[:limit])
        last = rows[limit - 1] if len(rows) > limit else None
        return JobPage(jobs=found, next=None if last is None else cursors.encode(last.last_seen, last.name))

    def get(self, name: str, *, tenant: str | None = None) -> JobDetail | None:
        """One job with its attempts and incidents."""
        with self._database.read() as connection:
            statement = select(jobs).where(jobs.c.name == name)
            if tenant is not None:
                statement = statement.where(jobs.c.tenant == tenant)
            row = connection.execute(statement).first()
            if row is None:
                return None
            held = [
                Attempt(
                    attempt=r.attempt, state=r.state, started_at=r.started_at, ended_at=r.ended_at,
                    first_step=r.first_step, last_step=r.last_step, exit_code=r.exit_code, reason=r.reason,
                    nodes=msgspec.json.decode(r.nodes),
                )
                for r in connection.execute(
                    select(attempts).where(attempts.c.job == name).order_by(attempts.c.attempt).limit(MOST)
                )
            ]  # fmt: skip
            where = select(job_nodes.c.node).where(job_nodes.c.job == name).order_by(job_nodes.c.node).limit(4_096)
            query = IncidentQuery(job=name, tenant=tenant)
            return JobDetail(
                job=job_rows(connection, [row])[0],
                attempts=held,
                nodes=[*connection.execute(where).scalars()],
                incidents=Incidents(self._database).read(connection, query, limit=100).incidents,
                goodput=goodput(held, row.last_seen),
            )

    def progress(self, name: str, *, since: int | None = None, most: int = POINTS) -> list[ProgressPoint]:
        """Reports of progress for charts, oldest first; of too many, every n-th report of each rank."""
        table = job_progress.c
        conditions = [table.job == name] if since is None else [table.job == name, table.time >= since]
        with self._database.read() as connection:
            total = connection.execute(select(func.count()).select_from(job_progress).where(*conditions)).scalar_one()
            every = -(-total // max(most, 1)) or 1
            ranked = (
                select(
                    job_progress, func.row_number().over(partition_by=table.rank, order_by=table.time).label("place")
                )
                .where(*conditions)
                .subquery()
            )
            query = select(ranked).where(ranked.c.place % every == 0).order_by(ranked.c.time, ranked.c.rank)
            return [
                ProgressPoint(
                    time=row.time, rank=row.rank, attempt=row.attempt, step=row.step, loss=row.loss, step_s=row.step_s,
                    data_s=row.data_s,
                )
                for row in connection.execute(query.limit(most * 2))
            ]  # fmt: skip

    def report(self, reports: Iterable[JobReport], points: Iterable[dict[str, Any]] = ()) -> None:
        """Store what is known of jobs.

        Args:
            points: rows of `job_progress`.
        """
        with self._database.write() as connection:
            report_jobs(self._database, connection, reports)
            add_progress(self._database, connection, points)

    def put_attempt(
        self,
        job: str,
        attempt: int,
        *,
        state: str,
        started_at: int,
        ended_at: int | None = None,
        first_step: int | None = None,
        last_step: int | None = None,
        exit_code: int | None = None,
        reason: str = "",
        nodes: Iterable[str] = (),
    ) -> None:
        """Store an attempt as it is known now."""
        row = {
            "job": clean(job, MAX_NAME), "attempt": attempt, "state": state, "started_at": started_at,
            "ended_at": ended_at, "first_step": first_step, "last_step": last_step, "exit_code": exit_code,
            "reason": clean(reason), "nodes": msgspec.json.encode([*nodes]).decode(),
        }  # fmt: skip
        with self._database.write() as connection:
            put_attempts(self._database, connection, [row])


def put_attempts(database: Database, connection: Connection, rows: list[dict[str, Any]]) -> None:
    """Store attempts; the later word about an attempt wins."""
    if rows:
        statement = database.insert(attempts)
        said = {name: statement.excluded[name] for name in rows[0] if name not in ("job", "attempt")}
        connection.execute(
            statement.on_conflict_do_update(index_elements=["job", "attempt"], set_=said),
            sorted(rows, key=lambda row: (row["job"], row["attempt"])),
        )


def report_jobs(database: Database, connection: Connection, reports: Iterable[JobReport]) -> None:
    rows = [
        {
            "name": clean(one.name, MAX_NAME), "tenant": one.tenant, "state": one.state or "unknown",
            "ranks": one.ranks, "gpus": one.gpus, "step": one.step, "total_steps": one.total_steps,
            "first_seen": one.at, "last_seen": one.at,
        }
        for one in sorted(reports, key=lambda one: one.name)
    ]  # fmt: skip
    if not rows:
        return
    statement = database.insert(jobs)
    new, old = statement.excluded, jobs.c
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["name"],
            set_={
                "state": case((new.state == "unknown", old.state), else_=new.state),
                "ranks": case((new.ranks > old.ranks, new.ranks), else_=old.ranks),
                "gpus": case((new.gpus > old.gpus, new.gpus), else_=old.gpus),
                "step": func.coalesce(new.step, old.step),
                "total_steps": func.coalesce(new.total_steps, old.total_steps),
                "last_seen": case((new.last_seen > old.last_seen, new.last_seen), else_=old.last_seen),
                "first_seen": case((new.first_seen < old.first_seen, new.first_seen), else_=old.first_seen),
            },
        ),
        rows,
    )


def add_progress(database: Database, connection: Connection, points: Iterable[dict[str, Any]]) -> None:
    rows = [*points]
    if rows:
        connection.execute(database.insert(job_progress).on_conflict_do_nothing(), rows)


def job_rows(connection: Connection, rows: Iterable[Row[Any]]) -> list[JobRow]:
    """Jobs with how many attempts and incidents they have."""
    found = [*rows]
    names = [row.name for row in found]
    tries = {
        r.job: r.total
        for r in connection.execute(
            select(attempts.c.job, func.count().label("total"))
            .where(attempts.c.job.in_(names))
            .group_by(attempts.c.job)
        )
    }
    own = incidents.c
    counts = {
        r.job: r
        for r in connection.execute(
            select(
                own.job,
                func.count().label("all"),
                func.sum(own.active).label("open"),
                func.max(own.attempt).label("last"),
            )
            .where(own.job.in_(names))
            .group_by(own.job)
        )
    }
    made = []
    for row in found:
        count = counts.get(row.name)
        made.append(
            JobRow(
                name=row.name, tenant=row.tenant, state=row.state, ranks=row.ranks, gpus=row.gpus, step=row.step,
                total_steps=row.total_steps, first_seen=row.first_seen, last_seen=row.last_seen,
                attempts=tries.get(row.name, 0) or (count.last + 1 if count is not None else 1),
                incidents=count.all if count is not None else 0,
                open_incidents=int(count.open) if count is not None else 0,
            )
        )  # fmt: skip
    return made


def goodput(held: list[Attempt], last_seen: int) -> float | None:
    """The share of a job's time that made steps no later attempt repeated; None where steps are unknown."""
    known = [one for one in held if one.first_step is not None and one.last_step is not None]
    if not known:
        return None
    whole = (held[-1].ended_at or last_seen) - held[0].started_at
    good = 0.0
    for one, after in zip(known, [*known[1:], None], strict=True):
        assert one.first_step is not None
        assert one.last_step is not None
        took = (one.ended_at or last_seen) - one.started_at
        made = one.last_step - one.first_step
        kept = (
            made if after is None or after.first_step is None else max(0, min(made, after.first_step - one.first_step))
        )
        good += took * (kept / made) if made > 0 else 0
    return max(0.0, min(1.0, good / whole)) if whole > 0 else None
