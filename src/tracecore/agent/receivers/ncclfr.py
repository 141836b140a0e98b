"""The `ncclfr` receiver: Flight Recorder dumps, as ranks that fail leave them in a directory.

A dump is written in place, so that it may be found half written: it is taken when it has not changed for a while and
ends as a dump ends. It leaves as one record whose body is the file's bytes; nothing is unpickled here. Whoever can
write into the directory is not trusted: links are not followed, and what is no dump, or too large, is left alone.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import socket
import stat
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any, Final, Literal

import msgspec

from tracecore.agent.batch import Ack, Batch
from tracecore.agent.component import Consumer, Setting
from tracecore.agent.options import SECOND, Count, Duration, Interval, Size, StorageId
from tracecore.agent.receivers.delivery import deliver
from tracecore.signals.flight_recorder.reading import head_looks_like_dump
from tracecore.signals.storage.journal import JournalError

log = logging.getLogger("tracecore.agent.ncclfr")

SCOPE: Final = "tracecore.ncclfr"
EVENT: Final = "nccl.flight_recorder.dump"
#: Folders below the directory that are looked into.
MAX_DEPTH: Final = 4
#: Marks in the store that this receiver has been here before.
_STARTED: Final = "started"
_FILE: Final = "file:"

#: What tells a file from what it was before: device, inode, size, time of the last change.
Status = tuple[int, int, int, int]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        directory: where ranks leave their dumps (the folder of `TORCH_FR_DUMP_TEMP_FILE`).
        include: names below it, as globs; `job-*/nccl_trace_rank_*` looks into folders.
        start_at: `end` takes dumps written from now on; with `storage`, from the last stop on.
        poll_interval: how often the directory is looked at.
        settle: how long a dump must not have changed before it is read.
        patience: how long a dump that is not whole is waited for after its last change.
        max_dump_size: larger files are left alone, and counted.
        max_files: files looked at; the others are left alone, and counted.
        resource: added to the resource of every dump, such as the job it is of.
        storage: the extension that remembers which dumps were read.
    """

    directory: str
    include: tuple[str, ...] = ("*",)
    start_at: Literal["beginning", "end"] = "end"
    poll_interval: Interval = SECOND
    settle: Duration = SECOND
    patience: Duration = 60 * SECOND
    max_dump_size: Size = 64 << 20
    max_files: Count = 16_384
    resource: dict[str, Any] = {}
    storage: StorageId | None = None

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        if not os.path.isabs(self.directory):
            yield ("directory",), "write the whole path, from / on"
        if not self.include:
            yield ("include",), "at least one name is needed"
        for number, name in enumerate(self.include):
            parts = name.split("/")
            if not name or os.path.isabs(name) or ".." in parts:
                yield ("include", number), "a name below the directory, without .."
            elif len(parts) > MAX_DEPTH:
                yield ("include", number), f"at most {MAX_DEPTH - 1} folders deep"
        if not self.max_files:
            yield ("max_files",), "at least one"


class Seen(msgspec.Struct):
    """State of a file: its last look, since when it is unchanged, and the outcome."""

    status: Status
    since: int
    state: Literal["waiting", "read", "refused"] = "waiting"


