"""Decide which lines were printed as one block: a traceback, a failure table, an error and its details.

Several processes may write to one stream. A block has the lines of one writer (`UnwrappedLine.writer`), and lines of
others may come in between. An `Assembly` holds the open blocks of one stream. `place` takes the next line and returns
the block it joins and the blocks it ends. A line that joins no block may open one (`add`).

`signals.logs.reader` assembles the records of a file, `recipes.live` finds the lines of followed files that belong to
a picked one, and `agent.processors.blocks` joins records that arrive one by one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, NamedTuple, TypeVar

from tracecore.signals.logs.dialects import UnwrappedLine
from tracecore.signals.logs.multiline import (
    CLOSE,
    GOES_ON,
    HOLD,
    LAST,
    MAY_CONTINUE,
    PASS,
    TAKE,
    Boxed,
    Message,
    Shape,
    Take,
    opens,
    unboxed,
)

#: Lines of no block that may come between two lines of a block, and the same for a block that seems to be whole.
MAX_FOREIGN: Final = 400
MAX_FOREIGN_WHOLE: Final = 128
#: After this many such lines, a block that seems to be whole goes on with nothing but a chained traceback.
SETTLED: Final = 8
#: Bytes of a block's text. Of a longer one the beginning and the end are kept.
MAX_BODY: Final = 1 << 18

_BEGINNING: Final = MAX_BODY * 3 // 4
_END: Final = MAX_BODY - _BEGINNING
_ELLIPSIS: Final = b"\n[... %d bytes left out ...]\n"


class OpenBlock:
    """A block that more lines may join. Only `TextBlock` keeps the text.

    Args:
        line: the first line.
        shape: decides which lines belong to it.
    """

    __slots__ = ("alone", "foreign", "held", "shape", "writer")

    def __init__(self, line: UnwrappedLine, shape: Shape) -> None:
        self.writer = line.writer
        self.shape = shape
        #: Whether the block has only its first line.
        self.alone = True
        #: Empty lines at the end. They belong to the block if more of it follows.
        self.held = 0
        #: Lines of no block since the last line of this one.
        self.foreign = 0

    @property
    def abandoned(self) -> bool:
        """Whether so many foreign lines came that no more of the block is expected."""
        return self.foreign > (MAX_FOREIGN_WHOLE if self.shape.whole else MAX_FOREIGN)

    def offer(self, text: bytes) -> Take:
        """Add a line if it belongs to the block."""
        taken = self.shape.take(text)
        if taken is HOLD:
            self.held += 1
            self.alone = False
        elif taken is TAKE or taken is LAST:
            self.append(text)
            self.alone = False
        return taken

    def append(self, text: bytes) -> None:
        """Add a line, and the empty lines held before it."""
        self.held = 0
        self.foreign = 0


class TextBlock(OpenBlock):
    """A block with its text, bounded in size."""

    __slots__ = ("_beginning", "_beginning_size", "_end", "_end_size", "left_out")

    def __init__(self, line: UnwrappedLine, shape: Shape) -> None:
        super().__init__(line, shape)
        self._beginning = [line.text]
        self._beginning_size = len(line.text)
        self._end: deque[bytes] = deque()
        self._end_size = 0
        #: Bytes dropped between the beginning and the end.
        self.left_out = 0

    @property
    def size(self) -> int:
        """The number of bytes kept."""
        return self._beginning_size + self._end_size

    def append(self, text: bytes) -> None:
        for _ in range(self.held):
            self._add(b"")
        super().append(text)
        self._add(text)

    def _add(self, text: bytes) -> None:
        room = _BEGINNING - self._beginning_size
        if not self._end and len(text) <= room:
            self._beginning.append(text)
            self._beginning_size += len(text) + 1
            return
        if not self._end and room > 0 and len(text) > _END:
            # The last line of a traceback may be a megabyte long. Its beginning says what was raised.
            self._beginning.append(text[:room])
            self._beginning_size += room + 1
            text = text[room:]
        self.left_out += max(0, len(text) - _END)
        self._end.append(text[-_END:])
        self._end_size += len(self._end[-1]) + 1
        while self._end_size > _END and len(self._end) > 1:
            dropped = len(self._end.popleft()) + 1
            self._end_size -= dropped
            self.left_out += dropped

    def body(self) -> bytes:
        """Return the text; of a long one the beginning and the end."""
        text = b"\n".join(self._beginning)
        if self.left_out:
            text += _ELLIPSIS % self.left_out + b"\n".join(self._end)
        elif self._end:
            text += b"\n" + b"\n".join(self._end)
        if len(text) > MAX_BODY:
            text = text[:_BEGINNING] + _ELLIPSIS % (len(text) - MAX_BODY) + text[-_END:]
        return unboxed(text) if isinstance(self.shape, Boxed) else text


Block = TypeVar("Block", bound=OpenBlock)


class Placed(NamedTuple, Generic[Block]):
    """The result for one line.

    Args:
        joined: the block that the line was added to; None if it belongs to no open block.
        ended: the blocks that it ended, in order. `joined` comes last if this was its last line.
    """

    joined: Block | None
    ended: list[Block]


class Assembly(Generic[Block]):
    """The open blocks of one stream of lines."""

    __slots__ = ("by_writer", "message")

    def __init__(self) -> None:
        self.by_writer: dict[bytes, Block] = {}
        #: The last line outside of blocks. Details of an error may follow it.
        self.message: Block | None = None

    @property
    def idle(self) -> bool:
        """Whether no block is open that the next line may join."""
        return not self.by_writer and self.message is None

    def __iter__(self) -> Iterator[Block]:
        yield from self.by_writer.values()
        if self.message is not None:
            yield self.message

    def ended_message(self, raw: bytes) -> Block | None:
        """Close and return the open message, if nothing else is open and the raw line cannot be part of it.

        This is the usual case, and it needs no unwrapping of the line.
        """
        message = self.message
        if message is None or self.by_writer or not message.alone or MAY_CONTINUE.search(raw) is not None:
            return None
        self.message = None
        return message

    def passes(self, raw: bytes) -> bool:
        """Return whether a raw line is foreign to all open blocks, which are whole, and count it.

        This saves unwrapping the lines after a traceback.
        """
        if self.message is not None or not self.by_writer or GOES_ON.search(raw) is not None:
            return False
        blocks = self.by_writer.values()
        if not all(block.shape.whole and SETTLED <= block.foreign <= MAX_FOREIGN_WHOLE for block in blocks):
            return False
        for block in blocks:
            block.foreign += 1
        return True

    def place(self, line: UnwrappedLine) -> Placed[Block]:
        """Add a line to the block that it belongs to, and close the blocks that it ends."""
        ended = [block for block in self.by_writer.values() if block.abandoned] if self.by_writer else []
        for block in ended:
            del self.by_writer[block.writer]
        writer, text = line.writer, line.text
        own = self.by_writer.get(writer)
        if own is not None:
            taken = own.offer(text)
            if taken is LAST or taken is CLOSE:
                del self.by_writer[writer]
                ended.append(own)
            if taken is not PASS and taken is not CLOSE:
                return Placed(own, ended)
        for block in self.by_writer.values():
            block.foreign += 1
        message = self.message
        if message is not None:
            # Details may lack the prefix of the first line, or a part of it.
            if message.writer.startswith(writer) and message.offer(text) in (TAKE, HOLD):
                return Placed(message, ended)
            self.message = None
            ended.append(message)
        return Placed(None, ended)

    def add(self, block: Block) -> Block | None:
        """Open a block with a line that joined none; return the writer's block that it ends."""
        if isinstance(block.shape, Message):
            self.message = block
            return None
        before = self.by_writer.get(block.writer)
        self.by_writer[block.writer] = block
        return before

    def remove(self, block: Block) -> None:
        """Forget a block that is considered to be over."""
        if block is self.message:
            self.message = None
        else:
            del self.by_writer[block.writer]


def shape_of(line: UnwrappedLine) -> Shape:
    """Return the shape of the block that begins with this line."""
    return opens(line.text, line.writer.endswith(b"]: ")) or Message(line.text)
