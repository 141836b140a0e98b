"""When a detector looks, and at which instant.

The engine's clock follows the times of records and never runs far ahead of ours. The engine looks soon after something
came, when a block of lines is whole, and otherwise once a second.
"""

from __future__ import annotations

from typing import Final

from tracecore.agent.options import MILLISECOND, SECOND

#: Records carry the time of other machines' clocks, and some lie: a record from farther ahead does not move ours, and
#: is judged as if its stream's clock agreed with ours.
AHEAD: Final = 60 * SECOND
#: What is read together, from several files, is judged together: the engine waits so long for the rest of it.
TOGETHER: Final = 20 * MILLISECOND
#: How often the engine looks where nothing came: deadlines, stalls and silences are matters of many seconds.
HEARTBEAT: Final = SECOND


class LookClock:
    """Says when to look next, and which instant it is for the engine.

    Args:
        interval: nanoseconds between two looks while something comes.
        behind: an instant that is no farther behind our clock than this is taken for our clock.
    """

    def __init__(self, interval: int, behind: int = 0) -> None:
        self._interval = interval
        self._behind = behind
        #: When to look next.
        self.next = 0
        #: When the engine looked last, whether anything came since, and since when that is known.
        self._looked = 0
        self.news = False
        self._since = 0
        #: The latest time that a record said, and when that arrived.
        self._ahead: int | None = None
        self._arrived = 0

    @property
    def started(self) -> bool:
        """Whether any record has said a time."""
        return self._ahead is not None

    def see(self, time: int, now: int) -> None:
        """Follow what a record says, unless that is too far ahead."""
        if time and time <= now + AHEAD and (self._ahead is None or time >= self._ahead):
            self._ahead, self._arrived = time, now

    def resume(self, instant: int, now: int) -> None:
        """Go on where an earlier run stopped: what happened meanwhile is in files that are read next."""
        self._ahead, self._arrived, self.news = instant, now, True

    def due(self, now: int, whole: int | None) -> int:
        """Return when to look next."""
        if now < self._looked:
            self.appoint(now, whole)
        return self.next

    def appoint(self, now: int, whole: int | None) -> None:
        """Decide when to look next.

        Args:
            whole: when the next block of lines is whole.
        """
        if now < self._looked:
            self._looked = now  # the clock was set back
        interval = self._interval
        if self.news:
            # A block that is not whole yet is waited for, but not for long.
            self._since = min(self._since or now, now)
            settled = self._since + TOGETHER if whole is None else min(max(whole, self._since), self._since + interval)
            self.next = max(self._looked + interval, settled)
        else:
            self.next = self._looked + max(interval, HEARTBEAT)
        if whole is not None:
            # What a block says is told as soon as it is whole; but not for each of many does everybody look again.
            self.next = min(self.next, max(whole, self._looked + interval // 2))

    def begin(self, now: int, whole: int | None, *, last: bool) -> int | None:
        """Return the instant to judge at; None where there is nothing to judge."""
        if not (self.news or last or now >= self._looked + HEARTBEAT or now < self._looked):
            self.appoint(now, whole)
            return None
        self._looked, self.news, self._since = now, False, 0
        self.appoint(now, whole)
        if self._ahead is None:
            return None
        return self.instant(now)

    def instant(self, now: int) -> int:
        """Return the engine's time at a time of our clock."""
        if self._ahead is None:
            return now
        found = min(self._ahead + max(now - self._arrived, 0), now + AHEAD)
        return now if 0 <= now - found <= self._behind else found
