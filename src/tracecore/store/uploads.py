"""Uploaded bundles and their diagnoses."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from sqlalchemy import Row, and_, or_, select, update

from tracecore.store import cursors
from tracecore.store.database import Database
from tracecore.store.incidents import MOST
from tracecore.store.records import Upload, UploadPage
from tracecore.store.tables import changes, diagnoses
from tracecore.store.update import MAX_NAME, MAX_TEXT, clean, encode

_COLUMNS = [column for column in diagnoses.c if column.name not in ("document", "page", "worker")]


class Uploads:
    """The diagnoses of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(self, name: str, size: int, *, who: str, now: int, tenant: str = "", id: str | None = None) -> Upload:
        """Note a bundle that waits to be diagnosed."""
        ident = id or secrets.token_hex(12)
        row = {
            "id": ident, "name": clean(name, MAX_NAME), "size": size, "state": "queued",
            "created_by": clean(who, MAX_NAME), "tenant": tenant, "created_at": now,
        }  # fmt: skip
        with self._database.write() as connection:
            connection.execute(diagnoses.insert(), row)
            _announce(connection, ident, now, "queued", tenant)
            return _upload(connection.execute(select(*_COLUMNS).where(diagnoses.c.id == ident)).one())

    def find(self, *, limit: int = 50, cursor: str | None = None, tenant: str | None = None) -> UploadPage:
        """Diagnoses, newest first."""
        limit = max(1, min(limit, MOST))
        table = diagnoses.c
        query = select(*_COLUMNS).order_by(table.created_at.desc(), table.id).limit(limit + 1)
        if tenant is not None:
            query = query.where(table.tenant == tenant)
        if cursor:
            time, after = cursors.decode(cursor, int, str)
            query = query.where(or_(table.created_at < time, and_(table.created_at == time, table.id > after)))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        last = rows[limit - 1] if len(rows) > limit else None
        return UploadPage(
            diagnoses=[_upload(row) for row in rows[:limit]],
            next=None if last is None else cursors.encode(last.created_at, last.id),
        )

    def get(self, id: str, *, tenant: str | None = None) -> Upload | None:
        query = select(*_COLUMNS).where(diagnoses.c.id == id)
        if tenant is not None:
            query = query.where(diagnoses.c.tenant == tenant)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else _upload(row)

    def document(self, id: str) -> dict[str, Any] | None:
        """The diagnosis (`tracecore/diagnosis/v1`); None while there is none."""
        with self._database.read() as connection:
            found = connection.execute(select(diagnoses.c.document).where(diagnoses.c.id == id)).scalar()
        return None if found is None else msgspec.json.decode(found)

    def page(self, id: str) -> str | None:
        """The diagnosis as one HTML page; None while there is none."""
        with self._database.read() as connection:
            return connection.execute(select(diagnoses.c.page).where(diagnoses.c.id == id)).scalar()

    def claim(self, id: str, worker: str, now: int) -> bool:
        """Begin a diagnosis that waits; whether nobody else had begun."""
        with self._database.write() as connection:
            done = connection.execute(
                update(diagnoses)
                .where(diagnoses.c.id == id, diagnoses.c.state == "queued")
                .values(state="running", worker=worker, started_at=now)
            )
            if done.rowcount:
                _announce(connection, id, now, "running")
            return bool(done.rowcount)

    def progress(self, id: str, said: str) -> None:
        """Say what a diagnosis does now."""
        with self._database.write() as connection:
            connection.execute(update(diagnoses).where(diagnoses.c.id == id).values(progress=clean(said, MAX_TEXT)))

    def finish(
        self,
        id: str,
        now: int,
        *,
        document: dict[str, Any] | None = None,
        page: str | None = None,
        incidents: list[str] | None = None,
        error: str = "",
    ) -> None:
        """Keep the result of a diagnosis, or why there is none."""
        state = "failed" if error else "done"
        with self._database.write() as connection:
            connection.execute(
                update(diagnoses)
                .where(diagnoses.c.id == id)
                .values(
                    state=state,
                    error=clean(error, MAX_TEXT),
                    finished_at=now,
                    progress="",
                    incidents=encode(incidents or []).decode(),
                    document=None if document is None else encode(document).decode(),
                    page=None if page is None else page.replace("\x00", "\ufffd"),
                )
            )
            _announce(connection, id, now, state)

    def unfinished(self) -> list[Upload]:
        """Those that wait or were under way, oldest first."""
        query = select(*_COLUMNS).where(diagnoses.c.state.in_(("queued", "running"))).order_by(diagnoses.c.created_at)
        with self._database.read() as connection:
            return [_upload(row) for row in connection.execute(query)]

    def requeue(self, id: str) -> None:
        """Let a diagnosis whose worker ended begin again."""
        with self._database.write() as connection:
            connection.execute(update(diagnoses).where(diagnoses.c.id == id).values(state="queued", worker=""))


def _announce(connection: Any, id: str, now: int, state: str, tenant: str = "") -> None:
    connection.execute(
        changes.insert(), {"at": now, "kind": "diagnosis", "name": id, "detail": state, "tenant": tenant}
    )


def _upload(row: Row[Any]) -> Upload:
    own = dict(row._mapping)
    return Upload(**own | {"incidents": msgspec.json.decode(own["incidents"])})
