"""Choice and order of the files that match."""

from __future__ import annotations

import os
from collections.abc import Sequence

import re2

from tracecore.signals.logs.operators import times
from tracecore.signals.logs.tail.config import FileLogConfig, Sort


def arranged(paths: list[str], config: FileLogConfig, now: int) -> list[str]:
    """The paths that are to be read, in order."""
    if config.exclude_older_than:
        paths = [path for path in paths if now - _mtime(path) <= config.exclude_older_than]
    order = config.ordering_criteria
    if not order.sort_by:
        return paths
    groups: dict[str, list[str]] = {}
    if order.group_by:
        expression = re2.compile(order.group_by)
        for path in paths:
            match = expression.search(path)
            if match is not None and match.groups():
                groups.setdefault(match.group(1) or "", []).append(path)
    else:
        groups[""] = paths
    most = 1 if order.top_n is None else order.top_n
    found: list[str] = []
    for held in groups.values():
        ordered = _sorted(held, order.sort_by, order.regex, now)
        found += ordered[:most] if most else ordered
    return found


def _sorted(paths: list[str], sorts: Sequence[Sort], regex: str, now: int) -> list[str]:
    captures: dict[str, dict[str, str]] = {path: {} for path in paths}
    if any(sort.sort_type != "mtime" for sort in sorts):
        expression = re2.compile(regex)
        captures = {}
        for path in paths:
            match = expression.search(path)
            if match is not None:
                captures[path] = {name: value or "" for name, value in match.groupdict().items()}
    for sort in sorts:
        keyed = []
        for path, named in captures.items():
            key = _key(path, sort, named.get(sort.regex_key, ""), now)
            if key is not None:
                keyed.append((key, path))
        keyed.sort(key=lambda pair: pair[0], reverse=not sort.ascending)
        captures = {path: captures[path] for _, path in keyed}
    return list(captures)


def _key(path: str, sort: Sort, text: str, now: int) -> int | str | None:
    """Return what a file is sorted by; None where it has none, and then it is not read."""
    if sort.sort_type == "mtime":
        return _mtime(path) or None
    if sort.sort_type == "alphabetical":
        return text
    try:
        if sort.sort_type == "numeric":
            return int(text)
        return times.Layout(sort.layout, "strptime", sort.location).parse(text, now)
    except (ValueError, times.TimeError):
        return None


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
