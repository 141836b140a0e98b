"""Lines that arrive one by one, put together into the blocks they were printed as.

A traceback is one thing to recipes, and many records on a wire. `signals.logs.assembly` says which lines belong
together, as for files; here a block is also closed when its stream has been quiet for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from tracecore.signals.logs.assembly import Assembly, TextBlock, shape_of
from tracecore.signals.logs.dialects import UnwrappedLine, clean, strip_prefixes
from tracecore.signals.record import Attributes, LogSignal, Resource, Source

#: The text of all open blocks; beyond it those of the stream untouched for longest are closed.
MAX_OPEN: Final = 64 << 20
#: Streams whose blocks are followed; beyond it the one untouched for longest is closed.
STREAMS: Final = 10_000
#: Nanoseconds for which at least a block waits that says itself that more is to come: a traceback without its error.
UNFINISHED: Final = 1_000_000_000

StreamKey = tuple[Any, ...]


class _Waiting(TextBlock):
    """A block that waits for more lines."""

    __slots__ = ("counted", "quiet", "signal", "touched")

    def __init__(self, line: UnwrappedLine, signal: LogSignal) -> None:
        super().__init__(line, shape_of(line))
        self.signal = signal
        #: When its last line came, and how long to wait for the next.
        self.touched = 0
        self.quiet = 0
        #: Bytes of it that are counted in the total of all blocks.
        self.counted = 0

    @property
    def due(self) -> int:
        """Return when it is taken to be whole."""
        return self.touched + (self.quiet if self.shape.whole else max(self.quiet, UNFINISHED))

    def expired(self, now: int) -> bool:
        """Whether it is taken to be whole; also when the clock was set back."""
        return now >= self.due or now < self.touched


class Blocks:
    """Follows streams of lines.

    Args:
        quiet: nanoseconds without a line after which a block that may be whole is taken to be.
    """

    def __init__(self, quiet: int) -> None:
        self._quiet = quiet
        self._streams: OrderedDict[StreamKey, Assembly[_Waiting]] = OrderedDict()
        self._open = 0
        #: Bytes of blocks that were left out.
        self.left_out = 0
        #: Streams closed because there were too many.
        self.evicted = 0
        #: No block that is open is taken to be whole before this; None where none is open.
        self.due: int | None = None

    def __bool__(self) -> bool:
        return bool(self._streams)

    def expects(self, key: StreamKey) -> bool:
        """Return whether any line of this stream may join a block."""
        return key in self._streams

    def feed(
        self, key: StreamKey, resource: Resource, log: Any, source: Source | None, now: int, quiet: int = 0
    ) -> Iterator[LogSignal]:
        """A line of a stream; gives what it completes.

        Args:
            key: names the stream.
            log: the record, which is not changed.
            source: what to cite where some recipe can do something with it; None where none can.
            quiet: how long to wait for the line after this one, if not as long as for all.
        """
        quiet = quiet or self._quiet
        body: str = log["body"]
        line = UnwrappedLine(clean(body.encode("utf-8", "replace")))
        strip_prefixes(line, single_node=False)
        stream = self._streams.get(key)
        if stream is None:
            stream = Assembly()
        block, ended = stream.place(line)
        if block is None and source is not None and line.text:
            block = _Waiting(line, _signal(resource, log, source, line))
            if (before := stream.add(block)) is not None:
                ended.append(before)
            self._streams[key] = stream
            self._streams.move_to_end(key)
        if block is not None and not block.held:
            self._touch(block, now, quiet)
        for over in ended:
            yield self._finish(over)
        if stream.idle:
            self._streams.pop(key, None)
        yield from self._bounded()

    def _touch(self, block: _Waiting, now: int, quiet: int) -> None:
        block.touched, block.quiet = now, quiet
        self._open += block.size - block.counted
        block.counted = block.size
        self.due = _earlier(self.due, block.due)

    def _bounded(self) -> Iterator[LogSignal]:
        """Yield what has to be closed because there is too much of it."""
        while len(self._streams) > STREAMS or (self._open > MAX_OPEN and self._streams):
            self.evicted += 1
            for block in self._streams.popitem(last=False)[1]:
                yield self._finish(block)

    def _finish(self, block: _Waiting) -> LogSignal:
        self._open -= block.counted
        self.left_out += block.left_out
        block.signal["log"]["body"] = block.body().decode("utf-8", "replace")
        return block.signal

    def expire(self, now: int) -> Iterator[LogSignal]:
        """Blocks whose stream has been quiet; all of them when the clock was set back."""
        soonest: int | None = None
        for key, stream in list(self._streams.items()):
            for block in list(stream):
                if block.expired(now):
                    stream.remove(block)
                    yield self._finish(block)
                else:
                    soonest = _earlier(soonest, block.due)
            if stream.idle:
                self._streams.pop(key, None)
        self.due = soonest

    def finish(self) -> Iterator[LogSignal]:
        """Close all open blocks."""
        streams, self._streams = self._streams, OrderedDict()
        for stream in streams.values():
            for block in stream:
                yield self._finish(block)


def _signal(resource: Resource, log: Any, source: Source, line: UnwrappedLine) -> LogSignal:
    """A record of its own for a block that begins with this one."""
    attributes: Attributes = dict(log.get("attributes") or {})
    for name, value in (line.attributes or {}).items():
        attributes.setdefault(name, value)
    if line.rank is not None:
        attributes.setdefault("gen_ai.training.rank", line.rank)
    record: Any = {**log, "attributes": attributes}
    return {"resource": resource, "log": record, "source": source}


def _earlier(one: int | None, other: int) -> int:
    return other if one is None or other < one else one
