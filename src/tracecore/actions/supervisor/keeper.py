"""The process between a supervisor and its command. It starts the command, waits for it, and writes down how it ended.

It is small and does little, so that it outlives a supervisor that is killed: the command goes on, its output goes
straight into its files, its exit is recorded, and the next supervisor finds it all. It is the reaper of every
process the command leaves behind, so that none survives the attempt and none becomes a zombie.

It runs as a script of its own, with the standard library and nothing else: `python -I -S keeper.py FOLDER LIFELINE`.
FOLDER holds `run.json` (what to run, removed once it is read); the keeper adds `control` (a pipe that takes commands),
`pid.json` (who runs) and `exit.json` (how it ended). LIFELINE is a file descriptor whose other end the starter holds,
or -1.

Commands, one on each line: `signal N child|group|all`, `stop GRACE child|group SIGNAL`, `kill`, `renew SECONDS`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from typing import Any, NoReturn

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
#: Options of Linux's prctl.
DEATH_SIGNAL = 1
SUBREAPER = 36
_KILL_AGAIN_S = 0.1
#: Processes that are named of those that had to be killed.
MAX_NAMED = 64


def now() -> float:
    """Seconds that also pass while the machine sleeps: a lease does not."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def prctl(option: int, value: int) -> None:
    """Linux's prctl; nothing where there is none."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def start_time(pid: int) -> str | None:
    """When a process began, as the kernel says it: with the pid, a name no other process has. None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read(8)
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else f"{boot}-{fields[19].decode()}"


def descendants(root: int) -> list[int]:
    """Every process below this one, zombies left out."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def name_of(pid: int) -> str:
    """Return the beginning of a process's command line, to name it by."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(256).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""
    return words[:100]


def write(path: str, document: dict[str, Any]) -> None:
    """Write a file so that a reader sees all of it or none, and a power cut does not tear it."""
    private = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(private, "w", encoding="utf-8") as file:
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)


