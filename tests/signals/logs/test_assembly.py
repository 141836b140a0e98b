"""Lines that belong together are one block to the reader of files, the live selector and the agent's processor."""

from __future__ import annotations

import io
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracecore.agent.processors.blocks import Blocks
from tracecore.recipes.live import LiveSelector
from tracecore.recipes.plan import plan
from tracecore.signals.logs import reader
from tracecore.signals.logs.assembly import (
    MAX_BODY,
    MAX_FOREIGN,
    MAX_FOREIGN_WHOLE,
    SETTLED,
    Assembly,
    OpenBlock,
    TextBlock,
    shape_of,
)
from tracecore.signals.logs.dialects import UnwrappedLine, strip_prefixes
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.record import Source
from tracecore.signals.stream import Clock, Stream

RULE = "=" * 40
TEXTS = (
    "",
    "step 10/100 | loss 2.1",
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in main',
    "    loss.backward()",
    "RuntimeError: NCCL error: unhandled system error",
    "ncclSystemError: System call failed",
    "Last error:",
    "socketStartConnect: Connect to 10.0.0.3 failed",
    "Exception raised from create at ProcessGroupNCCL.cpp:1:",
    "frame #0: c10::Error::Error(std::string) + 0x96",
    "During handling of the above exception, another exception occurred:",
    "Exception ignored in: <function f at 0x7f>",
    RULE,
    "train.py FAILED",
    "Failures:",
    "  rank      : 3 (local_rank: 3)",
    "Fatal Python error: Segmentation fault",
    "Current thread 0x00007f (most recent call first):",
    '  File "a.py", line 1 in f',
    "INFO saving a checkpoint",
)
PREFIXES = ("", "[rank0]: ", "[rank1]: ", "[default1]:", "[default1]:[rank1]: ", "(Worker pid=7) ")


