"""The `file_storage` extension: a directory with one journal for each component that keeps something."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from tracecore.signals.storage.journal import Corrupt, Journal, StorageError

Duration = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "duration"})]

_SECOND: Final = 1_000_000_000
_MIB: Final = 1 << 20


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """When files are rewritten without what is no longer current.

    Args:
        directory: where the new file is made before it replaces the old one; must be of the same file system.
        on_start: when the agent starts.
        on_rebound: when much was held and little is left.
        rebound_needed_threshold_mib: how large a file has to have been.
        rebound_trigger_threshold_mib: how little has to be left in it.
        check_interval: how often this is looked at.
        max_transaction_size: accepted for the Collector's sake; a rewrite needs no transactions here.
        cleanup_on_start: remove what a rewrite left behind that was killed.
    """

    directory: str = ""
    on_start: bool = False
    on_rebound: bool = False
    rebound_needed_threshold_mib: Annotated[int, msgspec.Meta(ge=0)] = 100
    rebound_trigger_threshold_mib: Annotated[int, msgspec.Meta(ge=0)] = 10
    check_interval: Duration = 5 * _SECOND
    max_transaction_size: Annotated[int, msgspec.Meta(ge=0)] = 65_536
    cleanup_on_start: bool = False


class FileStorageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of `file_storage`, by the Collector's names.

    Args:
        directory: where the files are.
        create_directory: make the directory when it is missing.
        directory_permissions: of a directory that is made, in octal.
        timeout: how long to wait for a file that another process has.
        compaction: when files are rewritten.
        fsync: wait for the disk at every change, which survives a power cut.
        recreate: accepted for the Collector's sake: a file that cannot be trusted is always set aside here.
    """

    directory: str = "/var/lib/otelcol/file_storage"
    create_directory: bool = False
    directory_permissions: str = "0750"
    timeout: Duration = _SECOND
    compaction: Compaction = Compaction()
    fsync: bool = False
    recreate: bool = False

    def check(self) -> Iterator[tuple[tuple[str | int, ...], str]]:
        """What is wrong with it, and where."""
        try:
            if not 0 <= int(self.directory_permissions, 8) <= 0o777:
                raise ValueError
        except ValueError:
            yield ("directory_permissions",), f'"{self.directory_permissions}" is no mode such as 0750'
        if not self.create_directory and not Path(self.directory).is_dir():
            yield ("directory",), f"{self.directory} must exist, or set create_directory"


class FileStorage:
    """Gives every component a journal of its own.

    Args:
        config: the options.
        report: told in words what went wrong and was survived.
    """

    def __init__(self, config: FileStorageConfig, report: Callable[[str], Any] = lambda text: None) -> None:
        self._config = config
        self._report = report
        self._directory = Path(config.directory)
        self._open: dict[str, Journal] = {}
        #: Files that could not be trusted and were set aside.
        self.set_aside: list[Path] = []

    def start(self) -> None:
        """Makes the directory, where that is asked for.

        Raises:
            StorageError: there is none.
        """
        if self._config.create_directory and not self._directory.is_dir():
            try:
                self._directory.mkdir(parents=True, exist_ok=True)
                self._directory.chmod(int(self._config.directory_permissions, 8))
            except OSError as error:
                raise StorageError(f"{self._directory}: {error.strerror}") from error
        if not self._directory.is_dir():
            raise StorageError(f"{self._directory} does not exist; create it or set create_directory")
        if (mode := self._directory.stat().st_mode) & 0o022 and not mode & stat.S_ISVTX:
            self._report(f"{self._directory} can be written by others (mode {mode & 0o7777:04o}); make it 0700")
        if self._config.compaction.cleanup_on_start:
            for left in self._compaction_directory().glob(".*.new"):
                left.unlink(missing_ok=True)

    def client(self, name: str) -> Journal:
        """The journal of a component; the same one for the same name.

        A file that cannot be trusted is set aside under the name `….corrupt-1` and an empty one begun.

        Args:
            name: kind and id, `receiver_filelog/container`.

        Raises:
            StorageError: the file cannot be opened, or another process has it.
        """
        known = self._open.get(name)
        if known is not None:
            return known
        path = self._directory / quote(name, safe="")
        try:
            try:
                journal = self._locked(path)
            except Corrupt as damage:
                aside = _free_name(path)
                os.rename(path, aside)
                self.set_aside.append(aside)
                self._report(f"{path} cannot be trusted ({damage}); it is kept as {aside.name} and begun anew")
                journal = self._locked(path)
        except OSError as error:
            link = error.errno == errno.ELOOP
            raise StorageError(f"{path}: {'a symbolic link is not followed' if link else error.strerror}") from error
        if journal.torn:
            self._report(f"{path}: the last change was cut off ({journal.torn} bytes) and never happened")
        if self._config.compaction.on_start and journal.size > journal.live + len(name) + 4096:
            try:
                journal.compact(self._compaction_directory())
            except StorageError as error:
                self._report(f"not rewritten: {error}")
        self._open[name] = journal
        return journal

    def tick(self) -> None:
        """Rewrites files of which much is no longer current; to be called every `compaction.check_interval`."""
        options = self._config.compaction
        if not options.on_rebound:
            return
        for journal in self._open.values():
            if (
                journal.size > options.rebound_needed_threshold_mib * _MIB
                and journal.live < options.rebound_trigger_threshold_mib * _MIB
            ):
                try:
                    journal.compact(self._compaction_directory())
                except StorageError as error:
                    journal.failed_compactions += 1
                    self._report(f"not rewritten: {error}")

    @property
    def failed_compactions(self) -> int:
        """How often a file could not be rewritten, all files together."""
        return sum(journal.failed_compactions for journal in self._open.values())

    def stop(self) -> None:
        for journal in self._open.values():
            journal.close()
        self._open.clear()

    def _compaction_directory(self) -> Path:
        return Path(self._config.compaction.directory or self._directory)

    def _locked(self, path: Path) -> Journal:
        """Opens a journal that no other process has."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        lock = os.open(path.with_name(f".{path.name}.lock"), flags, 0o600)
        deadline = time.monotonic() + self._config.timeout / _SECOND
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(lock)
                    raise StorageError(f"another process is using {path}") from None
                time.sleep(0.01)
        try:
            return _Locked(path, self._config.fsync, lock)
        except BaseException:
            os.close(lock)
            raise


class _Locked(Journal):
    """A journal that holds a lock on a file of its own: its data is replaced when it is rewritten."""

    def __init__(self, path: Path, fsync: bool, lock: int) -> None:
        super().__init__(path, fsync)
        self._lock = lock

    def close(self) -> None:
        super().close()
        os.close(self._lock)


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    return aside
