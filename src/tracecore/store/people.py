"""Actions of people on incidents: notes, acknowledgements, resolutions, silences; and the audit log."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import re2
from sqlalchemy import Connection, Row, select, update

from tracecore.positioned_yaml import check_regex
from tracecore.store.database import Database
from tracecore.store.records import AuditEntry, Matcher, Note, Silence
from tracecore.store.tables import acknowledgements, audit, changes, incident_entities, incidents, notes, silences
from tracecore.store.update import MAX_NAME, MAX_TEXT, clean
from tracecore.store.writing import judge_nodes

Deed = Literal["acknowledge", "unacknowledge", "resolve", "reopen"]
#: An incident's labels: the names that matchers of silences, routes and inhibition rules can use.
LABELS = ("incident", "job", "namespace", "team", "cluster", "node", "pattern", "class", "severity", "tenant",
          "fingerprint", "state")  # fmt: skip


class BadMatcher(ValueError):
    """A matcher that cannot be used; the message says why."""


class People:
    """Notes, acknowledgements, resolutions and the audit log."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, id: str, author: str, said: str, now: int, *, tenant: str | None = None) -> Note | None:
        """Add a note to an incident; None where there is no such incident."""
        with self._database.write() as connection:
            row = _incident(connection, id, tenant)
            if row is None:
                return None
            author, said = clean(author, MAX_NAME), clean(said, MAX_TEXT)
            number = connection.execute(
                notes.insert().returning(notes.c.number),
                {"incident": row.number, "at": now, "author": author, "text": said},
            ).scalar_one()
            _announce(connection, row, id, now, "note")
            return Note(number=number, at=now, author=author, text=said)

    def act(self, id: str, what: Deed, who: str, now: int, *, comment: str = "", tenant: str | None = None) -> bool:
        """Acknowledge, resolve or reopen an incident; whether there is such an incident. Twice is as once."""
        with self._database.write() as connection:
            row = _incident(connection, id, tenant)
            if row is None:
                return False
            who = clean(who, MAX_NAME)
            over = row.state == "resolved"
            values: dict[str, Any] = {}
            if what == "acknowledge" and row.acknowledged_at is None:
                values = {"acknowledged_at": now, "acknowledged_by": who}
            elif what == "unacknowledge" and row.acknowledged_at is not None:
                values = {"acknowledged_at": None, "acknowledged_by": ""}
            elif what == "resolve" and not over:
                at = max(now, row.last_seen)
                values = {"state": "resolved", "active": 0, "resolved_at": at, "resolved_by": who}
            elif what == "reopen" and over:
                state = "diagnosed" if row.pattern else "open"
                values = {"state": state, "active": 1, "resolved_at": None, "resolved_by": ""}
            if values:
                connection.execute(update(incidents).where(incidents.c.number == row.number).values(**values))
                connection.execute(
                    acknowledgements.insert(),
                    {"incident": row.number, "at": now, "who": who, "what": what, "comment": clean(comment, MAX_TEXT)},
                )
                if what in ("resolve", "reopen"):
                    judge_nodes(connection, _nodes_of(connection, row.number), now)
                _announce(connection, row, id, now, what)
            return True

    def record(self, who: str, what: str, target: str, now: int, *, address: str = "", detail: str = "") -> None:
        """Write to the audit log."""
        with self._database.write() as connection:
            connection.execute(
                audit.insert(),
                {
                    "at": now, "who": clean(who, MAX_NAME), "address": clean(address, 80), "what": clean(what, 40),
                    "target": clean(target, MAX_NAME), "detail": clean(detail, MAX_TEXT),
                },
            )  # fmt: skip

    def audit(self, *, limit: int = 100, before: int | None = None) -> list[AuditEntry]:
        """The audit log, newest first."""
        query = select(audit).order_by(audit.c.number.desc()).limit(max(1, min(limit, 1_000)))
        if before is not None:
            query = query.where(audit.c.number < before)
        with self._database.read() as connection:
            return [AuditEntry(**row._mapping) for row in connection.execute(query)]


