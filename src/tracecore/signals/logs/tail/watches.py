"""Watches on directories, and the kernel's notices of changes as paths.

Where it cannot be asked, or does not know, files are looked at again and again instead; `reasons` says why.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

import msgspec

from tracecore.signals.logs.tail import inotify
from tracecore.signals.logs.tail.inotify import Inotify
from tracecore.signals.logs.tail.links import followed

#: Names came or went.
_NAMED: Final = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
_SELF: Final = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED
_TREE: Final = _NAMED | inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.ONLY_DIRECTORIES | inotify.ADD
_FILES: Final = _TREE | inotify.MODIFY | inotify.ATTRIB
#: Watches are counted for a user, and others of that user (the kubelet) need some, too: we take one of so many.
SHARE: Final = 2
_LIMIT: Final = Path("/proc/sys/fs/inotify/max_user_watches")


class WatchedChanges(msgspec.Struct):
    """Changes that the kernel announced.

    Args:
        paths: files that were written to, came or went, in order; also by way of the links that lead to them.
        named: those of them that came or went.
        listings: directories in which names came or went, and which.
        replaced: directories that may be others now, with all that is below.
        everything: anything may have changed: more happened than the kernel could note.
    """

    paths: dict[str, None] = msgspec.field(default_factory=dict)
    named: set[str] = msgspec.field(default_factory=set)
    listings: dict[str, set[str]] = msgspec.field(default_factory=dict)
    replaced: set[str] = msgspec.field(default_factory=set)
    everything: bool = False


class Watches:
    """The directories that are watched.

    A directory is named as globs do: by a path that ends with a slash, or nothing for where we are. Several names may
    lead to one directory.
    """

    def __init__(self) -> None:
        #: Why changes of some files are not announced, in the order in which that was found.
        self.reasons: list[str] = []
        self._inotify: Inotify | None = None
        self._numbers: dict[str, int] = {}
        self._names: dict[int, set[str]] = {}
        self._inodes: dict[int, tuple[int, int]] = {}
        self._with_files: set[str] = set()
        # The names that lead to a file that is found by links, and the other way round.
        self._steps: dict[str, tuple[str, ...]] = {}
        self._led: dict[str, set[str]] = {}
        self._foreign: dict[int, str] = {}
        self._replaced: set[str] = set()
        self._most = _most()
        try:
            self._inotify = Inotify()
        except OSError as error:
            self._give_up(f"inotify: {error.strerror}", error.errno)

    @property
    def alive(self) -> bool:
        """Return whether anything is announced at all."""
        return self._inotify is not None

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def watch(self, name: str, status: os.stat_result, files: bool) -> bool:
        """Ask to be told of what happens in a directory; gives whether we will be.

        Args:
            name: of the directory.
            status: of what is there now.
            files: also of what is written to files.
        """
        inode = status.st_dev, status.st_ino
        number = self._numbers.get(name)
        if number is not None:
            if self._inodes[number] != inode:
                # Another directory is there, and nobody told: what is in it is others, too.
                self.release_below(name)
                self._replaced.add(name)
            elif not files or name in self._with_files:
                return True
        if self._inotify is None:
            return False
        where = name or "."
        kind = self._foreign.get(status.st_dev)
        if kind is None:
            kind = self._foreign[status.st_dev] = inotify.foreign(where)
            if kind:
                self.reasons.append(f"changes on {kind} ({where}) are not announced")
        if kind:
            return False
        if len(self._names) >= self._most:
            self._give_up(f"more than {self._most} directories to watch", errno.ENOSPC)
            return False
        try:
            number = self._inotify.add(where, _FILES if files else _TREE)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM):
                self._give_up(f"inotify: {error.strerror}", error.errno)
            return False
        self._numbers[name] = number
        self._names.setdefault(number, set()).add(name)
        self._inodes[number] = inode
        if files:
            self._with_files.add(name)
        return True

    def release(self, name: str) -> None:
        """A directory need not be watched any longer, under this name."""
        number = self._numbers.pop(name, None)
        self._with_files.discard(name)
        if number is None:
            return
        names = self._names[number]
        names.discard(name)
        if not names:
            del self._names[number], self._inodes[number]
            if self._inotify is not None:
                self._inotify.remove(number)

    def release_below(self, name: str) -> None:
        """The same of a directory and all below it: others may be there now."""
        for held in [held for held in self._numbers if held.startswith(name)]:
            self.release(held)

    def keep(self, names: Collection[str]) -> None:
        """Let go of all directories but these, and those that links lead to."""
        linked = {directory(step) for step in self._led}
        for name in [name for name in self._numbers if name not in names and name not in linked]:
            self.release(name)

    def follow(self, path: str) -> None:
        """Find out which links lead to a file, and watch all of them."""
        self.forget(path)
        steps = followed(path)
        if not steps:
            return
        self._steps[path] = steps
        for step in steps:
            self._led.setdefault(step, set()).add(path)
            name = directory(step)
            try:
                self.watch(name, os.stat(name or "."), files=step == steps[-1])
            except OSError:
                self.release(name)

    def linked(self, path: str) -> bool:
        """Return whether links lead to a file."""
        return path in self._steps

    def forget(self, path: str) -> None:
        """Stop watching this file."""
        for step in self._steps.pop(path, ()):
            paths = self._led[step]
            paths.discard(path)
            if not paths:
                del self._led[step]

    def covers(self, path: str) -> bool:
        """Return whether all that happens to the file at a path is announced."""
        if directory(path) not in self._with_files:
            return False
        steps = self._steps.get(path)
        return steps is None or (
            directory(steps[-1]) in self._with_files and all(directory(step) in self._numbers for step in steps)
        )

    def read(self) -> WatchedChanges:
        """Return what was announced since the last time."""
        changes = WatchedChanges(replaced=self._replaced)
        self._replaced = set()
        for number, mask, name in self._inotify.read() if self._inotify is not None else ():
            if mask & inotify.OVERFLOW:
                changes.everything = True
                continue
            names = self._names.get(number)
            if names is None:
                continue
            if name:
                for held in names:
                    self._named(held, name, mask, changes)
            elif mask & _SELF:
                changes.replaced |= names
                if mask & inotify.IGNORED:
                    for held in tuple(names):
                        self.release(held)
        for name in changes.replaced:
            for step, paths in self._led.items():
                if step.startswith(name):
                    changes.paths |= dict.fromkeys(paths)
                    changes.named |= paths
        return changes

    def _named(self, held: str, name: str, mask: int, changes: WatchedChanges) -> None:
        path = held + name
        paths = dict.fromkeys((path, *self._led.get(path, ())))
        changes.paths |= paths
        if mask & _NAMED:
            changes.named.update(paths)
            changes.listings.setdefault(held, set()).add(name)
            if f"{path}/" in self._numbers:
                changes.replaced.add(f"{path}/")

    def wait(self, seconds: float) -> bool:
        """Return whether something is announced within this time."""
        return self._inotify is not None and self._inotify.wait(seconds)

    def _give_up(self, reason: str, number: int | None) -> None:
        """Files are looked at again and again from now on; what we have is left to others."""
        if number == errno.ENOSPC:
            reason += "; fs.inotify.max_user_watches may be raised"
        elif number == errno.EMFILE:
            reason += "; fs.inotify.max_user_instances may be raised"
        self.reasons.append(reason)
        self.close()

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        for held in (self._numbers, self._names, self._inodes, self._steps, self._led):
            held.clear()
        self._with_files.clear()


def directory(path: str) -> str:
    """The directory of a path, as globs name it."""
    return path[: path.rfind("/") + 1]


def _most() -> int:
    try:
        return max(int(_LIMIT.read_text()) // SHARE, 1)
    except (OSError, ValueError):
        return 4096
