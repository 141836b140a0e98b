"""Keys and values in one SQLite file that survives a kill at any instant.

SQLite's write-ahead log makes a change true as a whole or not at all. SQLite has no checksums for its pages, so each
value is stored with one; a file that fails them, or SQLite's own check, cannot be trusted.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

#: Room on the disk kept back for small changes: what was done can be noted when there is no room for more to do.
RESERVE: Final = 1 << 20
#: Changes up to this size are small: positions, and that something is not needed any more.
SMALL: Final = 1 << 14
#: Given back to the file system when this much is no longer current, and it is more than what is.
GARBAGE: Final = 1 << 20
#: Pages of the write-ahead log after which it is copied into the file.
CHECKPOINT_PAGES: Final = 256

#: What goes wrong with a file that is not damaged.
_TROUBLE: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM})
_TABLE: Final = (
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL)"
)
_SET: Final = (
    "INSERT INTO entries (key, value, crc) VALUES (?, ?, ?) "
    "ON CONFLICT (key) DO UPDATE SET value = excluded.value, crc = excluded.crc"
)


class JournalError(Exception):
    """The storage cannot be used now; what it held is unharmed."""


class Corrupt(Exception):
    """The file is not what was written."""


class Journal:
    """Keys and values in one file, for any thread of one process.

    Args:
        path: the file; made with mode 0600 when missing.
        fsync: wait for the disk at every change: survives a power cut, not only a kill.
        patience: seconds to wait for a file that another process uses.

    Raises:
        Corrupt: the file cannot be trusted.
        StorageError: another process uses the file.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, fsync: bool = False, patience: float = 1.0) -> None:
        self._path = path
        self._reserve = path.with_name(f".{path.name}.reserve")
        self._lock = threading.RLock()
        self.failed_compactions = 0
        for name in (path, self._wal, self._reserve):
            own(name)
        #: Whether there was nothing before.
        self.fresh = not path.exists() or path.stat().st_size == 0
        if not path.exists():
            # Only a new file: closing a descriptor would drop the locks that SQLite has on it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        path.chmod(0o600)
        self._database = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        try:
            self._open(fsync)
        except sqlite3.Error as error:
            self._database.close()
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_BUSY:
                raise JournalError(f"another process is using {path}") from None
            if code in _TROUBLE:
                raise JournalError(f"{path}: {error}") from error
            raise Corrupt(str(error)) from error
        except BaseException:
            self._database.close()
            raise
        self._keep_reserve()

    @property
    def _wal(self) -> Path:
        return self._path.with_name(f"{self._path.name}-wal")

    def _open(self, fsync: bool) -> None:
        self._run("PRAGMA locking_mode = EXCLUSIVE")
        self._run("PRAGMA auto_vacuum = INCREMENTAL")
        self._run("PRAGMA journal_mode = WAL")
        self._run(f"PRAGMA synchronous = {'FULL' if fsync else 'NORMAL'}")
        self._run(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        self._run("BEGIN IMMEDIATE")
        if not self._one("SELECT count(*) FROM sqlite_master"):
            self._run(_TABLE)
        self._run("COMMIT")
        if self._one("SELECT sql FROM sqlite_master WHERE name = 'entries'") != _TABLE:
            raise Corrupt("another table")
        if (found := self._one("PRAGMA integrity_check(1)")) != "ok":
            raise Corrupt(str(found))
        for key, value, crc in self._run("SELECT key, value, crc FROM entries"):
            if not isinstance(key, str) or not isinstance(value, bytes) or crc != _checksum(key, value):
                raise Corrupt(f"wrong checksum of {str(key)[:100]!r}")

    def _run(self, statement: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self._database.execute(statement, values)

    def _one(self, statement: str, values: tuple[Any, ...] = ()) -> Any:
        row = self._run(statement, values).fetchone()
        return None if row is None else row[0]

    def get(self, key: str) -> bytes | None:
        """Return the value of a key; None where there is none."""
        with self._lock:
            try:
                value: bytes | None = self._one("SELECT value FROM entries WHERE key = ?", (key,))
            except sqlite3.Error as error:
                raise JournalError(f"{self._path}: {error}") from error
        return value

    def items(self, prefix: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the keys that begin like this, in the order in which they were first set, with their values.

        One value at a time: all that waits in a queue may be more than fits into memory.
        """
        for name in self.keys(prefix):
            value = self.get(name)
            if value is not None:
                yield name, value

    def keys(self, prefix: str = "") -> list[str]:
        """Return the keys that begin like this, in the order in which they were first set."""
        with self._lock:
            rows = self._run("SELECT key FROM entries WHERE substr(key, 1, ?) = ? ORDER BY id", (len(prefix), prefix))
            return [key for (key,) in rows]

    def update(self, changes: Mapping[str, bytes | None]) -> None:
        """Set keys, and delete those whose value is None: all of them or, where it fails, none.

        Raises:
            StorageError: the disk is full or broken; nothing has changed.
        """
        if not changes:
            return
        with self._lock:
            try:
                self._apply(changes)
            except sqlite3.Error as error:
                small = sum(len(value or b"") for value in changes.values()) <= SMALL
                if not small or not self._reserve.exists():
                    raise JournalError(f"{self._path}: {error}") from error
                self._reserve.unlink()
                try:
                    self._apply(changes)
                except sqlite3.Error as again:
                    raise JournalError(f"{self._path}: {again}") from again
            else:
                if not self._reserve.exists():
                    self._keep_reserve()
            if any(value is None for value in changes.values()):
                self._shrink()

    def _apply(self, changes: Mapping[str, bytes | None]) -> None:
        try:
            self._run("BEGIN IMMEDIATE")
            for key, value in changes.items():
                if value is None:
                    self._run("DELETE FROM entries WHERE key = ?", (key,))
                else:
                    self._run(_SET, (key, value, _checksum(key, value)))
            self._run("COMMIT")
        except sqlite3.Error:
            if self._database.in_transaction:
                self._run("ROLLBACK")
            raise

    def _shrink(self) -> None:
        """Make the file shorter where most of it is not current."""
        if self.size - self.live <= max(GARBAGE, self.live):
            return
        try:
            self.compact()
        except JournalError:
            # The change is made. For rewriting the file there may be room after the next one.
            self.failed_compactions += 1

    def set(self, key: str, value: bytes) -> None:
        """Set one key; see `update`."""
        self.update({key: value})

    def delete(self, key: str) -> None:
        """Remove a key, if it is there; see `update`."""
        self.update({key: None})

    def compact(self) -> None:
        """Give the room of what is no longer current back to the file system.

        Raises:
            StorageError: the disk is full or broken; the file goes on as it is.
        """
        with self._lock:
            try:
                # `execute` would take only the first step.
                self._database.executescript("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                raise JournalError(f"{self._path}: {error}") from error
            self._keep_reserve()

    def _keep_reserve(self) -> None:
        """Take room on the disk that small changes get when there is no other."""
        try:
            fd = os.open(self._reserve, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE)
            finally:
                os.close(fd)
        except OSError:
            self._reserve.unlink(missing_ok=True)  # the disk is full already

    @property
    def size(self) -> int:
        """Bytes of the file, once the write-ahead log is copied into it."""
        return int(self._one("PRAGMA page_count") * self._one("PRAGMA page_size"))

    @property
    def live(self) -> int:
        """Bytes of the file that are in use."""
        return self.size - int(self._one("PRAGMA freelist_count") * self._one("PRAGMA page_size"))

    def close(self) -> None:
        self._database.close()
        self._reserve.unlink(missing_ok=True)


def _checksum(key: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(key.encode("utf-8", "surrogatepass")))


def own(path: Path) -> None:
    """Make sure that a file is ours, or missing: a link or a pipe that somebody put in its place is not touched.

    Raises:
        OSError: it is not ours.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1 or status.st_uid not in (os.geteuid(), 0):
        raise OSError(errno.EPERM, "not a file of ours: somebody else put it there", str(path))
