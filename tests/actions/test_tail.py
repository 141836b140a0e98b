"""The end of a log: which of many records are looked at, and where progress is looked for."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.actions import tail as tails
from tracecore.actions.tail import ALIKE, LINES_AFTER, PLACES, STEPS, Tail

#: Letters that are no hexadecimal digits, so that records differ in more than numbers.
WORDS = [f"{one}{other}" for one in "ghijklmn" for other in "ghijklmn"]


def unlike(bodies: list[Any]) -> tuple[list[Any], int]:
    """Return the bodies that are kept, and how many are not."""
    tail = Tail()
    records: Any = [{"log": {"body": body}} for body in bodies]
    return [record["log"]["body"] for record in tails._unlike(tail, records)], tail.dropped


@pytest.mark.parametrize("count", [ALIKE - 1, ALIKE, ALIKE + 1, 2 * ALIKE])
def test_of_records_that_differ_in_numbers_the_ends_are_kept(count: int) -> None:
    bodies = [f"rank {n} lost" for n in range(count)]
    half = ALIKE // 2
    assert unlike(bodies) == ([*bodies[:half], *bodies[half:][-half:]], max(0, count - ALIKE))
    assert unlike(WORDS) == (WORDS, 0)


def test_records_of_other_words_stay_among_them_in_order() -> None:
    bodies = [body for n, word in enumerate(WORDS[: 2 * ALIKE]) for body in (f"rank {n} lost", word)]
    kept, dropped = unlike(bodies)
    assert dropped == ALIKE
    assert kept == [body for body in bodies if body in kept]
    assert [body for body in kept if body in WORDS] == WORDS[: 2 * ALIKE]


def test_of_very_many_records_the_first_and_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "MAX_RECORDS", 10)
    assert unlike(WORDS[:10]) == (WORDS[:10], 0)
    assert unlike(WORDS[:14]) == (WORDS[:5] + WORDS[9:14], 4)


@pytest.mark.parametrize(
    ("body", "shape"),
    [
        (None, b""),
        ("rank 0x7f failed on g3", b"rnk  il on g"),
        ("z" * 512 + "y" + "z" * 511, b"z" * 512 + b"y" + b"z" * 511),
        ("z" * 512 + "y" + "z" * 512, b"z" * 1024),
        ("z" * 511 + "y" + "z" * 513, b"z" * 511 + b"y" + b"z" * 512),
        ("z" * 513 + "y" + "z" * 511, b"z" * 512 + b"y" + b"z" * 511),
    ],
)
def test_the_shape_of_a_record_is_its_text_without_numbers_near_both_ends(body: Any, shape: bytes) -> None:
    record: Any = {"log": {"body": body}}
    assert tails._shape(record) == shape


def thinned(block: bytes, places: list[int] | None) -> list[int] | None:
    selector: Any = lambda _: places  # noqa: E731
    found = tails._Thinned(selector)(block)
    return None if found is None else list(found)


def lines(texts: list[str]) -> tuple[bytes, list[int]]:
    """Return a block of lines, and where each begins."""
    starts = [sum(len(text) + 1 for text in texts[:n]) for n in range(len(texts))]
    return "\n".join(texts).encode(), starts


@pytest.mark.parametrize("count", [ALIKE, ALIKE + 1, 3 * ALIKE])
def test_of_a_storm_of_lines_the_two_ends_are_picked(count: int) -> None:
    block, starts = lines([f"rank {n:04d} lost" for n in range(count)])
    half = ALIKE // 2
    assert thinned(block, starts) == (starts if count <= ALIKE else [*starts[:half], *starts[-half:]])
    assert thinned(block, None) is None
    # Several places of one line, one of them its end, are one line.
    twice = sorted([*starts, *(start + 5 for start in starts), *(start - 1 for start in starts[1:])])
    assert thinned(block, twice) == (starts if count <= ALIKE else [*starts[:half], *starts[-half:]])


def test_lines_of_other_words_and_those_that_may_begin_a_block_are_all_picked() -> None:
    block, starts = lines(WORDS)
    assert thinned(block, starts) == starts
    opener = next(iter(tails.ALWAYS)).decode()
    block, starts = lines([f"{opener} {n}" for n in range(3 * ALIKE)])
    assert thinned(block, starts) == starts


@pytest.mark.parametrize(("length", "kept"), [(510, 2 * ALIKE), (512, ALIKE)])
def test_lines_that_begin_alike_are_alike(length: int, kept: int) -> None:
    block, starts = lines([f"{'z' * length}{word}" for word in WORDS[: 2 * ALIKE]])
    assert len(thinned(block, starts) or ()) == kept


@pytest.mark.parametrize(
    ("count", "picked"),
    [
        (2, [(0, b"step 1"), (7, b"step 2")]),
        (-2, [(7, b"step 2"), (14, b"step 3")]),
        (9, [(0, b"step 1"), (7, b"step 2"), (14, b"step 3")]),
    ],
)
def test_the_first_or_the_last_lines_that_may_tell_of_progress(count: int, picked: list[tuple[int, bytes]]) -> None:
    block = b"step 1\nstep 2\nstep 3"
    assert list(tails._picked(block, lambda _: [15, 9, 8, 0], count)) == picked
    assert list(tails._picked(block, None, count)) == [(0, block)]


DATA = b"0123456\n" * 4000


def test_progress_is_looked_for_around_the_first_place_after_the_others_and_at_the_end() -> None:
    length = 8 * LINES_AFTER
    assert list(tails._windows(DATA, [800, 16_000])) == [
        (808 - length, 808, -2),
        (808, 808 + length, STEPS),
        (16_000, 16_000 + length, STEPS),
        (len(DATA) + 8 - length, len(DATA), -2),
    ]
    assert list(tails._windows(DATA, [len(DATA)])) == [(len(DATA) + 8 - length, len(DATA), -2)]
    assert tails._lines_before(DATA, 0) == 0


@pytest.mark.parametrize("count", [PLACES, PLACES + 6])
def test_of_many_places_the_first_and_the_last_are_looked_at(count: int) -> None:
    places = [1000 * n for n in range(1, count + 1)]
    found = [start for start, _, steps in tails._windows(DATA, places) if steps == STEPS]
    half = PLACES // 2
    assert found[1:] == [*places[1:half], *places[-half:]]
    assert found[0] == places[0] + 8
