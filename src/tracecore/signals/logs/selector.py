"""Selectors choose the lines of raw blocks that are parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard

from tracecore.signals.logs.blocks import Block

if TYPE_CHECKING:
    from tracecore.signals.arrays import np

#: A line with one of these opens a multi-line block.
OPENERS = (
    b"Traceback (most recent call last)",
    b"Exception ignored ",
    b"--- Logging error ---",
    b"Error in atexit._run_exitfuncs",
    b"====================",
    b"********************",
    b"Fatal Python error:",
    b" (most recent call first):",
    b'): "MainThread"',
    b"invoked oom-killer:",
    b" (local_rank: ",
)

#: The launcher reports that its workers failed. What workers print later belongs to the next attempt.
FAILED_GROUP = b"failed (exitcode:"
#: The launcher starts its workers again.
RESTARTS = b"will restart worker group"
#: Container runtimes cut long lines. What a selector searches for may lie across the cut.
PARTIALS = (b" stdout P", b" stderr P")
#: Every selector picks lines with one of these.
ALWAYS = (*OPENERS, FAILED_GROUP, RESTARTS, *PARTIALS)


class LoneLine(NamedTuple):
    """A line that is a record by itself. It may stand for similar lines that follow it.

    Args:
        raw: without its terminator.
        offset: in the stream.
        line: its number.
        until: the last line that it stands for; None if it stands only for itself.
        lines: how many lines it stands for.
        event: it is not progress.
    """

    raw: bytes
    offset: int
    line: int
    until: bytes | None = None
    lines: int = 1
    event: bool = False


class Picked(list[int]):
    """Picked positions, and what else the selector knows about the block.

    Args:
        newlines: where the newlines are, so that the reader need not count them.
        reports: lines of this and earlier blocks that are handed on besides the positions.
        counts: for multi-line blocks that stand for repeated ones, their count by the offset of the first line.
        lines: the count of newlines, if only that is known.
    """

    __slots__ = ("counts", "lines", "newlines", "reports")

    def __init__(
        self,
        positions: Sequence[int],
        newlines: np.ndarray[tuple[int], np.dtype[np.int64]] | None,
        reports: Sequence[LoneLine] = (),
        lines: int | None = None,
        counts: Mapping[int, int] | None = None,
    ) -> None:
        super().__init__(positions)
        self.counts = counts or {}
        self.lines = lines
        self.newlines = newlines
        self.reports = reports


class Selector(Protocol):
    """Picks candidate lines of a block of raw bytes.

    The block has whole lines as they are in the file, with container prefixes and escapes. The result is ascending
    positions, each anywhere in a candidate line or on its terminator, such as the end of a match. Several positions in
    one line are one candidate. None selects every line. The answer for a line must not depend on where blocks begin
    and end. Lines with one of `ALWAYS` must be picked.
    """

    def __call__(self, block: bytes) -> Sequence[int] | None: ...


class Reporting(Protocol):
    """A selector that holds reports back until it knows which lines they stand for."""

    #: Shapes that it read differently from the recipes. It does not use them any more.
    refused: int

    def take(self, block: Block) -> Picked:
        """Select the lines of a block, with reports."""
        ...

    def finish(self) -> Sequence[LoneLine]:
        """Return the lines it still holds, at the end of the stream."""
        ...


@cache
def _reports(kind: type) -> bool:
    return hasattr(kind, "take") and hasattr(kind, "finish")


def reports(selector: Selector) -> TypeGuard[Reporting]:
    """Whether a selector holds reports back. `isinstance` with a protocol costs more than reading a small file."""
    return _reports(type(selector))


class Selectors(Protocol):
    """Gives every followed file its own selector, which may remember earlier blocks."""

    def of(self, file: int) -> Selector: ...


class SelectAll:
    """Selects every line."""

    def __call__(self, block: bytes) -> None:
        return None


class SelectLiterals:
    """Selects lines with one of some byte strings, or one of `ALWAYS`."""

    def __init__(self, literals: Sequence[bytes]) -> None:
        self._literals = tuple(dict.fromkeys((*literals, *ALWAYS)))

    def __call__(self, block: bytes) -> Sequence[int]:
        found: list[int] = []
        for literal in self._literals:
            at = block.find(literal)
            while at >= 0:
                found.append(at)
                at = block.find(literal, at + len(literal))
        found.sort()
        return found
