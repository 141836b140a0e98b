"""Gaps of a diagnosis: files that were not read, and limits that were reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tracecore.facts.wording import counted, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from tracecore.signals.bundle.discovery import Coverage

#: How the reason begins of a file that was read, but not to its end.
PART: Final = "read in part: "


def _were(what: str, several: str = "") -> Callable[[int], str]:
    return lambda count: f"{counted(count, what, several)} {'was' if count == 1 else 'were'}"


#: How to say that a limit was reached, by its counter.
_SENTENCES: Final[dict[str, Callable[[int], str]]] = {
    "lines_capped": lambda n: f"{_were('line')(n)} too long to be read whole",
    "bytes_dropped": lambda n: f"{size(n)} in the middle of long lines and long messages were not read",
    "lines_unparsed": lambda n: f"{counted(n, 'line')} of metrics, journals or exports could not be parsed",
    "kinds_refused": lambda n: f"{counted(n, 'kind')} of progress lines had to be read line by line",
    "future": lambda n: f"{_were('observation')(n)} dropped, since too many carry a time that has not come",
    "evicted_window": lambda n: f"{_were('observation')(n)} dropped, since one job or node has too many",
    "evicted_total": lambda n: f"{_were('observation')(n)} dropped, since there are too many in all",
    "evicted_windows": lambda n: f"{_were('job, node or GPU', 'jobs, nodes or GPUs')(n)} forgotten: there are too many",
    "beyond_horizon": lambda n: f"{_were('conclusion')(n)} not drawn, since its evidence lies too far apart in time",
}


def unread_files(coverage: Coverage) -> list[dict[str, str]]:
    """Files that were not read, or in part; the same dump in another format is no loss."""
    return [item for item in coverage["skipped"] if not item["reason"].startswith("duplicate")]


def limits_reached(coverage: Coverage) -> list[str]:
    """A sentence for each limit that was reached, without a full stop."""
    return [
        _SENTENCES[name](count) if name in _SENTENCES else f"{name}: {count:,}"
        for name, count in coverage["limits_reached"].items()
    ]
