"""Candidate lines of raw blocks: those that hold what some guard needs, found by one scan before anything is parsed.

Around the text of a line there may be a container runtime's wrapping, a launcher's prefix, terminal codes and JSON
escapes. Prefixes are allowed for in what is searched for (`widening.for_lines`). Codes and escapes are taken out of the
block first; that moves bytes but no line ends, so that a line is found again by its number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from string import hexdigits
from typing import Final

from tracecore.ottl.planner.database import FOLDING, ScanDatabase, Search, search
from tracecore.ottl.planner.doubts import Array, Doubts, lines_end
from tracecore.ottl.planner.widening import LINE_BREAK
from tracecore.signals.arrays import np
from tracecore.signals.logs.selector import ALWAYS

#: Longer lines are candidates: runtimes cut them, and readers keep only parts of them.
LONG_LINE: Final = 16 * 1024
#: Hyperscan is given pieces that stay in the cache of one core.
PIECE: Final = 1 << 17

_NONE: Final[Array] = np.zeros(0, np.intp)

#: One literal of two bytes halves the speed of Hyperscan: this one is searched for beside it.
_LONG_S: Final = FOLDING[0]

_CARRIAGES: Final = bytes.maketrans(b"\r", b"\n")
_BREAK: Final = bytes((LINE_BREAK,))
_BACKSLASH: Final = ord("\\")
#: What the byte after a backslash stands for in JSON; 0 for all others, which stay as they are.
_MEANT: Final = np.zeros(256, np.uint8)
_MEANT[list(b'"/\\tbfnr')] = list(b'"/\\\t\b\f' + _BREAK + _BREAK)
#: Hexadecimal digits; 255 for all other bytes.
_HEX: Final = np.array([int(chr(byte), 16) if chr(byte) in hexdigits else 255 for byte in range(256)], np.uint8)
_ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
#: What opens a table of failures; one of twenty is found as often as it is long.
_RULERS: Final = tuple(text for text in ALWAYS if len(set(text)) == 1)
_RULER: Final = re.compile(rb'(?:(?<!=)={20,}+|(?<!\*)\*{20,}+)(?=[ \t]*+(?:[\n"\r\x1e]|\Z))')
#: The first line of torchelastic's table, which begins with a ruler, ends so.
TABLE: Final = b" FAILED"
#: Bytes of other lines that may stand in between.
REACH: Final = 1 << 14
#: With these a line may say anything: escapes that are not taken out, fields that are lists of bytes.
_OPAQUE: Final = (b"\\\\u[0-9A-Fa-f]{4}", b"\\\\x[0-9a-f]{2}", b'"MESSAGE"[ \\t]*:[ \\t]*\\[')


def line_search(patterns: Sequence[str], *, always: bool = True) -> Search:
    """Return what raw lines must contain so that one of the patterns can match, except for `_LONG_S`.

    Args:
        patterns: RE2 expressions.
        always: also what every selector has to pick.
    """
    if not always:
        return search(patterns, lines=True, extra=FOLDING[1:])
    extra = (*FOLDING[1:], *(text for text in ALWAYS if text not in _RULERS))
    return search(patterns, lines=True, extra=extra, opaque=_OPAQUE)


class Selector:
    """Picks the lines in which a guard can match. One for each reader: a scan needs memory of its own.

    Args:
        database: of what `line_search` gives, reporting every match; None picks every line.
        escaped: lines are JSON.
        doubts: what to look at twice; None for nothing.
    """

    def __init__(self, database: ScanDatabase | None, *, escaped: bool = False, doubts: Doubts | None = None) -> None:
        self._doubts = doubts
        self._database = database
        self._escaped = escaped

    def __call__(self, block: bytes) -> Sequence[int] | None:
        if self._database is None:
            return None
        marked = lined(block)
        text = plain(marked, self._escaped or b'{"log":"' in block[:64])
        lines = self.lines(text, ends(text))
        if not len(lines):
            return []
        places: list[int] = np.minimum(lines_end(block, ends(marked), lines), len(block) - 1).tolist()
        return places

    def lines(self, text: bytes, borders: Array) -> Array:
        """Numbers of the lines in which a guard can match, and of those that are long, ascending.

        Args:
            text: whole lines.
            borders: where they end.
        """
        found: list[int] = []
        entries: list[int] = []
        self._scan(text, found, entries)
        others = long_lines(text) + rulers(text)
        # A single byte is found much sooner than two.
        if _LONG_S[:1] in text:
            others += [match.start() for match in re.finditer(_LONG_S, text)]
        if not found and not others:
            return _NONE
        lines = np.searchsorted(borders, np.array(found, np.intp))
        if self._doubts is not None and found:
            lines = self._doubts.holding(text, borders, lines, np.array(entries, np.intp))
        return np.unique(np.concatenate((lines, np.searchsorted(borders, np.array(others, np.intp)))))

    def _scan(self, text: bytes, found: list[int], entries: list[int]) -> None:
        database = self._database
        assert database is not None
        start = 0
        view = memoryview(text)
        while start < len(text):
            end = len(text)
            if end - start > PIECE:
                end = text.rfind(b"\n", start, start + PIECE) + 1 or text.find(b"\n", start + PIECE) + 1 or end
            database.scan(view[start:end], _collect, (found, start - 1, entries))
            start = end


def _collect(number: int, start: int, end: int, flags: int, context: tuple[list[int], int, list[int]]) -> None:
    context[0].append(context[1] + end)
    context[2].append(number)


def lined(block: bytes) -> bytes:
    """A block in which every line ends with a newline, as those of carriage returns alone do; bytes stay in place."""
    return block.replace(b"\r\n", b" \n").translate(_CARRIAGES) if b"\r" in block else block


def plain(block: bytes, escaped: bool) -> bytes:
    """A block without JSON escapes, terminal codes and NULs; with the same lines."""
    if escaped and b"\\" in block:
        block = _unescaped(block)
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if b"\x00" in block:
        block = block.replace(b"\x00", b"")
    return block


def _unescaped(block: bytes) -> bytes:
    """A block of JSON lines without NULs and escapes, but for those of characters that are not ASCII."""
    array = np.frombuffer(block + bytes(6), np.uint8)
    places = np.flatnonzero(array == _BACKSLASH)
    # Of several in a row, the first escapes the second.
    order = np.arange(len(places))
    begins = np.append(True, np.diff(places) > 1)
    places = places[(order - np.maximum.accumulate(np.where(begins, order, 0))) % 2 == 0]
    # What is left out becomes NUL first.
    text = array.copy()
    meant = _MEANT[array[places + 1]]
    simple = places[meant > 0]
    text[simple + 1] = meant[meant > 0]
    text[simple] = 0
    numbered = places[array[places + 1] == ord("u")]
    digits = _HEX[array[numbered[:, None] + np.arange(2, 6)]]
    ascii_only = (digits[:, :2] == 0).all(1) & (digits[:, 2] < 8) & (digits[:, 3] < 16)
    numbered, digits = numbered[ascii_only], digits[ascii_only]
    codes = digits[:, 2] << 4 | digits[:, 3]
    text[numbered + 5] = np.where((codes == 10) | (codes == 13), LINE_BREAK, codes)
    text[numbered[:, None] + np.arange(5)] = 0
    return text.tobytes().translate(None, b"\0")


def ends(block: bytes) -> Array:
    """Where lines end, in a block that is `lined`."""
    return np.flatnonzero(np.frombuffer(block, np.uint8) == 10)


def rulers(block: bytes) -> list[int]:
    """A place in every ruler below which a table of failures may begin; nobody knows what follows the block."""
    found: list[int] = []
    done = 0
    while done < len(block):
        table = block.find(TABLE, done)
        begin, end = done, len(block) if table < 0 else table + len(TABLE)
        begin = max(begin, end - REACH)
        if any(block.find(ruler, begin, end) >= 0 for ruler in _RULERS):
            found += [match.end() - 1 for match in _RULER.finditer(block, begin, end)]
        done = end
    return found


def long_lines(block: bytes) -> list[int]:
    """A place in every line that is long."""
    if len(block) < LONG_LINE:
        return []
    # No line is long where every stretch of half that length has an end.
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
