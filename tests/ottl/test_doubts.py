"""A word that is found often is looked at twice, and nothing is missed by it."""

from __future__ import annotations

import time

import pytest

from tracecore.ottl.planner import doubts
from tracecore.ottl.planner.database import ScanDatabase, is_literal
from tracecore.ottl.planner.doubts import Doubts
from tracecore.ottl.planner.selection import Selector, line_search

PATTERNS = ("(?i)saving [^\\n]{0,40}check-point", "check-point \\d+ (?:is )?corrupt", "device lost")
CHATTER = b"utils/check-point.py:12: FutureWarning\n"


def _selector(patterns: tuple[str, ...] = PATTERNS) -> Selector:
    searched = line_search(patterns)
    return Selector(ScanDatabase(searched.entries, once=False), doubts=Doubts(searched, patterns))


def _lines(selector: Selector, block: bytes) -> list[bytes]:
    found = selector(block)
    assert found is not None
    return sorted({block[block.rfind(b"\n", 0, at) + 1 :].split(b"\n", 1)[0] for at in found})


def test_a_word_alone_is_not_enough() -> None:
    assert _selector()(CHATTER * 1000) == []


@pytest.mark.parametrize(
    "line",
    [
        b"2026-11-15T01:00:00Z stdout F SAVING the check-point now",
        b"check-point 12 is corrupt",
        b"[rank3]: check-point 9 corrupt, device lost",
        b"device lost",
        b"Traceback (most recent call last):",
    ],
)
def test_lines_that_match_are_found_all_the_same(line: bytes) -> None:
    selector = _selector()
    selector(CHATTER * 500)
    assert _lines(selector, CHATTER * 9 + line + b"\n" + CHATTER) == [line]
    assert _lines(selector, CHATTER + line) == [line]


@pytest.mark.parametrize("ending", [b"\n", b""])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_what_holds_is_found_wherever_it_stands(before: int, ending: bytes) -> None:
    lines = [
        *[CHATTER[:-1]] * before,
        b"check-point 7 is corrupt",
        *[CHATTER[:-1]] * 20,
        b"",
        b"saving a check-point",
    ]
    text = b"\n".join(lines) + ending
    assert _lines(_selector(), text) == [b"check-point 7 is corrupt", b"saving a check-point"]


def test_time_and_memory_grow_with_the_bytes_not_with_the_matches_of_a_line() -> None:
    selector = _selector()

    def seconds(times: int) -> float:
        block = (b"check-point " * times + b"\n") * 4
        begin = time.process_time()
        assert selector(block) is not None
        return time.process_time() - begin

    selector(CHATTER)
    assert min(seconds(20_000) for _ in range(3)) < 40 * max(min(seconds(2_000) for _ in range(5)), 0.001)


def test_a_ruler_counts_only_above_a_table_of_failures() -> None:
    ruler, chatter = b"=" * 400 + b"\n", b"epoch 1 is over\n" * 5_000
    assert _lines(_selector(), (ruler + chatter) * 4) == []
    table = ruler + b"train.py FAILED\n"
    found = _selector()(chatter + ruler + chatter + table + chatter)
    assert found == [len(chatter + ruler + chatter + ruler) - 1]
    # Nobody knows what the next block begins with.
    assert _lines(_selector(), chatter + ruler) == [ruler[:-1]]


def test_a_common_word_does_not_stand_for_an_expression() -> None:
    entries = line_search(["(?i)saving [^\\n]{0,40}checkpoint"]).entries
    assert not any(is_literal(entry.expression) and entry.patterns for entry in entries)


def test_what_always_counts_is_never_doubted() -> None:
    selector = _selector()
    opener = b"Traceback (most recent call last):\n"
    assert len(selector(opener * 500) or ()) == 500


def test_a_guard_of_which_only_a_word_is_known_is_never_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doubts, "search", lambda patterns, **_: line_search(["x*"]))
    selector = _selector()
    assert len(selector(CHATTER * 200) or ()) == 200


@pytest.mark.parametrize("line", [b"ValueError", b"  ValueError:  ", b"ValueError: no", b'{"log":"ValueError\\n"}'])
def test_a_break_at_the_end_of_an_expression_is_the_end_of_a_line(line: bytes) -> None:
    searched = line_search(["(?:Error|Exception)(?:: |:?\\s*(?:\\n|$))"])
    selector = Selector(ScanDatabase(searched.entries, once=False), escaped=line[:1] == b"{")
    assert _lines(selector, b"| Error    | 12 |\n" + line + b"\nErrors are counted\n") == [line]
