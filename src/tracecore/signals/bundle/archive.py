"""Archives and compressed files, read in place: nothing is written to disk, and sizes are limited while reading.

Supported: gzip, bzip2, xz and zstd, each alone or around a tar; tar; zip. Members that are links or devices, or whose
names lead out of the archive, are never opened.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from calendar import timegm
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any, BinaryIO, Final, cast

import msgspec

#: Errors that reading a damaged or hostile archive may raise.
ERRORS = (OSError, EOFError, ValueError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, RuntimeError,
          NotImplementedError, KeyError)  # fmt: skip


class BundleLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a bundle.

    Args:
        files: files and archive members in all.
        members: members of one archive.
        expanded: decompressed bytes of one compressed file or archive.
        ratio: decompressed bytes for each compressed byte, if there are more than `ratio_from` of them.
        ratio_from: decompressed bytes that are always allowed.
        depth: archives inside archives; a log `.gz` inside a tar is one level.
    """

    files: int = 200_000
    members: int = 100_000
    expanded: int = 1 << 40
    ratio: int = 400
    ratio_from: int = 256 << 20
    depth: int = 4


class Bomb(ValueError):
    """A compressed file expands to more bytes than allowed."""


def reason(error: BaseException) -> str:
    """Return why something could not be read, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__


Opener = Callable[[], BinaryIO]

_MAGIC = (
    (b"\x1f\x8b\x08", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"\x28\xb5\x2f\xfd", "zst"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
)


def kind(head: bytes) -> str:
    """Return gz, bz2, xz, zst, zip or tar; empty for anything else."""
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    return "tar" if head[257:262] == b"ustar" else ""


class Guarded(io.RawIOBase):
    """A decompressing reader that stops at the limits.

    A truncated file is read up to where it was cut off; `cut` is the error then.
    """

    def __init__(self, inner: BinaryIO, compressed: int, limits: BundleLimits, under: BinaryIO | None = None) -> None:
        self._inner = inner
        self._under = under
        self._most = min(limits.expanded, max(limits.ratio_from, compressed * limits.ratio))
        self._given = 0
        self.cut = ""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        wanted = size if size >= 0 else self._most + 1
        parts: list[bytes] = []
        while wanted > 0 and not self.cut:
            try:
                # `read` of a buffered reader loses what it has if the file is truncated; `read1` does not.
                data = self._read_some(wanted)
            except (EOFError, OSError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile) as error:
                if not self._given:
                    raise
                self.cut = reason(error)
                break
            if not data:
                break
            parts.append(data)
            wanted -= len(data)
            self._given += len(data)
            if self._given > self._most:
                raise Bomb(f"expands to more than {self._most} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_some(self, most: int) -> bytes:
        one: Callable[[int], bytes] = getattr(self._inner, "read1", None) or self._inner.read
        return one(min(most, 1 << 20))

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._inner.close()
            if self._under is not None:
                self._under.close()
        super().close()


def decompress(file: BinaryIO, codec: str, compressed: int, limits: BundleLimits) -> BinaryIO:
    """Open the plain bytes of a compressed file, with limits."""
    inner: BinaryIO
    if codec == "gz":
        inner = cast(BinaryIO, gzip.GzipFile(fileobj=file))
    elif codec == "bz2":
        inner = cast(BinaryIO, bz2.BZ2File(file))
    elif codec == "xz":
        inner = cast(BinaryIO, lzma.LZMAFile(file))  # noqa: SIM115
    else:
        import zstandard

        # `zstd --long` makes windows of 128 MiB; larger ones are refused.
        inner = cast(BinaryIO, _Frames(file, zstandard.ZstdDecompressor(max_window_size=1 << 27)))
    return cast(BinaryIO, Guarded(inner, compressed, limits, file))


class _Frames:
    """The plain bytes of zstd frames. The library's own reader does not notice that a frame was truncated.

    Input is decompressed in small steps, because a few bytes may expand to megabytes.
    """

    STEP: Final = 1024

    def __init__(self, file: BinaryIO, decompressor: Any) -> None:
        self._file = file
        self._decompressor = decompressor
        self._frame: Any = None
        self._rest = b""
        self._ready = b""

    def read1(self, size: int) -> bytes:
        while not self._ready:
            raw = self._rest or self._file.read(self.STEP)
            self._rest = b""
            if not raw:
                if self._frame is not None:
                    raise EOFError("compressed file ended before the end of its last frame")
                return b""
            if self._frame is None:
                self._frame = self._decompressor.decompressobj()
            try:
                self._ready = self._frame.decompress(raw)
            except Exception as error:
                raise ValueError(f"not zstd: {error}") from None
            if self._frame.eof:
                self._rest = self._frame.unused_data
                self._frame = None
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def close(self) -> None:
        self._ready = self._rest = b""


class _Member:
    """A member of a tar that is read forward. The file of `tarfile` would lose the last bytes of a truncated one."""

    def __init__(self, file: Any, size: int) -> None:
        self._file = file
        self._left = size

    def read1(self, size: int) -> bytes:
        wanted = min(size, self._left)
        data: bytes = self._file.read(wanted) if wanted else b""
        self._left -= len(data)
        if wanted and not data:
            raise EOFError("unexpected end of data")
        return data

    def close(self) -> None:
        self._left = 0


def safe_name(name: str) -> str | None:
    """Return a member's name, or None if it leads out of the archive."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or not path.parts or "\x00" in name:
        return None
    if len(path.parts[0]) == 2 and path.parts[0][1] == ":":
        return None
    return str(path)


