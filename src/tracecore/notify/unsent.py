"""Say why nobody was notified of an incident."""

from __future__ import annotations

from sqlalchemy import select

from tracecore.notify import groups, incidents
from tracecore.notify.config import NotificationConfig
from tracecore.notify.incidents import KnownIncident
from tracecore.notify.routes import matching
from tracecore.patterns.contract import rfc3339
from tracecore.store.store import Store
from tracecore.store.tables import incidents as incident_table
from tracecore.store.tables import notification_groups, notification_members

_GROUPS, _MEMBERS = notification_groups.c, notification_members.c
#: Said of an incident that is too old to page for.
OLD = "older than an hour when it arrived"


def unsent(store: Store, config: NotificationConfig | None, id: str) -> list[str]:
    """Return a reason for each receiver that was not notified of an incident; none where all were."""
    if config is None:
        return ["this server notifies nobody: it was started without --notify"]
    with store.database.read() as connection:
        one = next(iter(incidents.by_id(connection, config, {id}).values()), None)
        if one is None:
            return []
        table = incident_table.c
        stored = connection.execute(select(table.stored_at).where(table.number == one.number)).scalar_one()
        query = select(
            _GROUPS.receiver, _GROUPS.way, _GROUPS.next_at, _GROUPS.error, _MEMBERS.told, _MEMBERS.suppressed
        ).join(notification_groups, _GROUPS.number == _MEMBERS.notification_group)
        rows = connection.execute(query.where(_MEMBERS.incident == one.number).order_by(_GROUPS.number)).all()
    if not rows:
        return [_never_routed(config, one, stored)]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.told:
            continue
        if row.suppressed:
            said = row.suppressed
        elif row.error:
            said = f"it failed: {row.error}"
        elif not one.active:
            said = "the incident was over before the group's wait was"
        else:
            said = f"it waits until {rfc3339(row.next_at)}" if row.next_at else "it waits"
        reasons.setdefault(said, []).append(f"{row.receiver} ({row.way})")
    everybody = len(reasons) == 1 and not any(row.told for row in rows)
    return [said if everybody else f"{', '.join(names)}: {said}" for said, names in reasons.items()]


def _never_routed(config: NotificationConfig, one: KnownIncident, stored: int) -> str:
    if stored - one.last_seen > groups.STALE:
        return OLD
    routes = matching(config.route, one.labels)
    if not any(config.receivers[route.receiver].ways for route in routes):
        names = " and ".join(repr(route.receiver) for route in routes)
        return f"the receiver {names} of its route tells nobody" if routes else "no route matches"
    if not one.active:
        return "the incident was over when it arrived"
    return "nothing happened in it for an hour when notifications began"
