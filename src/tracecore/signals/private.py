"""Files and folders for their owner alone: what is kept of a run may hold what nobody else should read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO, Final, Literal

FILE: Final = 0o600
FOLDER: Final = 0o700


def make_folder(path: Path) -> None:
    """Make a folder and those above it that are missing, each 0700; one that is there stays as it is."""
    missing = [path]
    while not missing[-1].parent.exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    for folder in reversed(missing):
        folder.mkdir(mode=FOLDER, exist_ok=True)


def opened(path: Path | str, mode: Literal["wb", "ab"] = "wb") -> BinaryIO:
    """A file to write, 0600 also where it was there and wider."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if mode == "ab" else os.O_TRUNC)
    descriptor = os.open(path, flags, FILE)
    file = os.fdopen(descriptor, mode, buffering=0)
    try:
        # Only a file of one's own: what a user names may be a pipe or a device.
        if os.path.isfile(path):
            os.fchmod(descriptor, FILE)
    except OSError:
        pass
    return file


def write(path: Path, data: bytes, *, durable: bool = False, mode: int = FILE) -> None:
    """Write a file so that a reader sees all of it or none.

    Args:
        durable: and so that a power cut leaves the old one or the new one.
        mode: who may read it.
    """
    if path.exists() and not path.is_file():
        # A device or a pipe takes what is written; to replace it would take it away from everybody.
        with open(path, "wb", buffering=0) as device:
            device.write(data)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with opened(draft) as file:
            file.write(data)
            if mode != FILE:
                os.fchmod(file.fileno(), mode)
            if durable:
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def copy(source: Path, target: Path) -> None:
    """Copy what a file holds."""
    with open(source, "rb") as read, opened(target) as written:
        shutil.copyfileobj(read, written, 1 << 20)
