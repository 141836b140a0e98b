"""Tasks: what a worker does with a bundle, or with a part of a large one, within limits of time and memory."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec

from tracecore import __version__
from tracecore.archive.bundles import named
from tracecore.archive.dataset import Result, record_of, result_of
from tracecore.archive.record import keep, rediagnose
from tracecore.diagnose import facts as reading
from tracecore.diagnose.offline import Survey, join, survey
from tracecore.facts import codec
from tracecore.incidents.diagnosis import Diagnosis
from tracecore.signals.bundle import archive
from tracecore.signals.stream import Clock, Counters, Stream

#: Seconds after its limit of time at which a task that does not heed it is ended together with its process.
GRACE_S: Final = 20.0


class TaskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one task.

    Args:
        seconds: by the clock.
        memory: bytes that a worker may hold beside what it holds when it begins.
        large_files, large_bytes: a bundle with more is read in parts.
    """

    seconds: float = 3600.0
    memory: int = 8 << 30
    large_files: int = 2048
    large_bytes: int = 512 << 20


class Diagnose(msgspec.Struct, frozen=True):
    """Diagnose a bundle, or survey it where it is large."""

    bundle: str
    fingerprint: str


class ReadPart(msgspec.Struct, frozen=True):
    """Extract the facts of some logs of a large bundle."""

    streams: list[Stream]
    clock: Clock
    all_lines: bool
    redact: bool = True


class Join(msgspec.Struct, frozen=True):
    """Diagnose a large bundle from its survey and the facts of its parts, which are in the order of the streams."""

    bundle: str
    fingerprint: str
    survey: Survey
    parts: list[PartFacts]
    seconds: float


class Rediagnose(msgspec.Struct, frozen=True):
    """Diagnose a bundle again from what is kept of it."""

    stored: Result


class PartFacts(msgspec.Struct, frozen=True):
    """The facts of a part, as bytes."""

    facts: bytes
    counters: Counters
    skipped: list[tuple[str, str]]


class Surveyed(msgspec.Struct, frozen=True):
    """A large bundle: what is known before its logs are read, and its logs in parts."""

    survey: Survey
    parts: list[list[Stream]]
    seconds: float


class Rediagnosed(msgspec.Struct, frozen=True):
    """The bundle's new rows, and how many of its facts this version cannot read."""

    result: Result
    unknown_facts: int


class Failed(msgspec.Struct, frozen=True):
    """The task gave nothing; the text says why."""

    error: str


Task: TypeAlias = Diagnose | ReadPart | Join | Rediagnose
Outcome: TypeAlias = Result | Surveyed | PartFacts | Rediagnosed | Failed


def perform(task: Task, limits: TaskLimits, version: str = __version__) -> Outcome:
    """Do a task. Whatever goes wrong is an outcome, never an exception.

    Args:
        version: of the command that asks; a worker of another version refuses.
    """
    if version != __version__:
        return Failed(f"this worker has tracecore {__version__} and the command {version}: install the same version")
    try:
        with within(limits):
            return _do(task, limits)
    except FileNotFoundError as error:
        return Failed(f"there is no {error.filename or error}")
    except _TimeLimit:
        return Failed(f"took longer than {limits.seconds:g} s (--task-time)")
    except MemoryError:
        return Failed(f"needs more than {limits.memory >> 20:,} MiB (--task-memory)")
    except Exception as error:
        return Failed(f"{type(error).__name__}: {archive.reason(error)}"[:1000])


def _do(task: Task, limits: TaskLimits) -> Outcome:
    begin = time.monotonic()
    if isinstance(task, Diagnose):
        found = survey([task.bundle])
        parts = parts_of(found.bundle.streams, limits)
        if len(parts) > 1:
            return Surveyed(found, parts, time.monotonic() - begin)
        facts, counters = join(found, reading.gather(found.bundle))
        record = keep(found.bundle, facts, counters)
        return result_of(record, named(task.bundle), task.fingerprint, time.monotonic() - begin)
    if isinstance(task, ReadPart):
        part = reading.read_chunk(task.streams, task.clock, all_lines=task.all_lines, redact=task.redact)
        return PartFacts(codec.encode(part.facts), plain(part.counters), part.skipped)
    if isinstance(task, Join):
        facts, counters = join(task.survey, joined(task.parts))
        record = keep(task.survey.bundle, facts, counters)
        return result_of(record, named(task.bundle), task.fingerprint, task.seconds + time.monotonic() - begin)
    record, unknown = record_of(task.stored)
    diagnosis: Diagnosis = rediagnose(record)
    record.document = diagnosis.document()
    again = result_of(record, task.stored.bundle, task.stored.fingerprint, time.monotonic() - begin)
    return Rediagnosed(again, unknown)


def parts_of(streams: Sequence[Stream], limits: TaskLimits) -> list[list[Stream]]:
    """The logs of a large bundle in parts, in their order; one part where it is not large.

    Members of one archive stay together: to reach the last of them is to read all of it.
    """
    known = sum(stream.size or 0 for stream in streams)
    if len(streams) <= limits.large_files and known <= limits.large_bytes:
        return [list(streams)]
    parts: list[list[Stream]] = []
    for chunk in reading.in_chunks(streams):
        inside = chunk[0].path.partition("!/")
        before = parts[-1][-1].path.partition("!/") if parts else ("", "", "")
        if inside[1] and inside[0] == before[0]:
            parts[-1] += chunk
        else:
            parts.append(chunk)
    return parts


def joined(parts: Sequence[PartFacts]) -> reading.StreamFacts:
    """The facts of all logs of a bundle."""
    whole = reading.StreamFacts()
    for part in parts:
        whole.facts += codec.decode(part.facts)
        whole.counters.add(part.counters)
        whole.skipped += part.skipped
    return whole


def plain(counters: Counters) -> Counters:
    """The counters alone, without whom they tell."""
    copy = Counters()
    copy.add(counters)
    return copy


class _TimeLimit(BaseException):
    """The time of a task is over. Not an `Exception`, so that no pattern's error handling takes it for its own."""


@contextmanager
def within(limits: TaskLimits) -> Iterator[None]:
    """Raise in this process when a limit is reached; end the process where that does not help.

    Signals and limits of memory belong to a process, so a worker does one task at a time. Outside of a main thread
    only the second step is taken.
    """
    begin = os.getpid()
    watchdog = threading.Timer(limits.seconds + GRACE_S, _end, (begin,))
    watchdog.daemon = True
    main = threading.current_thread() is threading.main_thread()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    # What the machine does not have would be taken from others, and the kernel would choose whom to kill.
    most = _held() + min(limits.memory, _machine() * 4 // 5)
    resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    before: Any = None
    try:
        watchdog.start()
        if main:
            before = signal.signal(signal.SIGALRM, _over)
            signal.setitimer(signal.ITIMER_REAL, limits.seconds)
        yield
    finally:
        if main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        watchdog.cancel()
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _over(*_: object) -> None:
    raise _TimeLimit


def _end(process: int) -> None:
    if os.getpid() == process:
        os._exit(124)


def _machine() -> int:
    """Bytes of memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _held() -> int:
    """Bytes of data that this process has now."""
    try:
        with open("/proc/self/status", "rb") as file:
            held = next((line for line in file if line.startswith(b"VmData:")), b"VmData: 0 kB")
        return int(held.split()[1]) << 10
    except OSError:
        return 0
