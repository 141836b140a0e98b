"""Links that a tenant put where logs are: an agent that may read everything must not read it on a tenant's behalf.

A link is followed when it belongs to root or to us (the kubelet's), or when who made it also owns what it leads to.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Final

#: Names in a path that are looked at.
MAX_PARTS: Final = 256


def trusted(path: str, fd: int) -> bool:
    """Return whether an opened file may be read as the file at this path.

    The file is asked, not the path alone: what is at a path can be exchanged between two looks.
    """
    wanted = os.path.normpath(os.path.abspath(path))
    try:
        real = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        real = ""
    if real == wanted:
        return True
    owner = os.fstat(fd).st_uid
    makers = _makers(wanted)
    if makers:
        return all(maker in (0, os.geteuid(), owner) for maker in makers)
    # No link is there now: the file was renamed since, or deleted, or somebody plays with us.
    return not real or real.endswith(" (deleted)") or os.path.dirname(real) == os.path.dirname(wanted)


def _makers(path: str) -> set[int]:
    """Return who made the links on the way to a path."""
    return {status.st_uid for _, status in _walked(path) if _link(status)}


def followed(path: str) -> tuple[str, ...]:
    """The names that lead to what is at a path, where links do: each link on the way, and the file itself."""
    steps = list(_walked(os.path.normpath(os.path.abspath(path))))
    if not any(_link(status) for _, status in steps):
        return ()
    return tuple(here for number, (here, status) in enumerate(steps) if number == len(steps) - 1 or _link(status))


def _link(status: os.stat_result) -> bool:
    return stat.S_ISLNK(status.st_mode)


def _walked(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every name on the way to a path, link by link; it ends where there is nothing."""
    todo = [part for part in path.split("/") if part]
    base, left = "/", MAX_PARTS
    while todo and left:
        left -= 1
        part = todo.pop(0)
        if part in ("", "."):
            continue
        if part == "..":
            base = os.path.dirname(base.rstrip("/")) or "/"
            continue
        here = os.path.join(base, part)
        try:
            status = os.lstat(here)
        except OSError:
            return
        yield here, status
        if not _link(status):
            base = here
            continue
        try:
            target = os.readlink(here)
        except OSError:
            return
        if target.startswith("/"):
            base = "/"
        todo[:0] = target.split("/")
