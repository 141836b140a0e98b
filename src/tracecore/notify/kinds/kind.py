"""The interface that every kind of receiver implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from tracecore.notify.message import MOST, NotificationMessage


class TryAgain(Exception):
    """The receiver did not take a message now, and may later.

    Args:
        after_s: what the receiver asked to wait.
    """

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class MessageRefused(Exception):
    """The receiver will not take this message, however often it is sent."""


class Kind(msgspec.Struct, kw_only=True):
    """One way to tell people. Its fields are what the configuration can say.

    Args:
        name: set when it is read: `slack/0`.
        send_resolved: say when an incident is over.
    """

    name: str = ""
    send_resolved: bool = True

    #: Fields that are read from files or the environment.
    SECRETS: ClassVar[tuple[str, ...]] = ()
    #: What `edits` answers.
    EDITS: ClassVar[bool] = False
    #: Incidents that one message lists.
    MOST: ClassVar[int] = MOST
    #: Seconds after which the receiver forgets what it is not told again; 0 where it does not forget.
    REFRESH_S: ClassVar[float] = 0.0

    @property
    def edits(self) -> bool:
        """Tell whether a message already sent can be changed, so that an update wakes nobody."""
        return self.EDITS

    def problem(self) -> str:
        """Say what is wrong with the options; empty where nothing is."""
        return ""

    def send(self, message: NotificationMessage, before: Mapping[str, Any], uncertain: bool) -> dict[str, Any]:
        """Deliver a message.

        Args:
            before: what the last delivery of this group returned; empty for the first.
            uncertain: an earlier attempt at this very message may have arrived.

        Returns:
            What later messages of the group need to change this one.

        Raises:
            TryAgain: it may work later.
            MessageRefused: it will not.
        """
        raise NotImplementedError
