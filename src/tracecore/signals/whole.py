"""Files that are read as a whole, not line by line: small, structured, bounded."""

from __future__ import annotations

from tracecore.signals.stream import Stream


class TooLarge(ValueError):
    """A structured file is larger than anything honest."""


def content(stream: Stream, most: int) -> bytes:
    """All bytes of a stream.

    Raises:
        TooLarge: there are more than `most`.
    """
    parts: list[bytes] = []
    size = 0
    with stream.open() as file:
        while chunk := file.read(1 << 20):
            size += len(chunk)
            if size > most:
                raise TooLarge(f"larger than {most >> 20} MiB")
            parts.append(chunk)
    return b"".join(parts)
