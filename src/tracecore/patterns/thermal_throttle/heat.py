"""Throttling for heat, added up sample by sample."""

from __future__ import annotations

from collections import deque

from tracecore.facts.gpu import ThrottleSample


class Span:
    """Throttled time within the window that ends now: (the sample it begins with, nanoseconds)."""

    __slots__ = ("parts", "total")

    def __init__(self) -> None:
        self.parts: deque[tuple[ThrottleSample, int]] = deque()
        self.total = 0

    def since(self, oldest: int) -> int:
        """Return the part that began at this time or later."""
        while self.parts and self.parts[0][0].time < oldest:
            self.total -= self.parts.popleft()[1]
        return self.total


class GpuHeat:
    """The state of one GPU up to now.

    Several samples may speak at one instant, in any order, and whoever says hot is right. So that the instant can be
    judged when all have spoken, what they replace is kept in `*_before`.
    """

    __slots__ = ("clock", "ended", "ended_before", "free", "free_before", "hot", "last", "slow", "throttled")

    def __init__(self) -> None:
        #: Its latest sample, and the latest with an SM clock.
        self.last: ThrottleSample
        self.clock: ThrottleSample | None = None
        #: The latest SM clock without throttling.
        self.free: ThrottleSample | None = None
        self.free_before: ThrottleSample | None = None
        #: The latest sample that says it throttles for heat, and the latest that says it does not.
        self.throttled: ThrottleSample | None = None
        self.ended: ThrottleSample | None = None
        self.ended_before: ThrottleSample | None = None
        self.hot = Span()
        self.slow = Span()

    def heated(self, sample: ThrottleSample, gap: int) -> tuple[ThrottleSample, int] | None:
        """Take a sample that says hot; the throttled time it ends: as counted, or since one that said so too."""
        before, ended, time = self.throttled, self.ended, sample.time
        if ended is not None and ended.time >= time:
            ended = self.ended_before
        if self.free is not None and self.free.time >= time:
            self.free = self.free_before
        self.throttled = sample
        if sample.throttled_s is not None:
            return sample, int(min(sample.throttled_s, 1e9) * 1_000_000_000)
        if before is None or before.throttled_s is not None or (ended is not None and ended.time > before.time):
            return None
        length = time - before.time
        return (before, length) if 0 < length <= gap else None
