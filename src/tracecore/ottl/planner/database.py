"""Hyperscan databases that tell which of many guards can match a text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

import hyperscan
import msgspec

from tracecore.ottl.planner.expressions import Unreadable, parse
from tracecore.ottl.planner.literals import rarity, required
from tracecore.ottl.planner.widening import alternatives, to_hyperscan, to_line_end

#: Search for a literal instead of the whole expression if the literal is at least this rare (see `rarity`).
#: A thousand literals compile in the time of ten expressions, and the scan is faster.
MIN_LITERAL: Final = 6

is_literal: Final = re.compile(rb"(?:\\x[0-9a-f]{2})+").fullmatch


class Searched(msgspec.Struct, frozen=True):
    """One entry of a database.

    Args:
        expression: what Hyperscan searches for.
        flags: of Hyperscan.
        patterns: the patterns that can match only if this entry does; empty if any pattern may match then.
    """

    expression: bytes
    flags: int
    patterns: tuple[int, ...]


class Search(msgspec.Struct, frozen=True):
    """The expressions to search for, made from a list of patterns.

    Args:
        entries: the entries of the database, by id.
        open: patterns that cannot be searched for. They must be treated as matching every text.
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
    """Return the expressions to search for.

    Args:
        patterns: RE2 expressions.
        lines: search raw lines, not the text of a record.
        extra: byte strings; any pattern may match a text that contains one of them.
        literals: search for a literal that an expression requires instead of the expression, if it is rare enough.
        once_a_line: report each expression once for each raw line, at its end.
    """
    found: dict[tuple[bytes, int], list[int]] = {}
    unknown: list[int] = []
    for number, pattern in enumerate(patterns):
        wanted = _expressions_for(pattern, lines=lines, literals=literals, once_a_line=once_a_line)
        if wanted is None:
            unknown.append(number)
            continue
        for key in wanted:
            found.setdefault(key, []).append(number)
    if lines:
        _drop_longer_literals(found)
    for text in extra:
        found[_escaped(text), 0] = []
    entries = tuple(Searched(expression, flags, tuple(numbers)) for (expression, flags), numbers in found.items())
    return Search(entries, tuple(unknown))


def _expressions_for(pattern: str, *, lines: bool, literals: bool, once_a_line: bool) -> set[tuple[bytes, int]] | None:
    """Return expressions with their flags; wherever the pattern matches, at least one of them does."""
    try:
        branches = alternatives(parse(pattern), lines=lines)
    except (Unreadable, RecursionError):
        return None
    wanted: set[tuple[bytes, int]] = set()
    for branch in branches:
        strings = required(branch) if literals else None
        if strings is not None and all(rarity(text) >= MIN_LITERAL for text, _ in strings):
            for text, folded in strings:
                wanted.add((_escaped(text), hyperscan.HS_FLAG_CASELESS if folded else 0))
            continue
        expression = to_line_end(branch) if once_a_line else to_hyperscan(branch, lines=lines)
        if expression is None:
            return None
        wanted.add((expression, hyperscan.HS_FLAG_MULTILINE if lines else 0))
    return wanted


def _escaped(text: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in text)


def _drop_longer_literals(found: dict[tuple[bytes, int], list[int]]) -> None:
    """Remove literals that contain another one: the shorter literal selects every line that the longer one does."""
    literals = sorted((len(e), bytes.fromhex(e.replace(b"\\x", b"").decode()), f, e) for e, f in found if is_literal(e))
    exact: list[tuple[bytes, list[int]]] = []
    folded: list[tuple[bytes, list[int]]] = []
    for _, text, flags, expression in literals:
        lower = text.lower()
        shorter = next((numbers for known, numbers in exact if known in text), None) if not flags else None
        if shorter is None:
            shorter = next((numbers for known, numbers in folded if known in lower), None)
        numbers = found[expression, flags]
        if shorter is None:
            (folded if flags else exact).append((text, numbers))
        else:
            shorter.extend(number for number in numbers if number not in shorter)
            del found[expression, flags]


def compiled(wanted: Search, *, once: bool, alike: bool = False) -> tuple[Search, ScanDatabase]:
    """Compile a search. Entries that Hyperscan rejects are removed, and their patterns become `open`.

    Args:
        wanted: what to search for.
        once, alike: as for `ScanDatabase`.
    """
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
    """A compiled database. Two threads must not share one.

    Args:
        entries: what to search for; the position of an entry is its id.
        once: report each entry at most once in a scan.
        alike: give all entries the same id, so that matches that end at the same offset are reported once.
        serialised: the result of `dump` for the same entries; saves compiling them.
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
        """Return the compiled database as bytes, valid for this version of Hyperscan and this kind of processor."""
        return b"" if self._database is None else hyperscan.dumpb(self._database)

    def scan(
        self, data: bytes | memoryview, handler: Callable[[int, int, int, int, Any], Any], context: Any = None
    ) -> None:
        """Call `handler(id, 0, end, flags, context)` for each match until it returns something true."""
        if self._database is not None and data:
            try:
                # The binding declares bytes but accepts any buffer.
                self._database.scan(cast("bytes", data), match_event_handler=handler, context=context)
            except hyperscan.ScanTerminated:
                return
