"""Links that a tenant put where logs are: an agent that may read everything must not read it on a tenant's behalf.

A link is followed when it belongs to root or to us (the kubelet's), or when who made it also owns what it leads to.
"""

from __future__ import annotations

import os
import stat
from typing import Final

#: Names in a path that are looked at.
MAX_PARTS: Final = 256


def trusted(path: str, fd: int) -> bool:
    """Whether an opened file may be read as the file at this path.

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
    """Who made the links on the way to a path."""
    found: set[int] = set()
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
            return found
        if not stat.S_ISLNK(status.st_mode):
            base = here
            continue
        found.add(status.st_uid)
        try:
            target = os.readlink(here)
        except OSError:
            return found
        if target.startswith("/"):
            base = "/"
        todo[:0] = target.split("/")
    return found
