"""Candidate lines of raw blocks: those that hold what some guard needs, found by one scan before anything is parsed.

Around the text of a line there may be a container runtime's wrapping, a launcher's prefix, terminal codes and JSON
escapes. Prefixes are allowed for in what is searched for (`widening.for_lines`). Codes and escapes are taken out of the
block first; that moves bytes but no line ends, so that a line is found again by its number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from tracecore.ottl.planner.database import FOLDING, ScanDatabase, Search, search
from tracecore.ottl.planner.doubts import Array, Doubts, lines_end
from tracecore.ottl.planner.widening import LINE_BREAK
from tracecore.signals import compiled
from tracecore.signals.arrays import distinct, np
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
_ESCAPE: Final = re.compile(rb'\\(?:(["/\\tbfnr])|u([0-9A-Fa-f]{4}))')
_MEANT: Final = dict(zip(b'"/\\tbfnr', b'"/\\\t\b\f\n\n', strict=True))
_ANSI: Final = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
#: What opens a table of failures; one of twenty is found as often as it is long.
_RULERS: Final = tuple(text for text in ALWAYS if len(set(text)) == 1)
_REST_OF_RULER: Final = re.compile(rb'(?:=++|\*++)([ \t]*+(?:[\n"\r\x1e]|\Z))?')
#: The first line of torchelastic's table, which begins with a ruler, ends so.
TABLE: Final = b" FAILED"
#: Bytes of other lines that may stand in between.
REACH: Final = 1 << 14
#: What readers of kernel logs and journals decode: with these a line may say anything.
_OPAQUE: Final = re.compile(rb'\\x[0-9a-f]{2}|"MESSAGE"[ \t]*:[ \t]*\[')


def line_search(patterns: Sequence[str], *, always: bool = True) -> Search:
    """Return what raw lines must contain so that one of the patterns can match, except for `_LONG_S`.

    Args:
        patterns: RE2 expressions.
        always: also what every selector has to pick.
    """
    extra = (*FOLDING[1:], *(text for text in ALWAYS if text not in _RULERS)) if always else FOLDING[1:]
    return search(patterns, lines=True, extra=extra)


class Selector:
    """Picks the lines in which a guard can match. One for each reader: a scan needs memory of its own.

    Args:
        databases: of what `line_search` gives, reporting every match; without any, every line is picked.
        escaped: lines are JSON.
        opaque: the reader decodes more than terminal codes and JSON.
        doubts: what to look at twice of the finds of a single database; None for nothing.
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
        if self._opaque:
            others += [match.start() for match in _OPAQUE.finditer(text)]
        if not found and not others:
            return _NONE
        lines = np.searchsorted(borders, np.array(found, np.intp))
        if self._doubts is not None and found:
            lines = self._doubts.holding(text, borders, lines, np.array(entries, np.intp))
        return distinct(np.concatenate((lines, np.searchsorted(borders, np.array(others, np.intp)))))

    def _scan(self, text: bytes, found: list[int], entries: list[int]) -> None:
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
    """A block in which every line ends with a newline, as those of carriage returns alone do; bytes stay in place."""
    if b"\r" not in block:
        return block
    if compiled.part is not None:
        return compiled.part.lined(block)
    return block.replace(b"\r\n", b" \n").translate(_CARRIAGES)


def plain(block: bytes, escaped: bool) -> bytes:
    """A block without JSON escapes, terminal codes and NULs; with the same lines."""
    escaped = escaped and b"\\" in block
    if compiled.part is not None:
        odd = escaped or b"\x1b" in block or b"\x00" in block
        return compiled.part.plain(block, escaped, LINE_BREAK) if odd else block
    if escaped:
        block = _ESCAPE.sub(_meant, block).replace(b"\x00", b"")
    if b"\x1b" in block:
        block = _ANSI.sub(b"", block)
    if b"\x00" in block:
        block = block.replace(b"\x00", b"")
    return block


def _meant(match: re.Match[bytes]) -> bytes:
    """Return the character that an escape stands for; no line ends where one was escaped.

    Half of a pair of surrogates may be part of anything: a line with one is a candidate.
    """
    simple, code = match.groups()
    meant = int(code, 16) if simple is None else _MEANT[simple[0]]
    if meant in (10, 13):
        return _BREAK
    return _LONG_S if 0xD800 <= meant < 0xE000 else chr(meant).encode()


def ends(block: bytes) -> Array:
    """Where lines end, in a block that is `lined`."""
    if compiled.part is not None:
        return compiled.part.line_ends(block)
    return np.flatnonzero(np.frombuffer(block, np.uint8) == 10)


def rulers(block: bytes) -> list[int]:
    """A place in every ruler below which a table of failures may begin; nobody knows what follows the block."""
    found: list[int] = []
    done = 0
    while done < len(block):
        table = find(block, TABLE, done)
        begin, end = done, len(block) if table < 0 else table + len(TABLE)
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
    """`bytes.find`."""
    return block.find(literal, begin) if compiled.part is None else compiled.part.find(block, literal, begin)


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
