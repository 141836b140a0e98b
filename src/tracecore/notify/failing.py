"""Receivers that fail: said in the log when it begins, once an hour while it lasts, and when it is over."""

from __future__ import annotations

import logging
import threading
from typing import Final

from tracecore.notify.routes import SECOND

log = logging.getLogger(__name__)

#: How often a receiver that goes on failing is mentioned.
REMIND: Final = 3600 * SECOND


class FailingReceivers:
    """Since when each receiver fails; deliveries of several threads report to it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], tuple[int, int]] = {}

    def failed(self, receiver: str, way: str, reason: str, then: str, now: int) -> None:
        """Take note of a delivery that failed.

        Args:
            then: what is done about it.
        """
        with self._lock:
            since, said = self._since.get((receiver, way), (now, None))
            if said is not None and now < said + REMIND:
                return
            self._since[receiver, way] = (since, now)
        lasts = "" if said is None else f", for {_length(now - since)} now"
        log.warning("the receiver %s (%s) takes no notifications%s: %s; %s", receiver, way, lasts, reason, then)

    def worked(self, receiver: str, way: str, now: int) -> None:
        """Take note of a delivery that arrived."""
        with self._lock:
            held = self._since.pop((receiver, way), None)
        if held is not None:
            length = _length(now - held[0])
            # A warning, as the beginning was: whoever has seen that one looks for this one.
            log.warning("the receiver %s (%s) takes notifications again, after %s", receiver, way, length)


def _length(time: int) -> str:
    seconds = time // SECOND
    for unit, name in ((3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name}"
    return f"{seconds} s"
