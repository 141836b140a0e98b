"""Files below a folder, however deep. `os.walk` calls itself for each level and gives up at a thousand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator


def walk(root: str | os.PathLike[str], onerror: Callable[[OSError], None]) -> Iterator[tuple[str, list[str]]]:
    """Each folder below this one and itself with the names of its files, both sorted; a folder before what is in it.

    Links to folders are not entered.

    Args:
        onerror: is told of folders that cannot be read; what it raises ends the walk.
    """
    waiting = [os.fspath(root)]
    while waiting:
        folder = waiting.pop()
        folders: list[str] = []
        files: list[str] = []
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_folder(entry):
                        if not entry.is_symlink():
                            folders.append(entry.name)
                    else:
                        files.append(entry.name)
        except OSError as error:
            onerror(error)
            continue
        files.sort()
        yield folder, files
        folders.sort(reverse=True)
        waiting += [os.path.join(folder, name) for name in folders]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
