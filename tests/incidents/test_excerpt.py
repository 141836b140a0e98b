"""The lines that an incident quotes: where they begin, how many there are, and their numbers."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.incidents import excerpt as excerpts
from tracecore.incidents.excerpt import end_of, excerpt
from tracecore.signals.record import Source

LOG = b"one\ntwo\nthree\nfour\n"


def stream(data: bytes = LOG, size: int | None = -1) -> Any:
    return SimpleNamespace(path="a.log", size=len(data) if size == -1 else size, open=lambda: io.BytesIO(data))


def bundle(data: bytes = LOG) -> Any:
    return SimpleNamespace(
        streams=[stream(b"other", 5).__class__(path="b.log"), stream(data)], masked=False, redact=False
    )


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (100, (LOG, 0, 1)),
        (19, (LOG, 0, 1)),
        (18, (b"two\nthree\nfour\n", 4, 2)),
        (15, (b"three\nfour\n", 8, 3)),
        (6, (b"four\n", 14, 4)),
    ],
)
def test_the_end_of_a_log_begins_with_a_whole_line(most: int, expected: tuple[bytes, int, int]) -> None:
    assert end_of(stream(), most) == expected


@pytest.mark.parametrize("size", [None, excerpts._REACH + 1])
def test_a_log_without_a_known_or_near_end_has_none(size: int | None) -> None:
    assert end_of(stream(size=size), 100) == (b"", 0, 1)


def test_the_end_of_the_longest_log_that_is_read() -> None:
    assert end_of(stream(size=excerpts._REACH), 1 << 40)[0] == LOG


@pytest.mark.parametrize(
    ("source", "most", "expected"),
    [
        (Source("a.log", 4, 2, 3), 9, [(2, "two")]),
        (Source("a.log", 4, 2, 10), 9, [(2, "two"), (3, "three")]),
        (Source("a.log", 4, 2, 1), 9, [(2, "t")]),
        (Source("a.log", 0, 1, 19), 3, [(1, "one"), (2, "two"), (4, "four")]),
        (Source("a.log", 0, 1, 19), 2, [(1, "one"), (4, "four")]),
        (Source("a.log", 0, 1, 19), 4, [(1, "one"), (2, "two"), (3, "three"), (4, "four")]),
        (Source("a.log", 4, 2, 0), 9, None),
        (Source("a.log", 4, 0, 3), 9, None),
        (Source("c.log", 4, 2, 3), 9, None),
    ],
)
def test_an_excerpt_has_the_lines_of_its_source(source: Source, most: int, expected: Any) -> None:
    found = excerpt(bundle(), source, most)
    assert (found and list(found.lines)) == expected


@pytest.mark.parametrize(("more", "first"), [(-1, 1), (0, 1), (1, 2)])
def test_of_a_block_that_is_too_long_the_end_is_quoted(more: int, first: int) -> None:
    line = b"x" * 9 + b"\n"
    length = excerpts._BYTES // 10 * 10
    data = line * (length // 10 + 2)
    found = excerpt(bundle(data), Source("a.log", 0, 1, excerpts._BYTES + more), 4)
    assert found is not None
    assert found.lines[0][0] == first
