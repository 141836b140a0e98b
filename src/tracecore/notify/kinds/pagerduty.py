"""PagerDuty, Events API v2: the id of the first incident is the dedup key, so that a group is one page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final
from urllib.parse import urlsplit

import msgspec

from tracecore.notify.http import post
from tracecore.notify.kinds.kind import Kind
from tracecore.notify.message import NotificationMessage

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
        return "" if urlsplit(self.url).scheme in ("http", "https") else "pagerduty's url is not a URL"

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        held = [one for one in message.incidents if one.status == "firing"]
        event: dict[str, Any] = {"routing_key": self.routing_key, "dedup_key": message.key[:MAX_KEY]}
        if message.status == "resolved":
            event["event_action"] = "resolve"
        elif message.reason == "updated" and held and all(one.acknowledged_by for one in held):
            event["event_action"] = "acknowledge"
        else:
            first = (held or message.incidents)[0]
            event |= {
                "event_action": "trigger",
                "client": "tracecore",
                "payload": {
                    "summary": message.title[:MAX_SUMMARY] or "incident",
                    "source": first.job or first.where or "tracecore",
                    "severity": message.severity,
                    "timestamp": first.since,
                    "component": ",".join(first.labels.get("node", ())[:3]),
                    "group": first.job,
                    "class": ",".join(first.labels.get("pattern", ())),
                    "custom_details": {
                        "text": message.text[:20_000],
                        "incidents": [one.id for one in message.incidents],
                    },
                },
            }
            if message.url:
                event |= {"client_url": message.url, "links": [{"href": message.url, "text": "Incident"}]}
        post(self.url, msgspec.json.encode(event))
        return {"dedup_key": event["dedup_key"]}
