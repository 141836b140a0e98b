"""Cases as they are read: times, repetitions, order, and mistakes, each named with its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tracecore.patterns import cases
from tracecore.patterns.cases import (
    MAX_BYTES,
    MAX_REPEAT,
    START,
    Case,
    CaseError,
    mismatch,
    moment,
    plain,
    read_cases,
)
from tracecore.patterns.signals import facts_of
from tracecore.patterns.spread import Spread

SECOND = 1_000_000_000
GOOD = """case: one
kind: canonical
why: a reason
facts:
  - t+1s xid: {node: n1, code: 79}
  - t+5s xid: {node: n1, code: 31}
expect_none_at: [t+60s]
"""


def read(folder: Path, text: str) -> list[Case]:
    path = folder / "cases.yaml"
    path.write_text(text, encoding="utf-8")
    return list(read_cases(path))


def test_a_case_is_read(tmp_path: Path) -> None:
    (case,) = read(tmp_path, GOOD)
    assert (case.name, case.kind, case.why, case.line, case.positive) == ("one", "canonical", "a reason", 1, False)
    assert [(arrival.at - START) // SECOND for arrival in case.arrivals] == [1, 5]
    assert [expectation.at - START for expectation in case.expectations] == [60 * SECOND]


def test_several_cases_know_their_lines(tmp_path: Path) -> None:
    assert [case.line for case in read(tmp_path, f"{GOOD}---\n{GOOD}---\n")] == [1, 9]


def test_two_cases_of_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Kind:
        needs = ()

    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    for file in files:
        file.write_text(GOOD, encoding="utf-8")
    monkeypatch.setattr(cases, "case_files", lambda kind: files)
    kind: Any = Kind
    with pytest.raises(CaseError, match=r"case `one` is in a\.yaml already"):
        cases.cases_of(kind)


def test_a_case_can_begin_at_another_time_and_be_turned_around(tmp_path: Path) -> None:
    (case,) = read(tmp_path, f"start: 2026-01-01T00:00:00.5Z\norder: reversed\n{GOOD}")
    begin = 1_767_225_600 * SECOND + SECOND // 2
    assert [arrival.at - begin for arrival in case.arrivals] == [5 * SECOND, 5 * SECOND + 1]
    assert [getattr(arrival.fact, "code", 0) for arrival in case.arrivals] == [31, 79]


def test_facts_are_repeated_and_counted(tmp_path: Path) -> None:
    storm = GOOD.replace("  - t+5s xid: {node: n1, code: 31}\n", '  - t xid x3 every 10ms: {node: "n{i}", code: 31}\n')
    (case,) = read(tmp_path, storm)
    facts = [arrival.fact for arrival in case.arrivals]
    assert [(fact.time - START, fact.node) for fact in facts[:3]] == [(0, "n0"), (10**7, "n1"), (2 * 10**7, "n2")]
    assert len({fact.uid for fact in facts}) == 4
    (most,) = read(tmp_path, storm.replace("x3", f"x{MAX_REPEAT}"))
    assert len(most.arrivals) == MAX_REPEAT + 1


@pytest.mark.parametrize(
    ("before", "after", "line", "said"),
    [
        ("case: one", "case: One", 1, "`case` is a name of lower-case letters"),
        ("case: one", "case: 7", 1, "`case` is a name of lower-case letters"),
        ("kind: canonical", "kind: odd", 2, "`kind: odd` is none of"),
        ("why: a reason", "why: ' '", 3, "`why` says in a line"),
        ("why: a reason", "why: 7", 3, "`why` says in a line"),
        ("why: a reason", "why: a reason\nodd: 1", 4, "`odd` means nothing in a case"),
        ("why: a reason", "why: a reason\nstart: soon", 4, "`start` is a time such as"),
        ("why: a reason", "why: a reason\nstart: 7", 4, "`start` is a time such as"),
        ("why: a reason", "why: a reason\norder: sorted", 4, "`order` can only be `reversed`"),
        ("why: a reason", "why: a reason\nsignals: text", 4, "`signals` is a list"),
        ("  - t+5s xid: {node: n1, code: 31}", "  - text", 6, "a fact is one line"),
        ("  - t+5s xid: {node: n1, code: 31}", "  - {t xid: {}, t+1s xid: {}}", 6, "a fact is one line"),
        ("t+5s xid", "soon xid", 6, "write `t+30s xid`"),
        ("{node: n1, code: 31}", "7", 6, "wants fields"),
        ("code: 31", "kode: 31", 6, "has no field `kode`"),
        ("code: 31", "code: many", 6, "Expected `int`"),
        ("t+5s xid", f"t xid x{MAX_REPEAT + 1}", 6, f"at most {MAX_REPEAT} times"),
        ("[t+60s]", "t+60s", 7, "`expect_none_at` is a list of times"),
        ("[t+60s]", "[60s]", 7, "is not a time"),
        ("expect_none_at: [t+60s]", "", 1, "a case expects something"),
        ("expect_none_at: [t+60s]", "expect_at: [t]", 7, "`expect_at` is a mapping"),
        ("expect_none_at: [t+60s]", "expect_at: {t: []}", 7, "wants a list of verdicts"),
        ("expect_none_at: [t+60s]", "expect_at: {t: [text]}", 7, "wants a list of verdicts"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, before: str, after: str, line: int, said: str) -> None:
    assert before in GOOD
    with pytest.raises(CaseError) as caught:
        read(tmp_path, GOOD.replace(before, after, 1))
    assert said in str(caught.value)
    assert f":{line}:" in str(caught.value)


def test_facts_that_are_no_list_and_files_that_are_no_cases(tmp_path: Path) -> None:
    text = "case: one\nkind: canonical\nwhy: x\nfacts: text\nexpect_none_at: [t]\n"
    for broken, said in ((text, "`facts` is a list"), ("- one\n", "a case is a mapping"), ("a: [", "expected")):
        with pytest.raises(CaseError, match=said):
            read(tmp_path, broken)
    with pytest.raises(CaseError, match="larger than"):
        read(tmp_path, "#" + "x" * MAX_BYTES)
    assert read(tmp_path, "#" + "x" * (MAX_BYTES - 1)) == []


@pytest.mark.parametrize(("text", "time"), [("t", 7), ("t+1s", SECOND + 7), ("t-2ns", 5), ("t+1m1s", 61 * SECOND + 7)])
def test_times_of_a_case(text: str, time: int) -> None:
    assert moment(text, 7) == time


@pytest.mark.parametrize("text", ["", "s", "t*1s", 7, None, "T"])
def test_what_is_no_time(text: object) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        moment(text, 7)


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ("text", "`signals` is a list"),
        (7, "`signals` is a list"),
        (["text"], "a signal is one line"),
        ([{"t kernel n1": "a", "t kernel n2": "b"}], "a signal is one line"),
        ([{"kernel n1": "a"}], "write `t[+]30s LAYER NODE`"),
        ([{"t odd n1": "a"}], "write `t[+]30s LAYER NODE`"),
        ([{"t kernel n1": 7}], "wants a line, or a mapping"),
        ([{"t kernel n1": {"text": "a"}}], "wants a line, or a mapping"),
    ],
)
def test_a_mistake_in_a_signal_is_named(entries: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        facts_of(entries, lambda _: 0)


def test_a_signal_knows_its_node_and_uid() -> None:
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    (fact, *_) = facts_of([{"t+1s kernel node-7": {"body": line, "uid": "u1"}}], lambda text: moment(text, 5))
    assert (fact.time, fact.node, fact.uid) == (SECOND + 5, "node-7", "u1")
    (fact, *_) = facts_of([{"t kernel": line}], lambda text: moment(text, 5))
    assert (fact.time, fact.node, fact.source.line) == (5, None, 1)


@pytest.mark.parametrize(
    ("expected", "actual", "said"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": 1}, {}, "a is absent"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b is 2, expected 1"),
        ({"a": 1}, 7, "it is 7, not a mapping"),
        ([1, 2], [1, 2], None),
        ([1, 2], [1, 3], "[1] is 3, expected 2"),
        ([1], [1, 2], " is [1, 2], expected [1]"),
        ([1], 1, " is 1, expected [1]"),
        (1.0, 1, None),
        (0.1 + 0.2, 0.3, None),
        (1.0, True, " is True, expected 1.0"),
        (1, True, " is True, expected 1"),
        (1, 1.0, " is 1.0, expected 1"),
    ],
)
def test_what_does_not_hold_is_said(expected: Any, actual: Any, said: str | None) -> None:
    assert mismatch(expected, actual) == said


def test_yaml_types_become_plain() -> None:
    assert plain({1: [True, None, 2, 2.5, "x"]}) == {"1": [True, None, 2, 2.5, "x"]}
    assert plain((1, 2)) == [1, 2]
    assert plain(Path("x")) == "x"


def test_a_spread_is_empty_only_without_numbers() -> None:
    assert not Spread([])
    assert Spread([3.0])
    assert Spread([float("nan")])
    assert (Spread([3, 1, 2]).low, Spread([3, 1, 2]).high, Spread([3, 1, 2]).odd) == (1, 3, False)


@pytest.mark.parametrize(("text", "line"), [("only a text\n", 1), (f"{GOOD}---\nonly a text\n", 1)])
def test_a_document_that_is_no_case_is_named(tmp_path: Path, text: str, line: int) -> None:
    with pytest.raises(CaseError, match="a case is a mapping") as caught:
        read(tmp_path, text)
    assert f":{line}:" in str(caught.value)
