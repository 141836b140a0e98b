"""Local processes that run tasks and yield each outcome when it is there; `ray_workers` does so on a Ray cluster."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, Final, Protocol

from tracecore.archive.tasks import GRACE_S, Failed, Outcome, Task, TaskLimits, perform

#: Times that a task is given to another process when its process was killed by somebody else.
RETRIES: Final = 1


class Workers(Protocol):
    """A pool of workers."""

    @property
    def capacity(self) -> int:
        """Tasks that are useful to have under way at one time."""

    def submit(self, key: int, task: Task) -> None:
        """Take a task; its outcome is told with the key."""

    def finished(self) -> Iterator[tuple[int, Outcome]]:
        """Outcomes as they come, until no task is left. Tasks may be submitted in between."""

    def close(self) -> None:
        """End all workers, at work or not."""


class LocalProcesses:
    """Workers on this machine, each a process that does one task at a time.

    Args:
        count: processes.
        limits: of each task.
    """

    def __init__(self, count: int, limits: TaskLimits) -> None:
        self._limits = limits
        # A server that forks has read the modules once, and has no threads that a fork would break.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tracecore.archive.tasks"])
        _start_server()
        self._idle: list[_Process] = []
        self._busy: dict[Connection, _Process] = {}
        self._count = count
        self._waiting: deque[tuple[int, Task, int]] = deque()
        self._ready: deque[tuple[int, Outcome]] = deque()

    @property
    def capacity(self) -> int:
        return 2 * self._count

    def submit(self, key: int, task: Task) -> None:
        self._waiting.append((key, task, 0))

    def finished(self) -> Iterator[tuple[int, Outcome]]:
        while self._waiting or self._busy or self._ready:
            self._assign()
            while self._ready:
                yield self._ready.popleft()
                self._assign()
            self._collect()

    def _assign(self) -> None:
        while self._waiting and len(self._busy) < self._count:
            process = self._idle.pop() if self._idle else _Process(self._context, self._limits)
            key, task, tries = self._waiting.popleft()
            try:
                process.begin(key, task, tries)
            except Exception as error:
                process.kill()
                self._ready.append((key, Failed(f"cannot be given to a worker: {error}")))
                continue
            self._busy[process.connection] = process

    def _collect(self) -> None:
        """Wait for an outcome, the end of a process, or the next limit of time."""
        if not self._busy:
            return
        nearest = min(process.deadline for process in self._busy.values())
        ready = wait(list(self._busy), max(0.0, nearest - time.monotonic()))
        for connection in ready:
            assert isinstance(connection, Connection)
            process = self._busy.pop(connection)
            try:
                outcome = connection.recv()
            except (EOFError, OSError):
                process.kill()
                self._lost(process)
            else:
                self._idle.append(process)
                self._ready.append((process.key, outcome))
        for process in [p for p in self._busy.values() if p.deadline <= time.monotonic()]:
            del self._busy[process.connection]
            process.kill()
            seconds = self._limits.seconds
            self._ready.append((process.key, Failed(f"took longer than {seconds:g} s (--task-time)")))

    def _lost(self, process: _Process) -> None:
        """A process ended under its task: try again where that can help."""
        code = process.exit_code
        if code == -signal.SIGKILL and process.tries < RETRIES:
            self._waiting.append((process.key, process.task, process.tries + 1))
            return
        how = f"by {signal.Signals(-code).name}" if code is not None and code < 0 else f"with status {code}"
        why = ", most likely because memory ran out" if code == -signal.SIGKILL else ""
        self._ready.append((process.key, Failed(f"its process ended {how}{why}")))

    def close(self) -> None:
        for process in (*self._idle, *self._busy.values()):
            process.kill()
        self._idle, self._busy = [], {}


class _Process:
    """A worker process and the task that it does."""

    key: int
    task: Task
    tries: int

    def __init__(self, context: Any, limits: TaskLimits) -> None:
        self.connection, other = context.Pipe()
        self._limits = limits
        self.deadline = 0.0
        self._process = context.Process(target=_serve, args=(other, limits), daemon=True)
        self._process.start()
        other.close()

    def begin(self, key: int, task: Task, tries: int) -> None:
        self.key, self.task, self.tries = key, task, tries
        self.deadline = time.monotonic() + self._limits.seconds + 2 * GRACE_S
        self.connection.send(task)

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode  # type: ignore[no-any-return]

    def kill(self) -> None:
        self.connection.close()
        # One that has ended by itself tells how.
        self._process.join(0.5)
        if self._process.is_alive():
            self._process.kill()
        self._process.join(5)


def _start_server() -> None:
    """Start the server that forks, deaf to Ctrl-C from its first instruction: the command ends it and its workers."""
    resource_tracker.ensure_running()  # it unblocks signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(connection: Connection, limits: TaskLimits) -> None:
    """Do tasks until the command ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its workers
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        outcome = perform(task, limits)
        with suppress(BrokenPipeError):
            try:
                connection.send(outcome)
            except Exception as error:
                connection.send(Failed(f"its result cannot be sent: {error}"))
