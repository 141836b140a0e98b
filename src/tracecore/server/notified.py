"""An incident together with the reasons why nobody was notified of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import State

from tracecore.notify.unsent import unsent

if TYPE_CHECKING:
    from tracecore.notify.config import NotificationConfig
    from tracecore.notify.notifier import Notifier
    from tracecore.store.records import IncidentDetail
    from tracecore.store.store import Store


def config_of(state: State) -> NotificationConfig | None:
    """Return the routes that this server follows; None where it notifies nobody."""
    notifier: Notifier | None = getattr(state, "notifier", None)
    return None if notifier is None else notifier.config


def detail_of(state: State, id: str, tenant: str | None) -> IncidentDetail | None:
    """Return one incident with all that belongs to it; None where the tenant has no such incident."""
    store: Store = state.store
    detail = store.incidents.get(id, tenant=tenant)
    if detail is not None:
        detail.not_sent = unsent(store, config_of(state), id)
    return detail
