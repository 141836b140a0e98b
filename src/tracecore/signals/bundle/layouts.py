"""The layout of a job's ranks by its scheduler: the order of the machines, the number of ranks on each, and whether the
ranks fill the machines one after the other (block) or in turns (cyclic).

The settings may be in several files: the machines in `scontrol show job`, the tasks per machine in the script, the
distribution in the environment of a process. If a setting has two different values, there is no layout.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from tracecore.signals.bundle.formats import FORMATS
from tracecore.signals.scheduler import slurm

#: Limit of the machines and ranks of one job.
_MOST: Final = 16_384

#: Settings that list the machines; the first that somebody has counts.
_LISTS: Final = ("nodes", "nodes_of_output", "nodes_of_account")


class Setting(msgspec.Struct, frozen=True):
    """One setting of a launcher: its name, a key of `[launch]` in `formats.toml`, and the text of its value."""

    name: str
    value: str


class Layout(msgspec.Struct, frozen=True):
    """The ranks of each machine, in the order of local ranks.

    Args:
        certain: the scheduler itself starts the ranks. Other launchers may use another order of machines, so the
            layout needs confirmation: a statement that places a rank on any machine but the first.
    """

    machines: Mapping[str, tuple[int, ...]]
    certain: bool


def said(text: bytes, *, output: bool) -> list[Setting]:
    """Return the settings in a file.

    Args:
        output: the file is the program's own output; other files may list machines of other jobs.
    """
    if FORMATS.expressions["launches"].search(text) is None:
        return []
    found: dict[Setting, None] = {}
    for name, expression in FORMATS.launch.items():
        if name == "nodes_of_output" and not output:
            continue
        for match in expression.finditer(text):
            value = next((group for group in match.groups() if group), b"")
            found.setdefault(Setting(name, value.decode("utf-8", "replace")))
            if len(found) > _MOST:
                return []
    return list(found)


def concluded(settings: Iterable[Setting], placed: Mapping[str, Collection[int]]) -> Layout | None:
    """Return the layout that follows from the settings; None if they do not suffice or contradict each other.

    Args:
        placed: the ranks of machines, from other statements. They give the number of ranks of each machine if no
            setting has it.
    """
    values: dict[str, set[str]] = {}
    for setting in settings:
        values.setdefault(setting.name, set()).add(setting.value)
    listed = next(filter(None, map(values.get, _LISTS)), ())
    lists = {tuple(slurm.hosts(text)) for text in listed}
    if len(lists) != 1 or not (nodes := lists.pop()) or len(set(nodes)) != len(nodes):
        return None
    tasks = _tasks(values, len(nodes))
    ways = {_way(word) for word in values.get("distribution", ())}
    if tasks is not None and max(tasks) > 1:
        if len(ways) > 1 or None in ways:
            return None
        counts, certain = tasks, True
    else:
        # If each machine has one task, that task is a launcher, which starts the ranks.
        each = _numbers(values.get("each", ())) or _shared(values.get("world", ()), len(nodes))
        each = each or _by_example(nodes, placed)
        if len(each) != 1 or "cyclic" in ways:
            return None
        counts, certain = (each.pop(),) * len(nodes), len(nodes) == 1
    if sum(counts) > _MOST:
        return None
    order = _in_turns(counts) if "cyclic" in ways else _in_blocks(counts)
    return Layout(dict(zip(nodes, order, strict=True)), certain)


def _tasks(values: Mapping[str, set[str]], nodes: int) -> tuple[int, ...] | None:
    """Return the number of tasks of each machine; None if it is unknown or the settings differ."""
    said_of_each = {(number,) * nodes for number in _numbers(values.get("tasks", ()))}
    listed = {_repeated(text) for text in values.get("tasks_of_each", ())}
    found = said_of_each | {counts for counts in listed if len(counts) == nodes}
    found = found or {(number,) * nodes for number in _shared(values.get("total", ()), nodes)}
    return found.pop() if len(found) == 1 else None


def _numbers(words: Iterable[str]) -> set[int]:
    return {int(word) for word in words if 0 < int(word) <= _MOST}


def _shared(words: Iterable[str], nodes: int) -> set[int]:
    """Return the number per machine for each total that the machines can share equally."""
    return {number // nodes for number in _numbers(words) if number % nodes == 0 and number >= nodes}


def _by_example(nodes: Sequence[str], placed: Mapping[str, Collection[int]]) -> set[int]:
    """Return how many ranks each machine has, where two or more have so many, each those of its place in the list."""
    found = {place: set(placed[node]) for place, node in enumerate(nodes) if node in placed}
    counts = {len(ranks) for ranks in found.values()}
    if len(found) < 2 or len(counts) != 1:
        return set()
    count = next(iter(counts))
    fits = all(ranks == set(range(place * count, place * count + count)) for place, ranks in found.items())
    return counts if fits else set()


def _repeated(text: str) -> tuple[int, ...]:
    """Return 4, 4, 4, 2 for `4(x3),2`."""
    found: list[int] = []
    for number, times in FORMATS.expressions["repeated"].findall(text.encode()):
        found += [int(number)] * min(int(times or 1), _MOST)
    return tuple(found[:_MOST])


def _way(word: str) -> str | None:
    """Return how tasks are distributed over machines: block or cyclic; None for other ways."""
    word = word.partition(":")[0].partition(",")[0]
    return word if word in ("block", "cyclic") else None


def _in_blocks(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    first = 0
    for count in counts:
        yield tuple(range(first, first + count))
        first += count


def _in_turns(counts: Sequence[int]) -> Iterator[tuple[int, ...]]:
    machines: list[list[int]] = [[] for _ in counts]
    rank = 0
    while rank < sum(counts):
        for count, ranks in zip(counts, machines, strict=True):
            if len(ranks) < count:
                ranks.append(rank)
                rank += 1
    return map(tuple, machines)
