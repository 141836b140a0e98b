"""Bytes of a file into entries: at line ends, or where a pattern says that an entry begins or ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import re2

from tracecore.signals.logs.tail.config import NOP, FileLogConfig, codec

#: Takes bytes, how many of them are the most for one entry, and whether no more will come now.
#: Gives the entries, where each begins (the last number is where the next will), and leaves the rest.
Splitter: TypeAlias = Callable[[bytes, int], tuple[Sequence[bytes], Sequence[int]]]

_BLANK = b" \t\r\n"


def splitter(config: FileLogConfig, *, scanned: bool = False) -> Splitter:
    """The function that cuts the bytes of files, as configured.

    Args:
        scanned: hardly any entry will be asked for.
    """
    if config.encoding in NOP:
        return whole
    lines = config.multiline
    if lines.line_start_pattern:
        return _at_starts(_compiled(lines.line_start_pattern), lines.omit_pattern)
    if lines.line_end_pattern:
        return _at_ends(_compiled(lines.line_end_pattern), lines.omit_pattern)
    newline = "\n".encode(codec(config.encoding))
    if newline == b"\n":
        return on_demand if scanned else at_newlines
    return _at(newline, "\r".encode(codec(config.encoding)))


def trimmer(config: FileLogConfig) -> Callable[[bytes], bytes]:
    """The function that removes blanks around an entry, as configured."""
    if config.encoding in NOP or (config.preserve_leading_whitespaces and config.preserve_trailing_whitespaces):
        return lambda token: token
    if config.preserve_leading_whitespaces:
        return lambda token: token.rstrip(_BLANK)
    if config.preserve_trailing_whitespaces:
        return lambda token: token.lstrip(_BLANK)
    return lambda token: token.strip(_BLANK)


def at_newlines(data: bytes, most: int) -> tuple[list[bytes], list[int]]:
    """Lines, without their ends; one longer than the most comes in pieces."""
    last = data.rfind(b"\n") + 1
    if not last:
        return [], [0]
    tokens = data[: last - 1].split(b"\n")
    starts = [0]
    at = 0
    for token in tokens:
        at += len(token) + 1
        starts.append(at)
    if b"\r" in data:
        tokens = [token[:-1] if token.endswith(b"\r") else token for token in tokens]
    if last > most:
        return pieces(tokens, starts, most)
    return tokens, starts


def on_demand(data: bytes, most: int) -> tuple[Sequence[bytes], Sequence[int]]:
    """The same, where hardly any line will be asked for."""
    from tracecore.signals.logs.tail.lines import lines

    return at_newlines(data, most) if _exceeds(data, most) else lines(data)


def _exceeds(data: bytes, most: int) -> bool:
    """Whether a whole line is longer than the most: then there is a place after which no line ends for so long."""
    at, last = 0, data.rfind(b"\n")
    while last - at > most:
        end = data.rfind(b"\n", at, at + most + 1)
        if end < 0:
            return True
        at = end + 1
    return False


def pieces(tokens: list[bytes], starts: list[int], most: int) -> tuple[list[bytes], list[int]]:
    """The same entries, those that are too long in pieces of the most there may be."""
    if all(len(token) <= most for token in tokens):
        return tokens, starts
    cut: list[bytes] = []
    places: list[int] = []
    for token, start in zip(tokens, starts, strict=False):
        for at in range(0, max(len(token), 1), most):
            cut.append(token[at : at + most])
            places.append(start + at)
    return cut, [*places, starts[-1]]


def whole(data: bytes, most: int) -> tuple[list[bytes], list[int]]:
    """Return the whole text, in pieces of at most the largest size."""
    places = list(range(0, len(data), most))
    return [data[at : at + most] for at in places], [*places, len(data)]


#: Where an entry begins and ends, and where the next one begins.
_Cut: TypeAlias = tuple[int, int, int]


def _cutting(cuts: Callable[[bytes], Iterator[_Cut]]) -> Splitter:
    def split(data: bytes, most: int) -> tuple[list[bytes], list[int]]:
        tokens: list[bytes] = []
        starts = [0]
        for begin, end, following in cuts(data):
            tokens.append(data[begin:end])
            starts.append(following)
        return pieces(tokens, starts, most) if starts[-1] > most else (tokens, starts)

    return split


def _at(newline: bytes, carriage: bytes) -> Splitter:
    def cuts(data: bytes) -> Iterator[_Cut]:
        at = 0
        while True:
            end = data.find(newline, at)
            # In a wide encoding a newline may only stand where a character begins.
            while end >= 0 and (end - at) % len(newline):
                end = data.find(newline, end + 1)
            if end < 0:
                return
            following = end + len(newline)
            yield at, end - len(carriage) if data[at:end].endswith(carriage) else end, following
            at = following

    return _cutting(cuts)


def _at_starts(pattern: re2._Regexp[bytes], omit: bool) -> Splitter:
    def cuts(data: bytes) -> Iterator[_Cut]:
        begin = end = -1
        for match in pattern.finditer(data):
            if begin < 0:
                if match.start():  # what stands before the first beginning is an entry, too
                    yield 0, match.start(), match.start()
            elif match.start() > end:
                yield end if omit else begin, match.start(), match.start()
            else:
                continue
            begin, end = match.span()

    return _cutting(cuts)


def _at_ends(pattern: re2._Regexp[bytes], omit: bool) -> Splitter:
    def cuts(data: bytes) -> Iterator[_Cut]:
        at = 0
        for match in pattern.finditer(data):
            if match.end() > at:
                yield at, match.start() if omit else match.end(), match.end()
                at = match.end()

    return _cutting(cuts)


def _compiled(pattern: str) -> re2._Regexp[bytes]:
    return re2.compile(f"(?m)(?:{pattern})".encode())
