"""Fingerprints of files: their first bytes identify them wherever they are moved to."""

from __future__ import annotations

import hashlib
import os
from typing import Final

import msgspec

from tracecore.signals.logs.tail.inflation import Inflation

GZIP: Final = b"\x1f\x8b"


class Fingerprint(msgspec.Struct, frozen=True, gc=False):
    """The first bytes of a file.

    Args:
        length: how many bytes.
        digest: their hash, which is what is compared and stored.
    """

    length: int
    digest: bytes

    def begins(self, data: bytes) -> bool:
        """Return whether these bytes begin as the file did."""
        return 0 < self.length <= len(data) and digest(data[: self.length]) == self.digest


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def of(data: bytes) -> Fingerprint:
    """The fingerprint of these first bytes."""
    return Fingerprint(len(data), digest(data))


def first_bytes(fd: int, size: int, compression: bool) -> tuple[bytes, bool]:
    """The first bytes of a file, decompressed where that is asked for, and whether it is compressed.

    A compressed file begins like the file it was made of, and so is known to be the same.
    """
    start = os.pread(fd, max(size, 64), 0)
    if not compression or not start.startswith(GZIP):
        return start[:size], False
    return Inflation(fd, 0, 0).read(size), True
