"""Find the process that has a file open for writing, through `/proc`.

Only processes that the agent may look at are seen: its own user's, or all where it is root or has CAP_SYS_PTRACE. One
look at all processes answers for all files that are asked about, and is bounded in processes, files and time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

from tracecore.signals.processes.identity import VARIABLES

#: Bounds of one look.
MAX_PROCESSES: Final = 32_768
MAX_FILES: Final = 4_096
MAX_SECONDS: Final = 0.25
#: Bytes of an environment, a command line and a cgroup that are read.
MAX_ENVIRONMENT: Final = 256 << 10
MAX_TEXT: Final = 16 << 10
_WRITES: Final = os.O_WRONLY | os.O_RDWR


class WritingProcess(msgspec.Struct, frozen=True):
    """A process that writes a file.

    Args:
        environment: the variables of `identity.VARIABLES`, no others.
        started: clock ticks after boot, which tells two processes of one id apart.
    """

    pid: int
    environment: dict[str, str]
    cgroup: str
    command: str
    started: str


def find_writers(
    paths: Collection[str], proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
) -> tuple[dict[str, WritingProcess], bool]:
    """Return the process that writes each of these files, where one is found, and whether all were looked at.

    Of several writers the one that knows its rank counts, then the youngest: a launcher and its ranks may share a file.
    """
    wanted = _wanted(paths)
    found: dict[str, WritingProcess] = {}
    if not wanted:
        return found, True
    names = {os.path.basename(os.path.realpath(path)) for path in paths}
    deadline = clock() + MAX_SECONDS
    for number, pid in enumerate(_pids(proc)):
        if number >= MAX_PROCESSES or clock() > deadline:
            return found, False
        written = [wanted[place] for place in _written(proc, pid, names) if place in wanted]
        if not written:
            continue
        process = read_process(pid, proc)
        if process is None:
            continue
        for path in written:
            known = found.get(path)
            if known is None or _merit(process) > _merit(known):
                found[path] = process
    return found, True


def read_process(pid: int, proc: Path = Path("/proc")) -> WritingProcess | None:
    """Return what is known of a process; None where it has ended or may not be looked at."""
    folder = proc / str(pid)
    try:
        raw = _head(folder / "environ", MAX_ENVIRONMENT)
        stat = _head(folder / "stat", MAX_TEXT)
    except OSError:
        return None
    try:
        cgroup = _head(folder / "cgroup", MAX_TEXT).decode("utf-8", "replace")
        command = _head(folder / "cmdline", MAX_TEXT).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        cgroup = command = ""
    environment = {}
    for entry in raw.split(b"\0"):
        name, _, value = entry.decode("utf-8", "replace").partition("=")
        if name in VARIABLES:
            environment[name] = value
    fields = stat.rpartition(b")")[2].split()
    started = fields[19].decode("ascii", "replace") if len(fields) > 19 else ""
    # Of several hierarchies the one that names a job is wanted.
    lines = cgroup.splitlines()
    line = next((line for line in lines if "/job_" in line), lines[0] if lines else "")
    return WritingProcess(pid, environment, line, command, started)


def _wanted(paths: Collection[str]) -> dict[tuple[int, int], str]:
    found = {}
    for path in paths:
        try:
            status = os.stat(path)
        except OSError:
            continue
        found[status.st_dev, status.st_ino] = path
    return found


def _pids(proc: Path) -> Iterator[int]:
    try:
        with os.scandir(proc) as entries:
            pids = sorted((int(entry.name) for entry in entries if entry.name.isdigit()), reverse=True)
    except OSError:
        return
    yield from pids


def _written(proc: Path, pid: int, names: Collection[str]) -> Iterator[tuple[int, int]]:
    """Yield device and inode of the files that a process has open for writing and that have one of these names."""
    folder = proc / str(pid) / "fd"
    try:
        with os.scandir(folder) as entries:
            for number, entry in enumerate(entries):
                if number >= MAX_FILES:
                    return
                try:
                    target = os.readlink(entry.path)
                    # Reading a link is far cheaper than asking for the file behind it.
                    if os.path.basename(target) not in names or not _writes(proc, pid, entry.name):
                        continue
                    status = os.stat(entry.path)
                except OSError:
                    continue
                yield status.st_dev, status.st_ino
    except OSError:
        return


def _writes(proc: Path, pid: int, number: str) -> bool:
    try:
        text = _head(proc / str(pid) / "fdinfo" / number, MAX_TEXT)
    except OSError:
        return False
    for line in text.splitlines():
        if line.startswith(b"flags:"):
            return bool(int(line.split()[1], 8) & _WRITES)
    return False


def _head(path: Path, most: int) -> bytes:
    with open(path, "rb") as file:
        return file.read(most)


def _merit(process: WritingProcess) -> tuple[bool, int]:
    ranked = not process.environment.keys().isdisjoint(("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"))
    return ranked, int(process.started) if process.started.isdigit() else 0
