"""The record that a reader is still adding lines to, bounded in size."""

from __future__ import annotations

from tracecore.signals.logs.dialects import UnwrappedLine
from tracecore.signals.logs.multiline import Shape

#: A record's text, in bytes; of a longer one the beginning and the end are kept.
MAX_BODY = 1 << 18

_ELLIPSIS = b"\n[... %d bytes left out ...]\n"


class OpenRecord:
    """A record that more lines may join."""

    __slots__ = (
        "attributes", "end", "foreign", "held", "host", "lane", "left_out", "line", "lines", "offset", "partial",
        "program", "rank", "shape", "size", "stamp", "tail", "tail_size", "wanted",
    )  # fmt: skip

    def __init__(
        self, first: UnwrappedLine, offset: int, line: int, end: int, shape: Shape | None, wanted: bool
    ) -> None:
        self.lines = [first.text]
        self.size = len(first.text)
        self.tail: list[bytes] = []
        self.tail_size = 0
        self.left_out = 0
        self.held = 0
        self.lane = first.lane
        self.stamp = first.stamp
        self.rank = first.rank
        self.attributes = first.attributes
        self.host = first.host
        self.program = first.program
        self.partial = first.partial
        self.offset = offset
        self.line = line
        self.end = end
        self.shape = shape
        self.wanted = wanted
        self.foreign = 0

    def append(self, text: bytes, end: int) -> None:
        """Add a line that ends at this byte, after the empty lines that were held back."""
        for _ in range(self.held):
            self._add(b"")
        self.held = 0
        self._add(text)
        self.end = end
        self.foreign = 0

    def _add(self, text: bytes) -> None:
        if self.size + len(text) <= MAX_BODY * 3 // 4:
            self.lines.append(text)
            self.size += len(text) + 1
            return
        room = MAX_BODY * 3 // 4 - self.size
        if not self.tail and room > 0 and len(text) > MAX_BODY // 4:
            # The last line of a traceback may be a megabyte: its beginning says what was raised.
            self.lines.append(text[:room])
            self.size += room + 1
            text = text[room:]
        self.left_out += max(0, len(text) - MAX_BODY // 4)
        self.tail.append(text[-MAX_BODY // 4 :])
        self.tail_size += len(self.tail[-1]) + 1
        while self.tail_size > MAX_BODY // 4 and len(self.tail) > 1:
            gone = len(self.tail.pop(0)) + 1
            self.tail_size -= gone
            self.left_out += gone

    def body(self) -> bytes:
        """Return the text; of a long one the beginning and the end."""
        text = b"\n".join(self.lines)
        if self.left_out:
            text += _ELLIPSIS % self.left_out + b"\n".join(self.tail)
        elif self.tail:
            text += b"\n" + b"\n".join(self.tail)
        if len(text) > MAX_BODY:
            head, last = MAX_BODY * 3 // 4, MAX_BODY // 4
            text = text[:head] + _ELLIPSIS % (len(text) - head - last) + text[-last:]
        return text
