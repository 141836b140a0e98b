"""Bounds that a component reached and failures it survived: as events in `/metrics`, and in words in the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Final

from tracecore.agent.printing import visible
from tracecore.agent.telemetry import Meter

log = logging.getLogger("tracecore.agent")

#: Seconds between two lines about the same thing.
EVERY: Final = 60.0


class Growth:
    """Tells how much counters that only grow have grown."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def of(self, name: str, count: int) -> int:
        """Return how much a counter has grown since this was asked last."""
        grown = max(count - self._seen.get(name, 0), 0)
        self._seen[name] = count
        return grown

    def restart(self) -> None:
        """The counters begin at zero again."""
        self._seen = {}


class Tally:
    """Shows counters that only grow.

    Args:
        id: of the component.
        meter: of the component.
        words: for each counter what it means, with `{}` for the number.
    """

    def __init__(self, id: str, meter: Meter, words: Mapping[str, str]) -> None:
        self._id = id
        self._meter = meter
        self._words = words
        self._growth = Growth()
        self._said: dict[str, tuple[int, float]] = {}
        meter.declare(events=words)

    def look(self, counters: Mapping[str, int], *, last: bool = False) -> None:
        """Show what has grown.

        Args:
            counters: by name.
            last: say everything that was not said yet.
        """
        now = time.monotonic()
        for name, count in counters.items():
            self._meter.note(name, self._growth.of(name, count))
            said, when = self._said.get(name, (0, -EVERY))
            if count > said and (last or now - when >= EVERY):
                self._said[name] = (count, now)
                log.warning("%s: %s", self._id, self._words[name].format(f"{count - said:,}"))

    def failures(self, reasons: Mapping[tuple[str, str], int], *, last: bool = False) -> None:
        """Log entries that operators could not treat, as the Collector does, but each reason once a minute."""
        now = time.monotonic()
        for (operator, reason), count in list(reasons.items()):
            name = f"{operator}\0{reason}"
            said, when = self._said.get(name, (0, -EVERY))
            if count > said and (last or now - when >= EVERY):
                self._said[name] = (count, now)
                log.error(
                    "%s: the operator %s could not treat %s: %s",
                    self._id, operator, _entries(count - said), visible(reason),
                )  # fmt: skip

    def restart(self) -> None:
        """The source begins to count from zero again."""
        self._growth.restart()
        self._said = {}


def _entries(count: int) -> str:
    return "an entry" if count == 1 else f"{count:,} entries"
