"""Asking a command that hangs where it is: Flight Recorder dumps, Python stacks."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tracecore.actions.supervisor.evidence import DUMP_VARIABLES, PIPE_VARIABLE
from tracecore.actions.supervisor.keeper import descendants
from tracecore.signals import private, programs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_STACKS: Final = 32
MAX_STACK_BYTES: Final = 4 << 20
_STACK_S: Final = 20.0
_STACKS_S: Final = 60.0


def flight_recorder(env: Mapping[str, str], timeout_s: float = 15.0) -> int:
    """Have every rank here write its Flight Recorder dump, and wait for that; how many were asked.

    Each rank of PyTorch listens on a pipe of its own, `<prefix><rank>.pipe`.
    """
    prefix = Path(env.get(PIPE_VARIABLE) or "/nowhere/")
    try:
        names = [n for n in os.listdir(prefix.parent) if n.startswith(prefix.name) and n.endswith(".pipe")]
    except OSError:
        return 0
    before = _dumps(env)
    asked = 0
    for name in names:
        # Without a reader the rank is gone.
        with contextlib.suppress(OSError):
            fd = os.open(prefix.parent / name, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                if stat.S_ISFIFO(os.fstat(fd).st_mode):
                    os.write(fd, b"dump\n")
                    asked += 1
            finally:
                os.close(fd)
    # Written when as many files are new as were asked for, and none grows any more.
    end = time.monotonic() + timeout_s
    now = before
    while asked and time.monotonic() < end:
        time.sleep(0.5)
        earlier, now = now, _dumps(env)
        new = sum(1 for path, seen in now.items() if before.get(path) != seen)
        if new >= asked and now == earlier:
            break
    return asked


def _dumps(env: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for value in {env[name] for name in DUMP_VARIABLES if env.get(name)}:
        prefix = Path(value)
        with contextlib.suppress(OSError):
            for entry in os.scandir(prefix.parent):
                if entry.name.startswith(prefix.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    found[entry.path] = (status.st_size, status.st_mtime_ns)
    return found


def stacks(root: int, folder: Path) -> int | None:
    """Write the Python stacks of every process below this one, with py-spy; how many, None where it is missing."""
    program = py_spy()
    if program is None:
        return None
    written = 0
    end = time.monotonic() + _STACKS_S
    for pid in _pythons(descendants(root))[:MAX_STACKS]:
        left = end - time.monotonic()
        if left <= 0:
            return written
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                [program, "dump", "--pid", str(pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=min(_STACK_S, left),
                check=False,
            )
            private.make_folder(folder)
            private.write(folder / f"{pid}.txt", done.stdout[:MAX_STACK_BYTES])
            written += done.returncode == 0
    return written


def py_spy() -> str | None:
    """Return where py-spy is, on the path or beside this Python."""
    beside = Path(sys.executable).with_name("py-spy")
    return programs.find("py-spy") or (str(beside) if os.access(beside, os.X_OK) else None)


def _pythons(pids: Sequence[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            if "python" in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
                found.append(pid)
    return found
