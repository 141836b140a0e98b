"""PagerDuty, Events API v2: the id of the first incident is the dedup key, so that a group is one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec

from tracecore.notify.http import post, url_problem
from tracecore.notify.kinds.kind import Kind, TryAgain
from tracecore.notify.message import NotificationMessage, ShownIncident

MAX_SUMMARY: Final = 1024
MAX_KEY: Final = 255


class PagerDuty(Kind, kw_only=True):
    """
    Args:
        routing_key: of the service's integration.
        url: of the events API.
    """

    routing_key: str
    url: str = "https://events.pagerduty.com/v2/enqueue"

    SECRETS: ClassVar = ("routing_key",)
    EDITS: ClassVar = True

    def problem(self) -> str:
        problem = url_problem(self.url)
        return f"pagerduty's url {problem}" if problem else ""

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        held = [one for one in message.incidents if one.status == "firing"]
        title = message.title[:MAX_SUMMARY] or "incident"
        if message.status == "resolved":
            self._post(message, {"event_action": "resolve"})
        else:
            acknowledged = message.reason == "updated" and held and all(one.acknowledged_by for one in held)
            if not acknowledged or title != before.get("summary", title):
                # A page that somebody has acknowledged takes a better diagnosis too, and wakes nobody.
                self._post(message, self._trigger(message, title, (held or message.incidents)[0]))
            if acknowledged:
                self._post(message, {"event_action": "acknowledge"})
        return {"dedup_key": message.key[:MAX_KEY], "summary": title}

    def _trigger(self, message: NotificationMessage, title: str, first: ShownIncident) -> dict[str, Any]:
        event: dict[str, Any] = {
            "event_action": "trigger",
            "client": "tracecore",
            "payload": {
                "summary": title,
                "source": first.job or first.where or "tracecore",
                "severity": message.severity,
                "timestamp": first.since,
                "component": ",".join(first.labels.get("node", ())[:3]),
                "group": first.job,
                "class": ",".join(first.labels.get("pattern", ())),
                "custom_details": {"text": message.text[:20_000], "incidents": [one.id for one in message.incidents]},
            },
        }
        if message.url:
            event |= {"client_url": message.url, "links": [{"href": message.url, "text": "Incident"}]}
        return event

    def _post(self, message: NotificationMessage, event: dict[str, Any]) -> None:
        event |= {"routing_key": self.routing_key, "dedup_key": message.key[:MAX_KEY]}
        try:
            msgspec.json.decode(post(self.url, msgspec.json.encode(event)), type=dict[str, Any])
        except msgspec.DecodeError:
            # A proxy's page is no answer of PagerDuty; the same dedup_key again is the same page.
            raise TryAgain("pagerduty answered something that is not JSON") from None
