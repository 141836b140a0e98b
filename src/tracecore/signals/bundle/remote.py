"""Bundles at a URL (`s3://`, `gs://`, `memory://`, …), read in place through fsspec.

Log files are read by ranges. An archive is copied to a temporary file first, because it is read more than once.
"""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator
from datetime import datetime
from typing import Any, BinaryIO, Final, cast
from urllib.parse import unquote, urlsplit

import msgspec
import re2

from tracecore.signals import stamps
from tracecore.signals.bundle import archive

#: Limit of the size of a remote archive, which is copied before it is read.
MAX_ARCHIVE: Final = 64 << 30
#: Details of a file that change if its content changes.
_STAMPS: Final = ("ETag", "etag", "md5Hash", "md5", "LastModified", "last_modified", "updated", "mtime", "created")
#: The details that are times.
_MODIFIED: Final = _STAMPS[4:]


class RemoteError(ValueError):
    """A URL cannot be read; the message says why and what to install."""


class RemoteFile(msgspec.Struct, frozen=True):
    """A file of a remote bundle.

    Args:
        url: the URL of the file.
        relative: its path relative to the bundle; empty if the bundle is one file.
        size: the number of bytes.
        stamp: a detail that changes if the content changes.
        modified: when it was written, in nanoseconds since the epoch; 0 if unknown.
    """

    url: str
    relative: str
    size: int
    stamp: str
    modified: int = 0


def is_url(path: str) -> bool:
    """Whether a path is a URL that fsspec reads."""
    return "://" in path and not path.startswith("file://")


def local(path: str) -> str:
    """Return the path of a `file://` URL; any other text unchanged."""
    return unquote(urlsplit(path).path) if path.startswith("file://") else path


def files(url: str) -> list[RemoteFile]:
    """Return the files below a URL, or the one file that it names, sorted by name.

    Raises:
        FileNotFoundError: there are none.
        RemoteError: the place cannot be read.
    """
    system, root = _system(url)
    try:
        found = system.find(root, detail=True)
    except FileNotFoundError:
        found = {}
    except Exception as error:
        raise _unreadable(url, error) from None
    if not found:
        raise FileNotFoundError(url)
    return [
        RemoteFile(
            str(system.unstrip_protocol(name)),
            name[len(root) :].lstrip("/"),
            int(detail.get("size") or 0),
            next((str(detail[key]) for key in _STAMPS if detail.get(key) is not None), ""),
            _modified(detail),
        )
        for name, detail in sorted(found.items())
    ]


def _modified(detail: dict[str, Any]) -> int:
    found = next((detail[key] for key in _MODIFIED if detail.get(key) is not None), None)
    if isinstance(found, datetime):
        found = found.timestamp()
    if isinstance(found, float | int):
        return int(found) * stamps.SECOND
    return stamps.parse(found) or 0 if isinstance(found, str) else 0


def matching(url: str, *, entries: bool = False) -> list[str]:
    """Return the URLs that match a URL with `*`, `?` or `[`, or the entries of a directory.

    Raises:
        RemoteError: the place cannot be read.
    """
    system, root = _system(url)
    if not entries and not any(sign in root for sign in "*?["):
        return [url]
    try:
        found = system.ls(root, detail=False) if entries else system.glob(root)
    except FileNotFoundError:
        return []
    except Exception as error:
        raise _unreadable(url, error) from None
    return sorted(str(system.unstrip_protocol(name)) for name in found)


def _system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise RemoteError(f"{url}: URLs need fsspec: pip install 'tracecore-diagnosis[archive]'") from None
    try:
        system, root = url_to_fs(url)
    except ImportError as error:
        # The message of fsspec has the package to install: "Install s3fs to access S3".
        package = re2.match(r"(?:Please )?[Ii]nstall ([\w.-]+) (?:to|for) ", str(error))
        how = f"pip install {package.group(1)}" if package else str(error).rstrip(".")
        raise RemoteError(f"{url}: this protocol needs another package: {how}") from None
    except ValueError as error:
        raise RemoteError(f"{url}: {str(error).lower()}") from None
    except Exception as error:
        raise _unreadable(url, error) from None
    return system, root.rstrip("/")


def _unreadable(url: str, error: Exception) -> RemoteError:
    return RemoteError(f"{url} cannot be read: {archive.reason(error)}")


class Open:
    """Opens a remote file, in this process or in another one.

    Args:
        url: the file.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> BinaryIO:
        system, path = _system(self.url)
        try:
            return cast(BinaryIO, _Ranges(system.open(path, "rb")))
        except archive.ERRORS:
            raise
        except Exception as error:
            raise OSError(archive.reason(error)) from None

    def __reduce__(self) -> tuple[type[Open], tuple[str]]:
        return type(self), (self.url,)


class OpenCopy(Open):
    """Opens a copy of a remote file. The copy is a nameless temporary file, made when it is first opened."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._copy: Any = None

    def __call__(self) -> BinaryIO:
        if self._copy is None:
            copy = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            size = 0
            with super().__call__() as file:
                while chunk := file.read(1 << 20):
                    size += len(chunk)
                    if size > MAX_ARCHIVE:
                        copy.close()
                        raise archive.Bomb(f"a remote archive of more than {MAX_ARCHIVE >> 30} GiB")
                    copy.write(chunk)
            self._copy = copy
        return open(f"/proc/self/fd/{self._copy.fileno()}", "rb", buffering=0)

    def __del__(self) -> None:
        if self._copy is not None:
            self._copy.close()


class _Ranges(io.RawIOBase):
    """A remote file that raises `OSError` for every error. Cloud clients raise errors of many other types."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._at = 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int = -1) -> bytes:
        try:
            # In some file systems all readers of a file share one position.
            self._file.seek(self._at)
            data = bytes(self._file.read(size))
            self._at += len(data)
            return data
        except archive.ERRORS:
            raise
        except Exception as error:
            raise OSError(archive.reason(error)) from None

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def openers(found: list[RemoteFile]) -> Iterator[tuple[RemoteFile, Open]]:
    """Return each file with its opener."""
    for file in found:
        plain = Open(file.url)
        try:
            with plain() as opened:
                head = opened.read(512)
        except archive.ERRORS:
            head = b""  # the caller gets the error when it opens the file
        yield file, OpenCopy(file.url) if archive.kind(head) else plain