class NcclFr:
    """Watches the directory."""

    def __init__(self, options: Options, setting: Setting) -> None:
        self._options = options
        self._setting = setting
        self._seen: dict[str, Seen] = {}
        self._patterns = [tuple(name.split("/")) for name in options.include]
        self._depth = max(map(len, self._patterns))
        self._resource = {"host.name": socket.gethostname(), "tracecore.layer": "flight_recorder", **options.resource}
        self._unreadable = False
        self._crowded = 0

    def run(self, consume: Consumer, stop: threading.Event) -> None:
        options = self._options
        store = self._setting.store(options.storage)
        self._seen = _remembered(store)
        if options.start_at == "end" and (store is None or store.get(_STARTED) is None):
            now = self._setting.clock()
            self._seen |= {name: Seen(status, now, "read") for name, status in self._find()}
            _write(store, {_FILE + name: _encoded(seen.status) for name, seen in self._seen.items()}, self._report)
        _write(store, {_STARTED: b"1"}, self._report)
        while not stop.is_set():
            for name in self._look(store):
                batch = self._dump(name, store)
                if batch is not None and not deliver(consume, batch, stop):
                    self._seen.pop(name, None)
                    return
            stop.wait(options.poll_interval / SECOND)

    # What is there

    def _look(self, store: Any) -> list[str]:
        """Names of files that look finished; what is gone is forgotten."""
        now = self._setting.clock()
        found = dict(self._find())
        gone = [name for name in self._seen if name not in found]
        for name in gone:
            del self._seen[name]
        _write(store, {_FILE + name: None for name in gone}, self._report)
        ready = []
        for name, status in found.items():
            seen = self._seen.get(name)
            if seen is None or seen.status != status:
                self._seen[name] = Seen(status, now)
            elif seen.state == "waiting" and (now - seen.since >= self._options.settle or now < seen.since):
                ready.append(name)
        return ready

    def _find(self) -> Iterator[tuple[str, Status]]:
        """Regular files with a name that is asked for, by their names below the directory; no link is followed."""
        try:
            top = os.open(self._options.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if not self._unreadable:
                self._unreadable = True
                self._report(f"{self._options.directory} cannot be read: {error.strerror}")
            return
        self._unreadable = False
        count = 0
        try:
            for folder, folders, names, descriptor in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                inside = tuple(part for part in folder.split("/") if part != ".")
                folders[:] = sorted(folders) if len(inside) + 1 < self._depth else []
                for name in sorted(names):
                    if not self._asked_for((*inside, name)):
                        continue
                    status = _status(name, descriptor)
                    if status is None:
                        continue
                    count += 1
                    if count <= self._options.max_files:
                        yield "/".join((*inside, name)), status
        finally:
            os.close(top)
        if count > self._options.max_files and count > self._crowded:
            self._setting.meter.drop("too_many_files", count - max(self._crowded, self._options.max_files))
            self._crowded = count
            self._report(f"{count} files in {self._options.directory}: only {self._options.max_files} are looked at")

    def _asked_for(self, parts: tuple[str, ...]) -> bool:
        return any(
            len(pattern) == len(parts) and all(map(fnmatch.fnmatchcase, parts, pattern)) for pattern in self._patterns
        )

    # Reading

    def _dump(self, name: str, store: Any) -> Batch | None:
        """A dump as a batch; None where it is none, or not yet."""
        seen = self._seen[name]
        now = self._setting.clock()
        if seen.status[2] > self._options.max_dump_size:
            self._refuse(seen, "too_large", f"{name} has {seen.status[2]} bytes, more than max_dump_size")
            return None
        data = self._read(name, seen.status)
        if data is None:
            self._seen.pop(name)  # it is not what it was: looked at anew
            return None
        if not head_looks_like_dump(data[:4096]) and data:
            self._refuse(seen, "not_a_dump", "")
            return None
        if not whole(data):
            if now - seen.since >= self._options.patience:
                self._refuse(seen, "truncated", f"{name} ends in the middle, and nobody writes on")
            return None
        seen.state = "read"
        path = os.path.join(self._options.directory, name)
        record = {
            "body": data,
            "attributes": {"log.file.path": path, "log.file.name": os.path.basename(name)},
            "time_unix_nano": seen.status[3],
            "observed_time_unix_nano": now,
            "event_name": EVENT,
        }
        entry = {
            "resource": {"attributes": dict(self._resource)},
            "scope_logs": [{"scope": {"name": SCOPE}, "log_records": [record]}],
        }
        log.info("%s: read the dump %s, %d bytes", self._setting.id, path, len(data))
        arrived = partial(_write, store, {_FILE + name: _encoded(seen.status)}, self._report)
        return Batch("logs", {"resource_logs": [entry]}, count=1, acks=(Ack(arrived),))

    def _read(self, name: str, expected: Status) -> bytes | None:
        """The bytes of a file; None where it is not the one that was looked at, or changes while it is read."""
        folder = os.open(self._options.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened = [folder]
        try:
            *folders, last = name.split("/")
            for part in folders:
                opened.append(
                    os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=opened[-1])
                )
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
            opened.append(os.open(last, flags, dir_fd=opened[-1]))
            if _of(os.fstat(opened[-1])) != expected:
                return None
            pieces, size = [], 0
            while size <= expected[2] and (piece := os.read(opened[-1], min(1 << 20, expected[2] + 1 - size))):
                pieces.append(piece)
                size += len(piece)
            return b"".join(pieces) if _of(os.fstat(opened[-1])) == expected and size == expected[2] else None
        except OSError:
            return None
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _refuse(self, seen: Seen, reason: str, text: str) -> None:
        seen.state = "refused"
        if text:
            self._setting.meter.drop(reason, 1)
            self._report(text)

    def _report(self, text: str) -> None:
        log.warning("%s: %s", self._setting.id, text)


def whole(data: bytes) -> bool:
    """Return whether bytes end as a dump ends: a pickle with its stop, JSON with its last brace."""
    if data[:1] == b"\x80":
        return data[-1:] == b"."
    return data.rstrip()[-1:] == b"}"


def _status(name: str, folder: int) -> Status | None:
    """Return the status of a regular file with exactly one name; None for anything else."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None
    return _of(found)


def _of(found: os.stat_result) -> Status | None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _encoded(status: Status) -> bytes:
    return " ".join(map(str, status)).encode()


def _remembered(store: Any) -> dict[str, Seen]:
    """Files that were read before."""
    found: dict[str, Seen] = {}
    for key, value in store.items(_FILE) if store is not None else ():
        parts = value.split()
        if len(parts) == 4 and all(part.isdigit() for part in parts):
            device, inode, size, changed = map(int, parts)
            found[key.removeprefix(_FILE)] = Seen((device, inode, size, changed), 0, "read")
    return found


def _write(store: Any, changes: dict[str, bytes | None], report: Any) -> None:
    if store is None or not changes:
        return
    try:
        store.update(changes)
    except JournalError as error:
        report(f"which dumps were read is not written: {error}")
