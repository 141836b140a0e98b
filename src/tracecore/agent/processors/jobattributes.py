"""The `jobattributes` processor: names job, rank and attempt of log files by the process that writes them.

For machines without Kubernetes: the process that has a file open says in its environment, and Slurm in its cgroup, what
it is part of. A file is looked up when its first records come, and again after a while in case another process writes
it now. Its records do not wait: the look takes milliseconds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from tracecore.agent.batch import Batch
from tracecore.agent.component import Setting
from tracecore.agent.options import SECOND, Count, Interval
from tracecore.recent import Recent
from tracecore.signals.processes.identity import identity
from tracecore.signals.processes.writers import WritingProcess, find_writers
from tracecore.signals.record import Attributes

log = logging.getLogger("tracecore.agent.jobattributes")

PATH: Final = "log.file.path"
NO_PATH, NO_WRITER, CUT_SHORT = "records_without_path", "files_without_writer", "looks_cut_short"
Find = Callable[[set[str]], tuple[dict[str, WritingProcess], bool]]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """
    Args:
        interval: how often files are looked up again; what was found stays until something else is.
        max_files: files that are remembered; the one quiet for longest is forgotten.
    """

    interval: Interval = 10 * SECOND
    max_files: Count = 16_384


class JobAttributes:
    """Stamps what the writer of a file is part of on the resource of its records."""

    def __init__(self, options: Options, setting: Setting, find: Find = find_writers) -> None:
        self._options = options
        self._clock = setting.clock
        self._meter = setting.meter
        self._find = find
        #: By path, what was found, and when it was looked for.
        self._known: Recent[str, tuple[Attributes, int]] = Recent(options.max_files)
        self._warned = False
        setting.meter.declare(events=(NO_PATH, NO_WRITER, CUT_SHORT))

    def process(self, batch: Batch) -> Iterable[Batch]:
        entries = [part for entry in batch.view().get("resource_logs") or () for part in _by_path(entry)]
        self._look({path for path, _ in entries if path}, self._clock())
        if any(self._known.get(path, ({}, 0))[0] for path, _ in entries if path):
            batch.payload["resource_logs"] = [self._stamped(path, entry) for path, entry in entries]
        if any(not path for path, _ in entries):
            self._meter.note(NO_PATH)
            if not self._warned:
                self._warned = True
                log.warning("records have no %s: set include_file_path of filelog, so that their writer is found", PATH)
        return [batch]

    def _look(self, paths: set[str], now: int) -> None:
        due = {
            path for path in paths if path not in self._known or now >= self._known[path][1] + self._options.interval
        }
        if not due:
            return
        found, whole = self._find(due)
        if not whole:
            self._meter.note(CUT_SHORT)
        for path in due:
            process = found.get(path)
            before = self._known.get(path, ({}, 0))[0]
            if process is None and not before:
                self._meter.note(NO_WRITER)
            # The last lines of a process are read after it has ended.
            made = before if process is None else identity(process.environment, process.cgroup, process.command)
            self._known[path] = made, now

    def _stamped(self, path: str, entry: dict[str, Any]) -> dict[str, Any]:
        found = self._known.get(path, ({}, 0))[0]
        if not found:
            return entry
        resource = entry.get("resource") or {}
        # What a receiver or the configuration says stays.
        return {**entry, "resource": {**resource, "attributes": {**found, **(resource.get("attributes") or {})}}}


def _by_path(entry: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the entry as one for each file that its records are of."""
    own = ((entry.get("resource") or {}).get("attributes") or {}).get(PATH)
    if isinstance(own, str):
        return [(own, entry)]
    parts: dict[str, list[dict[str, Any]]] = {}
    for held in entry.get("scope_logs") or ():
        records: dict[str, list[Any]] = {}
        for record in held.get("log_records") or ():
            path = (record.get("attributes") or {}).get(PATH)
            records.setdefault(path if isinstance(path, str) else "", []).append(record)
        for path, some in records.items():
            parts.setdefault(path, []).append({**held, "log_records": some})
    return [(path, {**entry, "scope_logs": scopes}) for path, scopes in parts.items()]