class Silences:
    """Silences: notifications about incidents that match are not sent for a time."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create(
        self,
        matchers: Sequence[Matcher],
        *,
        who: str,
        now: int,
        ends_at: int,
        starts_at: int | None = None,
        comment: str = "",
        tenant: str = "",
    ) -> Silence:
        """Begin a silence.

        Raises:
            BadMatcher: a matcher cannot be used, or there is none.
        """
        check(matchers)
        made = Silence(
            id=secrets.token_hex(8),
            matchers=[*matchers],
            comment=clean(comment, MAX_TEXT),
            created_by=clean(who, MAX_NAME),
            created_at=now,
            starts_at=starts_at or now,
            ends_at=ends_at,
            tenant=tenant,
        )
        with self._database.write() as connection:
            row = {name: getattr(made, name) for name in made.__struct_fields__}
            connection.execute(silences.insert(), row | {"matchers": msgspec.json.encode(made.matchers).decode()})
            connection.execute(changes.insert(), {"at": now, "kind": "silence", "name": made.id, "tenant": tenant})
        return made

    def find(self, now: int, *, ended: bool = False, tenant: str | None = None) -> list[Silence]:
        """Silences that last or begin later, by when they end.

        Args:
            ended: those that are over, newest first.
        """
        table = silences.c
        query = (
            select(silences).where(table.ends_at <= now).order_by(table.ends_at.desc())
            if ended
            else select(silences).where(table.ends_at > now).order_by(table.ends_at)
        )
        if tenant is not None:
            query = query.where(table.tenant == tenant)
        with self._database.read() as connection:
            return [_silence(row) for row in connection.execute(query.limit(1_000))]

    def get(self, id: str, *, tenant: str | None = None) -> Silence | None:
        query = select(silences).where(silences.c.id == id)
        if tenant is not None:
            query = query.where(silences.c.tenant == tenant)
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else _silence(row)

    def expire(self, id: str, now: int, *, tenant: str | None = None) -> bool:
        """End a silence now; whether there is such a silence."""
        with self._database.write() as connection:
            query = select(silences.c.ends_at).where(silences.c.id == id)
            if tenant is not None:
                query = query.where(silences.c.tenant == tenant)
            ends = connection.execute(query).scalar()
            if ends is None:
                return False
            if ends > now:
                connection.execute(update(silences).where(silences.c.id == id).values(ends_at=now))
                connection.execute(changes.insert(), {"at": now, "kind": "silence", "name": id})
            return True


def check(matchers: Sequence[Matcher]) -> None:
    """Refuse matchers that would match nothing one means, or everything.

    Raises:
        BadMatcher: one cannot be used.
    """
    if not matchers or len(matchers) > 20:
        raise BadMatcher("a silence needs one to twenty matchers")
    for matcher in matchers:
        if matcher.name not in LABELS:
            raise BadMatcher(f"{matcher.name!r} is not one of {', '.join(LABELS)}")
        if len(matcher.value) > MAX_NAME or "\x00" in matcher.value:
            raise BadMatcher(f"a value has at most {MAX_NAME} characters")
        if matcher.op in ("=~", "!~"):
            try:
                check_regex(matcher.value)
            except ValueError as error:
                raise BadMatcher(f"{matcher.value!r} is {error}") from None
    if not any(matcher.op in ("=", "=~") and matcher.value not in ("", ".*") for matcher in matchers):
        raise BadMatcher("one matcher has to say what to silence: use = or =~ with a value")


def matches(matcher: Matcher, labels: Mapping[str, Sequence[str]]) -> bool:
    """Whether a matcher is true of an incident; a label with several values matches where one of them does."""
    values = labels.get(matcher.name) or ("",)
    if matcher.op in ("=", "!="):
        found = matcher.value in values
    else:
        expression = re2.compile(matcher.value)
        found = any(expression.fullmatch(value) for value in values)
    return found if matcher.op in ("=", "=~") else not found


def _silence(row: Row[Any]) -> Silence:
    own = dict(row._mapping)
    return Silence(**own | {"matchers": msgspec.json.decode(own["matchers"], type=list[Matcher])})


def _incident(connection: Connection, id: str, tenant: str | None) -> Any:
    table = incidents.c
    query = (
        select(table.number, table.state, table.pattern, table.last_seen, table.acknowledged_at, table.tenant)
        .where(table.id == id)
        .with_for_update()
    )
    if tenant is not None:
        query = query.where(table.tenant == tenant)
    return connection.execute(query).first()


def _nodes_of(connection: Connection, number: int) -> set[str]:
    own = incident_entities.c
    return {*connection.execute(select(own.name).where(own.incident == number, own.kind == "node")).scalars()}


def _announce(connection: Connection, row: Row[Any], id: str, now: int, what: str) -> None:
    connection.execute(
        changes.insert(), {"at": now, "kind": "incident", "name": id, "tenant": row.tenant, "detail": what}
    )
