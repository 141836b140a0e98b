"""Kinds of lines that say nothing are not scanned again, and nothing is missed by it."""

from __future__ import annotations

import random

import pytest

from tracecore import recipes
from tracecore.ottl.planner.database import ScanDatabase, search
from tracecore.ottl.planner.selection import Selector, line_search
from tracecore.recipes.cases import cases_of, load_cases
from tracecore.recipes.columns import Lines
from tracecore.recipes.kinds import EVENT, PROGRESS, Kinds, matching
from tracecore.recipes.plan import fresh
from tracecore.recipes.shapes import VARYING
from tracecore.signals.arrays import np

EVENTS = ("exit code \\d+", "(?i)device [0-9a-f]+ failed$", "^\\d+ lost")
STEPS = ("\\bstep \\d+",)


def _database(patterns: tuple[str, ...], dropped: bytes = b"") -> ScanDatabase:
    return ScanDatabase(line_search(patterns, always=False, dropped=dropped).entries, once=False)


def _kinds() -> Kinds:
    return Kinds(_database(EVENTS, VARYING), _database(STEPS, VARYING))


def _says(kinds: Kinds, *lines: bytes) -> list[int]:
    said = Lines(b"".join(line + b"\n" for line in lines))
    found: list[int] = kinds.says(said, said.keyed(VARYING)[0]).tolist()
    return found


def test_a_kind_is_known_from_its_third_line_on() -> None:
    kinds = _kinds()
    line = b"worker %d is ready"
    assert [_says(kinds, line % number) for number in (1, 22, 333)] == [[EVENT | PROGRESS], [EVENT | PROGRESS], [0]]
    assert _says(kinds, b"another thing", line % 4444) == [EVENT | PROGRESS, 0]


@pytest.mark.parametrize(
    ("first", "later", "says"),
    [
        (b"exit code abc", b"exit code 7", EVENT),
        (b"Device 07 FAILED", b"Device beef FAILED", EVENT),
        (b"abc lost", b"12 lost", EVENT),
        (b"step abc", b"step 12", PROGRESS),
        (b"step a: exit code a", b"step 1: exit code 1", EVENT | PROGRESS),
        (b"12 lst", b"12 lst", 0),
    ],
)
def test_a_kind_may_say_what_one_of_its_lines_can(first: bytes, later: bytes, says: int) -> None:
    kinds = _kinds()
    for _ in range(2):
        _says(kinds, first)
    assert _says(kinds, later) == [says]


def test_where_a_guard_cannot_be_searched_for_every_line_may_match() -> None:
    kinds = Kinds(None, _database(STEPS, VARYING))
    assert [_says(kinds, b"worker") for _ in range(3)][-1] == [EVENT]


def _varied(line: bytes, dice: random.Random) -> bytes:
    """A line of the same kind."""
    left = line.translate(None, VARYING)
    return b"".join(bytes(dice.choices(VARYING, k=dice.randint(0, 2))) + bytes((byte,)) for byte in left)


def test_no_line_of_a_case_is_of_a_kind_that_says_nothing() -> None:
    """Of each line of the cases only a line of the same kind is looked at, with other numbers."""
    planned = fresh("stdout")
    kinds = planned._kinds_of_lines()
    files = [cases_of(recipes.directory() / name) for name in recipes.FILES["stdout"]]
    bodies = [str(case.body) for path in files if path.exists() for case in load_cases(path)]
    lines = sorted({line.encode() for body in bodies for line in body.splitlines() if line})
    assert len(lines) > 800
    dice = random.Random(1)
    said = Lines(b"\n".join(lines) + b"\n")
    keys = said.keyed(VARYING)[0]
    for _ in range(2):
        varied = Lines(b"\n".join(_varied(line, dice) for line in lines) + b"\n")
        assert (varied.keyed(VARYING)[0] == keys).all()
        kinds.says(varied, keys)
    says = kinds.says(said, keys)
    events = planned.events()
    selected = events.lines(said.marked, said.ends)
    asked = events.lines(said.marked, said.ends, np.flatnonzero(says & EVENT))
    assert selected.tolist() == asked.tolist()
    assert len(selected) > 400
    whole = search(planned._prepared.progress_patterns, lines=True, literals=False).entries
    telling = matching(ScanDatabase(whole, once=False), said)
    assert (says[telling] & PROGRESS).all()
    assert len(telling) > 80
    # It is worth something: most kinds that do not match cannot match.
    silent = np.setdiff1d(np.arange(len(lines)), selected)
    assert (says[silent] & EVENT == 0).mean() > 0.5


def test_lines_that_are_not_asked_are_not_picked() -> None:
    selector = Selector(_database(EVENTS))
    said = Lines(b"exit code 1\nnothing\nexit code 2\n" + b"=" * 30 + b"\n")
    assert selector.lines(said.marked, said.ends).tolist() == [0, 2, 3]
    assert selector.lines(said.marked, said.ends, np.array([1, 2])).tolist() == [2, 3]
