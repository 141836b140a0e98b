"""Pages: the server's notifier on a store of its own and a simulated clock, with a receiver that keeps messages."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import msgspec

from tracecore.notify.config import NotificationConfig, NotificationReceiver
from tracecore.notify.kinds import Kind
from tracecore.notify.message import NotificationMessage
from tracecore.notify.notifier import Notifier
from tracecore.notify.routes import Route
from tracecore.simulation.fleet import SECOND
from tracecore.simulation.reading import SetClock
from tracecore.simulation.run import ToldRevision
from tracecore.store.store import Store
from tracecore.store.update import read_update

#: The usual times of `docs/notifications.md`.
GROUP_WAIT: Final = 30 * SECOND
#: The clock of the notifier moves by this much at least.
STEP: Final = SECOND
#: How long after the last change something can become due before a reminder.
LIVELY: Final = 360 * SECOND


class Page(msgspec.Struct, kw_only=True, frozen=True):
    """A message that people notice: somebody is told of incidents that were not told before.

    Args:
        new: ids of these incidents.
    """

    at: int
    reason: str
    new: tuple[str, ...]


class RecordingReceiver(Kind, kw_only=True):
    """A receiver that keeps what it is told and can change it, as a chat does."""

    EDITS: ClassVar = True
    messages: list[NotificationMessage] = msgspec.field(default_factory=list)

    def send(self, message: NotificationMessage, before: Any, uncertain: bool) -> dict[str, Any]:
        self.messages.append(message)
        return {}


def pages(told: Sequence[ToldRevision]) -> list[Page]:
    """Return the pages that these updates of incidents lead to."""
    kept = RecordingReceiver(name="kept/0")
    route = Route(
        path="0", receiver="oncall", group_by=["job"], group_wait=GROUP_WAIT, group_interval=300 * SECOND,
        repeat_interval=4 * 3600 * SECOND,
    )  # fmt: skip
    config = NotificationConfig(receivers={"oncall": NotificationReceiver(name="oncall", ways=[kept])}, route=route)
    found: list[Page] = []
    clock = SetClock()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(f"{folder}/store.db", durable=False)
        notifier = Notifier(store, config, clock)
        try:
            ordered = sorted(told, key=lambda one: one.at)
            for number, one in enumerate(ordered):
                clock.now = one.at
                document = {name: value for name, value in one.document.items() if name != "revision"}
                store.put([read_update(document, now=one.at)], one.at)
                until = ordered[number + 1].at if number + 1 < len(ordered) else one.at + 2 * LIVELY
                _step(notifier, kept, found, clock)
                while (due := notifier.next_due()) is not None and due < min(until, one.at + LIVELY):
                    clock.now = max(due, clock.now + STEP)
                    _step(notifier, kept, found, clock)
        finally:
            notifier.stop()
            store.close()
    return found


def _step(notifier: Notifier, kept: RecordingReceiver, found: list[Page], clock: SetClock) -> None:
    while notifier.step():
        pass
    notifier.wait()
    found += [
        Page(at=clock.now, reason=message.reason, new=tuple(message.new))
        for message in kept.messages
        if message.reason in ("opened", "joined")
    ]
    kept.messages.clear()
