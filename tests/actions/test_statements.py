"""Statements of a log: which of them were survived, which one decides, and which line of a block is quoted."""

from __future__ import annotations

from typing import Any

import pytest

from tracecore.actions import statements
from tracecore.actions.rules import ClassRule, standard
from tracecore.actions.statements import LATER_NS, MAX_PHRASES, RuleMatch, account, decisive, why_not
from tracecore.actions.tail import Made, Stated, Tail
from tracecore.facts.fact import Fact
from tracecore.facts.process import ExceptionRaised, LauncherFailure
from tracecore.signals.record import Source

START = 1_794_700_000_000_000_000


def said(offset: int, role: Any = "cause", *, line: int = 1, **fields: Any) -> RuleMatch:
    rule = ClassRule(name=f"{role}{offset}", failure_class="user_error", role=role, suggestion="", line=line)
    return RuleMatch(rule=rule, role=role, offset=offset, end=offset + 10, line=1, text="", **fields)


def row(rank: int | None, *, root: bool = True, launcher: str = "torchelastic") -> Fact:
    return LauncherFailure(time=START, source=Source("log"), launcher=launcher, rank=rank, root=root)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([], None),
        ([said(10, "chatter")], None),
        ([said(10, survived="x"), said(20)], 20),
        ([said(10, "symptom"), said(20, "crash"), said(30, "error")], 30),
        ([said(10, "ending"), said(20, "talk"), said(30, "symptom"), said(40, "crash")], 40),
        ([said(10, "ending"), said(20, "talk"), said(30, "symptom")], 30),
        ([said(10, "ending"), said(20, "talk")], 20),
        ([said(10, "ending"), said(20, "ending")], 10),
        ([said(10), said(20, "error"), said(30)], 10),
        ([said(10, "stop"), said(20)], 10),
        ([said(10), said(20, "stop")], 10),
        ([said(20), said(20, "stop")], 20),
        ([said(10, "symptom"), said(20, "stop"), said(30, "stop")], 20),
        # Of words, the rule that stands first, and of one rule the last line.
        ([said(10, "talk", line=2), said(20, "talk", line=1), said(30, "talk", line=2)], 20),
        ([said(10, "talk"), said(20, "talk")], 20),
        ([said(10, "talk"), said(20, "talk", warned=True)], 10),
        ([said(20, "talk", warned=True)], 20),
    ],
)
def test_the_statement_that_decides(found: list[RuleMatch], chosen: int | None) -> None:
    decided = decisive(found)
    assert (decided and decided.offset) == chosen


@pytest.mark.parametrize(
    ("one", "ended", "healthy", "counts"),
    [
        (said(10, "talk", complains=False), True, False, True),
        (said(10, "talk", complains=False), False, False, False),
        (said(10, "talk", complains=True), False, False, True),
        (said(10, "talk", complains=False, fact=row(1)), False, False, True),
        (said(10, "talk"), True, True, False),
        (said(10, "ending"), True, True, False),
        (said(10, "crash"), True, True, True),
        (said(10, "symptom"), True, True, True),
        (said(10, bare=True), True, True, False),
        (said(10, bare=True), True, False, True),
    ],
)
def test_words_count_by_what_is_known_of_the_end(one: RuleMatch, ended: bool, healthy: bool, counts: bool) -> None:
    assert (decisive([one], ended=ended, healthy=healthy) is one) == counts


@pytest.mark.parametrize(
    ("launched", "chosen"),
    [(row(2), 30), (row(3), 10), (row(2, root=False), 10), (row(None), 10)],
)
def test_the_rank_that_failed_first_by_its_launcher_decides(launched: Fact, chosen: int) -> None:
    found = [said(10, rank=1), said(20, "ending", fact=launched), said(30, rank=2), said(40, rank=2)]
    decided = decisive(found)
    assert decided is not None
    assert decided.offset == chosen


@pytest.mark.parametrize(
    ("one", "chosen", "why"),
    [
        (said(10, survived="it went on"), said(20), "it went on"),
        (said(10, "chatter"), said(20), "known to be harmless"),
        *[(said(30, role), said(20, to), "follows from it")
          for role in ("symptom", "crash", "ending") for to in ("cause", "error", "stop")],
        (said(10, "symptom"), said(20), "says less about why"),
        (said(20, "symptom"), said(20), "says less about why"),
        (said(30, "symptom"), said(20, "crash"), "came later"),
        (said(30, "talk"), said(20), "may be chatter"),
        (said(30, "talk"), said(20, "talk"), "came later"),
        (said(10, "talk"), said(20, "talk"), "says less about why"),
        (said(20, "talk"), said(20, "talk"), "says less about why"),
        (said(30), said(20), "came later"),
    ],
)  # fmt: skip
def test_why_a_statement_did_not_decide(one: RuleMatch, chosen: RuleMatch, why: str) -> None:
    assert why_not(one, chosen) == why


