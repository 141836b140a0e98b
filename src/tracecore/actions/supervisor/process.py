"""Starting a command under a keeper, finding it again, and ending it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import msgspec

from tracecore.actions.supervisor import keeper
from tracecore.signals import private

if TYPE_CHECKING:
    from collections.abc import Mapping

Whom: TypeAlias = Literal["child", "group", "all"]
#: The variable by which every process of an attempt can be found, however far it ran away.
MARK: Final = "TRACECORE_RUN"
_READY_S: Final = 30.0


class StartError(Exception):
    """The keeper did not start."""


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for a keeper (`run.json`, which the keeper removes once it has read it)."""

    command: list[str]
    cwd: str = ""
    grace_s: float = 10.0
    linger_s: float = 2.0
    lease_s: float | None = None


class Ids(msgspec.Struct, frozen=True):
    """The running process (`pid.json`)."""

    pid: int
    started: str | None
    keeper: int
    keeper_started: str | None
    at: int


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a command (`exit.json`).

    Args:
        exit_code: as `subprocess` has it, negative for a signal; None where nobody saw it.
        cause: empty where it ended by itself; `stopped`, `killed`, `lease`, `lost` where the keeper ended it.
        at: when, in nanoseconds since the epoch.
    """

    exit_code: int | None
    cause: str = ""
    at: int = 0
    user_s: float = 0.0
    system_s: float = 0.0
    max_rss_kb: int = 0

    @property
    def signal(self) -> str:
        """`SIGKILL`; empty where no signal ended it."""
        if self.exit_code is None or self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"SIG{-self.exit_code}"

    @property
    def status(self) -> int:
        """As a shell would say it: 128 + n for a signal, 1 where nobody knows."""
        if self.exit_code is None:
            return 1
        return self.exit_code if self.exit_code >= 0 else 128 - self.exit_code


class Process:
    """A command under its keeper: started here (`start`), or by somebody who is gone (`find`)."""

    def __init__(self, folder: Path, ids: Ids, popen: subprocess.Popen[bytes] | None, lifeline: int) -> None:
        self.folder = folder
        self.ids = ids
        self._popen = popen
        self._lifeline = lifeline
        self._pidfd = _pidfd(ids.keeper)

    @property
    def pid(self) -> int:
        return self.ids.pid

    def fileno(self) -> int:
        """To poll for: readable once the keeper, and all below it, is gone; -1 where the kernel is too old."""
        return self._pidfd

    def alive(self) -> bool:
        """Return whether the keeper is still there."""
        if self._popen is not None:
            return self._popen.poll() is None
        return _is(self.ids.keeper, self.ids.keeper_started)

    def wait(self, timeout: float | None = None) -> Exit | None:
        """Return how it ended, once nothing of it is left; None if that takes longer."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.alive():
            left = 1.0 if end is None else min(1.0, end - time.monotonic())
            if left <= 0:
                return None
            if self._pidfd >= 0:
                select.select([self._pidfd], [], [], left)
            else:
                time.sleep(min(left, 0.05))
        self.close()
        return ended(self.folder) or Exit(exit_code=None)

    def send(self, number: int, whom: Whom = "child") -> None:
        self._tell(f"signal {number} {whom}\n")

    def stop(self, grace_s: float, whom: Whom = "child", number: int = signal.SIGTERM) -> None:
        """Tell it to end, and make all of it when the grace is over."""
        self._tell(f"stop {grace_s} {whom} {int(number)}\n")

    def kill(self) -> None:
        self._tell("kill\n")

    def renew(self, seconds: float) -> None:
        """The lease holds for so long from now."""
        self._tell(f"renew {max(0.0, seconds)}\n")

    def _tell(self, command: str) -> None:
        # No reader: the keeper is gone, and what was asked for has happened.
        with contextlib.suppress(OSError):
            fd = os.open(self.folder / "control", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(fd, command.encode())
            finally:
                os.close(fd)

    def close(self) -> None:
        """Let go of what is held. A command on a lifeline ends soon after."""
        for name in ("_pidfd", "_lifeline"):
            fd = getattr(self, name)
            if fd >= 0:
                os.close(fd)
                setattr(self, name, -1)


def start(
    folder: Path,
    run: RunOptions,
    *,
    mark: str,
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    stdin: int | None = None,
    lifeline: bool = False,
) -> Process:
    """Start a command under a keeper.

    Args:
        folder: for this attempt alone.
        mark: names the attempt on this machine; see `sweep`.
        stdout, stderr: open files, into which the command writes directly.
        stdin: what it reads; nothing by default.
        lifeline: the command ends when this process does.

    Raises:
        StartError: no keeper.
    """
    private.make_folder(folder)
    private.write(folder / "run.json", msgspec.json.encode(run))
    for name in ("pid.json", "exit.json", "killed.json"):
        (folder / name).unlink(missing_ok=True)
    ours = theirs = -1
    if lifeline:
        theirs, ours = os.pipe()
    try:
        popen = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(folder), str(theirs)],
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=stdout,
            stderr=stderr,
            env={**env, MARK: mark},
            pass_fds=(theirs,) if lifeline else (),
            start_new_session=True,
        )
    except OSError as error:
        if ours >= 0:
            os.close(ours)
        raise StartError(f"cannot start {sys.executable}: {error.strerror}") from error
    finally:
        if theirs >= 0:
            os.close(theirs)
    ids = _ids(folder)
    end = time.monotonic() + _READY_S
    while ids is None and popen.poll() is None and time.monotonic() < end:
        time.sleep(0.002)
        ids = _ids(folder)
    if ids is None and (ids := _ids(folder)) is None:
        popen.kill()
        popen.wait()
        if ours >= 0:
            os.close(ours)
        raise StartError(f"the keeper of {run.command[0]} did not start: see {folder}")
    return Process(folder, ids, popen, ours)


