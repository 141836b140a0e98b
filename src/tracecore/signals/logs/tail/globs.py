"""Globs as the Collector has them: `*` and `?` within a name, `[…]`, `{a,b}`, and `**` for any depth.

Directories are listed again only when they changed, so that looking for files costs little where few come and go; where
the kernel announces changes, they are not even looked at.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import re2

if TYPE_CHECKING:
    from tracecore.signals.logs.tail.watches import Watches

#: A directory that was changed less than so many nanoseconds ago may change again without a new time stamp.
FRESH: Final = 2_000_000_000
#: Levels that `**` goes down.
MAX_DEPTH: Final = 64
#: Characters that make a name a glob.
_SPECIAL: Final = frozenset("*?[\\")
#: Alternatives that braces may make of one pattern.
MAX_ALTERNATIVES: Final = 1000


def problem(pattern: str) -> str:
    """Return what is wrong with a glob; nothing for a good one."""
    try:
        for alternative in alternatives(pattern):
            for part in alternative.split("/"):
                re2.compile(expression(part))
    except (ValueError, re2.error) as error:
        return f"no glob: {error}"
    return ""


def alternatives(pattern: str) -> list[str]:
    """The patterns that braces stand for.

    Raises:
        ValueError: braces do not close, or stand for too many.
    """
    depth = start = 0
    cuts: list[int] = []
    escaped = False
    for at, char in enumerate(pattern):
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == "{":
            depth += 1
            if depth == 1:
                start, cuts = at, [at]
        elif char == "," and depth == 1:
            cuts.append(at)
        elif char == "}" and depth:
            depth -= 1
            if not depth:
                cuts.append(at)
                found: list[str] = []
                for left, right in itertools.pairwise(cuts):
                    found += alternatives(pattern[:start] + pattern[left + 1 : right] + pattern[at + 1 :])
                    if len(found) > MAX_ALTERNATIVES:
                        raise ValueError("braces stand for too many names")
                return found
    if depth:
        raise ValueError("a brace is not closed")
    return [pattern]


def expression(part: str) -> str:
    """A regular expression for one name of a path.

    Raises:
        ValueError: a bracket does not close.
    """
    out = []
    at = 0
    while at < len(part):
        char = part[at]
        at += 1
        if char == "*":
            out.append(r"[^/]*")
        elif char == "?":
            out.append("[^/]")
        elif char == "[":
            end = part.find("]", at + (2 if part[at : at + 1] in "!^" else 1))
            if end < 0:
                raise ValueError("a bracket is not closed")
            inside = part[at:end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[^{inside[1:]}]" if inside[:1] in ("!", "^") else f"[{inside}]")
            at = end + 1
        elif char == "\\" and at < len(part):
            out.append(re2.escape(part[at]))
            at += 1
        else:
            out.append(re2.escape(char))
    return "(?s)^" + "".join(out) + "$"


#: Names in a directory, and whether they are directories.
Listing: TypeAlias = tuple[tuple[str, bool], ...]


class GlobMatcher:
    """Whether a path matches one of some globs."""

    def __init__(self, patterns: Sequence[str]) -> None:
        whole: list[str] = []
        for pattern in patterns:
            whole += map(_path_expression, alternatives(pattern))
        self._expression = re2.compile("|".join(f"(?:{one})" for one in whole)) if whole else None

    def __call__(self, path: str) -> bool:
        return self._expression is not None and self._expression.match(path) is not None


def _path_expression(pattern: str) -> str:
    out = "(?s)^"
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            out += ".*" if last else "(?:[^/]*/)*"
        else:
            out += expression(part)[5:-1] + ("" if last else "/")
    return out + "$"


class Finder:
    """Finds the files of some globs, again and again.

    What was found below a directory is known until the kernel announces that something there came or went.

    Args:
        include: globs of files.
        exclude: globs of files that are left out.
        watches: where to ask for announcements; None finds everything anew each time.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = (), watches: Watches | None = None) -> None:
        self._patterns = [_parts(one) for pattern in include for one in alternatives(pattern)]
        self._states = [(number, at) for number, (_, parts) in enumerate(self._patterns) for at in range(len(parts))]
        self._excluded = GlobMatcher(exclude)
        self._watches = watches
        self._listings: dict[str, tuple[int, int, Listing]] = {}
        self._matched: dict[tuple[str, int, int], tuple[Listing, tuple[str, ...]]] = {}
        self._expressions: dict[str, re2._Regexp[str]] = {}
        # Matches of the rest of a glob below a directory where all changes are announced.
        self._known: dict[tuple[str, int, int], tuple[str, ...]] = {}
        self._seen: set[str] = set()

    @property
    def stale(self) -> bool:
        """Return whether something may be found that was not the last time."""
        return any((base, number, 0) not in self._known for number, (base, _) in enumerate(self._patterns))

    def doubt(self) -> None:
        """Whatever was announced: look everywhere the next time."""
        self._known.clear()

    def changed(self, base: str, names: Iterable[str]) -> None:
        """Names came or went in a directory."""
        parts = {self._patterns[number][1][at] for number, at in self._states if (base, number, at) in self._known}
        if any(self._concerned(part, name) for part in parts for name in names):
            self._stale(base)

    def _concerned(self, part: str, name: str) -> bool:
        if part == "**" or not _is_glob(part):
            return part in ("**", name)
        return self._compiled(part).match(name) is not None

    def _stale(self, base: str) -> None:
        """Forget what was found below a directory and below its parents."""
        while True:
            for number, at in self._states:
                self._known.pop((base, number, at), None)
            if base in ("", "/"):
                return
            base = base[: base.rfind("/", 0, -1) + 1]

    def replaced(self, base: str) -> None:
        """Another directory may be there now, with others below."""
        self._stale(base)
        for key in [key for key in self._known if key[0].startswith(base)]:
            del self._known[key]
        for held in [held for held in self._listings if held.startswith(base)]:
            del self._listings[held]

    def find(self, now: int) -> list[str]:
        """Paths that match now, without doubles: in the order of the globs, then of the names."""
        whole = not self._known
        found: list[str] = []
        for number, (base, _) in enumerate(self._patterns):
            found += self._walk(base, number, 0, now, 0)[0]
        if whole:
            self._forget()
        self._seen.clear()
        if self._watches is not None and not self._watches.alive:
            self._known.clear()
        return list(dict.fromkeys(found))

    def _forget(self) -> None:
        """Directories that are gone."""
        if len(self._listings) > 2 * len(self._seen) or len(self._matched) > 4 * len(self._seen) * len(self._patterns):
            self._listings = {base: known for base, known in self._listings.items() if base in self._seen}
            self._matched = {key: known for key, known in self._matched.items() if key[0] in self._seen}
        if self._watches is not None:
            self._watches.keep(self._seen)

    def _walk(self, base: str, number: int, at: int, now: int, depth: int) -> tuple[Sequence[str], bool]:
        """Paths below a directory that the rest of a glob matches, and whether all changes there are announced."""
        known = self._known.get((base, number, at))
        if known is not None:
            return known, True
        parts = self._patterns[number][1]
        part, last = parts[at], at == len(parts) - 1
        # Asked before the names are listed: what comes in between is announced.
        status, sure = self._asked(base, files=last)
        found: list[str] | tuple[str, ...]
        if last:
            found, fine = self._files(base, number, at, status, now)
            sure = sure and fine
        else:
            found = []
            for where, rest in self._below(base, number, at, status, now, depth):
                paths, fine = self._walk(where, number, rest, now, depth + (part == "**"))
                sure = sure and fine
                found += paths
        # Of a directory that is not there the one above tells when it comes.
        if sure and status is not None:
            self._known[base, number, at] = tuple(found)
        return found, sure

    def _below(
        self, base: str, number: int, at: int, status: os.stat_result | None, now: int, depth: int
    ) -> list[tuple[str, int]]:
        """The directories in which the rest of a glob may find something, and which rest."""
        part = self._patterns[number][1][at]
        if part == "**":
            below = [(base, at + 1)]
            if depth < MAX_DEPTH:
                directories = [name for name, is_directory in self._list(base, status, now) if is_directory]
                below += [(f"{base}{name}/", at) for name in directories if not os.path.islink(base + name)]
            return below
        if not _is_glob(part):
            return [(f"{base}{part}/", at + 1)]
        return [(where, at + 1) for where in self._matching(base, number, at, status, now)]

    def _asked(self, base: str, *, files: bool) -> tuple[os.stat_result | None, bool]:
        """Return what is known of a directory, and whether changes in it are announced."""
        self._seen.add(base)
        watches = self._watches
        try:
            status = os.stat(base or ".")
            new = watches is not None and base not in watches
            if watches is None or not watches.watch(base, status, files):
                return status, False
            # It may have been exchanged before it was watched.
            again = os.stat(base or ".") if new else status
        except OSError as error:
            # What is not there is announced when it comes, by the directory it comes into; but not behind a link.
            gone = isinstance(error, FileNotFoundError | NotADirectoryError) and not os.path.islink(base.rstrip("/"))
            if watches is not None:
                watches.release(base)
            return None, gone and watches is not None
        return again, (again.st_dev, again.st_ino) == (status.st_dev, status.st_ino)

    def _files(
        self, base: str, number: int, at: int, status: os.stat_result | None, now: int
    ) -> tuple[tuple[str, ...], bool]:
        """Files that the last name of a glob matches; and whether it is announced when others do."""
        part = self._patterns[number][1][at]
        if _is_glob(part):
            return self._matching(base, number, at, status, now), True
        path = base + part
        there = os.path.exists(path)
        found = there and not os.path.isdir(path) and not self._excluded(path)
        return (path,) if found else (), there or not os.path.islink(path)

    def _matching(self, base: str, number: int, at: int, status: os.stat_result | None, now: int) -> tuple[str, ...]:
        """Return the entries of a directory that match a part of a glob: files for the last part, else directories.

        Of a directory that has not changed it is known.
        """
        listing = self._list(base, status, now)
        known = self._matched.get((base, number, at))
        if known is not None and known[0] is listing:
            return known[1]
        parts = self._patterns[number][1]
        matches = self._compiled(parts[at]).match
        if at == len(parts) - 1:
            paths = [base + name for name, is_directory in listing if not is_directory and matches(name)]
            found = tuple(path for path in paths if not self._excluded(path))
        else:
            found = tuple(f"{base}{name}/" for name, is_directory in listing if is_directory and matches(name))
        self._matched[base, number, at] = listing, found
        return found

    def _compiled(self, part: str) -> re2._Regexp[str]:
        known = self._expressions.get(part)
        if known is None:
            known = self._expressions[part] = re2.compile(expression(part))
        return known

    def _list(self, base: str, status: os.stat_result | None, now: int) -> Listing:
        """Names in a directory and whether they are directories; nothing where it cannot be read."""
        if status is None:
            self._listings.pop(base, None)
            return ()
        changed, inode = status.st_mtime_ns, status.st_ino
        known = self._listings.get(base)
        if known is not None and known[0] == changed and known[1] == inode:
            return known[2]
        try:
            with os.scandir(base or ".") as entries:
                listing = tuple(sorted((entry.name, _is_directory(entry)) for entry in entries))
        except OSError:
            self._listings.pop(base, None)
            return ()
        # A time stamp is coarse: what comes in the same instant would not be seen.
        if now - changed > FRESH:
            self._listings[base] = (changed, inode, listing)
        else:
            self._listings.pop(base, None)
        return listing


@functools.cache
def _is_glob(part: str) -> bool:
    """Return whether a name may match others than itself."""
    return not _SPECIAL.isdisjoint(part)


def _parts(pattern: str) -> tuple[str, list[str]]:
    """Return where a glob begins, and the names that follow."""
    parts = pattern.split("/")
    if parts[-1] == "**":
        parts.append("*")
    return ("/", parts[1:]) if parts[0] == "" else ("", parts)


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
