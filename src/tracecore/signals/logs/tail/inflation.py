"""A compressed file as a stream of its bytes, in pieces of bounded size."""

from __future__ import annotations

import os
import zlib
from typing import Final

_CHUNK: Final = 1 << 16


class Inflation:
    """Reads gzip members one after the other.

    Args:
        fd: the file.
        base: where in the file the first member begins.
        skip: how many decompressed bytes to leave out.
    """

    def __init__(self, fd: int, base: int, skip: int) -> None:
        self._fd = fd
        self._at = base
        self._inflater = zlib.decompressobj(wbits=31)
        self._input = b""
        self._back = b""
        self.position = 0
        self.damaged = False
        while self.position < skip:
            if not self.read(min(skip - self.position, _CHUNK)):
                break

    def read(self, size: int) -> bytes:
        """At most so many bytes; none at the end of what is there."""
        out = [self._back[:size]]
        missing = size - len(out[0])
        self._back = self._back[size:]
        while missing and not self.damaged:
            if not self._input:
                self._input = os.pread(self._fd, _CHUNK, self._at)
                self._at += len(self._input)
                if not self._input:
                    break
            if self._inflater.eof:
                self._inflater = zlib.decompressobj(wbits=31)
            try:
                got = self._inflater.decompress(self._input, missing)
            except zlib.error:
                # What comes after cannot be made sense of; what came before stands.
                self.damaged = True
                break
            self._input = self._inflater.unused_data if self._inflater.eof else self._inflater.unconsumed_tail
            out.append(got)
            missing -= len(got)
        data = b"".join(out)
        self.position += len(data)
        return data

    def give_back(self, data: bytes) -> None:
        """The last bytes that were read are to be read again."""
        self._back = data + self._back
        self.position -= len(data)