def find(folder: Path) -> Process | None:
    """The command that somebody else started there, if its keeper is still alive."""
    ids = _ids(folder)
    if ids is None or not _is(ids.keeper, ids.keeper_started):
        return None
    return Process(folder, ids, None, -1)


def ended(folder: Path) -> Exit | None:
    """Return how the command of this folder ended; None while it runs, or if nobody saw it."""
    try:
        return msgspec.json.decode((folder / "exit.json").read_bytes(), type=Exit)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def killed(folder: Path) -> dict[int, str]:
    """Return the processes that the keeper had to kill: by process id the beginning of each command line."""
    try:
        found = msgspec.json.decode((folder / "killed.json").read_bytes(), type=dict[int, str])
    except (FileNotFoundError, msgspec.DecodeError, msgspec.ValidationError):
        return {}
    return found


def marked(mark: str) -> list[int]:
    """The processes of this user's that carry this mark, this one left out."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            environment = Path("/proc", name, "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(name))
    return found


def sweep(mark: str, timeout_s: float = 10.0) -> int:
    """Kill whatever is left of an attempt whose keeper is gone; how many processes.

    Raises:
        TimeoutError: something will not die (a process in the kernel's uninterruptible sleep).
    """
    killed: set[int] = set()
    end = time.monotonic() + timeout_s
    while pids := [pid for pid in marked(mark) if keeper.start_time(pid) is not None]:
        if time.monotonic() > end:
            raise TimeoutError(f"cannot kill {', '.join(map(str, pids))}, left over from {mark}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed.update(pids)
        time.sleep(0.02)
    return len(killed)


def become_reaper() -> None:
    """Inherit what a dead keeper leaves behind, so that it can be found and reaped."""
    keeper.prctl(keeper.SUBREAPER, 1)


def reap_strays() -> None:
    """Take in every ended child. Only where nobody else waits for one."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def lock(path: Path) -> int | None:
    """Hold this file's lock until the descriptor is closed or this process ends; None where another holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _ids(folder: Path) -> Ids | None:
    try:
        return msgspec.json.decode((folder / "pid.json").read_bytes(), type=Ids)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _is(pid: int, started: str | None) -> bool:
    return started is not None and keeper.start_time(pid) == started


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
