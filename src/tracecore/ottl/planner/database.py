"""A Hyperscan database for many guards: which of them can match a text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import hyperscan
import msgspec

from tracecore.ottl.planner.expressions import FOLDING, Unreadable, parse
from tracecore.ottl.planner.literals import Literal, required
from tracecore.ottl.planner.widening import for_lines, for_text, one_line

#: A literal at least this long is searched for in the place of the expression that needs it: long literals are rare
#: enough in logs, and a thousand of them compile in the time of ten expressions.
MIN_LITERAL: Final = 6

_ESCAPED: Final = tuple(b"\\x%02x" % byte for byte in range(256))


class Searched(msgspec.Struct, frozen=True):
    """One entry of a database, and the patterns that can match only where it does; none where all may match then."""

    expression: bytes
    flags: int
    patterns: tuple[int, ...]


class Search(msgspec.Struct, frozen=True):
    """What is searched for, for a list of patterns.

    Args:
        entries: of the database, by id.
        open: patterns of which nothing can be searched for; they have to be taken as matching anywhere.
    """

    entries: tuple[Searched, ...]
    open: tuple[int, ...]


def search(
    patterns: Sequence[str], *, lines: bool, extra: Iterable[bytes] = (), opaque: Iterable[bytes] = ()
) -> Search:
    """What to search for.

    Args:
        patterns: RE2 expressions.
        lines: in raw lines, not in the text of a record.
        extra: byte strings with which any pattern may match.
        opaque: the same as expressions of Hyperscan's.
    """
    found: dict[tuple[bytes, int], list[int]] = {}
    unknown: list[int] = []
    for number, pattern in enumerate(patterns):
        literals = _literals(pattern, lines=lines)
        if literals is not None:
            for text, folded in literals:
                expression = b"".join(_ESCAPED[byte] for byte in text)
                found.setdefault((expression, hyperscan.HS_FLAG_CASELESS if folded else 0), []).append(number)
            continue
        written = for_lines(pattern) if lines else for_text(pattern)
        if written is None or not _compiles(written, lines):
            unknown.append(number)
        else:
            found.setdefault((written, hyperscan.HS_FLAG_MULTILINE if lines else 0), []).append(number)
    for text in extra:
        found[b"".join(_ESCAPED[byte] for byte in text), 0] = []
    for written in opaque:
        found[written, 0] = []
    entries = tuple(Searched(written, flags, tuple(numbers)) for (written, flags), numbers in found.items())
    return Search(entries, tuple(unknown))


def _literals(pattern: str, *, lines: bool) -> frozenset[Literal] | None:
    try:
        node = parse(pattern)
        strings = required(one_line(node) if lines else node)
    except (Unreadable, RecursionError):
        return None
    if strings is None or min(len(text) for text, _ in strings) < MIN_LITERAL:
        return None
    if lines and any(b"\n" in text or b"\r" in text for text, _ in strings):
        return None
    return strings


def _compiles(expression: bytes, lines: bool) -> bool:
    try:
        _compile([expression], [hyperscan.HS_FLAG_MULTILINE if lines else 0])
    except hyperscan.error:
        return False
    return True


def _compile(expressions: Sequence[bytes], flags: Sequence[int]) -> hyperscan.Database:
    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    database.compile(expressions=list(expressions), ids=list(range(len(expressions))), flags=list(flags))
    return database


class Database:
    """A compiled database. Not for two threads at a time: each needs its own.

    Args:
        entries: what to search for; their place is their id.
        once: report each entry at most once in a scan.
        serialised: what `dump` gave for the same entries, to save compiling.
    """

    def __init__(self, entries: Sequence[Searched], *, once: bool, serialised: bytes | None = None) -> None:
        single = hyperscan.HS_FLAG_SINGLEMATCH if once else 0
        self._database: hyperscan.Database | None = None
        if serialised is not None:
            self._database = hyperscan.loadb(serialised, hyperscan.HS_MODE_BLOCK)
            self._database.scratch = hyperscan.Scratch(self._database)
        elif entries:
            self._database = _compile([e.expression for e in entries], [e.flags | single for e in entries])

    def dump(self) -> bytes:
        """The compiled database as bytes, for this version of Hyperscan and this kind of processor."""
        return b"" if self._database is None else hyperscan.dumpb(self._database)

    def scan(self, data: bytes, handler: Callable[[int, int, int, int, Any], Any], context: Any = None) -> None:
        """Calls `handler(id, 0, end, flags, context)` for each match, until it gives something true."""
        if self._database is not None and data:
            try:
                self._database.scan(data, match_event_handler=handler, context=context)
            except hyperscan.ScanTerminated:
                return


__all__ = ["FOLDING", "Database", "Search", "Searched", "search"]
