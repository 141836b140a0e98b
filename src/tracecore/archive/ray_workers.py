"""Workers on a Ray cluster. Ray schedules tasks, and starts those of a lost node again on another one."""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from typing import Any, Final

from tracecore.archive.dataset import ArchiveError
from tracecore.archive.tasks import GRACE_S, Failed, Outcome, Task, TaskLimits, perform

#: Times that a task is started again after its process or its node was lost.
RETRIES: Final = 4
#: Seconds after which the processors of the cluster are counted again.
RECOUNT_S: Final = 5.0
#: Seconds after which tasks that are too old are looked for.
LOOK_S: Final = 30.0
#: Seconds in which a cluster has to take a connection.
CONNECT_S: Final = 10.0


class RayWorkers:
    """Workers on a cluster.

    Args:
        address: `host:port` of the cluster, `ray://host:port`, `auto` for the one of this machine, or `local` to start
            one here for as long as the command runs.
        limits: of each task.
        cpus: of a `local` one.

    Raises:
        ArchiveError: Ray is not installed, or there is no cluster at this address.
    """

    def __init__(self, address: str, limits: TaskLimits, *, cpus: int | None = None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        _reachable(address)  # before Ray is imported, which reads its environment then
        try:
            # By name: types of Ray would be checked only where it is installed.
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise ArchiveError("--ray needs Ray: pip install 'tracecore-diagnosis[ray]'") from None
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
        if address == "local":
            options |= {"num_cpus": cpus, "include_dashboard": False}
        self._own = not self._ray.is_initialized()
        # Ray prints about lost nodes on standard output, which belongs to the answer.
        self._stack = ExitStack()
        self._stack.enter_context(redirect_stdout(sys.stderr))
        try:
            if self._own:
                self._ray.init(address=address, **options)
        except (ConnectionError, OSError, RuntimeError, ValueError, AssertionError) as error:
            self._stack.close()
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ArchiveError(f"there is no Ray cluster at {address}: {lines[0]}") from None
        self._limits = limits
        remote = self._ray.remote(num_cpus=1, max_retries=RETRIES, max_calls=0)
        self._perform = remote(perform)
        self._running: dict[Any, tuple[int, float]] = {}
        self._capacity, self._counted = 0, 0.0

    @property
    def capacity(self) -> int:
        """Twice the processors, which may become more or fewer while the command runs."""
        if time.monotonic() - self._counted >= RECOUNT_S:
            self._capacity = 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))
            self._counted = time.monotonic()
        return self._capacity

    def submit(self, key: int, task: Task) -> None:
        # Ray repeats a task that was killed for memory without end, so the command counts the time as well.
        # A task waits for at most one other.
        most = (RETRIES + 2) * (self._limits.seconds + 2 * GRACE_S)
        self._running[self._perform.remote(task, self._limits)] = key, time.monotonic() + most

    def finished(self) -> Iterator[tuple[int, Outcome]]:
        while self._running:
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=LOOK_S)
            for reference in ready:
                key, _ = self._running.pop(reference)
                try:
                    yield key, self._ray.get(reference)
                except self._ray.exceptions.RayError as error:
                    yield key, Failed(_reason(error))
            for reference, (key, deadline) in list(self._running.items()):
                if deadline <= time.monotonic():
                    del self._running[reference]
                    self._ray.cancel(reference, force=True)
                    yield key, Failed("Ray did not finish it: too little memory or no node, see `ray status`")

    def close(self) -> None:
        """Cancel what is under way, and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running = {}
        if self._own:
            self._ray.shutdown()
        self._stack.close()


def _reachable(address: str) -> None:
    """Fail at once where nobody listens: Ray tries for minutes.

    Raises:
        ArchiveError: nobody listens there.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    if host in ("localhost", "127.0.0.1"):
        # Else Ray looks for a cluster of this machine at its outer address.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise ArchiveError(f"there is no Ray cluster at {address}: {reason}") from None


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"Ray lost the task {RETRIES + 1} times: {type(error).__name__}: {lines[0]}"[:1000]
