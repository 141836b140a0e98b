"""A file as blocks of whole lines, whatever it is read from."""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tracecore.signals.logs.blocks import CARRY, MAX_LINE, Block, blocks
from tracecore.signals.stream import Counters

SIZE = 1 << 13


def _text(longest: int, lines: int, end: bytes = b"\n") -> bytes:
    dice = random.Random(longest)
    return b"".join(b"x" * dice.randrange(longest) + b"\n" for _ in range(lines)) + b"last" + end


def _blocks(file: Any) -> tuple[list[Block], Counters]:
    counters = Counters()
    return list(blocks(file, counters, SIZE)), counters


@pytest.mark.parametrize("end", [b"\n", b"", b"\r\n"])
@pytest.mark.parametrize("longest", [1, 60, SIZE // 2 + 500, CARRY + SIZE])
def test_blocks_of_a_file_are_whole_lines_in_their_places(tmp_path: Path, longest: int, end: bytes) -> None:
    text = _text(longest, 400_000 // (longest + 30), end)
    (tmp_path / "log").write_bytes(text)
    with open(tmp_path / "log", "rb", buffering=0) as file:
        found, counters = _blocks(file)
    assert _blocks(io.BytesIO(text)) == (found, counters)
    assert b"".join(block.data for block in found) == text
    assert counters.bytes_read == len(text)
    offset, line = 0, 1
    for block in found:
        assert (block.offset, block.line) == (offset, line)
        offset, line = offset + len(block.data), line + block.data.count(b"\n")
    assert all(block.data.endswith(b"\n") for block in found[:-1])


def test_what_is_left_of_a_line_that_is_too_long_is_the_same_from_a_file_and_from_memory(tmp_path: Path) -> None:
    text = b"short\n" + b"y" * (MAX_LINE + 3 * SIZE) + b"\nafter it\n"
    (tmp_path / "log").write_bytes(text)
    with open(tmp_path / "log", "rb", buffering=0) as file:
        here, counted = _blocks(file)
    there, expected = _blocks(io.BytesIO(text))
    assert [(line.offset, line.line) for line in here][-1] == [(line.offset, line.line) for line in there][-1]
    assert b"".join(block.data for block in here) == b"".join(block.data for block in there)
    assert counted == expected


def test_a_pipe_is_read_as_it_comes() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    with open(reading, "rb", buffering=0) as file:
        assert [block.data for block in _blocks(file)[0]] == [b"one\ntwo\n"]
