"""When each place is looked at: at once, in turns, or when the kernel announces a change."""

from __future__ import annotations

import collections
import os
from collections.abc import Mapping
from typing import Final

from tracecore.signals.logs.tail.config import SECOND
from tracecore.signals.logs.tail.watched import WatchedFile
from tracecore.signals.logs.tail.watches import Watches

#: A file that did not change for so long is looked at in turns.
IDLE: Final = 10 * SECOND
#: Files that do not change are looked at in turns, one for each such time: 200 in a poll of 200 ms, 5,000 in 5 s.
TURN: Final = 1_000_000
#: What more time has passed since the last turns counts for nothing.
LONGEST: Final = SECOND
#: Where changes are announced, all files and directories are looked at once in such a time.
SAFETY: Final = 60 * SECOND


class MatchedPath:
    """A path that matches, and which file was found there."""

    __slots__ = (
        "born", "changed", "copy", "file", "gone", "links", "path", "silent", "skip", "status", "steady",
        "waits",
    )  # fmt: skip

    def __init__(self, path: str, now: int, look: int) -> None:
        self.path = path
        self.born = look
        self.file: WatchedFile | None = None
        self.status: tuple[int, int, int, int] | None = None
        self.changed = now
        self.gone = False
        self.copy = False  # what is here begins like another file, and is not read for that
        self.waits = False  # for its turn
        self.steady = False  # at the last look it was as at the one before
        self.links = 1  # names that the file has: what is written to it by another one is not announced
        self.silent = False  # it changed, and that was not announced
        self.skip: tuple[int, int, int] | None = None  # device, inode and size of what was here at the first look


class LookSchedule:
    """Places that are new or changed lately, and the others, which are looked at in turns.

    Args:
        watches: where changes are announced; None for nowhere.

    `busy` has the places to look at now, by path. `unasked` has those that are looked at although nothing was
    announced there.
    """

    def __init__(self, watches: Watches | None) -> None:
        self._watches = watches
        self.busy: dict[str, MatchedPath] = {}
        self.unasked: dict[str, MatchedPath] = {}
        # The others are looked at often, or, where changes are announced, seldom.
        self._idle: collections.deque[MatchedPath] = collections.deque()
        self._calm: collections.deque[MatchedPath] = collections.deque()
        self._turned = 0  # when some had their turn

    def polled(self, count: int) -> int:
        """Return how many of so many places are looked at again and again, because no change is announced there."""
        if self._watches is None or not self._watches.alive:
            return count
        return len(self._idle) + sum(
            not (place.waits or self._watches.covers(path)) for path, place in self.busy.items()
        )

    @property
    def quiet(self) -> bool:
        """Return whether no place has to be looked at before something is announced."""
        return not self._idle and all(map(self._announced, self.busy.values()))

    def due(self, now: int, places: Mapping[str, MatchedPath]) -> list[MatchedPath]:
        """Return the places to look at: all that are new or busy, in their order, and some of the others."""
        if self._watches is None or not self._watches.alive:
            self._idle += self._calm
            self._calm.clear()
        for path, place in list(self.busy.items()):
            announced = self._announced(place)
            if place.status and place.steady and (announced or now - place.changed > IDLE):
                del self.busy[path]
                if not place.waits:
                    place.waits = True
                    (self._calm if announced else self._idle).append(place)
        passed, self._turned = min(max(now - self._turned, 0), LONGEST), now
        self._turns(self._idle, max(1, passed // TURN))
        self.unasked = self._turns(self._calm, 1 + len(self._calm) * passed // SAFETY)
        due = list(self.busy.values())
        if sum(place.file is None for place in due) > 1:
            # More than one file is at an unknown place: these are looked at in the order of their paths.
            due = [place for place in places.values() if place.path in self.busy]
        return due

    def _turns(self, places: collections.deque[MatchedPath], count: int) -> dict[str, MatchedPath]:
        """Give some their turn; return those that changed, or have to be looked at otherwise from now on."""
        found: dict[str, MatchedPath] = {}
        announced = places is self._calm
        for _ in range(min(len(places), count)):
            place = places.popleft()
            if place.gone or place.path in self.busy:
                place.waits = False
            elif _unchanged(place) and self._announced(place) == announced:
                places.append(place)
            else:
                place.waits = False
                self.busy[place.path] = found[place.path] = place
        return found

    def _announced(self, place: MatchedPath) -> bool:
        """Return whether it is enough to look at a place when something happens there."""
        if self._watches is None or place.silent or place.links != 1 or not place.status:
            return False
        # What begins like another file waits for that one to go, and a last line without an end is given out some time.
        waits = place.status[2] > 0 if place.file is None else place.file.rest > 0
        return not waits and self._watches.covers(place.path)


def _unchanged(place: MatchedPath) -> bool:
    """Return whether a place is as it was, and nothing of what is there waits to be read."""
    try:
        status = os.stat(place.path)
    except OSError:
        return False
    waits = status.st_size > 0 if place.file is None else place.file.rest > 0
    seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return not waits and seen == place.status and status.st_nlink == place.links
