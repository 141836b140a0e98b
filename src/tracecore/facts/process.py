"""Facts about failures and ends of processes: exceptions, signals, exit statuses, launchers, CUDA and loader errors."""

from __future__ import annotations

import signal as posix
from functools import lru_cache
from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import quote, sentence

_NAMES = {int(s): s.name for s in posix.Signals}


#: Exit statuses with which Windows ends a process.
_WINDOWS = {0xC0000005: "SIGSEGV", 0xC00000FD: "SIGSEGV", 0xC0000409: "SIGABRT", 0xC000001D: "SIGILL"}


@lru_cache(maxsize=1024)
def signal_name(exit_code: int) -> str | None:
    """Return the signal of an exit status, `SIGKILL` for -9 and 137; None if it is no signal."""
    if exit_code in _WINDOWS:
        return _WINDOWS[exit_code]
    if exit_code < 0:
        return _NAMES.get(-exit_code)
    return _NAMES.get(exit_code - 128) if 128 < exit_code < 128 + 65 else None


#: The type of an exception whose traceback is not complete in the log.
UNFINISHED = "UnfinishedTraceback"
#: The type for a complaint at the end of a log, in a text that no recipe knows.
LAST_WORDS = "LastWords"


class ExceptionRaised(Fact, frozen=True, kw_only=True):
    """A Python exception was printed with its traceback. The process may have survived it.

    Args:
        type: type of the outermost exception, as printed.
        message: its message.
        file: file of the innermost frame in user code.
        line: line of that frame.
        function: function of that frame.
        root_type: type of the first exception, if several are chained or one came from a worker process.
        root_message: message of the first exception.
        origin: the rank that raised it, if this rank only repeats it.
        loader_worker: number of the DataLoader worker process that raised it.
        pid: the process, if the line names it.
        local_rank: rank on its host, if the rank is not known.
        lost_peer: it says that another process is gone or could not be reached.
        too_slow: the program gave up because it had become slow.
        caught: its stack begins in a function of the program, so the program caught and printed it.
        threaded: it ended a thread. The process goes on until it needs what the thread did.
    """

    kind: ClassVar[str] = "exception"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"message", "root_message"})

    type: str
    message: str | None = None
    file: str | None = None
    line: int | None = None
    function: str | None = None
    root_type: str | None = None
    root_message: str | None = None
    origin: int | None = None
    loader_worker: int | None = None
    pid: int | None = None
    local_rank: int | None = None
    lost_peer: bool = False
    too_slow: bool = False
    caught: bool = False
    threaded: bool = False

    @property
    def handled(self) -> tuple[object, ...] | None:
        """Return the place where the process catches exceptions like this; None if it is not caught."""
        if not self.caught or self.file is None:
            return None
        return self.source.path, self.rank, self.attempt, self.type, self.file, self.line

    def describe(self) -> str:
        where = f" at {self.file}:{self.line}" if self.file and self.line is not None else ""
        where += f" of local rank {self.local_rank}" if self.local_rank is not None else ""
        root = f" (from {self.root_type})" if self.root_type and self.root_type != self.type else ""
        return sentence(self, f"{self.type}{root}{where}", self.message)


class StackPrinted(Fact, frozen=True, kw_only=True):
    """The stack of a running process was printed, by itself at intervals or by a tool.

    Args:
        inner: the innermost function.
        file, line, function: innermost frame in user code.
        waits: it was in a collective.
        loads: it asked a loader for the next batch.
    """

    kind: ClassVar[str] = "stack"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    inner: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    waits: bool = False
    loads: bool = False

    @property
    def frame(self) -> str:
        """Return `train.py:88 in main`, and the function called from there."""
        if self.file is None:
            return self.inner
        own = f"{self.file}:{self.line} in {self.function}"
        return own if self.inner == self.function else f"{own}, which called {self.inner}"

    def describe(self) -> str:
        return sentence(self, f"printed its stack, at {self.frame}")


class RankStarted(Fact, frozen=True, kw_only=True):
    """A process says which rank it is, when it starts or is about to join the others.

    Args:
        world: the number of ranks, if the line has it.
    """

    kind: ClassVar[str] = "rank_started"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    world: int | None = None

    def describe(self) -> str:
        return sentence(self, f"a process started{f', one of {self.world}' if self.world is not None else ''}")


