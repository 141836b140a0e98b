"""The `file_storage` extension: what must survive a restart, in files, shared by the threads of an agent."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Final

from tracecore.agent.component import Extension, Setting
from tracecore.agent.extensions.persistence import transient
from tracecore.agent.options import SECOND
from tracecore.agent.tally import Tally
from tracecore.signals.storage.file_storage import FileStorage, FileStorageConfig
from tracecore.signals.storage.journal import Journal, JournalError

log = logging.getLogger("tracecore.agent.file_storage")
#: A file of which most is no longer current could not be made shorter.
FAILED: Final = "failed_compactions"


class FileStorageExtension(Extension):
    """Opens a journal for each component that asks, and rewrites those that have grown."""

    def __init__(self, options: FileStorageConfig, setting: Setting) -> None:
        self._setting = setting
        self._interval = options.compaction.check_interval / SECOND
        self._storage = FileStorage(options, self._report)
        self._lock = threading.Lock()
        self._next = 0.0

        self._directory = Path(options.directory)
        self._tally = Tally(
            setting.id, setting.meter, {FAILED: "files could not be rewritten {} times, and keep growing"}
        )
        setting.meter.declare(events=("set_aside", "begun_anew", "not_persistent"))

    def _report(self, text: str) -> None:
        log.warning("%s: %s", self._setting.id, text)
        self._setting.meter.failures += 1

    def start(self) -> None:
        try:
            self._storage.start()
        except JournalError as error:
            raise OSError(str(error)) from None
        if why := transient(str(self._directory)):
            self._setting.meter.note("not_persistent")
            log.warning(
                "%s: %s does not last: %s; after that all is read again", self._setting.id, self._directory, why
            )

    def client(self, name: str) -> Journal:
        """The store of a component.

        Raises:
            StorageError: it cannot be opened.
        """
        with self._lock:
            aside = len(self._storage.set_aside)
            journal = self._storage.client(name)
            self._setting.meter.note("set_aside", len(self._storage.set_aside) - aside)
            if journal.fresh:
                self._setting.meter.note("begun_anew")
                log.info("%s: nothing is stored for %s yet: it begins anew", self._setting.id, name)
            return journal

    def tick(self) -> None:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            with self._lock:
                self._storage.tick()
        self._tally.look({FAILED: self._storage.failed_compactions})

    def stop(self) -> None:
        with self._lock:
            self._storage.stop()
