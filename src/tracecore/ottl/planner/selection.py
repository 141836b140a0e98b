"""Candidate lines of raw blocks: one scan finds the lines that a guard can match before anything is parsed.

A raw line may have a container runtime's wrapping, a launcher's prefix, terminal codes and JSON escapes in it. The
expressions that are searched for allow for prefixes (see `widening`). Codes and escapes are removed from the block
before the scan. That moves bytes, but the number of each line stays the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tracecore.ottl.planner.database import ScanDatabase, Search, search
from tracecore.ottl.planner.doubts import Array, Doubts, ends_of
from tracecore.ottl.planner.expressions import FOLDING
from tracecore.ottl.planner.widening import LINE_BREAK
from tracecore.signals import compiled
from tracecore.signals.arrays import distinct, np
from tracecore.signals.logs.dialects import DOCKER_BEGINS
from tracecore.signals.logs.selector import ALWAYS

#: Longer lines are always candidates, because runtimes cut them and readers keep only parts of them.
LONG_LINE: Final = 16 * 1024
#: Bytes that Hyperscan scans at once: few enough to stay in the cache of one core.
PIECE: Final = 1 << 17

_NONE: Final[Array] = np.zeros(0, np.intp)

#: Searched for without Hyperscan: a literal of two bytes would halve the speed of a scan.
_LONG_S: Final = FOLDING[0]

_CARRIAGE_RETURN_TO_NEWLINE: Final = bytes.maketrans(b"\r", b"\n")
_LINE_BREAK: Final = bytes((LINE_BREAK,))
_ESCAPE: Final = re.compile(rb'\\(?:(["/\\tbfnr])|u([0-9A-Fa-f]{4}))')
_ESCAPED_BYTES: Final = dict(zip(b'"/\\tbfnr', b'"/\\\t\b\f\n\n', strict=True))
_ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
#: Rulers (`=====`) that open a table of failures. Not given to Hyperscan, which reports a long ruler at every byte.
_RULERS: Final = tuple(text for text in ALWAYS if len(set(text)) == 1)
_REST_OF_RULER: Final = re.compile(rb'(?:=++|\*++)([ \t]*+(?:[\n"\r\x1e]|\Z))?')
#: The title of torchelastic's table ends with this. The title follows a ruler.
TABLE: Final = b" FAILED"
#: At most this many bytes of other lines may stand between the ruler and the title.
REACH: Final = 1 << 14
#: Encodings that only the readers of kernel logs and journals decode: such a line may contain anything.
_OPAQUE: Final = re.compile(rb'\\x[0-9a-f]{2}|"MESSAGE"[ \t]*:[ \t]*\[')


def line_search(patterns: Sequence[str], *, always: bool = True) -> Search:
    """Return the search for raw lines that one of the patterns can match, except for `_LONG_S`.

    Args:
        patterns: RE2 expressions.
        always: search also for the texts that every selector must pick.
    """
    extra = (*FOLDING[1:], *(text for text in ALWAYS if text not in _RULERS)) if always else FOLDING[1:]
    return search(patterns, lines=True, extra=extra)


class Selector:
    """Picks the lines in which a guard can match. Two readers must not share one, because a scan needs its own memory.

    Args:
        databases: compiled from `line_search`, reporting every match. Without any, every line is picked.
        escaped: lines are JSON.
        opaque: the reader decodes more than terminal codes and JSON.
        doubts: confirms what a single database finds; None to pick every line found.
    """

    def __init__(
        self, *databases: ScanDatabase, escaped: bool = False, opaque: bool = False, doubts: Doubts | None = None
    ) -> None:
        self._databases = databases
        self._escaped = escaped
        self._opaque = opaque
        self._doubts = doubts

    def __call__(self, block: bytes) -> Sequence[int] | None:
        if not self._databases:
            return None
        marked = lined(block)
        text = plain(marked, self._escaped or DOCKER_BEGINS.search(block, 0, 96) is not None)
        lines = self.lines(text, ends(text))
        if not len(lines):
            return []
        offsets: list[int] = np.minimum(ends_of(block, ends(marked), lines), len(block) - 1).tolist()
        return offsets

    def lines(self, text: bytes, line_ends: Array) -> Array:
        """Return the numbers of the lines in which a guard can match and of the long lines, ascending.

        Args:
            text: whole lines.
            line_ends: where they end.
        """
        found: list[int] = []
        entries: list[int] = []
        self._scan(text, found, entries)
        others = long_lines(text) + rulers(text)
        # Searching for a single byte is much faster than for two.
        if _LONG_S[:1] in text:
            others += [match.start() for match in re.finditer(_LONG_S, text)]
        if self._opaque:
            others += [match.start() for match in _OPAQUE.finditer(text)]
        if not found and not others:
            return _NONE
        lines = np.searchsorted(line_ends, np.array(found, np.intp))
        if self._doubts is not None and found:
            lines = self._doubts.confirmed(text, line_ends, lines, np.array(entries, np.intp))
        return distinct(np.concatenate((lines, np.searchsorted(line_ends, np.array(others, np.intp)))))

    def _scan(self, text: bytes, found: list[int], entries: list[int]) -> None:
        """Append the offset of the last byte of each match to `found`, and its entry to `entries`."""
        start = 0
        view = memoryview(text)
        while start < len(text):
            end = len(text)
            if end - start > PIECE:
                end = text.rfind(b"\n", start, start + PIECE) + 1 or text.find(b"\n", start + PIECE) + 1 or end
            for database in self._databases:
                database.scan(view[start:end], _collect, (found, start - 1, entries))
            start = end


def _collect(number: int, start: int, end: int, flags: int, context: tuple[list[int], int, list[int]]) -> None:
    context[0].append(context[1] + end)
    context[2].append(number)


def lined(block: bytes) -> bytes:
    """Return the block with `\\r` replaced by a newline and `\\r\\n` by a space and a newline; no byte moves."""
    if b"\r" not in block:
        return block
    if compiled.part is not None:
        return compiled.part.lined(block)
    return block.replace(b"\r\n", b" \n").translate(_CARRIAGE_RETURN_TO_NEWLINE)


def plain(block: bytes, escaped: bool) -> bytes:
    """Return the block without JSON escapes (if `escaped`), terminal codes and NULs; with the same lines."""
    escaped = escaped and b"\\" in block
    if compiled.part is not None:
        odd = escaped or b"\x1b" in block or b"\x00" in block
        return compiled.part.plain(block, escaped, LINE_BREAK) if odd else block
    if escaped:
        block = _ESCAPE.sub(_unescaped, block).replace(b"\x00", b"")
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if b"\x00" in block:
        block = block.replace(b"\x00", b"")
    return block


def _unescaped(match: re.Match[bytes]) -> bytes:
    """Return the character that an escape stands for; `LINE_BREAK` for a line end, so that no line is added.

    A surrogate is half of an unknown character, so a line with one must be a candidate: `_LONG_S` makes it one.
    """
    simple, code = match.groups()
    character = int(code, 16) if simple is None else _ESCAPED_BYTES[simple[0]]
    if character in (10, 13):
        return _LINE_BREAK
    return _LONG_S if 0xD800 <= character < 0xE000 else chr(character).encode()


def ends(block: bytes) -> Array:
    """Return where the lines of a `lined` block end."""
    if compiled.part is not None:
        return compiled.part.line_ends(block)
    return np.flatnonzero(np.frombuffer(block, np.uint8) == 10)


def rulers(block: bytes) -> list[int]:
    """Return an offset in every ruler that may open a table of failures: near a title, or near the block's end."""
    found: list[int] = []
    done = 0
    while done < len(block):
        title = find(block, TABLE, done)
        begin, end = done, len(block) if title < 0 else title + len(TABLE)
        begin = max(begin, end - REACH)
        for ruler in _RULERS:
            at = block.find(ruler, begin, end)
            while at >= 0:
                rest = _REST_OF_RULER.match(block, at, end)
                assert rest is not None
                if rest.group(1) is not None:
                    found.append(at)
                at = block.find(ruler, rest.end(), end)
        done = end
    return found


def find(block: bytes, literal: bytes, begin: int = 0) -> int:
    """Return `block.find(literal, begin)`, faster."""
    return block.find(literal, begin) if compiled.part is None else compiled.part.find(block, literal, begin)


def long_lines(block: bytes) -> list[int]:
    """Return an offset in every line of at least `LONG_LINE` bytes."""
    if len(block) < LONG_LINE:
        return []
    at = 0
    found = []
    while at + LONG_LINE <= len(block):
        last = block.rfind(b"\n", at, at + LONG_LINE)
        if last < 0:
            found.append(at)
            last = block.find(b"\n", at + LONG_LINE)
            if last < 0:
                break
        at = last + 1
    return found
