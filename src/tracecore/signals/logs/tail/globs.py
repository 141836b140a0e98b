"""Globs as the Collector has them: `*` and `?` within a name, `[…]`, `{a,b}`, and `**` for any depth.

Directories are listed again only when they changed, so that looking for files costs little where few come and go.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import re2

#: A directory that was changed less than so many nanoseconds ago may change again without a new time stamp.
FRESH: Final = 2_000_000_000
#: Levels that `**` goes down.
MAX_DEPTH: Final = 64
#: Alternatives that braces may make of one pattern.
MAX_ALTERNATIVES: Final = 1000


def problem(pattern: str) -> str:
    """What is wrong with a glob; nothing for a good one."""
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


class Matcher:
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

    Args:
        include: globs of files.
        exclude: globs of files that are left out.
    """

    def __init__(self, include: Sequence[str], exclude: Sequence[str] = ()) -> None:
        self._patterns = [one for pattern in include for one in alternatives(pattern)]
        self._excluded = Matcher(exclude)
        self._listings: dict[str, tuple[int, int, Listing]] = {}
        self._matched: dict[tuple[str, str, bool], tuple[Listing, tuple[str, ...]]] = {}
        self._seen: set[str] = set()
        self._expressions: dict[str, re2._Regexp[str]] = {}

    def find(self, now: int) -> list[str]:
        """Paths that match now, without doubles: in the order of the globs, then of the names."""
        found: dict[str, None] = {}
        for pattern in self._patterns:
            parts = pattern.split("/")
            if parts[0] == "":
                base, parts = "/", parts[1:]
            else:
                base = ""
            for path in self._walk(base, parts, now, 0):
                if path not in found and not self._excluded(path):
                    found[path] = None
        self._forget()
        return list(found)

    def _forget(self) -> None:
        """Directories that are gone."""
        if len(self._listings) > 2 * len(self._seen) or len(self._matched) > 4 * len(self._seen) * len(self._patterns):
            self._listings = {base: known for base, known in self._listings.items() if base in self._seen}
            self._matched = {key: known for key, known in self._matched.items() if key[0] in self._seen}
        self._seen.clear()

    def _walk(self, base: str, parts: list[str], now: int, depth: int) -> Iterator[str]:
        part, rest = parts[0], parts[1:]
        if part == "**":
            yield from self._walk(base, rest or ["*"], now, depth)
            if depth < MAX_DEPTH:
                for name, is_directory in self._list(base, now):
                    if is_directory and not os.path.islink(base + name):
                        yield from self._walk(f"{base}{name}/", parts, now, depth + 1)
            return
        if not rest:
            yield from self._names(base, part, now)
            return
        if part in ("", ".", "..") or not set(part) & set("*?[\\"):
            yield from self._walk(f"{base}{part}/", rest, now, depth)
            return
        for name in self._matching(base, part, now, directories=True):
            yield from self._walk(f"{base}{name}/", rest, now, depth)

    def _names(self, base: str, part: str, now: int) -> Iterator[str]:
        if not set(part) & set("*?[\\"):
            path = base + part
            if os.path.exists(path) and not os.path.isdir(path):
                yield path
            return
        for name in self._matching(base, part, now, directories=False):
            yield base + name

    def _matching(self, base: str, part: str, now: int, *, directories: bool) -> tuple[str, ...]:
        """Names in a directory that match; of a directory that has not changed they are known."""
        listing = self._list(base, now)
        known = self._matched.get((base, part, directories))
        if known is not None and known[0] is listing:
            return known[1]
        matches = self._compiled(part).match
        names = tuple(name for name, is_directory in listing if is_directory == directories and matches(name))
        self._matched[base, part, directories] = listing, names
        return names

    def _compiled(self, part: str) -> re2._Regexp[str]:
        known = self._expressions.get(part)
        if known is None:
            known = self._expressions[part] = re2.compile(expression(part))
        return known

    def _list(self, base: str, now: int) -> Listing:
        """Names in a directory and whether they are directories; nothing where it cannot be read."""
        self._seen.add(base)
        where = base or "."
        try:
            status = os.stat(where)
            changed, inode = status.st_mtime_ns, status.st_ino
            known = self._listings.get(base)
            if known is not None and known[0] == changed and known[1] == inode:
                return known[2]
            with os.scandir(where) as entries:
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


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