def modified(info: tarfile.TarInfo | zipfile.ZipInfo) -> int:
    """Return when a member was modified, in nanoseconds since the epoch; 0 if the header has no valid time."""
    try:
        seconds = info.mtime if isinstance(info, tarfile.TarInfo) else timegm((*info.date_time, 0, 0, 0))
        return int(seconds) * 1_000_000_000
    except (ValueError, OverflowError):  # a month 13, an infinite number
        return 0


class Tar:
    """A tar, compressed or not, whose members can be opened in any order, but cheaply only in the archive's order.

    The archive is read forward; opening an earlier member starts again. Only one member can be read at a time.
    """

    def __init__(self, opener: Opener, limits: BundleLimits) -> None:
        self._opener = opener
        self._limits = limits
        self._file: BinaryIO | None = None
        self._tar: tarfile.TarFile | None = None
        self._at = -1
        self._used = False
        self._current: tarfile.TarInfo | None = None

    @property
    def cut(self) -> str:
        """Return the error at which the archive was cut off, if reading has come so far; else an empty text."""
        return getattr(self._file, "cut", "")

    def members(self) -> Iterator[tuple[int, tarfile.TarInfo]]:
        """Return the members in order, at most as many as allowed."""
        self._rewind()
        index = 0
        while (info := self._next()) is not None:
            if index >= self._limits.members:
                raise Bomb(f"more than {self._limits.members} members")
            yield index, info
            index += 1

    def open(self, index: int) -> BinaryIO:
        if self._tar is None or index < self._at or (index == self._at and self._used):
            self._rewind()
        info: tarfile.TarInfo | None = self._current
        while self._at < index:
            info = self._next()
            if info is None:
                raise ValueError("the archive ended early")
        assert self._tar is not None
        assert info is not None
        self._used = True
        file = self._tar.fileobj
        assert file is not None
        if info.issparse() or file.tell() > info.offset_data:
            member = self._tar.extractfile(info)
            if member is None:
                raise ValueError("not a file")
        else:
            file.seek(info.offset_data)
            member = cast(Any, _Member(file, info.size))
        return cast(BinaryIO, Guarded(cast(BinaryIO, member), info.size, self._limits))

    def close(self) -> None:
        if self._tar is not None:
            self._tar.close()
        if self._file is not None:
            self._file.close()
        self._tar = self._file = None

    def __reduce__(self) -> tuple[type[Tar], tuple[Opener, BundleLimits]]:
        """A copy for another process starts with nothing open."""
        return Tar, (self._opener, self._limits)

    def __del__(self) -> None:
        self.close()

    def _rewind(self) -> None:
        self.close()
        self._file = self._opener()
        self._tar = tarfile.open(fileobj=self._file, mode="r|")  # noqa: SIM115
        self._at, self._used = -1, False
        self._current = None

    def _next(self) -> tarfile.TarInfo | None:
        assert self._tar is not None
        if self._at >= 0:  # the first header was read when the archive was opened
            self._pass_over()
        info = self._tar.next()
        # A streamed TarFile keeps every member it has passed, which would cost memory for nothing.
        self._tar.members = []  # type: ignore[attr-defined]
        self._at += 1
        self._used = False
        self._current = info
        return info

    def _pass_over(self) -> None:
        """Read to the next header.

        `tarfile` itself would count up to the size that a header claims, even a terabyte in a file of a kilobyte.
        """
        assert self._tar is not None
        file: Any = self._tar.fileobj
        while (left := self._tar.offset - file.tell()) > 0:
            if not file.read(min(left, 1 << 20)):
                raise tarfile.ReadError("unexpected end of data")


class Zip:
    """A zip whose members are opened in any order.

    Args:
        opener: opens the archive as a file that can be read from its end.
        limits: see `BundleLimits`.
    """

    def __init__(self, opener: Opener, limits: BundleLimits) -> None:
        self._opener = opener
        self._limits = limits
        self._file: BinaryIO | None = None
        self._zip: zipfile.ZipFile | None = None

    def members(self) -> list[tuple[zipfile.ZipInfo, bool]]:
        """Return every member, and whether it may be opened: the members that expand most are refused first."""
        infos = self._opened().infolist()
        if len(infos) > self._limits.members:
            raise Bomb(f"more than {self._limits.members} members")
        assert self._file is not None
        # Members may overlap, so their compressed sizes may add up to more than the size of the file.
        compressed = min(self._file.seek(0, io.SEEK_END), sum(info.compress_size for info in infos))
        left = min(max(self._limits.ratio_from, self._limits.ratio * compressed), self._limits.expanded)
        allowed: set[int] = set()
        for info in sorted(infos, key=lambda info: (info.file_size / max(info.compress_size, 1), info.file_size)):
            # `zipfile` never returns more bytes than the member declares.
            if info.file_size <= left:
                left -= info.file_size
                allowed.add(id(info))
        return [(info, id(info) in allowed) for info in infos]

    def open(self, info: zipfile.ZipInfo) -> BinaryIO:
        member = cast(BinaryIO, self._opened().open(info))
        return cast(BinaryIO, Guarded(member, info.compress_size, self._limits))

    def close(self) -> None:
        if self._zip is not None:
            self._zip.close()
        if self._file is not None:
            self._file.close()
        self._zip = self._file = None

    def _opened(self) -> zipfile.ZipFile:
        if self._zip is None:
            self._file = self._opener()
            self._zip = zipfile.ZipFile(self._file)
        return self._zip

    def __reduce__(self) -> tuple[type[Zip], tuple[Opener, BundleLimits]]:
        return Zip, (self._opener, self._limits)

    def __del__(self) -> None:
        self.close()
