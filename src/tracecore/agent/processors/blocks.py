"""Lines that arrive one by one, put together into the blocks they were printed as.

A traceback is one thing to recipes, and many records on a wire. The shapes of blocks are those of the offline reader
(`signals.logs.multiline`); here a block is also closed when its stream has been quiet for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, Final

from tracecore.signals.logs.dialects import UnwrappedLine, clean, strip_prefixes
from tracecore.signals.logs.multiline import Boxed, Message, Shape, Take, opens, unboxed
from tracecore.signals.record import Attributes, LogSignal, Resource, Source

#: Lines of others that may stand between two lines of one block.
MAX_FOREIGN: Final = 400
#: A block's text, in bytes; what comes after is left out, and counted.
MAX_BODY: Final = 1 << 18
#: The text of all open blocks; beyond it those of the stream untouched for longest are closed.
MAX_OPEN: Final = 64 << 20
#: Streams whose blocks are followed; beyond it the one untouched for longest is closed.
STREAMS: Final = 10_000
#: Nanoseconds for which at least a block waits that says itself that more is to come: a traceback without its error.
UNFINISHED: Final = 1_000_000_000

StreamKey = tuple[Any, ...]


class _Open:
    """A block that more lines may join."""

    __slots__ = ("foreign", "held", "lane", "lines", "quiet", "shape", "signal", "size", "touched")

    def __init__(self, signal: LogSignal, line: UnwrappedLine, shape: Shape, now: int, quiet: int) -> None:
        self.signal = signal
        self.lines = [line.text]
        self.size = len(line.text)
        self.lane = line.lane
        self.shape = shape
        self.held = 0
        self.foreign = 0
        self.touched = now
        self.quiet = quiet

    @property
    def due(self) -> int:
        """Return when it is taken to be whole."""
        return self.touched + (self.quiet if self.shape.whole else max(self.quiet, UNFINISHED))

    def append(self, text: bytes, now: int, quiet: int) -> int:
        """Take a line; gives how many bytes were left out."""
        self.touched = now
        self.quiet = quiet
        self.foreign = 0
        if self.size + len(text) + self.held > MAX_BODY:
            return len(text)
        self.lines += [b""] * self.held
        self.held = 0
        self.lines.append(text)
        self.size += len(text) + 1
        return 0

    def finish(self) -> LogSignal:
        body = b"\n".join(self.lines)
        body = unboxed(body) if isinstance(self.shape, Boxed) else body
        self.signal["log"]["body"] = body.decode("utf-8", "replace")
        return self.signal


class _Stream:
    __slots__ = ("blocks", "message")

    def __init__(self) -> None:
        self.blocks: dict[bytes, _Open] = {}
        self.message: _Open | None = None


class Blocks:
    """Follows streams of lines.

    Args:
        quiet: nanoseconds without a line after which a block that may be whole is taken to be.
    """

    def __init__(self, quiet: int) -> None:
        self._quiet = quiet
        self._streams: OrderedDict[StreamKey, _Stream] = OrderedDict()
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
        if stream is not None:
            yield from self._foreign(stream)
            block = stream.blocks.get(line.lane)
            if block is not None:
                taken = block.shape.take(line.text)
                if taken is Take.HOLD:
                    block.held += 1
                    return
                if taken in (Take.TAKE, Take.LAST):
                    self._append(block, line.text, now, quiet)
                    if taken is Take.LAST:
                        del stream.blocks[line.lane]
                        yield self._finish(block)
                        self._tidy(key, stream)
                    yield from self._bounded()
                    return
                if taken is Take.CLOSE:
                    del stream.blocks[line.lane]
                    yield self._finish(block)
            for other in stream.blocks.values():
                other.foreign += 1
            if (message := stream.message) is not None:
                taken = message.shape.take(line.text) if line.lane in (message.lane, b"") else Take.CLOSE
                if taken is Take.HOLD:
                    message.held += 1
                    return
                if taken is Take.TAKE:
                    self._append(message, line.text, now, quiet)
                    yield from self._bounded()
                    return
                stream.message = None
                yield self._finish(message)
        if source is not None and line.text:
            if stream is None:
                stream = self._streams[key] = _Stream()
            self._begin(stream, resource, log, source, line, now, quiet)
            self._streams.move_to_end(key)
            yield from self._bounded()
        elif stream is not None:
            self._tidy(key, stream)

    def _begin(
        self, stream: _Stream, resource: Resource, log: Any, source: Source, line: UnwrappedLine, now: int, quiet: int
    ) -> None:
        attributes: Attributes = dict(log.get("attributes") or {})
        for name, value in (line.attributes or {}).items():
            attributes.setdefault(name, value)
        if line.rank is not None:
            attributes.setdefault("gen_ai.training.rank", line.rank)
        record: Any = {**log, "attributes": attributes}
        signal: LogSignal = {"resource": resource, "log": record, "source": source}
        shape = opens(line.text, line.lane.endswith(b"]: "))
        made = _Open(signal, line, Message() if shape is None else shape, now, quiet)
        before = stream.message if shape is None else stream.blocks.get(line.lane)
        self._open += made.size - (before.size if before is not None else 0)
        self.due = _earlier(self.due, made.due)
        if shape is None:
            stream.message = made
        else:
            stream.blocks[line.lane] = made

    def _bounded(self) -> Iterator[LogSignal]:
        """Yield what has to be closed because there is too much of it."""
        while len(self._streams) > STREAMS or (self._open > MAX_OPEN and self._streams):
            self.evicted += 1
            yield from self._closed(self._streams.popitem(last=False)[1])

    def _append(self, block: _Open, text: bytes, now: int, quiet: int) -> None:
        before = block.size
        self.left_out += block.append(text, now, quiet)
        self._open += block.size - before
        self.due = _earlier(self.due, block.due)

    def _finish(self, block: _Open) -> LogSignal:
        self._open -= block.size
        return block.finish()

    def _foreign(self, stream: _Stream) -> Iterator[LogSignal]:
        for lane in [lane for lane, block in stream.blocks.items() if block.foreign > MAX_FOREIGN]:
            yield self._finish(stream.blocks.pop(lane))

    def _tidy(self, key: StreamKey, stream: _Stream) -> None:
        if stream.message is None and not stream.blocks:
            self._streams.pop(key, None)

    def _closed(self, stream: _Stream) -> Iterator[LogSignal]:
        for block in stream.blocks.values():
            yield self._finish(block)
        if stream.message is not None:
            yield self._finish(stream.message)

    def expire(self, now: int) -> Iterator[LogSignal]:
        """Blocks whose stream has been quiet; all of them when the clock was set back."""
        soonest: int | None = None
        for key, stream in list(self._streams.items()):
            for lane, block in list(stream.blocks.items()):
                if _old(block, now):
                    yield self._finish(stream.blocks.pop(lane))
                else:
                    soonest = _earlier(soonest, block.due)
            if (message := stream.message) is not None:
                if _old(message, now):
                    stream.message = None
                    yield self._finish(message)
                else:
                    soonest = _earlier(soonest, message.due)
            self._tidy(key, stream)
        self.due = soonest

    def finish(self) -> Iterator[LogSignal]:
        """Close all open blocks."""
        streams, self._streams = self._streams, OrderedDict()
        for stream in streams.values():
            yield from self._closed(stream)


def _old(block: _Open, now: int) -> bool:
    return now >= block.due or now < block.touched


def _earlier(one: int | None, other: int) -> int:
    return other if one is None or other < one else one
