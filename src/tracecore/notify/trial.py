"""A marked example, to see whether a receiver can be reached."""

from __future__ import annotations

import secrets
import time

import msgspec

from tracecore.notify.config import NotificationConfig, NotificationReceiver
from tracecore.notify.kinds import Kind, MessageRefused, TryAgain
from tracecore.notify.message import NotificationMessage, ShownIncident
from tracecore.notify.rendering import example, render
from tracecore.notify.routes import SECOND
from tracecore.patterns.contract import rfc3339


def trial(config: NotificationConfig, receiver: NotificationReceiver, way: Kind) -> str:
    """Send a test and its resolution; say why that failed, or nothing."""
    name = f"tracecore-test-{secrets.token_hex(4)}"
    before: dict[str, object] = {}
    now = rfc3339(time.time_ns() // SECOND * SECOND)
    for number, status in enumerate(("firing", "resolved")):
        own = {"id": name, "status": status, "ended": now if status == "resolved" else ""}
        told = msgspec.convert(example(config.external_url, now) | own, ShownIncident)
        message = NotificationMessage(
            key=name,
            delivery=f"{name}-{number}",
            reason="opened" if status == "firing" else "resolved",
            status=told.status,
            receiver=receiver.name,
            group={"job": told.job},
            incidents=[told],
            new=[name],
            more=0,
            firing=1 if status == "firing" else 0,
            resolved=0 if status == "firing" else 1,
            url=told.url,
        )
        render(message, config.templates)
        try:
            before = way.send(message, before, False)
        except (TryAgain, MessageRefused) as error:
            return str(error)
        if not way.send_resolved:
            break
    return ""