WENT_ON, FINISHED = "training went on after it", "the run says that it finished after it"
AGAIN, BEFORE = "the job was started again after it", "the run says that it had finished before it"


def steps(*offsets: int, rank: int | None = None) -> list[Made]:
    return [Made(offset, rank, 1) for offset in offsets]


@pytest.mark.parametrize(
    ("one", "progress", "survived"),
    [
        (said(100, rank=1), steps(109, rank=1), ""),
        (said(100, rank=1), steps(110, rank=1), WENT_ON),
        (said(100, rank=1), steps(110, rank=2), ""),
        (said(100), steps(110, 120), ""),
        (said(100), steps(110, 120, 130), WENT_ON),
        (said(100), steps(109, 120, 130), ""),
        # A log in which one rank reports is that rank's.
        (said(100), steps(110, 120, 130, rank=3), WENT_ON),
        (said(100), [*steps(110, 120, 130, rank=3), *steps(140, rank=4)], ""),
        (said(100, "stop", rank=1), steps(110, rank=1), ""),
        (said(100), [Made(110, None, None, True)], FINISHED),
        (said(100), [Made(109, None, None, True)], ""),
        (said(100, rank=1), [Made(110, 2, None, True)], ""),
        (said(100, "symptom"), [Made(99, None, None, True)], BEFORE),
        (said(100, "symptom"), [Made(100, None, None, True)], ""),
        (said(100, "symptom", rank=1), [Made(99, None, None, True)], BEFORE),
        (said(100, "symptom", rank=1), [Made(99, 2, None, True)], ""),
        (said(100, "cause"), [Made(99, None, None, True)], ""),
        (said(100, "symptom"), [], ""),
    ],
)
def test_a_statement_is_survived_by_what_follows_it(one: RuleMatch, progress: list[Made], survived: str) -> None:
    statements._survivals([one], progress)
    assert one.survived == survived


@pytest.mark.parametrize(
    ("found", "survived"),
    [
        ([said(10), said(100, attempt=1)], [AGAIN, ""]),
        ([said(10), said(100, "crash", attempt=1)], [AGAIN, ""]),
        ([said(10), said(100, "symptom", attempt=1)], ["", ""]),
        ([said(10), said(100, "talk", attempt=1)], ["", ""]),
        ([said(10, "stop"), said(100, attempt=1)], ["", ""]),
    ],
)
def test_a_later_attempt_that_fails_for_a_reason_of_its_own_survived_the_first(
    found: list[RuleMatch], survived: list[str]
) -> None:
    statements._survivals(found, [])
    assert [one.survived for one in found] == survived


@pytest.mark.parametrize(
    ("launcher", "step", "survived"),
    [("torchelastic", 51, AGAIN), ("torchelastic", 50, ""), ("ray", 51, "")],
)
def test_steps_after_a_launchers_report_are_those_of_the_next_attempt(launcher: str, step: int, survived: str) -> None:
    found = [said(10), said(50, "ending", fact=row(1, launcher=launcher))]
    statements._survivals(found, steps(step))
    assert found[0].survived == survived


@pytest.mark.parametrize(
    ("others", "survived"),
    [
        ([said(200, "symptom", rank=2)], ""),
        ([], WENT_ON),
        ([said(90, "symptom", rank=2), said(200, "symptom", rank=2)], WENT_ON),
        ([said(200, "crash", rank=2), said(210, "symptom", rank=2)], WENT_ON),
        ([said(200, "talk", rank=2)], WENT_ON),
    ],
)
def test_one_late_step_does_not_clear_an_error_where_only_peers_complain(
    others: list[RuleMatch], survived: str
) -> None:
    one = said(100, rank=1)
    statements._survivals(sorted([one, *others], key=lambda said: said.offset), steps(150, rank=1))
    assert one.survived == survived
    two = said(100, rank=1)
    statements._survivals(sorted([two, *others], key=lambda said: said.offset), steps(150, 160, rank=1))
    assert two.survived == WENT_ON


@pytest.mark.parametrize(
    ("apart", "first", "second", "caught"),
    [
        (LATER_NS + 1, {}, {}, True),
        (LATER_NS, {}, {}, False),
        (LATER_NS + 1, {"rank": 1}, {"rank": 2}, False),
        (LATER_NS + 1, {"role": "crash"}, {}, False),
        (LATER_NS + 1, {}, {"role": "crash"}, False),
        (LATER_NS + 1, {"role": "error"}, {"role": "error"}, True),
        (LATER_NS + 1, {}, {"survived": "x"}, False),
        (LATER_NS + 1, {}, {"time": None}, False),
    ],
)
def test_an_error_long_before_another_of_the_same_process_was_caught(
    apart: int, first: dict[str, Any], second: dict[str, Any], caught: bool
) -> None:
    found = [said(10, **{"time": START} | first), said(20, **{"time": START + apart} | second)]
    statements._outlived(found)
    assert bool(found[0].survived) == caught


