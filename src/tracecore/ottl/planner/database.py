"""A Hyperscan database for many guards: which of them can match a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import hyperscan
import msgspec

from tracecore.ottl.planner.expressions import FOLDING, Unreadable, parse
from tracecore.ottl.planner.literals import rarity, required
from tracecore.ottl.planner.widening import alternatives, to_line_end, written

#: A literal at least this rare is searched for in the place of the expression that needs it: a thousand literals
#: compile in the time of ten expressions, and are found sooner.
MIN_LITERAL: Final = 6

_ESCAPED: Final = tuple(b"\\x%02x" % byte for byte in range(256))
is_literal: Final = re.compile(rb"(?:\\x[0-9a-f]{2})+").fullmatch


class Searched(msgspec.Struct, frozen=True):
    """One entry of a database, and the patterns that can match only where it does; none where all may match then."""

    expression: bytes
    flags: int
    patterns: tuple[int, ...]


class Search(msgspec.Struct, frozen=True):
    """The expressions to search for, for a list of patterns.

    Args:
        entries: of the database, by id.
        open: patterns of which nothing can be searched for; they have to be taken as matching anywhere.
    """

    entries: tuple[Searched, ...]
    open: tuple[int, ...]


def search(
    patterns: Sequence[str],
    *,
    lines: bool,
    extra: Iterable[bytes] = (),
    literals: bool = True,
    once_a_line: bool = False,
) -> Search:
    """The expressions to search for.

    Args:
        patterns: RE2 expressions.
        lines: in raw lines, not in the text of a record.
        extra: byte strings with which any pattern may match.
        literals: a literal that an expression needs is searched for in its place, where it is long enough.
        once_a_line: report each expression once for each raw line, at its end.
    """
    found: dict[tuple[bytes, int], list[int]] = {}
    unknown: list[int] = []
    for number, pattern in enumerate(patterns):
        wanted = _wanted(pattern, lines=lines, shortened=literals, whole=once_a_line)
        if wanted is None:
            unknown.append(number)
            continue
        for key in wanted:
            found.setdefault(key, []).append(number)
    if lines:
        _only_shortest(found)
    for text in extra:
        found[b"".join(_ESCAPED[byte] for byte in text), 0] = []
    entries = tuple(Searched(expression, flags, tuple(numbers)) for (expression, flags), numbers in found.items())
    return Search(entries, tuple(unknown))


def _wanted(pattern: str, *, lines: bool, shortened: bool, whole: bool) -> set[tuple[bytes, int]] | None:
    """Expressions with their flags, one of which is found wherever the pattern matches."""
    try:
        branches = alternatives(parse(pattern), lines=lines)
    except (Unreadable, RecursionError):
        return None
    wanted: set[tuple[bytes, int]] = set()
    for branch in branches:
        literals = required(branch) if shortened else None
        if literals is not None and all(rarity(text) >= MIN_LITERAL for text, _ in literals):
            for text, folded in literals:
                escaped = b"".join(_ESCAPED[byte] for byte in text)
                wanted.add((escaped, hyperscan.HS_FLAG_CASELESS if folded else 0))
            continue
        expression = to_line_end(branch) if whole else written(branch, lines=lines)
        if expression is None:
            return None
        wanted.add((expression, hyperscan.HS_FLAG_MULTILINE if lines else 0))
    return wanted


def _only_shortest(found: dict[tuple[bytes, int], list[int]]) -> None:
    """Leaves out literals that contain another: where only the line matters, the shorter one says as much."""
    literals = sorted((len(e), bytes.fromhex(e.replace(b"\\x", b"").decode()), f, e) for e, f in found if is_literal(e))
    kept: list[tuple[bytes, list[int]]] = []
    folded: list[tuple[bytes, list[int]]] = []
    for _, text, flags, expression in literals:
        low = text.lower()
        inside = next((numbers for known, numbers in kept if known in text), None) if not flags else None
        if inside is None:
            inside = next((numbers for known, numbers in folded if known in low), None)
        numbers = found[expression, flags]
        if inside is None:
            (folded if flags else kept).append((text, numbers))
        else:
            inside.extend(number for number in numbers if number not in inside)
            del found[expression, flags]


def compiled(wanted: Search, *, once: bool, alike: bool = False) -> tuple[Search, ScanDatabase]:
    """The database of a search. What Hyperscan cannot search for is taken out, and its patterns are open then."""
    try:
        return wanted, ScanDatabase(wanted.entries, once=once, alike=alike)
    except hyperscan.error:
        good: list[Searched] = []
        unknown = set(wanted.open)
        for entry in wanted.entries:
            try:
                ScanDatabase([entry], once=once)
                good.append(entry)
            except hyperscan.error:
                unknown.update(entry.patterns)
        usable = Search(tuple(good), tuple(sorted(unknown)))
        return usable, ScanDatabase(usable.entries, once=once, alike=alike)


class ScanDatabase:
    """A compiled database. Not for two threads at a time: each needs its own.

    Args:
        entries: what to search for; their place is their id.
        once: report each entry at most once in a scan.
        alike: all have one id, so what ends at one place is reported once.
        serialised: what `dump` gave for the same entries, to save compiling.
    """

    def __init__(
        self, entries: Sequence[Searched], *, once: bool, alike: bool = False, serialised: bytes | None = None
    ) -> None:
        single = hyperscan.HS_FLAG_SINGLEMATCH if once else 0
        self._database: hyperscan.Database | None = None
        if serialised:
            self._database = hyperscan.loadb(serialised, hyperscan.HS_MODE_BLOCK)
            self._database.scratch = hyperscan.Scratch(self._database)
        elif entries:
            self._database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
            self._database.compile(
                expressions=[entry.expression for entry in entries],
                ids=[0] * len(entries) if alike else list(range(len(entries))),
                flags=[entry.flags | single for entry in entries],
            )

    def dump(self) -> bytes:
        """The compiled database as bytes, for this version of Hyperscan and this kind of processor."""
        return b"" if self._database is None else hyperscan.dumpb(self._database)

    def scan(
        self, data: bytes | memoryview, handler: Callable[[int, int, int, int, Any], Any], context: Any = None
    ) -> None:
        """Calls `handler(id, 0, end, flags, context)` for each match, until it gives something true."""
        if self._database is not None and data:
            try:
                # Any buffer will do, whatever the binding declares.
                self._database.scan(cast("bytes", data), match_event_handler=handler, context=context)
            except hyperscan.ScanTerminated:
                return


__all__ = ["FOLDING", "ScanDatabase", "Search", "Searched", "search"]
