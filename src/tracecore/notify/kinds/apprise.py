"""Notifications by apprise, which knows more than a hundred services by a URL each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from tracecore.notify.kinds.kind import Kind, TryAgain
from tracecore.notify.message import NotificationMessage


class Apprise(Kind, kw_only=True):
    """
    Args:
        url: of the service, as apprise writes it.
    """

    url: str

    SECRETS: ClassVar = ("url",)

    def problem(self) -> str:
        try:
            import apprise
        except ModuleNotFoundError:
            return "apprise is not installed: pip install 'tracecore-diagnosis[notify]'"
        return "" if apprise.Apprise().add(self.url) else "apprise does not know this URL"

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        import apprise

        sender = apprise.Apprise()
        sender.add(self.url)
        kind = apprise.NotifyType.SUCCESS if message.status == "resolved" else apprise.NotifyType.FAILURE
        if not sender.notify(title=message.title[:250], body=message.text, notify_type=kind):
            raise TryAgain("apprise could not deliver it")
        return {}
