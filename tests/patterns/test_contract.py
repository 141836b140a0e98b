"""The parts of the contract that verdicts share."""

from __future__ import annotations

import pytest

from tracecore.patterns.contract import LastLines


@pytest.mark.parametrize(("length", "quoted"), [(159, 159), (160, 160), (161, 158), (320, 158), (1000, 158)])
def test_long_last_words_are_cut(length: int, quoted: int) -> None:
    said = LastLines(rank=3, path="rank3.log", lines=((8, "before"), (9, "x" * length))).told()
    words = said.removeprefix("Rank 3 wrote “").removesuffix("” last")
    assert words == ("x" * length if length <= 160 else "x" * 157 + "…")
    assert len(words) == quoted


def test_what_a_rank_was_doing_is_said_where_it_is_known() -> None:
    said = LastLines(rank=3, path="rank3.log", lines=((9, "epoch 2"),), doing="was in validation").told()
    assert said == "Rank 3 was in validation: it wrote “epoch 2”"
