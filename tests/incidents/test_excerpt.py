"""The lines that an incident quotes: where they begin, how many there are, and their numbers."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracecore.incidents import excerpt as excerpts
from tracecore.incidents.excerpt import _telling, end_of, excerpt, last_words
from tracecore.signals.bundle.discovery import discover
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


TRACEBACK = "Traceback (most recent call last)"
BOXED = (
    f"╭──── {TRACEBACK} ────╮",
    "│ /app/train.py:12 in main           │",
    "│                                    │",
    "│    11 │   model = build()          │",
    "│ ❱  12 │   fit(model)               │",
    "╰────────────────────────────────────╯",
    "ValueError: shapes do not match",
)
PLAIN = (
    f"{TRACEBACK}:", '  File "a.py", line 3, in main', "    fit()", "    ^^^^^", "ValueError: one", "",
    "During handling of the above exception, another exception occurred:", "",
    f"{TRACEBACK}:", '  File "a.py", line 5, in main', "    stop()", "RuntimeError: two",
)  # fmt: skip


@pytest.mark.parametrize(
    ("block", "most", "kept"),
    [
        # A block without a traceback: all of it, or its beginning and end.
        ("abcde", 5, "abcde"),
        ("abcdef", 5, "abcef"),
        ("abcdef", 4, "abef"),
        # The exceptions, and the frame above each.
        (PLAIN[:5], 3, [PLAIN[0], PLAIN[1], PLAIN[2], PLAIN[4]]),
        (PLAIN[:5], 1, [PLAIN[0], PLAIN[4]]),
        (PLAIN[:5], 2, [PLAIN[0], PLAIN[1], PLAIN[4]]),
        (PLAIN, 2, [PLAIN[0], PLAIN[4], PLAIN[11]]),
        (PLAIN, 4, [PLAIN[0], PLAIN[1], PLAIN[4], PLAIN[9], PLAIN[11]]),
        # One that rich drew, without its box.
        (BOXED, 4, [f"{TRACEBACK}:", "  /app/train.py:12 in main", "    fit(model)", BOXED[6]]),
    ],
)
def test_a_long_block_is_shortened_to_what_tells_most(block: Sequence[str], most: int, kept: Sequence[str]) -> None:
    assert [line for _, line in _telling(list(enumerate(block)), most)] == list(kept)


def test_a_box_that_is_no_traceback_stays_as_it_is() -> None:
    block = ["╭─ Settings ─╮", "│ lr 0.1     │", "╰────────────╯", f"{TRACEBACK}:", "ValueError: x"]
    assert [line for _, line in _telling(list(enumerate(block)), 9)][-1] == "ValueError: x"
    assert [line for _, line in _telling(list(enumerate(block[:3])), 2)] == [block[0], block[2]]


def test_of_many_logs_those_in_which_a_rank_was_read_are_looked_at(tmp_path: Path) -> None:
    for number in range(20):
        lines = "".join(f"[rank{rank}]: saving shard {rank}\n" for rank in (number, number + 50))
        (tmp_path / f"node{number:02d}.log").write_text(lines)
    bundle = discover([tmp_path])
    last = str(tmp_path / "node19.log")
    assert last_words(bundle, 19) is None
    found = last_words(bundle, 19, read=[last])
    assert found is not None
    assert found.path == last


def test_frames_that_py_spy_printed_are_no_last_words(tmp_path: Path) -> None:
    """A frame called `download` does not say that the rank was downloading."""
    dump = 'Process 71: python train.py\nPython v3.11.9 (/usr/bin/python3)\n\nThread 71 (idle): "MainThread"\n'
    (tmp_path / "rank2_71.txt").write_text(
        dump + "    acquire (filelock/_api.py:300)\n    download (datasets/a.py:2)\n"
    )
    assert last_words(discover([tmp_path]), 2) is None
    (tmp_path / "rank2_71.txt").write_text("Process 71: ready\ndownloading part 3\n")
    assert last_words(discover([tmp_path]), 2) is not None


def test_lines_of_slurm_and_warnings_are_no_last_words(tmp_path: Path) -> None:
    (tmp_path / "rank3.log").write_text(
        "2026-11-15 01:00:00 step 7 loss 2.5\n2026-11-15 01:00:09 waiting for the lock of the data set\n"
        "/opt/torch/ddp.py:31: DeprecationWarning: torch.x is private\n  return func(*args, **kwargs)\n"
        "slurmstepd: error: *** STEP 88.0 ON n1 CANCELLED AT 2026-11-15T01:10:00 ***\n"
    )
    found = last_words(discover([tmp_path]), 3)
    assert found is not None
    assert found.lines[-1][1].endswith("waiting for the lock of the data set")
