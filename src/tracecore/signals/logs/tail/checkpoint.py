"""Positions up to which files were read and delivered, kept over restarts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec

from tracecore.signals.logs.tail.fingerprint import Fingerprint
from tracecore.signals.logs.tail.watched import WatchedFile

_PREFIX: Final = "file/"


class KeyValueStore(Protocol):
    """Keys and values that survive (`signals.storage.journal.Journal`)."""

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]: ...

    def update(self, changes: Mapping[str, bytes | None]) -> None: ...


class FilePosition(msgspec.Struct, frozen=True, array_like=True):
    """The stored position of one file: everything up to `offset` has arrived, and so have the pieces of `beyond`."""

    version: int
    path: str
    length: int
    digest: bytes
    offset: int
    base: int
    compressed: bool
    record: int
    skipping: bool
    device: int
    inode: int
    beyond: tuple[tuple[int, int, int], ...] = ()


_decoder = msgspec.msgpack.Decoder(FilePosition)


def load(store: KeyValueStore) -> tuple[list[WatchedFile], int]:
    """The files that were known, oldest first, and how many entries made no sense."""
    known: list[WatchedFile] = []
    wrong = 0
    for key, value in store.items(_PREFIX):
        try:
            position = _decoder.decode(value)
            file = WatchedFile(int(key[len(_PREFIX) :]), position.path, Fingerprint(position.length, position.digest))
        except (msgspec.DecodeError, ValueError):
            wrong += 1
            continue
        if position.version != 1 or position.offset < 0 or position.base < 0:
            wrong += 1
            continue
        file.offset = file.delivered = file.given = position.offset
        file.base, file.compressed = position.base, position.compressed
        file.record = file.delivered_record = position.record
        file.skipping = file.delivered_skipping = position.skipping
        if _ordered(position):
            file.ahead.extend(position.beyond)
        else:
            wrong += 1
        file.device, file.inode = position.device, position.inode
        file.stored = value
        known.append(file)
    return known, wrong


def changes(files: Iterable[WatchedFile]) -> dict[str, bytes]:
    """Return what has to be written so that the store knows how far these files are."""
    found: dict[str, bytes] = {}
    for file in files:
        position = FilePosition(
            1,
            file.path,
            file.fingerprint.length,
            file.fingerprint.digest,
            file.delivered,
            file.base,
            file.compressed,
            file.delivered_record,
            file.delivered_skipping,
            file.device,
            file.inode,
            file.beyond(),
        )
        value = msgspec.msgpack.encode(position)
        if value != file.stored:
            file.stored = value
            found[f"{_PREFIX}{file.ident}"] = value
    return found


def _ordered(position: FilePosition) -> bool:
    """Return whether what arrived ahead lies behind the offset, in order and apart."""
    at = position.offset
    for start, end, _ in position.beyond:
        if not at < start < end:
            return False
        at = end
    return True


def forgotten(file: WatchedFile) -> str:
    """The key of a file that is to be forgotten."""
    return f"{_PREFIX}{file.ident}"