def text_of(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def read(lines: list[str]) -> list[tuple[int, str]]:
    """Number of the first line and text of each record of a file."""
    data = text_of(lines)
    stream = Stream(path="a.log", format="text", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    records = reader.read(stream, SelectAll(), Clock(1_800_000_000_000_000_000))
    return sorted((record["source"].line - 1, record["log"]["body"]) for record in records)


def arrived(lines: list[str]) -> list[tuple[int, str]]:
    """The same for lines that arrive one by one."""
    blocks = Blocks(250_000_000)
    found = []
    for number, line in enumerate(lines):
        log = {"body": line, "attributes": {}, "time_unix_nano": number}
        found += blocks.feed(("a",), {"attributes": {}}, log, Source("a", line=number), number)
    found += blocks.finish()
    return sorted((signal["source"].line, signal["log"]["body"]) for signal in found)


@given(st.lists(st.tuples(st.sampled_from(PREFIXES), st.sampled_from(TEXTS)).map("".join), max_size=40))
@settings(max_examples=300, deadline=None)
def test_files_and_arriving_lines_give_the_same_blocks(lines: list[str]) -> None:
    assert read(lines) == arrived(lines)


class PicksFirst:
    """Picks the lines in which a block of several lines begins."""

    def __init__(self, lines: list[str], firsts: list[int]) -> None:
        self.places = [sum(len(line) + 1 for line in lines[:first]) for first in firsts]

    def __call__(self, block: bytes) -> list[int]:
        return self.places


@given(st.lists(st.tuples(st.sampled_from(PREFIXES), st.sampled_from(TEXTS)).map("".join), min_size=1, max_size=40))
@settings(max_examples=200, deadline=None)
def test_the_live_selector_picks_whole_blocks(lines: list[str]) -> None:
    records = [(first, body) for first, body in read(lines) if "\n" in body]
    select = PicksFirst(lines, [first for first, _ in records])
    live = LiveSelector(plan("stdout"), "stdout", select, container=False, ranks=False)
    live._select = select
    data = text_of(lines)
    picked = {data.count(b"\n", 0, place) for place in live(data) or ()}
    texts = Counter(unwrapped(lines[number]).text.decode() for number in picked)
    wanted = Counter(line for _, body in records for line in body.split("\n") if line)
    assert wanted <= texts


def unwrapped(text: str) -> UnwrappedLine:
    line = UnwrappedLine(text.encode())
    strip_prefixes(line, single_node=True)
    return line


def assembled(*lines: str) -> tuple[Assembly[TextBlock], list[TextBlock]]:
    assembly: Assembly[TextBlock] = Assembly()
    ended: list[TextBlock] = []
    for text in lines:
        line = unwrapped(text)
        placed = assembly.place(line)
        ended += placed.ended
        if placed.joined is None and line.text:
            before = assembly.add(TextBlock(line, shape_of(line)))
            ended += [before] if before is not None else []
    return assembly, ended


def test_a_detail_without_the_inner_prefix_joins_its_message() -> None:
    assembly, ended = assembled(
        "[default1]:[rank1]: NCCL error: remote error", "[default1]:ncclRemoteError: a call failed"
    )
    assert not ended
    assert [block.body() for block in assembly] == [b"NCCL error: remote error\nncclRemoteError: a call failed"]


def test_a_detail_of_another_rank_does_not() -> None:
    _, ended = assembled("[rank1]: NCCL error: remote error", "[rank0]: ncclRemoteError: a call failed")
    assert [block.body() for block in ended] == [b"NCCL error: remote error"]


def test_a_block_that_another_one_interrupts_is_kept() -> None:
    _, ended = assembled(
        "Traceback (most recent call last):", '  File "a.py", line 1, in f', "Fatal Python error: Aborted"
    )
    assert [block.body() for block in ended] == [b'Traceback (most recent call last):\n  File "a.py", line 1, in f']


@pytest.mark.parametrize("others", [MAX_FOREIGN, MAX_FOREIGN + 1])
def test_a_block_waits_for_so_many_lines_of_others(others: int) -> None:
    lines = ["Traceback (most recent call last):", *["[rank0]: step"] * others, "ValueError: x"]
    assembly, ended = assembled(*lines)
    bodies = {block.body() for block in (*ended, *assembly)}
    assert (b"Traceback (most recent call last):\nValueError: x" in bodies) is (others <= MAX_FOREIGN)


@pytest.mark.parametrize("others", [3, SETTLED, SETTLED + 40, MAX_FOREIGN_WHOLE])
@pytest.mark.parametrize(
    "last", ["During handling of the above exception, another exception occurred:", "[rank0]: step"]
)
def test_lines_below_an_ended_traceback_need_not_be_unwrapped(others: int, last: str) -> None:
    first = ["Traceback (most recent call last):", '  File "a.py", line 1, in f', "ValueError: x"]
    below = [*["[rank0]: step"] * others, last]
    assembly, _ = assembled(*first, *below)
    quick, _ = assembled(*first)
    for text in below:
        if not quick.passes(text.encode()):
            line = unwrapped(text)
            if quick.place(line).joined is None:
                quick.add(TextBlock(line, shape_of(line)))
    assert [block.body() for block in quick.by_writer.values()] == [
        block.body() for block in assembly.by_writer.values()
    ]


def test_of_a_long_block_the_beginning_and_the_end_are_kept_in_order() -> None:
    block = TextBlock(UnwrappedLine(b"first"), shape_of(UnwrappedLine(b"first")))
    for number in range(3 * MAX_BODY // 100):
        block.append(b"%099d" % number)
    body = block.body()
    numbers = [int(line) for line in body.split(b"\n") if line.isdigit()]
    assert len(body) <= MAX_BODY + 100
    assert block.left_out > 0
    assert numbers == sorted(numbers)
    assert numbers[-1] == 3 * MAX_BODY // 100 - 1


def test_a_block_without_text_keeps_none() -> None:
    assert not hasattr(OpenBlock(UnwrappedLine(b"a"), shape_of(UnwrappedLine(b"a"))), "body")
