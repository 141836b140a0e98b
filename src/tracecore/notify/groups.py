"""Groups of incidents that are told together, kept in the store.

An incident is routed when it changes. Until it was told, a better diagnosis may move it to another group; afterwards it
stays where it was told, so that a reclassification never makes a second page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from sqlalchemy import Connection, Row, and_, delete, func, not_, select, update

from tracecore.notify.config import NotificationConfig
from tracecore.notify.incidents import KnownIncident
from tracecore.notify.routes import SECOND, Route, matching
from tracecore.store.database import Database
from tracecore.store.tables import incidents, notification_groups, notification_members

#: No notification for an incident without news for so long: a cold start does not replay old failures.
STALE: Final = 3600 * SECOND
_GROUPS = notification_groups.c
_MEMBERS = notification_members.c


def join(
    database: Database, connection: Connection, config: NotificationConfig, known: Iterable[KnownIncident], now: int
) -> None:
    """Put incidents into the groups of their routes, and have their groups looked at."""
    for one in known:
        held = connection.execute(
            select(
                _GROUPS.number,
                _GROUPS.receiver,
                _GROUPS.way,
                _GROUPS.route,
                _GROUPS.labels,
                _GROUPS.active,
                _MEMBERS.told,
                _MEMBERS.joined_at,
            )
            .join(notification_groups, _GROUPS.number == _MEMBERS.notification_group)
            .where(_MEMBERS.incident == one.number)
        ).all()
        _wake(connection, [row.number for row in held], now)
        if not one.active or now - one.last_seen > STALE:
            continue
        wanted, joined = _wanted(config, one), now
        for row in held:
            name = (row.receiver, row.way)
            if not row.told and wanted.get(name) != (row.route, row.labels):
                # It moves, and has waited already.
                joined = min(joined, row.joined_at)
                connection.execute(
                    delete(notification_members).where(
                        _MEMBERS.notification_group == row.number, _MEMBERS.incident == one.number
                    )
                )
            elif wanted.pop(name, None) is not None and not row.active:
                # Told there, or about to be; a group that was closed goes on with its own page.
                connection.execute(
                    update(notification_groups)
                    .where(_GROUPS.number == row.number)
                    .values(active=1, next_at=now, tries=0)
                )
        for (receiver, way), (route, labels) in wanted.items():
            group = _group(connection, receiver, way, route, labels, one, now)
            connection.execute(
                database.insert(notification_members)
                .values(notification_group=group, incident=one.number, joined_at=joined, told="", told_digest="")
                .on_conflict_do_nothing()
            )


def _wanted(config: NotificationConfig, one: KnownIncident) -> dict[tuple[str, str], tuple[str, str]]:
    """For each receiver and way the route and group that an incident belongs to; the first route wins."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for route in matching(config.route, one.labels):
        labels = msgspec.json.encode(route.group(one.labels), order="deterministic").decode()
        for way in config.receivers[route.receiver].ways:
            found.setdefault((route.receiver, way.name), (route.path, labels))
    return found


def _group(
    connection: Connection, receiver: str, way: str, route: str, labels: str, one: KnownIncident, now: int
) -> int:
    """The number of an active group, made where there is none."""
    found = connection.execute(
        select(_GROUPS.number)
        .where(
            and_(_GROUPS.active == 1, _GROUPS.receiver == receiver, _GROUPS.way == way),
            _GROUPS.route == route,
            _GROUPS.labels == labels,
        )
        .order_by(_GROUPS.number)
    ).scalar()
    if found is not None:
        _wake(connection, [found], now)
        return int(found)
    made = connection.execute(
        notification_groups.insert().returning(_GROUPS.number),
        {
            "key": one.id, "receiver": receiver, "way": way, "route": route, "labels": labels, "active": 1,
            "created_at": now, "next_at": now, "deliveries": 0, "sending": "", "tries": 0, "error": "",
            "reference": "{}",
        },
    )  # fmt: skip
    return int(made.scalar_one())


def _wake(connection: Connection, numbers: list[int], now: int) -> None:
    """Have groups looked at, unless their receiver asked to wait."""
    if numbers:
        connection.execute(
            update(notification_groups)
            .where(_GROUPS.number.in_(numbers), _GROUPS.active == 1, _GROUPS.tries == 0)
            .values(next_at=now)
        )


def wake_all(connection: Connection, now: int) -> None:
    """Have every group looked at: a silence began or ended."""
    connection.execute(update(notification_groups).where(_GROUPS.active == 1, _GROUPS.tries == 0).values(next_at=now))


def due(connection: Connection, now: int, limit: int) -> list[Row[Any]]:
    """The groups to look at now."""
    query = select(notification_groups).where(_GROUPS.active == 1, _GROUPS.next_at <= now)
    return [*connection.execute(query.order_by(_GROUPS.next_at).limit(limit))]


def members(connection: Connection, group: int, since: int) -> list[Row[Any]]:
    """The members of a group.

    Args:
        since: leave out whose resolution was told and is older; a group of a whole fleet may never end.
    """
    over = and_(_MEMBERS.told == "resolved", incidents.c.active == 0, incidents.c.resolved_at < since)
    query = (
        select(notification_members)
        .join(incidents, incidents.c.number == _MEMBERS.incident)
        .where(_MEMBERS.notification_group == group, not_(func.coalesce(over, False)))
    )
    return [*connection.execute(query.order_by(_MEMBERS.incident))]


def keep_reasons(connection: Connection, group: int, rows: Iterable[Row[Any]], reasons: dict[int, str]) -> None:
    """Write down why incidents of a group are not told, or that nothing keeps them back any longer."""
    for row in rows:
        if row.incident in reasons and (row.suppressed or "") != reasons[row.incident]:
            connection.execute(
                update(notification_members)
                .where(_MEMBERS.notification_group == group, _MEMBERS.incident == row.incident)
                .values(suppressed=reasons[row.incident])
            )


def route_of(config: NotificationConfig, path: str, receiver: str) -> Route:
    """A group's route; where the configuration has changed, the first one of its receiver, or the root."""
    routes = [*config.route.walk()]
    exact = [route for route in routes if route.path == path and route.receiver == receiver]
    return next(iter(exact + [route for route in routes if route.receiver == receiver]), config.route)
