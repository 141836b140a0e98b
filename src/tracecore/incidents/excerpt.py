"""Quoting: the lines a fact was read from, as they stand in the file, made harmless for a screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
import re2

from tracecore.signals.bundle import archive

if TYPE_CHECKING:
    from tracecore.signals.bundle.discovery import Bundle
    from tracecore.signals.record import Source

#: Bytes read for one quotation, and lines shown of it.
_BYTES: Final = 16 * 1024
_LINES: Final = 8
_WIDTH: Final = 400
#: Bytes passed over to reach a quotation in a file that cannot be entered in the middle.
_REACH: Final = 256 << 20

_ESCAPES: Final = re2.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROL: Final[dict[int, str | None]] = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code != 9
}
#: Marks that turn the direction of text around would let a log line dress up as another.
_CONTROL.update(dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x2028, 0x2029)))


class Excerpt(msgspec.Struct, frozen=True):
    """Lines of a file.

    Args:
        place: `file:line` of the first line shown.
        lines: harmless on a screen, long ones cut.
        left_out: lines of the same record before these that are not shown.
    """

    place: str
    lines: tuple[str, ...]
    left_out: int = 0


def excerpt(bundle: Bundle, source: Source) -> Excerpt | None:
    """The lines at this source, of a long block the last; None where it is no text or can no longer be read."""
    if not source.line or source.length <= 0:
        return None
    stream = next((stream for stream in bundle.streams if stream.path == source.path), None)
    if stream is None:
        return None
    length = min(source.length, 1 << 22)
    begin = source.offset + max(0, length - _BYTES)
    try:
        with stream.open() as file:
            before = _enter(file, source.offset, begin)
            raw = _exactly(file, min(length, _BYTES))
    except archive.ERRORS:
        return None
    lines = harmless(raw.decode("utf-8", "replace")).split("\n")
    number = source.line + before
    if begin > source.offset and len(lines) > 1:
        lines, number = lines[1:], number + 1
    while len(lines) > 1 and not lines[-1].strip():
        lines.pop()
    left_out = max(0, len(lines) - _LINES)
    lines, number = lines[left_out:], number + left_out
    return Excerpt(f"{source.path}:{number}", tuple(line[:_WIDTH].rstrip() for line in lines), number - source.line)


def _enter(file: BinaryIO, start: int, begin: int) -> int:
    """Go to `begin`; the lines between `start` and there."""
    if file.seekable():
        file.seek(start)
    else:
        if start > _REACH:
            raise ValueError("too far into a compressed file")
        _pass(file, start)
    return _pass(file, begin - start)


def _pass(file: BinaryIO, count: int) -> int:
    lines = 0
    while count > 0:
        chunk: bytes = file.read(min(count, 1 << 20))
        if not chunk:
            break
        lines += chunk.count(b"\n")
        count -= len(chunk)
    return lines


def _exactly(file: BinaryIO, count: int) -> bytes:
    parts: list[bytes] = []
    while count > 0:
        chunk: bytes = file.read(count)
        if not chunk:
            break
        parts.append(chunk)
        count -= len(chunk)
    return b"".join(parts)


def harmless(text: str) -> str:
    """Text that cannot move a cursor, change a colour or turn around: escapes go, line breaks and tabs stay."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return "\n".join(line.translate(_CONTROL) for line in _ESCAPES.sub("", text).split("\n"))
