"""What is taken out of whole blocks is what would be taken out line by line."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from tracecore.ottl.planner.selection import plain
from tracecore.recipes.escapes import uncoloured, unescaped

words = st.sampled_from(["step 12", '"', "\\", "\n", "loss", "\t", "é", "\x1b[31m", "\x1b[0m", " ", "{", "n", "\r"])
codes = st.sampled_from(
    [b"a", b"step 5", b"\x1b[31m", b"\x1b[1;38;5;208m", b"\x1b", b"\x1b[", b"m", b"\x1b]0;x\x07", b"[0m", b"\n"]
)


def _entry(text: str) -> bytes:
    entry = {"log": text + "\n", "stream": "stdout", "time": "2026-11-15T00:00:00.123456789Z"}
    return json.dumps(entry, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


@given(st.lists(st.lists(words, max_size=6).map("".join), max_size=12), st.integers(0, 30))
def test_entries_say_the_same_without_their_escapes(texts: list[str], missing: int) -> None:
    block = b"".join(map(_entry, texts))
    block = block[: len(block) - missing] if missing < len(block) else block
    # A newline at the end leaves its letter behind the break.
    assert unescaped(block).replace(b'\x1en"', b'\x1e"') == plain(block, escaped=True).replace(b'\x1en"', b'\x1e"')
    assert unescaped(block).count(b"\n") == block.count(b"\n")


@given(st.lists(codes, max_size=60).map(b"".join))
def test_colours_are_taken_out_as_by_one_expression(block: bytes) -> None:
    assert plain(uncoloured(block), escaped=False) == plain(block, escaped=False)


def test_colours_alone_leave_nothing_to_do() -> None:
    block = b"\x1b[32mstep: 5  \x1b[31mloss: 2.5\x1b[39m and a line that is long enough to be one\n" * 50
    assert b"\x1b" not in uncoloured(block)[:-200]
