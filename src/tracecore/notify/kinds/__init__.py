"""Ways to tell people: Slack, PagerDuty, Alertmanager, e-mail, signed webhooks, and whatever apprise knows."""

from __future__ import annotations

from typing import Final

from tracecore.notify.kinds.alertmanager import Alertmanager
from tracecore.notify.kinds.apprise import Apprise
from tracecore.notify.kinds.email import Email
from tracecore.notify.kinds.kind import Kind, MessageRefused, TryAgain
from tracecore.notify.kinds.pagerduty import PagerDuty
from tracecore.notify.kinds.slack import Slack
from tracecore.notify.kinds.webhook import Webhook

#: By the name that stands before `_configs`.
KINDS: Final[dict[str, type[Kind]]] = {
    "slack": Slack,
    "pagerduty": PagerDuty,
    "alertmanager": Alertmanager,
    "email": Email,
    "webhook": Webhook,
    "apprise": Apprise,
}


def name_of(kind: type[Kind]) -> str:
    """The name of a kind in the configuration."""
    return next(name for name, known in KINDS.items() if known is kind)


__all__ = ["KINDS", "Kind", "MessageRefused", "TryAgain", "name_of"]
