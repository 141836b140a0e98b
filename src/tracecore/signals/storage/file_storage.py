"""The `file_storage` extension: a directory with one journal for each component that keeps something."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec

from tracecore.signals.storage.journal import Corrupt, Journal, JournalError

Duration = Annotated[int, msgspec.Meta(ge=0, extra={"unit": "duration"})]

_SECOND: Final = 1_000_000_000
_MIB: Final = 1 << 20


class Compaction(msgspec.Struct, frozen=True, kw_only=True):
    """Options for giving unused room back to the file system.

    Args:
        directory: accepted for the Collector's sake; nothing is copied here.
        on_start: when the agent starts.
        on_rebound: when much was held and little is left.
        rebound_needed_threshold_mib: how large a file has to have been.
        rebound_trigger_threshold_mib: how little has to be left in it.
        check_interval: how often this is looked at.
        max_transaction_size: accepted for the Collector's sake.
        cleanup_on_start: accepted for the Collector's sake; nothing is left behind here.
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
        """Yield what is wrong with it, and where."""
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
                raise JournalError(f"{self._directory}: {error.strerror}") from error
        if not self._directory.is_dir():
            raise JournalError(f"{self._directory} does not exist; create it or set create_directory")
        if (mode := self._directory.stat().st_mode) & 0o022 and not mode & stat.S_ISVTX:
            self._report(f"{self._directory} can be written by others (mode {mode & 0o7777:04o}); make it 0700")

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
                journal = self._journal(path)
            except Corrupt as damage:
                aside = _set_aside(path)
                self.set_aside.append(aside)
                self._report(f"{path} cannot be trusted ({damage}); it is kept as {aside.name} and begun anew")
                journal = self._journal(path)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from error
        if self._config.compaction.on_start:
            self._compact(journal)
        self._open[name] = journal
        return journal

    def _journal(self, path: Path) -> Journal:
        return Journal(path, self._config.fsync, self._config.timeout / _SECOND)

    def _compact(self, journal: Journal) -> None:
        try:
            journal.compact()
        except JournalError as error:
            journal.failed_compactions += 1
            self._report(f"not compacted: {error}")

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
                self._compact(journal)

    @property
    def failed_compactions(self) -> int:
        """Return how often a file could not be rewritten, all files together."""
        return sum(journal.failed_compactions for journal in self._open.values())

    def stop(self) -> None:
        for journal in self._open.values():
            journal.close()
        self._open.clear()


def _set_aside(path: Path) -> Path:
    """Rename a damaged file and its write-ahead log, and return the new name."""
    number = 1
    while (aside := path.with_name(f"{path.name}.corrupt-{number}")).exists():
        number += 1
    os.rename(path, aside)
    with contextlib.suppress(FileNotFoundError):
        os.rename(f"{path}-wal", f"{aside}-wal")
    return aside
