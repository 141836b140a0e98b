"""The line of a message that says why, as headlines quote it."""

from __future__ import annotations

import pytest

from tracecore.facts.wording import reason, shortened


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("", ""),
        ("index 7 is out of range", "index 7 is out of range"),
        # The first line, where it says enough.
        ("index 7 is out of range\nsee the manual", "index 7 is out of range"),
        ("Error(s) in loading Net:\n  Missing key(s): a", "Error(s) in loading Net: Missing key(s): a"),
        # A line that says it by itself is quoted, wherever it stands.
        ("bad state for Net:\n  Unexpected key(s): b\n  size mismatch for a", "bad state for Net: size mismatch for a"),
        ("the call failed\nextra\nReason: the disk is gone", "the call failed: the disk is gone"),
        ('RPC that terminated with:\n status = StatusCode.ABORTED\n details = "no quorum"', None),
        # The name of what is wrong stands above it.
        ("1 validation error for Cfg\nlr\n  not a float [type=float_type, input_value=1]", None),
        # Nothing but rules and advice below.
        ("it failed:\n-----\nPlease try again", "it failed:"),
        ("it failed:\nfirst:\nsecond:", "it failed: second:"),
    ],
)
def test_the_reason_of_a_message(message: str, said: str | None) -> None:
    expected = {
        "RPC": "RPC that terminated with: no quorum",
        "1 v": "1 validation error for Cfg: lr: not a float [type=float_type, input_value=1]",
    }
    assert reason(message) == (expected[message[:3]] if said is None else said)


@pytest.mark.parametrize("length", [10, 159, 160, 161, 400])
def test_a_long_line_keeps_both_ends(length: int) -> None:
    text = "a" + "x" * (length - 2) + "z"
    short = shortened(text, 160)
    assert len(short) <= 160
    assert short[0] == "a"
    assert short[-1] == "z"
    assert (short == text) is (length <= 160)
