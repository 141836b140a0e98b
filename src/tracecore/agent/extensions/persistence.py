"""Find out whether a directory outlives the container, the pod and the machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

#: File systems that are memory.
_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
#: How the kubelet calls the directory of a volume that goes with its pod.
_EMPTY_DIR: Final = "kubernetes.io~empty-dir"
MAX_MOUNTS: Final = 8 << 20


def transient(directory: str, mounts: str | None = None) -> str:
    """Return why a directory does not last; empty where nothing says so.

    Args:
        mounts: the text of `/proc/self/mountinfo`; read when not given.
    """
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
                mounts = file.read(MAX_MOUNTS)
        except OSError:
            return ""
    path = os.path.realpath(directory)
    best: tuple[int, str, str] | None = None
    for line in mounts.splitlines():
        fields = line.split(" ")
        if "-" not in fields or len(fields) < 7 or fields.index("-") + 1 >= len(fields):
            continue
        root, point, kind = _plain(fields[3]), _plain(fields[4]), fields[fields.index("-") + 1]
        # Of two mounts at one place the later one is seen.
        if (path == point or point == "/" or path.startswith(point + "/")) and (best is None or len(point) >= best[0]):
            best = len(point), root, kind
    if best is None:
        return ""
    _, root, kind = best
    if kind in _MEMORY:
        return f"it is in memory ({kind}), and gone when the machine or the pod restarts"
    if _EMPTY_DIR in Path(root).parts:
        return "it is an emptyDir, and gone with the pod"
    if kind == "overlay":
        return "it is in the container's own layer (overlay), and gone with the container"
    return ""


def _plain(text: str) -> str:
    """A path as the kernel writes it: spaces and their like stand as octal numbers."""
    for escape, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, char)
    return text
