"""Reasons not to notify: silences, inhibition, mute times."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection

from tracecore.notify import incidents
from tracecore.notify.config import NotificationConfig
from tracecore.notify.incidents import KnownIncident
from tracecore.notify.inhibition import inhibitor
from tracecore.notify.intervals import ends
from tracecore.notify.matchers import Labels, all_match
from tracecore.notify.routes import SECOND, Route
from tracecore.patterns.contract import rfc3339
from tracecore.store.records import Silence
from tracecore.store.tables import incidents as incident_table

#: Incidents that can inhibit others.
MAX_ACTIVE: Final = 5_000


class Suppression:
    """The reasons not to notify at one time."""

    def __init__(self, connection: Connection, config: NotificationConfig, silences: list[Silence], now: int) -> None:
        self._config, self._now = config, now
        self._silences = [one for one in silences if one.starts_at <= now]
        self._active: list[tuple[str, Labels]] = []
        if config.inhibit_rules:
            condition = incident_table.c.active == 1
            found = incidents.load(connection, config, condition)
            self._active = [(one.id, one.labels) for one in [*found.values()][:MAX_ACTIVE]]

    def why(self, one: KnownIncident, route: Route) -> str:
        """Say why a route tells nobody of an incident now; empty where nothing keeps it back."""
        if not one.active:
            return ""
        for silence in self._silences:
            if all_match(silence.matchers, one.labels):
                return f"silenced by {silence.created_by} until {_until(silence.ends_at)}"
        if muted := self._muted(route):
            return muted
        other = inhibitor(one.id, one.labels, self._active, self._config.inhibit_rules)
        return f"inhibited by {other}" if other else ""

    def _muted(self, route: Route) -> str:
        windows = self._config.time_intervals
        for name in route.mute_time_intervals:
            if any(interval.holds(self._now) for interval in windows.get(name, ())):
                end = ends(windows[name], self._now)
                return f"muted by {name!r}" + (f" until {_until(end)}" if end is not None else "")
        active = route.active_time_intervals
        if active and not any(interval.holds(self._now) for name in active for interval in windows.get(name, ())):
            return f"muted outside {' and '.join(map(repr, active))}"
        return ""


def _until(time: int) -> str:
    return rfc3339(time // SECOND * SECOND)
