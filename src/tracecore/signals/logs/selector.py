"""The choice of lines that can matter, made on raw blocks before anything is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeGuard

from tracecore.signals.logs.blocks import Block

if TYPE_CHECKING:
    from tracecore.signals.arrays import np

#: Lines with one of these open a multi-line block. Without them the block is read as single lines.
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

#: The launcher says that its workers failed: what workers print after it is the next attempt.
FAILED_GROUP = b"failed (exitcode:"
#: Container runtimes cut long lines: what a selector looks for may lie across the cut.
PARTIALS = (b" stdout P", b" stderr P")
#: What every selector has to pick, whatever it looks for.
ALWAYS = (*OPENERS, FAILED_GROUP, *PARTIALS)


class LoneLine(NamedTuple):
    """A line that stands alone. It may stand for others of its kind that followed it.

    Args:
        raw: without its terminator.
        offset: in the stream.
        line: its number.
        until: the last line it stands for; None where it stands for itself.
        lines: how many lines these are, as far as they were looked at.
        event: it is no progress.
    """

    raw: bytes
    offset: int
    line: int
    until: bytes | None = None
    lines: int = 1
    event: bool = False


class Picked(list[int]):
    """Positions, and what else a selector knows.

    Args:
        newlines: where the newlines of the block are: they are not counted again then.
        reports: lines of this block and of those before it that need no position.
        counts: by where it begins, how many blocks of lines the one that begins there stands for.
        lines: how many newlines there are, where that is known and not where.
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

    It gets whole lines (the block ends on a line border) as they are in the file, container prefixes and escapes
    included, and returns ascending positions, each anywhere inside a candidate line or on its terminator (the end of a
    match will do); several positions in one line are one candidate. None selects every line. The answer for a line
    must depend on that line alone, so that block borders do not matter. Lines with one of `ALWAYS` are to be picked
    in any case.
    """

    def __call__(self, block: bytes) -> Sequence[int] | None: ...


class Reporting(Protocol):
    """A selector that keeps reports back until it knows what they stand for."""

    #: Kinds of lines of which it read something else than recipes do; it leaves them alone since then.
    refused: int

    def take(self, block: Block) -> Picked:
        """The same as for the block's bytes, with reports."""
        ...

    def finish(self) -> Sequence[LoneLine]:
        """Return the lines it still holds, at the end of the stream."""
        ...


@cache
def _reports(kind: type) -> bool:
    return hasattr(kind, "take") and hasattr(kind, "finish")


def reports(selector: Selector) -> TypeGuard[Reporting]:
    """Whether a selector keeps reports back. To ask a protocol costs more than a small file."""
    return _reports(type(selector))


class Selectors(Protocol):
    """Gives every file that is followed a selector of its own, one that may remember what it saw."""

    def of(self, file: int) -> Selector: ...


class SelectAll:
    """Every line is a candidate."""

    def __call__(self, block: bytes) -> None:
        return None


class SelectLiterals:
    """Lines that contain one of some byte strings, or one of `ALWAYS`."""

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