def test_the_last_error_of_a_process_is_what_others_are_compared_with() -> None:
    found = [said(10, time=START), said(20, time=START + LATER_NS), said(30, time=START + LATER_NS + 1)]
    statements._outlived(found)
    assert [bool(one.survived) for one in found] == [True, False, False]


def block(body: str, *facts: Fact, line: int = 1) -> Stated:
    return Stated(body, {}, facts, Source("log", 0, line, len(body)))


def raised(kind: str = "ValueError", **fields: Any) -> Fact:
    return ExceptionRaised(time=START, source=Source("log"), type=kind, **fields)


@pytest.mark.parametrize(
    ("stated", "quoted"),
    [
        (block("  one line  "), (0, "one line")),
        (block("Traceback\n  File 'a'\nValueError: x\nat the end", raised()), (2, "ValueError: x")),
        (block("ValueError: first\n...\nValueError: last\nend", raised()), (2, "ValueError: last")),
        (block("Traceback\n    raise ValueError: x\nValueError\nend", raised()), (2, "ValueError")),
        (block("Traceback\n  File ValueError: x\nend", raised()), (0, "Traceback")),
        (block("-----\n  exitcode : 1\nend", row(1)), (1, "exitcode : 1")),
        (block("-----\n exit code : 1\n traceback : x", row(1)), (1, "exit code : 1")),
        (block("-----\n traceback : x\n end", row(1)), (1, "traceback : x")),
        (block("----\n====\nwords"), (2, "words")),
        (block("----\n===="), (0, "----")),
    ],
)
def test_the_line_of_a_block_that_says_it_best(stated: Stated, quoted: tuple[int, str]) -> None:
    assert statements._quoted(stated) == quoted
    assert len(statements._quoted(block("x" * 600))[1]) == 500


def talk(text: str) -> list[RuleMatch]:
    tail = Tail(data=text.encode(), stated=[])
    return account(tail, standard()).statements


PHRASE = "worker ran out of memory"


def test_lines_that_use_words_of_the_contract_are_talk() -> None:
    (one,) = talk(f"fine\nERROR: {PHRASE}\nfine\n")
    assert (one.line, one.offset, one.end, one.role, one.bare) == (2, 5, 5 + 7 + len(PHRASE), "talk", True)
    assert one.text == f"ERROR: {PHRASE}"
    (last,) = talk(f"fine\nfine\nERROR: {PHRASE}")
    assert (last.line, last.end) == (3, 10 + 7 + len(PHRASE))


def test_of_lines_that_differ_in_their_numbers_the_first_and_the_last_are_enough() -> None:
    text = "".join(f"ERROR {number}: {PHRASE}\n" for number in range(5))
    assert [one.line for one in talk(text)] == [1, 5]


def test_of_very_many_phrases_those_of_either_end_are_looked_at() -> None:
    words = [f"{chr(103 + n // 16)}{chr(103 + n % 16)}" for n in range(MAX_PHRASES + 10)]  # no hexadecimal digits
    lines = [one.line for one in talk("".join(f"ERROR {word}: {PHRASE}\n" for word in words))]
    half = MAX_PHRASES // 2
    assert lines == [*range(1, half + 1), *range(half + 11, MAX_PHRASES + 11)]


def test_lines_that_are_the_same_in_their_first_512_bytes_are_alike() -> None:
    def lines(words: int) -> list[int]:
        return [one.line for one in talk("".join(f"{f'{PHRASE} ':z<{words}}{word}\n" for word in ("go", "hi", "jk")))]

    assert lines(510) == [1, 2, 3]
    assert lines(512) == [1, 3]


def test_of_a_long_line_the_first_4096_bytes_are_looked_at() -> None:
    def said_after(length: int) -> list[str]:
        return [one.text for one in talk(f"{'z' * length} {PHRASE}\n")]

    assert said_after(4095 - len(PHRASE)) == ["z" * 500]
    assert said_after(4096 - len(PHRASE)) == []


def test_a_line_that_no_recipe_knows_is_of_the_attempt_around_it() -> None:
    first, phrase = "ValueError: x", f"ERROR: {PHRASE}"
    tail = Tail(data=f"{phrase}\n{first}\n{phrase}!\n".encode())
    place = Source("log", len(phrase) + 1, 2, len(first))
    tail.stated.append(Stated(first, {}, (raised(attempt=1),), place))
    assert [(one.line, one.attempt) for one in account(tail, standard()).statements] == [(1, 0), (2, 1), (3, 1)]
