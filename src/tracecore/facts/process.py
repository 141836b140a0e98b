"""Failures and ends of processes: exceptions, signals, exit statuses, launchers, CUDA and loader errors."""

from __future__ import annotations

import signal as posix
from functools import lru_cache
from typing import ClassVar

from tracecore.facts.fact import Fact
from tracecore.facts.wording import quote, sentence

_NAMES = {int(s): s.name for s in posix.Signals}


#: Statuses by which Windows ends a process.
_WINDOWS = {0xC0000005: "SIGSEGV", 0xC00000FD: "SIGSEGV", 0xC0000409: "SIGABRT", 0xC000001D: "SIGILL"}


@lru_cache(maxsize=1024)
def signal_name(exit_code: int) -> str | None:
    """The signal that an exit status stands for: -9 and 137 are `SIGKILL`; None when it is no signal."""
    if exit_code in _WINDOWS:
        return _WINDOWS[exit_code]
    if exit_code < 0:
        return _NAMES.get(-exit_code)
    return _NAMES.get(exit_code - 128) if 128 < exit_code < 128 + 65 else None


#: The type of an exception whose traceback the log does not have to its end.
UNFINISHED = "UnfinishedTraceback"
#: The type that stands for a complaint with which a log ends, in words that no recipe knows.
LAST_WORDS = "LastWords"


class ExceptionRaised(Fact, frozen=True, kw_only=True):
    """A Python exception was printed with its traceback. Whether it was survived is not decided here.

    Args:
        type: of the outermost exception, as printed.
        message: its message.
        file: file of the innermost frame in user code.
        line: line of that frame.
        function: function of that frame.
        root_type: where exceptions are chained or carried over from a worker process: the first raised.
        root_message: its message.
        origin: the rank in which it was raised, where this one only tells of it.
        loader_worker: number of the DataLoader worker process the exception comes from.
        pid: the process, where the line names it.
        local_rank: rank on its host, where the rank is not known.
        lost_peer: it says that another process is gone, or could not be reached.
        too_slow: the program gave up because it had become slow.
        caught: its stack begins in a function of the program: whoever printed it had caught it.
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

    @property
    def handled(self) -> tuple[object, ...] | None:
        """The place at which one process catches exceptions like this; None for one that is not caught."""
        if not self.caught or self.file is None:
            return None
        return self.source.path, self.rank, self.attempt, self.type, self.file, self.line

    def describe(self) -> str:
        where = f" at {self.file}:{self.line}" if self.file and self.line is not None else ""
        where += f" of local rank {self.local_rank}" if self.local_rank is not None else ""
        root = f" (from {self.root_type})" if self.root_type and self.root_type != self.type else ""
        return sentence(self, f"{self.type}{root}{where}", self.message)


class StackPrinted(Fact, frozen=True, kw_only=True):
    """The stack of a process that went on was printed: by itself now and then, or by whoever looked at it.

    Args:
        inner: the function it was in.
        file, line, function: innermost frame in user code.
        waits: it was in a collective.
    """

    kind: ClassVar[str] = "stack"
    layer: ClassVar[str] = "stdout"
    folds: ClassVar[bool] = True

    inner: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    waits: bool = False

    @property
    def frame(self) -> str:
        """`train.py:88 in main`, and what was called from there."""
        if self.file is None:
            return self.inner
        own = f"{self.file}:{self.line} in {self.function}"
        return own if self.inner == self.function else f"{own}, which called {self.inner}"

    def describe(self) -> str:
        return sentence(self, f"printed its stack, at {self.frame}")


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
    """The end of a process, or that it had not ended when it was looked at.

    Args:
        exit_code: as the launcher saw it, negative for a signal; None while alive.
        alive: it had not ended.
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
        """`ended with exit status -9 (SIGKILL)`, or `still alive`."""
        if self.exit_code is None:
            return "still alive"
        by = f" ({self.signal})" if self.signal else ""
        return f"ended with exit status {self.exit_code}{by}"

    def describe(self) -> str:
        return sentence(self, f"process {self.how}")


class LauncherFailure(Fact, frozen=True, kw_only=True):
    """One entry of a launcher's own failure report. `rank` is the entry's rank, never the reporter's.

    Args:
        launcher: torchelastic, spawn, slurm, mpi, deepspeed, accelerate, composer, ray, jax or vllm.
        root: the launcher calls it the first observed failure.
        local_rank: rank on its host.
        pid: of the failed process.
        exit_code: negative for a signal.
        host: as printed.
        failed_at: the time as printed, whose zone is not known.
        error_file: as printed.
        other_rank: a further rank that the report lists.
        failed: the ranks that failed, where the report lists several and tells nothing else of them.
        exception_type: of the traceback the entry carries.
        exception_message: of the same.
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
        vendor: who made the device, where it is not NVIDIA: the vocabulary of `hw.vendor`.
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
        worker_pid: the dead worker's pid.
        signal: what killed it.
        pod_uid: uid of its pod.
        retried: the line says that the operation is tried again, so it has not failed.
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
