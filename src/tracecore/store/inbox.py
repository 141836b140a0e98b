"""Storage of the detector: waiting facts, its state over restarts, and the process that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, select

from tracecore.store.database import Database
from tracecore.store.tables import detector_state, inbox, leases


class WaitingRequest(NamedTuple):
    """A request with facts that the detector has not read yet."""

    number: int
    at: int
    tenant: str
    payload: bytes


class Inbox:
    """Requests with facts, in the order of their arrival."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def oldest(self, limit: int) -> list[WaitingRequest]:
        with self._database.read() as connection:
            query = select(inbox).order_by(inbox.c.number).limit(limit)
            return [WaitingRequest(row.number, row.at, row.tenant, row.payload) for row in connection.execute(query)]

    def size(self) -> int:
        """Return how many wait."""
        with self._database.read() as connection:
            return connection.execute(select(func.count()).select_from(inbox)).scalar_one()


def add(connection: Connection, requests: Iterable[tuple[int, str, bytes]]) -> None:
    """Keep requests: time, tenant and payload of each."""
    rows = [{"at": at, "tenant": tenant, "payload": payload} for at, tenant, payload in requests]
    if rows:
        connection.execute(inbox.insert(), rows)


def remove(connection: Connection, numbers: Sequence[int]) -> None:
    """Forget requests that the detector has read."""
    if numbers:
        connection.execute(
            delete(inbox).where(inbox.c.number == bindparam("which")), [{"which": number} for number in numbers]
        )


class StoredDetectorState:
    """Keys and values of a detector, as its storage extension on a node would keep them.

    Args:
        prefix: of all its keys in the table, where there are several detectors.
    """

    def __init__(self, database: Database, prefix: str = "") -> None:
        self._database = database
        self._prefix = prefix
        #: Changes that are written with the incidents they led to.
        self._changes: dict[str, bytes | None] = {}

    def client(self, name: str) -> StoredDetectorState:
        """The store of a component, of which a detector has one."""
        return self

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        with self._database.read() as connection:
            begin = self._prefix + prefix
            query = select(detector_state).where(detector_state.c.key.startswith(begin, autoescape=True))
            rows = connection.execute(query.order_by(detector_state.c.key)).all()
        for row in rows:
            yield row.key.removeprefix(self._prefix), row.value

    def update(self, changes: Mapping[str, bytes | None]) -> None:
        """Remember changes until `write`; a value of None removes its key."""
        self._changes.update({self._prefix + key: value for key, value in changes.items()})

    def write(self, connection: Connection) -> None:
        """Write the changes in a transaction of the caller's."""
        changes, self._changes = self._changes, {}
        gone = [{"which": key} for key in sorted(changes) if changes[key] is None]
        kept = [{"key": key, "value": value} for key, value in sorted(changes.items()) if value is not None]
        if gone:
            connection.execute(delete(detector_state).where(detector_state.c.key == bindparam("which")), gone)
        if kept:
            statement = self._database.insert(detector_state)
            connection.execute(
                statement.on_conflict_do_update(index_elements=["key"], set_={"value": statement.excluded.value}), kept
            )


class Leases:
    """Work that one process does for all."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def hold(self, name: str, owner: str, now: int, until: int) -> bool:
        """Take or extend a lease; whether it is the owner's now."""
        with self._database.write() as connection:
            statement = self._database.insert(leases)
            held: Any = leases.c
            connection.execute(
                statement.on_conflict_do_update(
                    index_elements=["name"],
                    set_={"owner": statement.excluded.owner, "until": statement.excluded.until},
                    where=(held.owner == owner) | (held.until < now),
                ),
                {"name": name, "owner": owner, "until": until},
            )
            return is_held(connection, name, owner)

    def release(self, name: str, owner: str) -> None:
        with self._database.write() as connection:
            connection.execute(delete(leases).where(leases.c.name == name, leases.c.owner == owner))


def is_held(connection: Connection, name: str, owner: str) -> bool:
    """Whether a lease is this owner's; it stays so until the transaction ends."""
    query = select(leases.c.owner).where(leases.c.name == name).with_for_update()
    return connection.execute(query).scalar() == owner
