"""The `file` exporter: OTLP as JSON lines, or as length-prefixed protobuf, with rotation."""

from __future__ import annotations

import errno
import glob
import logging
import os
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import msgspec

from tracecore.agent import elsewhere
from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.options import SECOND, Count, Duration

#: Seconds after which a write that failed is tried again.
AGAIN = 1.0

log = logging.getLogger("tracecore.agent.file")


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        max_megabytes: a file that would grow beyond it is set aside.
        max_days: older files that were set aside are deleted; 0 keeps them.
        max_backups: so many of them are kept; 0 keeps all.
        localtime: their names have the local time, not UTC.
    """

    max_megabytes: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 100
    max_days: Count = 0
    max_backups: Count = 100
    localtime: bool = False


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        path: the file; a relative one is relative to where the agent runs.
        rotation: how it is set aside; without it the file grows.
        format: `json` lines, or `proto` with a four-byte length before each.
        append: keep what is in the file at the start.
        flush_interval: accepted, and of no effect: every batch is written at once.
        create_directory: make the directory when it is missing.
    """

    path: Annotated[str, msgspec.Meta(min_length=1)]
    rotation: Rotation | None = None
    format: Literal["json", "proto"] = "json"
    append: bool = False
    flush_interval: Duration = SECOND
    create_directory: bool = False

    @staticmethod
    def elsewhere(name: str) -> str:
        """Return what to do about a setting that is not here on purpose."""
        return f'"{name}" {elsewhere.HERE}' if name in ("compression", "encoding", "group_by") else ""

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if self.append and self.rotation is not None:
            yield ("append",), "append and rotation cannot be used together"


class FileExporter:
    """Appends every batch to a file, in one write.

    A batch that cannot be written is kept, no other is taken until it is, and the file never has half of one.
    """

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._path = Path(options.path)
        self._file: BinaryIO | None = None
        self._size = 0
        self._last_aside = 0
        self._kept: list[tuple[bytes, Batch]] = []
        self._again = 0.0
        self._lock = threading.Lock()

    def start(self) -> None:
        if self._options.create_directory:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        self._open(keep=self._options.append or self._options.rotation is not None)

    def _open(self, *, keep: bool) -> None:
        link = self._path.lstat() if self._path.is_symlink() else None
        if link is not None and link.st_uid not in (0, os.geteuid()):
            raise PermissionError(errno.EPERM, "a symbolic link of somebody else is not followed", str(self._path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if keep else os.O_TRUNC)
        descriptor = os.open(self._path, flags | (os.O_NOFOLLOW if link is None else 0), 0o600)
        self._file = os.fdopen(descriptor, "ab", buffering=0)
        self._size = os.fstat(descriptor).st_size

    def ready(self) -> bool:
        if not self._kept:
            return True
        with self._lock:
            if self._kept and time.monotonic() >= self._again:
                self._write_kept()
            return not self._kept

    def export(self, batch: Batch) -> None:
        if self._options.format == "json":
            data = batch.json() + b"\n"
        else:
            encoded = batch.encoded()
            data = struct.pack(">I", len(encoded)) + encoded
        with self._lock:
            self._kept.append((data, batch))
            if len(self._kept) == 1 or time.monotonic() >= self._again:
                self._write_kept()

    def _write_kept(self) -> None:
        while self._kept:
            data, batch = self._kept[0]
            try:
                self._write(data)
            except OSError as error:
                self._again = time.monotonic() + AGAIN
                self._setting.meter.failures += 1
                if self._setting.meter.degrade(f"cannot write {self._path}: {error.strerror or error}"):
                    log.error("%s: cannot write %s: %s", self._setting.id, self._path, error.strerror or error)
                return
            del self._kept[0]
            self._setting.meter.emit(batch.count)
            batch.done()
        if self._setting.meter.recover():
            log.info("%s: writing %s again", self._setting.id, self._path)

    def _write(self, data: bytes) -> None:
        rotation = self._options.rotation
        if rotation is not None and self._size and self._size + len(data) > rotation.max_megabytes * 1_000_000:
            self._rotate(rotation)
        if self._file is None:
            self._open(keep=True)
        assert self._file is not None
        left = memoryview(data)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            if len(left) != len(data):
                os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += len(data)

    def _rotate(self, rotation: Rotation) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        now = self._setting.clock()
        aside = self._aside(now, rotation)
        self._path.rename(aside)
        self._open(keep=True)
        pattern = (
            f"{glob.escape(str(self._path.with_suffix('')))}-[0-9][0-9][0-9][0-9]-*{glob.escape(self._path.suffix)}"
        )
        backups = sorted(glob.glob(pattern))
        gone = backups[: -rotation.max_backups] if rotation.max_backups else []
        if rotation.max_days:
            oldest = now / SECOND - rotation.max_days * 86_400
            gone += [path for path in backups if path not in gone and os.path.getmtime(path) < oldest]
        for path in gone:
            os.unlink(path)

    def _aside(self, now: int, rotation: Rotation) -> Path:
        """A name not taken yet; names sort as the files came, two of one millisecond too."""
        milliseconds = max(now // 1_000_000, self._last_aside + 1)
        while True:
            self._last_aside = milliseconds
            when = datetime.fromtimestamp(milliseconds // 1000, None if rotation.localtime else UTC)
            stamp = f"{when:%Y-%m-%dT%H-%M-%S}.{milliseconds % 1000:03d}"
            aside = self._path.with_name(f"{self._path.stem}-{stamp}{self._path.suffix}")
            if not aside.exists():
                return aside
            milliseconds += 1

    def stop(self, deadline: float) -> None:
        with self._lock:
            while self._kept and time.monotonic() < deadline:
                self._write_kept()
                if self._kept:
                    time.sleep(min(AGAIN / 4, max(deadline - time.monotonic(), 0)))
            for _, batch in self._kept:
                self._setting.meter.drop("shutdown", batch.count)
            self._kept.clear()
            if self._file is not None:
                self._file.close()
                self._file = None
