"""Reasons not to notify: silences, inhibition, mute times."""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy import Connection

from tracecore.notify import incidents
from tracecore.notify.config import NotificationConfig
from tracecore.notify.incidents import KnownIncident
from tracecore.notify.inhibition import Inhibition, is_target
from tracecore.notify.intervals import ends
from tracecore.notify.matchers import all_match
from tracecore.notify.routes import SECOND, Route
from tracecore.patterns.contract import rfc3339
from tracecore.store.records import Silence

log = logging.getLogger(__name__)

#: Incidents that can inhibit others, the newest of them.
MAX_ACTIVE: Final = 20_000


class Suppression:
    """The reasons not to notify at one time."""

    def __init__(self, connection: Connection, config: NotificationConfig, silences: list[Silence], now: int) -> None:
        self._connection, self._config, self._now = connection, config, now
        self._silences = [one for one in silences if one.starts_at <= now]
        self._inhibition: Inhibition | None = None

    def why(self, one: KnownIncident, route: Route) -> str:
        """Say why a route tells nobody of an incident now; empty where nothing keeps it back."""
        tenants = ("", *one.labels.get("tenant", ()))
        for silence in self._silences:
            if silence.tenant in tenants and all_match(silence.matchers, one.labels):
                return f"silenced by {silence.created_by} until {_until(silence.ends_at)}"
        if muted := self._muted(route):
            return muted
        if not one.active:
            return ""
        other = self._inhibitor(one)
        return f"inhibited by {other}" if other else ""

    def _inhibitor(self, one: KnownIncident) -> str:
        # Most incidents are no target of any rule, and the sources need not be read for them.
        if not is_target(one.labels, self._config.inhibit_rules):
            return ""
        if self._inhibition is None:
            active = incidents.active_labels(self._connection, self._config, MAX_ACTIVE)
            if len(active) == MAX_ACTIVE:
                log.warning("more than %d incidents are open: only the newest inhibit others", MAX_ACTIVE)
            self._inhibition = Inhibition(active, self._config.inhibit_rules)
        return self._inhibition.inhibitor(one.id, one.labels)

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