class FatalSignal(Fact, frozen=True, kw_only=True):
    """A crash handler or a launcher says that a process died of a signal.

    Args:
        signal: `SIGSEGV` and so on.
    """

    kind: ClassVar[str] = "fatal_signal"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    signal: str
    pid: int | None = None

    def describe(self) -> str:
        return sentence(self, f"process{f' {self.pid}' if self.pid is not None else ''} died of {self.signal}")


class ExitStatus(Fact, frozen=True, kw_only=True):
    """The exit status of a process, or that it still ran when exit statuses were taken.

    Args:
        exit_code: as the launcher saw it, negative for a signal; None if it still ran.
        alive: it still ran.
    """

    kind: ClassVar[str] = "exit_status"
    layer: ClassVar[str] = "scheduler"
    folds: ClassVar[bool] = True

    exit_code: int | None = None
    alive: bool = False
    pid: int | None = None

    @property
    def signal(self) -> str | None:
        return None if self.exit_code is None else signal_name(self.exit_code)

    @property
    def how(self) -> str:
        """Return `ended with exit status -9 (SIGKILL)` or `still alive`."""
        if self.exit_code is None:
            return "still alive"
        by = f" ({self.signal})" if self.signal else ""
        return f"ended with exit status {self.exit_code}{by}"

    def describe(self) -> str:
        return sentence(self, f"process {self.how}")


class LauncherFailure(Fact, frozen=True, kw_only=True):
    """One entry of a launcher's failure report. `rank` is the rank of the entry, never that of the reporter.

    Args:
        launcher: torchelastic, spawn, slurm, mpi, deepspeed, accelerate, composer, ray, jax or vllm.
        root: the launcher calls it the first observed failure.
        local_rank: rank on its host.
        pid: pid of the failed process.
        exit_code: negative for a signal.
        host: as printed.
        failed_at: the time as printed; its time zone is not known.
        error_file: as printed.
        other_rank: another rank that the report lists.
        raised_rank: the only other rank that the report lists with the exit status of an exception.
        failed: the ranks that failed, if the report lists several without details.
        exception_type: type of the exception in the traceback of the entry.
        exception_message: its message.
    """

    kind: ClassVar[str] = "launcher_failure"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    launcher: str
    root: bool = False
    local_rank: int | None = None
    pid: int | None = None
    exit_code: int | None = None
    host: str | None = None
    failed_at: str | None = None
    error_file: str | None = None
    other_rank: int | None = None
    raised_rank: int | None = None
    failed: tuple[int, ...] = ()
    exception_type: str | None = None
    exception_message: str | None = None

    @property
    def signal(self) -> str | None:
        return None if self.exit_code is None else signal_name(self.exit_code)

    def describe(self) -> str:
        parts = [f"{self.launcher} reports {'the first observed failure' if self.root else 'a failed process'}"]
        if self.exit_code is not None:
            parts.append(f"exit status {self.exit_code}{f' ({self.signal})' if self.signal else ''}")
        if self.local_rank is not None:
            parts.append(f"local rank {self.local_rank}")
        if self.exception_type:
            parts.append(f"{self.exception_type}: {quote(self.exception_message or '')}".rstrip(": "))
        return sentence(self, ", ".join(parts))


class CudaError(Fact, frozen=True, kw_only=True):
    """A CUDA, cuBLAS or cuDNN error of a process.

    Args:
        error: CUDA's own name in snake case without `cudaError`.
        vendor: the vendor of the device, a value of `hw.vendor`; None is NVIDIA.
    """

    kind: ClassVar[str] = "cuda_error"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True
    varying: ClassVar[frozenset[str]] = frozenset({"detail"})

    error: str
    pid: int | None = None
    detail: str | None = None
    vendor: str | None = None

    def describe(self) -> str:
        return sentence(self, f"CUDA error {self.error.replace('_', ' ')}", self.detail)


class LoaderError(Fact, frozen=True, kw_only=True):
    """A DataLoader error.

    Args:
        error_class: one of the classes of docs/attributes.md.
        worker_pid: pid of the dead worker.
        signal: the signal that killed it.
        pod_uid: uid of its pod.
        retried: the line says that the operation is retried, so it has not failed yet.
    """

    kind: ClassVar[str] = "dataloader_error"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    error_class: str
    worker_pid: int | None = None
    signal: str | None = None
    pod_uid: str | None = None
    retried: bool = False

    def describe(self) -> str:
        pid = f" (pid {self.worker_pid})" if self.worker_pid is not None else ""
        by = f" by {self.signal}" if self.signal else ""
        again = ", retried" if self.retried else ""
        return sentence(self, f"{self.error_class}{pid}{by}{again}")
