"""Small parts of reports: characters that are taken out, runs of ranks, lanes, marks of an axis."""

from __future__ import annotations

import pytest

from tracecore.incidents.drawings import _STEPS, DrawnRow, lanes_of, ticks
from tracecore.incidents.excerpt import harmless
from tracecore.incidents.timeline import folded, runs

INVISIBLE = (
    *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0x200E, 0x200F, 0x2028, 0x2029, 0x00AD, 0x200B, 0xFEFF,
    *range(0xE0000, 0xE0080),
)  # fmt: skip


def test_marks_that_show_nothing_are_taken_out_and_their_neighbours_stay() -> None:
    for code in INVISIBLE:
        assert harmless(f"a{chr(code)}b") == "ab", hex(code)
    for code in (0x2029 + 6, 0x2010, 0x205F, 0x206A + 6, 0x00AE, 0x00AC, 0x200D, 0xE0080):
        assert harmless(f"a{chr(code)}b") == f"a{chr(code)}b", hex(code)


def test_control_characters_are_shown_as_such() -> None:
    for code in (*range(0x20), *range(0x7F, 0xA0)):
        said = harmless(f"a{chr(code)}b")
        if code in (10, 13):
            assert said == "a\nb"
        elif code != 0x1B:
            assert said == ("a\tb" if code == 9 else "a\N{REPLACEMENT CHARACTER}b"), hex(code)
    assert harmless("a b\xa0c~") == "a b\xa0c~"
    assert harmless("\x1b[31mred\x1b[0m \x1b]0;title\x07x\r\ny") == "red x\ny"


@pytest.mark.parametrize("step", _STEPS)
def test_marks_stand_at_steps_that_people_count_in(step: float) -> None:
    known = (
        0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600,
        7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800, 1_209_600,
    )  # fmt: skip
    assert step in known
    assert ticks(step * 5 * 0.999999)[1][0] == step
    assert len(ticks(step * 5 * 0.999999)) == 5


def test_runs_of_numbers_are_folded_and_a_long_list_is_cut() -> None:
    assert folded([5, 3, 4, 9, 4]) == [(3, 5), (9, 9)]
    assert runs([0, 1, 2, 3, 5]) == "0-3, 5"
    twelve = list(range(0, 24, 2))
    assert runs(twelve) == ", ".join(map(str, twelve))
    assert runs([*twelve, 24, 24]) == ", ".join(map(str, twelve)) + " … (13 in all)"


def test_neighbouring_runs_of_ranks_that_say_the_same_are_one_lane() -> None:
    rows = [
        DrawnRow(time=1, text="x", ranks=((0, 1), (2, 3))),
        DrawnRow(time=2, text="y", ranks=((2, 2), (5, 5))),
    ]
    assert [(lane.name, lane.rows, lane.members) for lane in lanes_of(rows)] == [
        ("ranks 0–1, 3", [0], 3), ("rank 2", [0, 1], 1), ("rank 5", [1], 1),
    ]  # fmt: skip
    (alone,) = lanes_of(rows[:1])
    assert (alone.name, alone.members) == ("ranks 0–3", 4)
    many = DrawnRow(time=1, text="x", ranks=tuple((n, n) for n in range(0, 12, 2)))
    assert lanes_of([many])[0].name == "ranks 0, 2, 4, 6 … (6)"
    four = DrawnRow(time=1, text="x", ranks=tuple((n, n) for n in range(0, 8, 2)))
    assert lanes_of([four])[0].name == "ranks 0, 2, 4, 6"
