"""Alertmanager's API v2: one alert for each incident, known by labels that a better diagnosis does not change."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import msgspec

from tracecore.notify.http import post, url_problem
from tracecore.notify.kinds.kind import Kind
from tracecore.notify.message import NotificationMessage

MAX_LABEL: Final = 256
MAX_ANNOTATION: Final = 4096
#: Labels that do not change while an incident is diagnosed better.
_STABLE: Final = ("job", "namespace", "team", "cluster", "tenant")


class Alertmanager(Kind, kw_only=True):
    """
    Args:
        url: of Alertmanager, without a path.
        labels: added to every alert.
    """

    url: str
    labels: dict[str, str] = msgspec.field(default_factory=dict)

    EDITS: ClassVar = True
    #: Every incident is an alert of its own.
    MOST: ClassVar = 5_000
    #: Alertmanager takes an alert that it does not hear of again for resolved.
    REFRESH_S: ClassVar = 60.0

    def problem(self) -> str:
        problem = url_problem(self.url)
        if not problem and "/api/" in f"{self.url}/":
            problem = "is that of Alertmanager itself, without /api/…"
        return f"alertmanager's url {problem}" if problem else ""

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        lasts = (datetime.now(UTC) + timedelta(seconds=4 * self.REFRESH_S)).isoformat()
        alerts = []
        for one in message.incidents:
            own = {name: ",".join(one.labels[name])[:MAX_LABEL] for name in _STABLE if one.labels.get(name)}
            notes = {
                "summary": one.headline, "description": one.action, "where": one.where, "decision": one.decision,
                "class": one.failure_class, "evidence": "\n".join(one.evidence),
            }  # fmt: skip
            alerts.append(
                {
                    "labels": {"alertname": "TracecoreIncident", "incident_id": one.id, **own, **self.labels},
                    "annotations": {name: text[:MAX_ANNOTATION] for name, text in notes.items() if text},
                    "startsAt": one.since,
                    "endsAt": one.ended if one.status == "resolved" and one.ended else lasts,
                    **({"generatorURL": one.url} if one.url else {}),
                }
            )
        post(f"{self.url.rstrip('/')}/api/v2/alerts", msgspec.json.encode(alerts))
        return {}
