"""Errors of a statement, with the place in its text."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Characters of a line that an error quotes.
QUOTED = 160


class OttlError(Exception):
    """Anything a statement did wrong.

    Args:
        message: what is wrong, without the place.
        source: the text of the statement; empty until the compiler or runner that knows it fills it in.
        offset: index into `source` of the first wrong character; -1 where no character is to blame.
        hint: what may have been meant.
    """

    def __init__(self, message: str, source: str = "", offset: int = -1, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.source = source
        self.offset = offset
        self.hint = hint

    @property
    def line(self) -> int:
        """1-based line of the error; 0 where no place is known."""
        return self.source.count("\n", 0, self.offset) + 1 if self.offset >= 0 else 0

    @property
    def column(self) -> int:
        """1-based column, in characters; 0 where no place is known."""
        return self.offset - (self.source.rfind("\n", 0, self.offset) + 1) + 1 if self.offset >= 0 else 0

    def locate(self, source: str, offset: int) -> OttlError:
        """Say where it happened, unless something closer to it already did."""
        if self.offset < 0:
            self.source, self.offset = source, offset
        return self

    def render(self) -> str:
        """The error for people: the message, the line it is about, a caret under the character."""
        text = self.message + (f" ({self.hint})" if self.hint else "")
        if self.offset < 0:
            return text
        lines = self.source.split("\n")
        quoted = lines[min(self.line, len(lines)) - 1].replace("\t", " ")
        # Of a very long line the part around the place is enough.
        begin = max(0, self.column - 1 - QUOTED // 2) if len(quoted) > QUOTED else 0
        before, after = "…" if begin else "", "…" if len(quoted) > begin + QUOTED else ""
        shown = f"{before}{quoted[begin : begin + QUOTED]}{after}"
        return f"{self.line}:{self.column}: {text}\n    {shown}\n    {' ' * (len(before) + self.column - 1 - begin)}^"

    def __str__(self) -> str:
        place = f"{self.line}:{self.column}: " if self.offset >= 0 else ""
        return place + self.message + (f" ({self.hint})" if self.hint else "")


class OttlSyntaxError(OttlError):
    """The text is not a statement of the language."""


class OttlCompileError(OttlError):
    """The statement is well formed, and names or combines what does not exist or does not fit."""


class OttlRuntimeError(OttlError):
    """A statement failed on one record."""


class OttlTypeError(OttlRuntimeError):
    """A value was not of the type a function or path wants."""


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean "x"?` for the known name closest to a wrong one; empty when none is close."""
    names = list(known)
    folded = {candidate.lower(): candidate for candidate in reversed(names)}
    close = difflib.get_close_matches(name.lower(), list(folded), n=1, cutoff=0.6)
    return f'did you mean "{folded[close[0]]}"?' if close else ""
