"""Facts on their way from a node: those that conclusions rest on, and few of the others.

A rank reports a step every second or so, and a fleet has tens of thousands of ranks. Of each stream of reports leave:
the first ones, both reports around a pause, a step back, reports whose loss or times differ from the last that left
(few of a stream in which they always do), the last one before silence, and otherwise one now and then. Of numbered
steps these are the first in each stretch of a power of two, so that all ranks of a job send the same steps and can be
compared. A statement that repeats leaves at once, and then with its count now and then.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from tracecore.facts.fact import Fact
from tracecore.facts.training import Progress

SECOND: Final = 1_000_000_000
INTERVAL: Final = 10 * SECOND
#: Of each single stream of a rank leaves one report in so many intervals.
SPARSER: Final = 3
#: First reports of a stream that all leave.
HEAD: Final = 4
#: A stream whose values or steps jump about again and again says nothing by it: what is sent of them becomes rarer, up
#: to one in so long, and all of it leaves again after the stream was calm for as long.
CALM: Final = 120 * SECOND
#: Jumps of a stream in a row that all leave: a run that diverges is followed closely.
JUMPS: Final = 16
#: A report that nothing followed for so long leaves: the stream may have stopped.
QUIET: Final = 2 * SECOND
#: Between two reports so far apart there was a pause.
PAUSE: Final = 30 * SECOND
#: A value so many times larger or smaller than the last that left is news. Losses of single batches, norms and step
#: times of a healthy run differ by less; a divergence is ten times and more.
CHANGE: Final = 5.0
#: How often a statement that goes on repeating leaves again with its count.
REPEAT: Final = 5 * SECOND
#: Statements whose last leaving is remembered.
STATEMENTS: Final = 16_384
#: Streams that are followed; the one quiet for longest is forgotten.
LANES: Final = 8_192

_Statement = tuple[type[Fact], str]
_Lane = tuple[object, ...]


class _Stream:
    __slots__ = ("count", "jump", "jumps", "last", "pace", "patience", "rank", "sent", "stride", "waiting")

    def __init__(self, rank: _Lane) -> None:
        self.rank = rank
        self.count = 0
        self.last: Progress | None = None
        self.sent: Progress | None = None
        self.waiting: Progress | None = None
        #: Nanoseconds between two steps, smoothed.
        self.pace = 0.0
        self.stride = 1
        #: When a pause, a step back or another value was sent last, how many in a row, and how long the next one waits.
        self.jump = self.jumps = self.patience = 0


class FactThinner:
    """Takes facts as they come, and gives those that leave.

    Args:
        interval: at least one report of a rank leaves in each of these, nanoseconds.
    """

    def __init__(self, interval: int = INTERVAL) -> None:
        self.interval = interval
        #: Reports that stayed.
        self.stayed = 0
        self._streams: OrderedDict[_Lane, _Stream] = OrderedDict()
        #: When each rank reported last.
        self._latest: OrderedDict[_Lane, int] = OrderedDict()
        #: When a report of each rank left last.
        self._heard: OrderedDict[_Lane, int] = OrderedDict()
        #: When each statement left last, and what became of it since.
        self._left: OrderedDict[_Statement, int] = OrderedDict()
        self._grown: dict[_Statement, Fact] = {}

    def take(self, facts: Iterable[Fact], now: int) -> list[Fact]:
        """Return the facts that leave now; all that are no progress do."""
        leaving: list[Fact] = []
        for fact in facts:
            if type(fact) is Progress:
                self._report(fact, leaving)
            else:
                self._state(fact, now, leaving)
        for key in [key for key in self._grown if now - self._left[key] >= REPEAT]:
            self._state(self._grown.pop(key), now, leaving)
        for stream in self._streams.values():
            # While its rank reports other things, a stream that pauses is no silence yet.
            if stream.waiting is not None and (
                now - self._latest.get(stream.rank, 0) >= QUIET or now - stream.waiting.end >= 2 * self.interval
            ):
                self._send(stream, stream.waiting, leaving)
        return leaving

    def finish(self) -> list[Fact]:
        """Release the facts that wait, at the end of the stream."""
        leaving: list[Fact] = [*self._grown.values()]
        self._grown.clear()
        for stream in self._streams.values():
            if stream.waiting is not None:
                self._send(stream, stream.waiting, leaving)
        return leaving

    def _state(self, fact: Fact, now: int, leaving: list[Fact]) -> None:
        """Send a statement, or keep it back where it left a moment ago with a smaller count."""
        if fact.last_time is not None:
            key = type(fact), fact.uid
            left = self._left.get(key)
            if left is not None and now - left < REPEAT:
                self._grown[key] = fact
                return
            self._left[key] = now
            self._left.move_to_end(key)
            if len(self._left) > STATEMENTS:
                oldest, _ = self._left.popitem(last=False)
                if (waiting := self._grown.pop(oldest, None)) is not None:
                    leaving.append(waiting)
        leaving.append(fact)

    def _report(self, fact: Progress, leaving: list[Fact]) -> None:
        # Loggers that print different things about a step take turns in one file: each is a stream of its own.
        shape = tuple(value is None for value in (fact.step, *_values(fact))), fact.phase
        rank = fact.job, fact.pod or fact.node, fact.attempt, fact.rank
        lane = *rank, fact.source.path, shape
        stream = self._streams.get(lane)
        if stream is None:
            stream = self._streams[lane] = _Stream(rank)
            if len(self._streams) > LANES:
                self._streams.popitem(last=False)
            while len(self._latest) > LANES:
                self._latest.popitem(last=False)
        else:
            self._streams.move_to_end(lane)
        last, stream.last = stream.last, fact
        stream.count += 1
        self._latest[rank] = max(self._latest.get(rank, 0), fact.end)
        due = self._is_due(stream, last, fact, self._heard.get(rank, 0))
        if last is not None and _is_edge(last, fact) and self._may_jump(stream, fact.time, self.interval):
            if stream.waiting is not None:
                self._send(stream, stream.waiting, leaving)
            due = True
        elif stream.sent is not None and _is_news(stream.sent, fact) and self._may_jump(stream, fact.time, 0):
            due = True
        if due or stream.count <= HEAD or stream.sent is None:
            self._send(stream, fact, leaving)
            self._heard[rank] = max(fact.time, self._heard.get(rank, 0))
            self._heard.move_to_end(rank)
            if len(self._heard) > LANES:
                self._heard.popitem(last=False)
        else:
            stream.waiting = fact
            self.stayed += 1

    def _may_jump(self, stream: _Stream, now: int, least: int) -> bool:
        """Tell whether a jump of a stream leaves; note that it does.

        Args:
            least: nanoseconds since the last one at least.
        """
        since = now - stream.jump
        if stream.jump and since < max(least, stream.patience):
            return False
        stream.jumps = 1 if since > CALM else stream.jumps + 1
        stream.patience = 0 if stream.jumps < JUMPS else min(max(2 * stream.patience, SECOND), CALM // 2)
        stream.jump = now
        return True

    def _is_due(self, stream: _Stream, last: Progress | None, fact: Progress, heard: int) -> bool:
        """Return whether a report is due: of this stream, or of its rank, which was last heard at this time."""
        sent = stream.sent
        if sent is None or last is None:
            return True
        since, silent = fact.time - sent.time, fact.time - heard
        if fact.step is None or last.step is None or fact.step <= last.step:
            return since >= SPARSER * self.interval or silent >= self.interval
        pace = max(0, fact.time - last.time) / (fact.step - last.step)
        stream.pace = pace if not stream.pace else 0.9 * stream.pace + 0.1 * pace
        # A stride that is no longer right is left only when it is clearly wrong: ranks must agree on it.
        while stream.stride * stream.pace < 0.7 * self.interval and stream.stride < 1 << 20:
            stream.stride *= 2
        while stream.stride > 1 and stream.stride * stream.pace > 3 * self.interval:
            stream.stride //= 2
        if silent >= 2 * self.interval:
            return True
        # Counters that jump about are no reason to send more.
        if fact.step // stream.stride == last.step // stream.stride or since < self.interval // 2:
            return False
        return silent >= self.interval // 2 or since >= SPARSER * self.interval

    def _send(self, stream: _Stream, fact: Progress, leaving: list[Fact]) -> None:
        if fact is stream.waiting:
            self.stayed -= 1
        stream.sent, stream.waiting = fact, None
        leaving.append(fact)


def _is_edge(last: Progress, fact: Progress) -> bool:
    """Return whether something lies between these two reports: a pause or a step back."""
    back = fact.step is not None and last.step is not None and fact.step < last.step
    return back or fact.time - last.end >= PAUSE


def _values(fact: Progress) -> tuple[float | None, ...]:
    return fact.loss, fact.grad_norm, fact.iter_time_s, fact.data_time_s


def _is_news(sent: Progress, fact: Progress) -> bool:
    """Return whether a value differs much from that of the last report that left."""
    return any(
        one is not None and other is not None and _differs(one, other)
        for one, other in zip(_values(sent), _values(fact), strict=True)
    )


def _differs(one: float, other: float) -> bool:
    low, high = sorted((abs(one), abs(other)))
    # Waiting times of milliseconds always differ by a factor, and mean nothing.
    return high > CHANGE * low and high - low > 0.05
