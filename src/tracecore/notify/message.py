"""One message about the incidents of one group."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Reason: TypeAlias = Literal["opened", "joined", "updated", "resolved", "repeated", "test"]


class ShownIncident(msgspec.Struct, kw_only=True):
    """One incident as a message shows it.

    Args:
        status: as in Alertmanager.
        where: nodes, pods and ranks in words.
        action: what to do next.
        decision: whether to retry, as a sentence.
        evidence: the lines that prove it, at most two.
        since: RFC 3339.
        ended: RFC 3339, empty while it lasts.
        url: of the incident's page; empty where the server's address is not known.
    """

    id: str
    revision: int
    status: Literal["firing", "resolved"]
    headline: str
    job: str
    where: str
    action: str
    failure_class: str
    decision: str
    evidence: list[str]
    since: str
    ended: str
    severity: str
    acknowledged_by: str
    url: str
    labels: dict[str, list[str]]

    def digest(self) -> str:
        """Name what a reader would see, so that a change is noticed and a repetition is not."""
        import hashlib

        return hashlib.blake2b(msgspec.json.encode([getattr(self, name) for name in _SEEN]), digest_size=8).hexdigest()


_SEEN = ("status", "headline", "where", "action", "failure_class", "decision", "severity", "acknowledged_by", "labels")


class NotificationMessage(msgspec.Struct, kw_only=True):
    """One message.

    Args:
        key: the same for every message of a group; receivers update in place by it.
        delivery: the same for every attempt at this message; receivers that know it already can drop it.
        reason: why it is sent; the first one decides whether people are woken.
        incidents: those that last first; at most as many as the kind of receiver takes.
        more: how many incidents are not listed.
        title, text: rendered by the templates.
    """

    key: str
    delivery: str
    reason: Reason
    status: Literal["firing", "resolved"]
    receiver: str
    group: dict[str, str]
    incidents: list[ShownIncident]
    new: list[str]
    more: int
    firing: int
    resolved: int
    title: str = ""
    text: str = ""
    url: str = ""

    @property
    def severity(self) -> str:
        """The worst of the incidents that last; of all where none does."""
        held = [one.severity for one in self.incidents if one.status == "firing" or self.status == "resolved"]
        return next((level for level in ("critical", "warning", "info") if level in held), "info")

    def document(self) -> dict[str, Any]:
        """The message as programs get it (`tracecore/notification/v1`)."""
        own: dict[str, Any] = msgspec.to_builtins(self)
        return {"schema": "tracecore/notification/v1", "severity": self.severity, **own}


#: Incidents that a message for people lists.
MOST = 20
