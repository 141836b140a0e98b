"""Thin the facts that a node sends: all facts that conclusions depend on, and few of the others.

A rank reports a step about every second, and a fleet has tens of thousands of ranks. A *stream* is the reports of one
rank in one file with the same kinds of values. From each stream these reports are sent:

- the first ones, and the last one before silence;
- both reports around a *jump*: a pause, a step back, or a loss or time that differs much from the last sent report
  (only few if a stream jumps all the time);
- otherwise one at intervals. If steps are numbered, it is the first step in each stretch of a power of two, so that all
  ranks of a job send the same steps and can be compared.

A statement that repeats is sent at once, and then with its count at intervals.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from tracecore.facts.fact import Fact
from tracecore.facts.training import Progress

SECOND: Final = 1_000_000_000
INTERVAL: Final = 10 * SECOND
#: Each single stream of a rank sends one report in this many intervals.
SPARSER: Final = 3
#: Number of first reports of a stream that are all sent.
HEAD: Final = 4
#: Repeated jumps of a stream mean nothing, so they are sent less and less often, down to one in half of this time.
#: After the stream was calm for this long, all jumps are sent again.
CALM: Final = 120 * SECOND
#: Number of consecutive jumps of a stream that are all sent, to follow a diverging run closely.
JUMPS: Final = 16
#: A report is sent if nothing follows it for this long, because the stream may have stopped.
QUIET: Final = 2 * SECOND
#: Two reports this far apart have a pause between them.
PAUSE: Final = 30 * SECOND
#: A value this many times larger or smaller than the last sent one is a jump. Losses of single batches, norms and step
#: times of a healthy run differ by less; a divergence is ten times and more.
CHANGE: Final = 5.0
#: Interval at which a repeating statement is sent again with its count.
REPEAT: Final = 5 * SECOND
#: Maximum number of statements to remember.
STATEMENTS: Final = 16_384
#: Maximum number of streams to follow. The least recently used is forgotten.
STREAMS: Final = 8_192

_Statement = tuple[type[Fact], str]
_StreamKey = tuple[object, ...]


class _Stream:
    __slots__ = ("count", "jump", "jumps", "last", "pace", "patience", "rank", "sent", "stride", "waiting")

    def __init__(self, rank: _StreamKey) -> None:
        self.rank = rank
        self.count = 0
        self.last: Progress | None = None
        self.sent: Progress | None = None
        self.waiting: Progress | None = None
        #: Nanoseconds between two steps, smoothed.
        self.pace = 0.0
        self.stride = 1
        #: The time of the last jump that was sent, the number of consecutive jumps, and the minimum time to the next.
        self.jump = self.jumps = self.patience = 0


class FactThinner:
    """Takes facts as they arrive, and returns those to send.

    Args:
        interval: each rank sends at least one report in this many nanoseconds.
    """

    def __init__(self, interval: int = INTERVAL) -> None:
        self.interval = interval
        #: Reports that were not sent.
        self.stayed = 0
        self._streams: OrderedDict[_StreamKey, _Stream] = OrderedDict()
        #: By rank: the time of its last report.
        self._last_reported: OrderedDict[_StreamKey, int] = OrderedDict()
        #: By rank: the time of its last sent report.
        self._last_sent: OrderedDict[_StreamKey, int] = OrderedDict()
        #: By statement: the time when it was last sent, and its latest version if that is held back.
        self._stated: OrderedDict[_Statement, int] = OrderedDict()
        self._held_back: dict[_Statement, Fact] = {}

    def take(self, facts: Iterable[Fact], now: int) -> list[Fact]:
        """Return the facts to send now."""
        leaving: list[Fact] = []
        for fact in facts:
            if type(fact) is Progress:
                self._report(fact, leaving)
            else:
                self._state(fact, now, leaving)
        for key in [key for key in self._held_back if now - self._stated[key] >= REPEAT]:
            self._state(self._held_back.pop(key), now, leaving)
        for stream in self._streams.values():
            # A stream that pauses is not silent yet while its rank reports other things.
            if stream.waiting is not None and (
                now - self._last_reported.get(stream.rank, 0) >= QUIET or now - stream.waiting.end >= 2 * self.interval
            ):
                self._send(stream, stream.waiting, leaving)
        return leaving

    def finish(self) -> list[Fact]:
        """Return all facts that are held back, at the end of the input."""
        leaving: list[Fact] = [*self._held_back.values()]
        self._held_back.clear()
        for stream in self._streams.values():
            if stream.waiting is not None:
                self._send(stream, stream.waiting, leaving)
        return leaving

    def _state(self, fact: Fact, now: int, leaving: list[Fact]) -> None:
        """Send a statement, or hold it back if it was sent a moment ago with a smaller count."""
        if fact.last_time is not None:
            key = type(fact), fact.uid
            left = self._stated.get(key)
            if left is not None and now - left < REPEAT:
                self._held_back[key] = fact
                return
            self._stated[key] = now
            self._stated.move_to_end(key)
            if len(self._stated) > STATEMENTS:
                oldest, _ = self._stated.popitem(last=False)
                if (waiting := self._held_back.pop(oldest, None)) is not None:
                    leaving.append(waiting)
        leaving.append(fact)

    def _report(self, fact: Progress, leaving: list[Fact]) -> None:
        # Loggers that print different values about a step may share one file. Each is a separate stream.
        shape = tuple(value is None for value in (fact.step, *_values(fact))), fact.phase
        rank = fact.job, fact.pod or fact.node, fact.attempt, fact.rank
        key = *rank, fact.source.path, shape
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = _Stream(rank)
            if len(self._streams) > STREAMS:
                self._streams.popitem(last=False)
            while len(self._last_reported) > STREAMS:
                self._last_reported.popitem(last=False)
        else:
            self._streams.move_to_end(key)
        last, stream.last = stream.last, fact
        stream.count += 1
        self._last_reported[rank] = max(self._last_reported.get(rank, 0), fact.end)
        due = self._is_due(stream, last, fact, self._last_sent.get(rank, 0))
        if last is not None and _is_edge(last, fact) and self._send_jump(stream, fact.time, self.interval):
            if stream.waiting is not None:
                self._send(stream, stream.waiting, leaving)
            due = True
        elif stream.sent is not None and _is_news(stream.sent, fact) and self._send_jump(stream, fact.time, 0):
            due = True
        if due or stream.count <= HEAD or stream.sent is None:
            self._send(stream, fact, leaving)
            self._last_sent[rank] = max(fact.time, self._last_sent.get(rank, 0))
            self._last_sent.move_to_end(rank)
            if len(self._last_sent) > STREAMS:
                self._last_sent.popitem(last=False)
        else:
            stream.waiting = fact
            self.stayed += 1

    def _send_jump(self, stream: _Stream, now: int, least: int) -> bool:
        """Return whether to send a jump of a stream, and note that it is sent.

        Args:
            least: minimum nanoseconds since the last jump.
        """
        since = now - stream.jump
        if stream.jump and since < max(least, stream.patience):
            return False
        stream.jumps = 1 if since > CALM else stream.jumps + 1
        stream.patience = 0 if stream.jumps < JUMPS else min(max(2 * stream.patience, SECOND), CALM // 2)
        stream.jump = now
        return True

    def _is_due(self, stream: _Stream, last: Progress | None, fact: Progress, heard: int) -> bool:
        """Return whether a report is due, for this stream or for its rank, which last sent a report at `heard`."""
        sent = stream.sent
        if sent is None or last is None:
            return True
        since, silent = fact.time - sent.time, fact.time - heard
        if fact.step is None or last.step is None or fact.step <= last.step:
            return since >= SPARSER * self.interval or silent >= self.interval
        pace = max(0, fact.time - last.time) / (fact.step - last.step)
        stream.pace = pace if not stream.pace else 0.9 * stream.pace + 0.1 * pace
        # Change the stride only if it is clearly wrong, because ranks must agree on it.
        while stream.stride * stream.pace < 0.7 * self.interval and stream.stride < 1 << 20:
            stream.stride *= 2
        while stream.stride > 1 and stream.stride * stream.pace > 3 * self.interval:
            stream.stride //= 2
        if silent >= 2 * self.interval:
            return True
        # Steps that jump back and forth are no reason to send more.
        if fact.step // stream.stride == last.step // stream.stride or since < self.interval // 2:
            return False
        return silent >= self.interval // 2 or since >= SPARSER * self.interval

    def _send(self, stream: _Stream, fact: Progress, leaving: list[Fact]) -> None:
        if fact is stream.waiting:
            self.stayed -= 1
        stream.sent, stream.waiting = fact, None
        leaving.append(fact)


def _is_edge(last: Progress, fact: Progress) -> bool:
    """Return whether a pause or a step back lies between two reports."""
    back = fact.step is not None and last.step is not None and fact.step < last.step
    return back or fact.time - last.end >= PAUSE


def _values(fact: Progress) -> tuple[float | None, ...]:
    return fact.loss, fact.grad_norm, fact.iter_time_s, fact.data_time_s


def _is_news(sent: Progress, fact: Progress) -> bool:
    """Return whether a value differs much from that in the last sent report."""
    return any(
        one is not None and other is not None and _differs(one, other)
        for one, other in zip(_values(sent), _values(fact), strict=True)
    )


def _differs(one: float, other: float) -> bool:
    low, high = sorted((abs(one), abs(other)))
    # Waiting times of milliseconds often differ by such a factor, which means nothing.
    return high > CHANGE * low and high - low > 0.05
