"""Retry decisions: what a launcher was told after each attempt, and the ledger of each job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from sqlalchemy import select, text

from tracecore.actions.ledger import FailureLedger
from tracecore.store.database import Database
from tracecore.store.tables import decisions, incidents, ledgers
from tracecore.store.update import encode


class Decisions:
    """The decisions of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def incident(self, job: str, attempt: int, *, tenant: str | None = None) -> tuple[str, dict[str, Any]] | None:
        """Id and document of the latest diagnosed incident of an attempt."""
        table = incidents.c
        query = (
            select(table.id, table.document)
            .where(table.job == job, table.attempt == attempt, table.pattern != "")
            .order_by(table.first_seen.desc(), table.number.desc())
            .limit(1)
        )
        if tenant is not None:
            query = query.where(table.tenant == tenant)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else (row.id, msgspec.json.decode(row.document))

    def decide(
        self, job: str, attempt: int, now: int, judge: Callable[[FailureLedger], dict[str, Any]], *, tenant: str = ""
    ) -> dict[str, Any]:
        """The answer for an attempt: the one given before, else what `judge` says, which updates the ledger."""
        key = {"job": job, "tenant": tenant}
        with self._database.write() as connection:
            if not self._database.is_sqlite:
                # Two launchers that ask about one job at once take turns.
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": f"decision {tenant} {job}"}
                )
            given = connection.execute(
                select(decisions.c.answer).where(
                    decisions.c.job == job, decisions.c.attempt == attempt, decisions.c.tenant == tenant
                )
            ).scalar()
            if given is not None:
                return dict(msgspec.json.decode(given))
            held = connection.execute(
                select(ledgers.c.ledger).where(ledgers.c.job == job, ledgers.c.tenant == tenant)
            ).scalar()
            ledger = FailureLedger(job=job) if held is None else msgspec.json.decode(held, type=FailureLedger)
            answer = judge(ledger)
            statement = self._database.insert(ledgers)
            said = {name: statement.excluded[name] for name in ("ledger", "updated_at")}
            connection.execute(
                statement.on_conflict_do_update(index_elements=["job", "tenant"], set_=said),
                key | {"updated_at": now, "ledger": encode(ledger).decode()},
            )
            connection.execute(
                decisions.insert(), key | {"attempt": attempt, "at": now, "answer": encode(answer).decode()}
            )
            return answer
