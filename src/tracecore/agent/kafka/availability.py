"""Whether brokers answer, told in one line a minute: the client library writes one for every attempt to connect."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import re2

log = logging.getLogger("tracecore.kafka")

#: Seconds between two lines about the same trouble.
AGAIN_S: Final = 60.0
#: A broker is told of when it has failed for so long; one that ended an idle connection has not.
FAILING_S: Final = 2.0
#: Seconds after which a broker's errors are of another trouble.
STREAK_S: Final = 30.0
#: Milliseconds between two looks at the state of the connections.
LOOK_MS: Final = 5000

_TOLD_HERE = re2.compile(r"^FAIL \[|brokers? (?:is|are) down")
_DETAIL = re2.compile(r" \(after \d+ms in state .*|^.*failed: ")


def is_news(record: logging.LogRecord) -> bool:
    """Tell whether a line of the client library says what `BrokerAvailability` does not."""
    return record.levelno >= logging.WARNING and _TOLD_HERE.search(record.getMessage()) is None


class BrokerAvailability:
    """Called by the client library with errors of connections, and with the state of all connections.

    Args:
        brokers: as they are configured, for what is told.
        now: seconds.
    """

    def __init__(self, brokers: str = "", now: Callable[[], float] = time.monotonic) -> None:
        #: The error that says most.
        self.last = ""
        #: Why no broker can be used; empty while one can.
        self.down = ""
        self._brokers = brokers
        self._now = now
        self._refused = False
        self._told: dict[str, float] = {}
        self._failing: dict[str, tuple[float, float]] = {}

    def __call__(self, error: Any) -> None:
        """Take an error, `error_cb` of the library."""
        name, text = error.name(), str(error.str())
        if name == "_ALL_BROKERS_DOWN":
            # Which error it is follows from those before it.
            self.down = f"no broker answers at {self._brokers}: {_DETAIL.sub('', self.last) or text}"
            self._tell("", self.down)
            return
        refused = name in ("_AUTHENTICATION", "_SSL")
        if refused or not self._refused:
            self.last, self._refused = text, refused
        if refused:
            self._tell("", f"a broker at {self._brokers} refuses us: {text}")
        elif name in ("_TRANSPORT", "_RESOLVE", "_TIMED_OUT"):
            self._note(text)

    def _note(self, text: str) -> None:
        """Tell of one broker of several that goes on failing."""
        broker, now = text.partition("/")[0], self._now()
        first, last = self._failing.get(broker, (now, now))
        first = now if now - last > STREAK_S else first
        self._failing[broker] = first, now
        if now - first >= FAILING_S and not self.down:
            self._tell(broker, f"the broker {broker} does not answer: {_DETAIL.sub('', text)}")

    def statistics(self, text: str) -> None:
        """Take the state of all connections, `stats_cb` of the library."""
        if not self.down:
            return
        brokers = msgspec.json.decode(text).get("brokers", {})
        if any(broker.get("state") == "UP" for broker in brokers.values()):
            self.down = self.last = ""
            self._refused = False
            self._told.clear()
            self._failing.clear()
            log.warning("a broker at %s answers again", self._brokers)

    def hold(self) -> None:
        """Be silent for a minute: the caller tells of the error."""
        self._told[""] = self._now()

    def _tell(self, which: str, text: str) -> None:
        now = self._now()
        if now - self._told.get(which, -AGAIN_S) >= AGAIN_S:
            self._told[which] = now
            log.warning("%s; trying again", text)
