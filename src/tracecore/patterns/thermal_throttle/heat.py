"""Add up the time that a GPU throttles because of heat, sample by sample."""

from __future__ import annotations

from collections import deque

from tracecore.facts.gpu import ThrottleSample


class Span:
    """Throttled time within the window that ends now, in parts of (first sample, nanoseconds)."""

    __slots__ = ("parts", "total")

    def __init__(self) -> None:
        self.parts: deque[tuple[ThrottleSample, int]] = deque()
        self.total = 0

    def since(self, oldest: int) -> int:
        """Drop the parts that began before this time, and return the sum of the others."""
        while self.parts and self.parts[0][0].time < oldest:
            self.total -= self.parts.popleft()[1]
        return self.total


class GpuHeat:
    """The state of one GPU up to now.

    Several samples may have one time, in any order. A sample that shows throttling overrides the others of that time,
    so `*_before` keeps the samples that they replaced.
    """

    __slots__ = ("clock", "ended", "ended_before", "free", "free_before", "hot", "last", "slow", "throttled")

    def __init__(self) -> None:
        #: Its latest sample, and the latest with an SM clock.
        self.last: ThrottleSample
        self.clock: ThrottleSample | None = None
        #: The latest SM clock without throttling.
        self.free: ThrottleSample | None = None
        self.free_before: ThrottleSample | None = None
        #: The latest sample that shows throttling for heat, and the latest that shows none.
        self.throttled: ThrottleSample | None = None
        self.ended: ThrottleSample | None = None
        self.ended_before: ThrottleSample | None = None
        self.hot = Span()
        self.slow = Span()

    def heated(self, sample: ThrottleSample, gap: int) -> tuple[ThrottleSample, int] | None:
        """Add a sample that shows throttling. Return the throttled time that ends with it: as counted, or since the
        previous such sample."""
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
