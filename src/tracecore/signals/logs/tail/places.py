"""Match files with paths: find them, recognise them wherever they were moved to, and let them go.

A file is known by its first bytes. One that has no path any more is held open and read to its end.

Where the kernel announces changes, a file is looked at when something happens to it, and now and then all the same; the
others are looked at again and again, those that changed lately more often.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import Any, Final

from tracecore.signals.logs.tail import fingerprint
from tracecore.signals.logs.tail.arrivals import Arrivals
from tracecore.signals.logs.tail.config import SECOND, FileLogConfig
from tracecore.signals.logs.tail.counters import TailCounters
from tracecore.signals.logs.tail.globs import Finder
from tracecore.signals.logs.tail.known import KnownFiles, differ
from tracecore.signals.logs.tail.links import trusted
from tracecore.signals.logs.tail.ordering import arranged
from tracecore.signals.logs.tail.schedule import SAFETY, LookSchedule, MatchedPath
from tracecore.signals.logs.tail.unlinked_files import UnlinkedFiles
from tracecore.signals.logs.tail.watched import WatchedFile, delete, file_attributes
from tracecore.signals.logs.tail.watches import Watches

#: Looking for new files may take this part of the time.
SHARE: Final = 200
#: The same where names were announced: what has just come may soon be gone. At most so long after it was announced.
REST: Final = 20
LONGEST_REST: Final = SECOND // 5
#: A file that is too large for so long is not rotated any more: three times the kubelet's interval between two looks.
STALLED_TIME: Final = 30 * SECOND


class Places:
    """Paths that match, and the files that are there.

    Args:
        config: the options.
        known: the files.
        arrivals: told where reading begins.
        counters: told what cannot be read.
        clock: nanoseconds since the epoch.
        report: told in words.
        loaded: files that an earlier run knew; none is at a path yet.
        watches: where changes are announced; None for nowhere.
    """

    def __init__(
        self,
        config: FileLogConfig,
        known: KnownFiles,
        arrivals: Arrivals,
        counters: TailCounters,
        clock: Callable[[], int],
        report: Callable[[str], Any],
        loaded: list[WatchedFile],
        watches: Watches | None = None,
    ) -> None:
        self._config = config
        self._known = known
        self._arrivals = arrivals
        self._counters = counters
        self._clock = clock
        self._report = report
        self._watches = watches
        self._finder = Finder(config.include, config.exclude, watches)
        self._places: dict[str, MatchedPath] = {}
        self._schedule = LookSchedule(watches)
        self._grew: dict[str, MatchedPath] = {}  # at the last look
        self._suspects: dict[str, MatchedPath] = {}  # changed although nothing was announced
        self._unlinked = UnlinkedFiles(config)
        self._unread: dict[str, MatchedPath] = {}  # cannot be read
        self._rotated_above = config.rotated_above
        self._large: dict[int, WatchedFile] = {}  # larger than rotation would let them become
        self._opened = False
        #: Some places have to wait until files are closed again.
        self.crowded = False
        #: Some were announced and have to wait until it is time to look for files again, or were found by links that
        #: were not watched before.
        self.restless = False
        self._news = False  # names were announced that were not looked for yet
        self._next_find = 0
        self._next_announced_find = 0
        #: Files that were seen, not opened, and are gone from there: where they were, their size, and at which look.
        self._vanished: dict[tuple[int, int], tuple[str, int, int]] = {}
        self._next_round = 0
        # Files may match, or come in another order, without anything coming or going.
        self._fickle = bool(config.exclude_older_than) or any(
            sort.sort_type == "mtime" for sort in config.ordering_criteria.sort_by
        )
        self._next_ident = 1
        self._looks = 0
        self._fresh = not loaded  # nothing has been seen before, now or by an earlier run
        self._from_beginning = config.start_at == "beginning" or bool(loaded)
        for file in loaded:
            known.add(file)
            self._unlinked.add(file)
            self._next_ident = max(self._next_ident, file.ident + 1)

    def stalled(self, now: int) -> list[str]:
        """Files that nobody rotates although they are larger than a kubelet lets them become."""
        return [file.path for file in self._large.values() if file.placed and now - file.large_since >= STALLED_TIME]

    @property
    def count(self) -> int:
        """Paths that match."""
        return len(self._places)

    @property
    def polled(self) -> int:
        """Those of them that are looked at again and again, because nobody announces what happens there."""
        return self._schedule.polled(len(self._places))

    def unreadable(self) -> list[str]:
        """Paths that match and cannot be read."""
        return list(self._unread)

    def out_of_reach(self) -> dict[str, int]:
        """Bytes that have not arrived, of files that are gone: with the last handle they are lost."""
        return self._unlinked.out_of_reach()

    @property
    def open_files(self) -> int:
        """Files that are held open."""
        return sum(file.fd is not None for file in self._known)

    @property
    def quiet(self) -> bool:
        """Return whether nothing has to be looked at before something is announced."""
        return not (self._unlinked.open or self._fickle or self._finder.stale) and self._schedule.quiet

    def look(self, now: int, *, again: bool = False) -> list[WatchedFile]:
        """Looks around; gives the files in which there is something to read, in the order to read them in.

        Args:
            again: only at those that grew at the last look.
        """
        self._looks += 1
        searched = self.restless = False
        self._read_announcements()
        if not again:
            searched = self._searched(now)
        due, self._grew = list(self._grew.values()) if again else self._schedule.due(now, self._places), {}
        unclear: list[MatchedPath] = []
        reads: list[WatchedFile] = []
        for place in due:
            self._visit(place, now, unclear, reads)
        most = max(self._config.max_concurrent_files // 2, 1)
        held = self.open_files if unclear else 0
        for number, place in enumerate(unclear):
            if number and held >= most and self._from_beginning:
                # The others have their turn when these were read and are closed again.
                self.crowded = True
                break
            self._identify(place, now, reads)
            if place.file is not None and held >= most and place.file.exhausted:
                place.file.close()
            else:
                held += 1
        found = [*self.lost(now), *reads]
        self._from_beginning = True
        self._fresh = False
        # A file may be at a place that nobody has looked at yet.
        if searched and not self.crowded:
            self._forget()
        self._count_vanished()
        return found

    def _read_announcements(self) -> None:
        """Take in what was announced."""
        if self._watches is None:
            return
        changes = self._watches.read()
        told = [place for path in changes.paths if (place := self._places.get(path)) is not None]
        for place in told:
            if place.path in changes.named and self._watches.linked(place.path):
                self._watches.follow(place.path)
        if changes.everything:
            self._finder.doubt()
            told = list(self._places.values())
            self._counters.announcements_lost += 1
        for base, names in changes.listings.items():
            self._finder.changed(base, names)
        for base in changes.replaced:
            self._watches.release_below(base)
            self._finder.replaced(base)
            told += [place for path, place in self._places.items() if path.startswith(base)]
        for place in told:
            place.steady = False
            # In the order in which it was announced.
            self._schedule.busy.pop(place.path, None)
            self._schedule.busy[place.path] = place
        self._news = self._news or changes.everything or bool(changes.listings or changes.replaced)
        for path, place in self._suspects.items():
            place.silent = place.silent or not (changes.everything or path in changes.paths)
        self._suspects.clear()

    def _searched(self, now: int) -> bool:
        """Looks for files that came, or went, where some may have; whether all that is there is known."""
        if now < self._next_find and not (self._news and now >= self._next_announced_find):
            self.restless = self._news
            return False
        if now >= self._next_round or now < self._next_round - SAFETY:
            self._next_round = now + SAFETY
            self._finder.doubt()
        if self._finder.stale or self._fickle:
            self._find(now)
        return True

    def _find(self, now: int) -> None:
        self._news = False
        paths = arranged(self._finder.find(now), self._config, now)
        if self._config.max_batches:
            paths = paths[: self._config.max_batches * max(self._config.max_concurrent_files // 2, 1)]
        known, self._places = self._places, {}
        for path in paths:
            place = known.pop(path, None)
            if place is None:
                self._schedule.busy[path] = place = MatchedPath(path, now, self._looks)
            self._places[path] = place
        for place in known.values():
            self._vanish(place)
            self._leave(place)
            place.gone = True
            self._schedule.busy.pop(place.path, None)
            self._unread.pop(place.path, None)
            if self._watches is not None:
                self._watches.forget(place.path)
        # Looking through many directories takes its time; it is done the less often the longer it takes. Where all
        # changes are announced it is only that long now and then.
        took = self._clock() - now
        self._next_find = now + min(took * SHARE, (10 if self._finder.stale else 1) * SECOND)
        self._next_announced_find = now + min(took * REST, LONGEST_REST)

    def _leave(self, place: MatchedPath) -> None:
        """Note that the file of a place is not there any more."""
        if place.file is not None:
            place.file.placed = False
            self._unlinked.add(place.file)
            place.file = None

    def _vanish(self, place: MatchedPath) -> None:
        """A place is empty: if what was there was never opened, it may be lost."""
        if (
            place.file is None
            and place.status is not None
            and place.status[2]
            and not place.copy
            and place.skip is None
        ):
            device, inode, size, _ = place.status
            self._vanished.setdefault((device, inode), (place.path, size, self._looks))

    def _count_vanished(self) -> None:
        """Count what was deleted before it could be opened; what was only moved is found at another place."""
        if not self._vanished:
            return
        found = {place.status[:2] for place in self._places.values() if place.status is not None}
        found |= {(file.device, file.inode) for file in self._known}
        for inode, (path, size, look) in list(self._vanished.items()):
            if inode in found:
                del self._vanished[inode]
            elif self._looks > look + 1:
                del self._vanished[inode]
                self._counters.files_deleted_unread += 1
                self._counters.bytes_out_of_reach += size
                self._report(f"{path} was deleted before it could be opened: {size} bytes at least are lost")

    def _visit(self, place: MatchedPath, now: int, unclear: list[MatchedPath], reads: list[WatchedFile]) -> None:
        try:
            status = os.stat(place.path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                self._unreadable(place, error)
            self._vanish(place)
            self._leave(place)
            place.status = None
            return
        if not stat.S_ISREG(status.st_mode):
            return
        seen = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        place.links = status.st_nlink
        place.steady = seen == place.status
        file = place.file
        if place.steady:
            if file is not None:
                if file.rest and not file.exhausted:
                    reads.append(file)
                return
            if not status.st_size:
                return
        else:
            place.changed = now
            place.status = seen
            self._schedule.busy[place.path] = self._grew[place.path] = place
            if place.path in self._schedule.unasked:
                self._suspects[place.path] = place
        if file is None or (file.device, file.inode) != seen[:2] or not self._same(file, place):
            self._leave(place)
            unclear.append(place)
            return
        self._claim(file, place, status, now, reads)

    def _same(self, file: WatchedFile, place: MatchedPath) -> bool:
        """Return whether a file that changed still begins as it did."""
        if file.fd is None:
            fd = self._open(place)
            if fd is None:
                return False
            file.fd = fd
            self._opened = True
        data, compressed = fingerprint.first_bytes(
            file.fd, self._config.fingerprint_size, bool(self._config.compression)
        )
        if compressed != file.compressed or not file.fingerprint.begins(data):
            return False
        if len(data) > file.fingerprint.length:
            self._known.grow(file, fingerprint.of(data))
        return True

    def _identify(self, place: MatchedPath, now: int, reads: list[WatchedFile]) -> None:
        """Decide which file is at a place where another one was, or none."""
        fd = self._open(place)
        if fd is None:
            return
        status = os.fstat(fd)
        size = self._config.fingerprint_size
        data, compressed = fingerprint.first_bytes(fd, size, bool(self._config.compression))
        if not data:
            os.close(fd)
            return
        alike = [file for file in self._known.equals(fingerprint.of(data)) if not self._apart(file, place, status)]
        twin = alike[0] if alike else None
        if twin is not None and not self._differs(twin, fd, len(data)):
            # A copy, made to truncate the original. Once that happens, the copy takes its place.
            place.copy = True
            if not self._from_beginning:
                place.skip = (status.st_dev, status.st_ino, status.st_size)
            os.close(fd)
            return
        file = self._known.match(data, status.st_dev, status.st_ino) if twin is None else None
        if file is None:
            file = WatchedFile(self._next_ident, place.path, fingerprint.of(data))
            self._next_ident += 1
            file.compressed = compressed
            file.flush_since = now
            file.born = self._looks if place.born == self._looks else 0
            self._known.add(file)
            if not self._from_beginning:
                self._start_at_end(file, status.st_size)
            elif place.skip is not None and place.skip[:2] == (status.st_dev, status.st_ino):
                # It began like another file at the first look, and was not read for that.
                self._start_at_end(file, min(place.skip[2], status.st_size))
            place.skip = None
        else:
            self._adopt(file, data, compressed)
        file.close()
        file.fd = fd
        file.device, file.inode = status.st_dev, status.st_ino
        file.placed = self._opened = True
        place.copy = False
        self._unlinked.remove(file)
        place.file = file
        if self._watches is not None:
            self._watches.follow(place.path)
            self.restless = self.restless or self._watches.linked(place.path)
        self._arrivals.touch(file)
        self._claim(file, place, status, now, reads)

    def _apart(self, file: WatchedFile, place: MatchedPath, status: os.stat_result) -> bool:
        """Whether a file is another one than a known one that has the same beginning, although they may be equal.

        A copy is made of a file that was there before, and beside it. Two that come at once, each in a place of its
        own, are two.
        """
        if (file.device, file.inode) == (status.st_dev, status.st_ino) or not self._looks == file.born == place.born:
            return False
        return self._fresh or os.path.dirname(file.path) != os.path.dirname(place.path)

    def _start_at_end(self, file: WatchedFile, size: int) -> None:
        if file.compressed:
            file.base = size
        else:
            self._arrivals.restart(file, size)

    def _adopt(self, file: WatchedFile, data: bytes, compressed: bool) -> None:
        """A known file was found again, perhaps in another place, perhaps compressed since."""
        if len(data) > file.fingerprint.length:
            self._known.grow(file, fingerprint.of(data))
        if compressed != file.compressed:
            if not compressed:
                self._arrivals.restart(file, 0)
            file.base = 0
            file.compressed = compressed

    def _claim(
        self, file: WatchedFile, place: MatchedPath, status: os.stat_result, now: int, reads: list[WatchedFile]
    ) -> None:
        file.unclaimed = file.lost_since = 0
        if file.path != place.path or not file.attributes:
            file.path = place.path
            if file.fd is not None:
                file.attributes = file_attributes(self._config, place.path, file.fd)
        self._grown(file, status, now)
        if not file.compressed and status.st_size < file.offset and self._config.on_truncate != "ignore":
            self._arrivals.restart(file, 0 if self._config.on_truncate == "read_whole_file" else status.st_size)
            file.flush_length = file.rest = 0
        if file.compressed or status.st_size > file.offset:
            reads.append(file)
        elif self._config.delete_after_read and status.st_size == file.offset == file.delivered:
            delete(file, self._report)

    def _grown(self, file: WatchedFile, status: os.stat_result, now: int) -> None:
        file.size = file.target = status.st_size
        file.changed = now
        if not self._rotated_above or status.st_size <= self._rotated_above:
            self._large.pop(file.ident, None)
        elif file.ident not in self._large:
            self._large[file.ident] = file
            file.large_since = now

    def lost(self, now: int) -> list[WatchedFile]:
        """Files that are open and have no path any more, moved or deleted: what is left in them is read."""
        return self._unlinked.growing(now)

    def close_some(self) -> None:
        """Keeps the number of open files within bounds: those that have been quiet for longest are closed first."""
        if not self._opened:
            return
        self._opened = False
        held = [file for file in self._known if file.fd is not None]
        most = max(self._config.max_concurrent_files // 2, 1)
        if self.crowded:
            most //= 2
        if len(held) > most:
            held.sort(key=lambda file: (file.placed, file.changed))
            for file in held[: len(held) - most]:
                if file.exhausted:
                    file.close()

    def _forget(self) -> None:
        gone = self._unlinked.gone()
        for file in gone:
            self._known.remove(file)
            self._unlinked.remove(file)
            self._large.pop(file.ident, None)
        if gone:
            self._arrivals.forget(gone)

    def _open(self, place: MatchedPath) -> int | None:
        """Opens the file at a place; None where that is impossible."""
        try:
            fd = os.open(place.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        except FileNotFoundError:
            place.status = None
            return None
        except OSError as error:
            place.status = None
            self._unreadable(place, error)
            return None
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            return None
        if not trusted(place.path, fd):
            os.close(fd)
            place.status = None
            self._unreadable(place, OSError(errno.EPERM, "a link of somebody who does not own what it leads to"))
            return None
        if self._unread.pop(place.path, None) is not None:
            self._report(f"{place.path} can be read now")
        return fd

    def _unreadable(self, place: MatchedPath, error: OSError) -> None:
        if place.path not in self._unread:
            self._unread[place.path] = place
            self._counters.unreadable += 1
            self._report(f"{place.path} cannot be read: {error.strerror}")

    def _differs(self, twin: WatchedFile, fd: int, length: int) -> bool:
        """Whether two files with the same fingerprint are different all the same, because they go on differently."""
        if length < self._config.fingerprint_size or twin.compressed:
            return False
        if twin.fd is not None:
            return differ(twin.fd, fd)
        try:
            other = os.open(twin.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return differ(other, fd)
        finally:
            os.close(other)