class Keeper:
    """One command, from its start until nothing of it is left.

    Args:
        folder: where everything about the attempt is.
        lifeline: the starter holds the other end; -1 where the command may outlive it.
    """

    def __init__(self, folder: str, lifeline: int) -> None:
        with open(os.path.join(folder, "run.json"), encoding="utf-8") as file:
            run: dict[str, Any] = json.load(file)
        # A command line may hold a secret, and nobody reads it again.
        os.unlink(os.path.join(folder, "run.json"))
        self.folder = folder
        self.lifeline = lifeline
        if lifeline >= 0:
            os.set_inheritable(lifeline, False)
        self.command: list[str] = run["command"]
        self.cwd: str = run.get("cwd") or ""
        self.grace: float = run.get("grace_s", 10.0)
        self.linger: float = run.get("linger_s", 2.0)
        lease = run.get("lease_s")
        self.lease_ends: float | None = None if lease is None else now() + lease
        self.child = 0
        self.ended = False
        self.cause = ""
        # After the end of the command, or of a grace: what is left is told to end, then made to.
        self.term_at: float | None = None
        self.kill_at: float | None = None
        self.pending: dict[int, bytes] = {}
        # What had to be killed after the command itself had ended, or did not end when it was told to.
        self.killed: dict[int, str] = {}

    def run(self) -> None:
        with contextlib.suppress(PermissionError):
            os.setsid()
        prctl(SUBREAPER, 1)
        waked, wake = os.pipe()
        os.set_blocking(waked, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in FORWARDED:
            signal.signal(number, lambda received, _: self.send(received, "child"))
        control = os.path.join(self.folder, "control")
        with contextlib.suppress(FileExistsError):
            os.mkfifo(control, 0o600)
        # Held for writing too, so that it never ends.
        commands = os.open(control, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.start()
        poll = select.poll()
        poll.register(waked, select.POLLIN)
        poll.register(commands, select.POLLIN)
        if self.lifeline >= 0:
            os.set_blocking(self.lifeline, False)
            poll.register(self.lifeline, select.POLLIN)
        while self.reap():
            for fd, _ in poll.poll(self.timeout()):
                if fd == waked:
                    with contextlib.suppress(BlockingIOError):
                        os.read(waked, 4096)
                elif not self.obey(fd):
                    poll.unregister(fd)
            self.due()

    def start(self) -> None:
        self.child = os.fork()
        if self.child == 0:
            self.become()
        # Both sides do it: whoever is first.
        with contextlib.suppress(OSError):
            os.setpgid(self.child, self.child)
        me = os.getpid()
        write(
            os.path.join(self.folder, "pid.json"),
            {
                "pid": self.child,
                "started": start_time(self.child),
                "keeper": me,
                "keeper_started": start_time(me),
                "at": time.time_ns(),
            },
        )

    def become(self) -> NoReturn:
        """In the child: turn into the command."""
        try:
            os.setpgid(0, 0)
            # The command does not outlive its keeper: without it nobody would see how it ends.
            prctl(DEATH_SIGNAL, signal.SIGKILL)
            signal.set_wakeup_fd(-1)
            for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if self.cwd:
                os.chdir(self.cwd)
            os.execvp(self.command[0], self.command)
        except OSError as error:
            where = self.cwd if error.filename == self.cwd and self.cwd else self.command[0]
            os.write(2, f"tracecore: cannot run {where}: {error.strerror}\n".encode())
            os._exit(127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126)
        finally:
            os._exit(126)

    def timeout(self) -> int | None:
        times = [t for t in (self.term_at, self.kill_at, self.lease_ends) if t is not None]
        return max(0, int((min(times) - now()) * 1000) + 1) if times else None

    def due(self) -> None:
        """Do what the time has come for."""
        time_ = now()
        if self.lease_ends is not None and time_ >= self.lease_ends:
            self.lease_ends = None
            self.cause = self.cause or "lease"
            self.kill_at = time_
        if self.term_at is not None and time_ >= self.term_at:
            self.term_at = None
            self.send(signal.SIGTERM, "all")
        if self.kill_at is not None and time_ >= self.kill_at:
            # Again and again: between two looks a process may have begun another.
            self.kill_at = time_ + _KILL_AGAIN_S
            left = descendants(os.getpid())
            for pid in left[:MAX_NAMED]:
                self.killed.setdefault(pid, name_of(pid))
            self.send(signal.SIGKILL, "all")
            if left:
                write(os.path.join(self.folder, "killed.json"), {str(pid): name for pid, name in self.killed.items()})

    def reap(self) -> bool:
        """Take in everything that ended; whether anything is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.ended = True
                code = os.waitstatus_to_exitcode(status)
                write(
                    os.path.join(self.folder, "exit.json"),
                    {
                        "exit_code": code,
                        "cause": self.cause,
                        "at": time.time_ns(),
                        "user_s": usage.ru_utime,
                        "system_s": usage.ru_stime,
                        "max_rss_kb": usage.ru_maxrss,
                    },
                )
                self.lease_ends = None
                if self.kill_at is None:
                    self.term_at = now() + self.linger
                    self.kill_at = self.term_at + min(self.grace, 10.0)

    def send(self, number: int, whom: str) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if whom == "all":
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
            elif self.ended:
                pass
            elif whom == "group":
                os.killpg(self.child, number)
            elif self.child:
                os.kill(self.child, number)

    def obey(self, fd: int) -> bool:
        """Read commands and do them; False once there will be no more."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return True
        if not data:
            # The starter is gone, and with it the right to run for longer than the lease says.
            self.stop("lost", self.grace, "child")
            return False
        lines = (self.pending.pop(fd, b"") + data).split(b"\n")
        if len(lines[-1]) < 4096:
            self.pending[fd] = lines[-1]
        for line in lines[:-1]:
            with contextlib.suppress(ValueError, IndexError):
                self.do(line.decode("ascii", "replace").split())
        return True

    def do(self, words: list[str]) -> None:
        match words[0]:
            case "signal":
                self.send(int(words[1]), words[2])
            case "stop":
                self.stop("stopped", float(words[1]), words[2], int(words[3]))
            case "kill":
                self.stop("killed", 0.0, "child")
            case "renew" if self.lease_ends is not None:
                self.lease_ends = now() + float(words[1])

    def stop(self, cause: str, grace: float, whom: str, number: int = signal.SIGTERM) -> None:
        self.cause = self.cause or cause
        if self.kill_at is None or now() + grace < self.kill_at:
            self.kill_at = now() + grace
        if grace > 0:
            self.send(number, whom)
            # A stopped process cannot take its last chance.
            self.send(signal.SIGCONT, whom)


if __name__ == "__main__":
    Keeper(sys.argv[1], int(sys.argv[2])).run()
