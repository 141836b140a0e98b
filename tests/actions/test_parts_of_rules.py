"""The choice between rules that hold at the same time, edge by edge."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tracecore.actions import rules as rules_of
from tracecore.facts.process import ExceptionRaised, ExitStatus
from tracecore.signals.record import Source

RULES = rules_of.standard()
FIRST, SECOND, THIRD = RULES.rules[:3]
ONE = ExitStatus(time=1, source=Source("a.log", 1), exit_code=1)
OTHER = ExitStatus(time=1, source=Source("a.log", 2), exit_code=1)
SAID = ExceptionRaised(time=1, source=Source("a.log", 3), type="ValueError", message="the widget broke")
SAID_AGAIN = msgspec.structs.replace(SAID, source=Source("a.log", 4))


def condition(holds: bool = True, phrase: str = "") -> Any:
    found = SimpleNamespace(search=lambda text: phrase in text)
    return SimpleNamespace(tests=[("exit_code", lambda value: holds)], phrase=found)


@pytest.mark.parametrize(
    ("facts", "attributes", "by_fact", "by_attribute", "phrases", "expected"),
    [
        ([ONE], {}, [], [], [], None),
        ([ONE], {}, [(0, FIRST, False)], [], [], None),
        ([ONE], {}, [(0, FIRST, False), (1, SECOND, True), (2, THIRD, True)], [], [], (SECOND, ONE)),
        # The same rule holds for two facts: the first is cited.
        ([ONE, OTHER], {}, [(1, SECOND, True)], [], [], (SECOND, ONE)),
        ([SAID, SAID_AGAIN], {}, [], [], [(1, SECOND)], (SECOND, SAID)),
        # The first rule of the file counts, whoever asks for it.
        ([ONE, SAID], {}, [(1, SECOND, True)], [], [(0, FIRST)], (FIRST, SAID)),
        ([ONE, SAID], {}, [(1, SECOND, True)], [], [(1, SECOND)], (SECOND, ONE)),
        ([ONE, SAID], {}, [(1, SECOND, True)], [], [(2, THIRD)], (SECOND, ONE)),
        ([ONE], {"a": 1}, [(1, SECOND, True)], [(0, FIRST, True)], [], (FIRST, None)),
        ([ONE], {"a": 1}, [(1, SECOND, True)], [(0, FIRST, False)], [], (SECOND, ONE)),
        ([ONE], {"a": 1}, [(1, SECOND, True)], [(1, SECOND, True)], [], (SECOND, ONE)),
        ([ONE], {"a": 1}, [(1, SECOND, True)], [(2, THIRD, True)], [], (SECOND, ONE)),
        ([], {"a": 1}, [], [(1, SECOND, True), (2, THIRD, True)], [], (SECOND, None)),
        ([], {"b": 1}, [], [(1, SECOND, True)], [], None),
    ],
)
def test_the_first_rule_of_the_file_speaks_for_the_first_fact(
    facts: list[Any], attributes: Any, by_fact: Any, by_attribute: Any, phrases: Any, expected: Any
) -> None:
    rules = msgspec.structs.replace(
        RULES,
        by_fact={ExitStatus: tuple((order, rule, condition(holds)) for order, rule, holds in by_fact)},
        by_attribute={"a": tuple((order, rule, condition(holds)) for order, rule, holds in by_attribute)},
        phrases=tuple((order, rule, condition(phrase="widget")) for order, rule in phrases),
        any_phrase=SimpleNamespace(search=lambda text: True),
    )
    stated: Any = SimpleNamespace(facts=facts, attributes=attributes, lines=(), text="", body="")
    assert rules.for_stated(stated) == expected


@pytest.mark.parametrize(
    ("text", "complains"),
    [
        ("the widget broke", True),
        ("the widget works", False),
        ("WARNING: the widget broke", False),
        ("Error: the widget broke", False),
        # Options of a command that is quoted say nothing.
        ("started with --name broke", False),
        ("it broke, started with --name x", True),
        # Chatter, and the sentence in which a setting stands; advice is no chatter here.
        ("it broke, harmless", False),
        ("it broke. Its setting is on", True),
        ("It works. Its setting broke", False),
        ("its setting broke", False),
        ("it broke. Try again", True),
    ],
)
def test_a_line_in_which_a_program_says_that_it_failed(text: str, complains: bool) -> None:
    chatter = (("settings", "setting"), ("advice", "Try"), ("retries", "harmless"))
    rules = msgspec.structs.replace(
        RULES,
        quoted=re.compile(" --"),
        complaints=re.compile("broke"),
        errs=re.compile("Error"),
        chatter=tuple((name, re.compile(word)) for name, word in chatter),
    )
    assert rules.complaint(text) is complains


def test_each_condition_of_the_file_stands_in_its_table() -> None:
    rules = rules_of.read(rules_of.path())  # anew: what was read before is remembered
    tables = {
        "fact": [(kind.__name__, entries) for kind, entries in rules.by_fact.items()],
        "stamped": list(rules.by_attribute.items()),
        "verdict": list(rules.by_pattern.items()),
        "phrase": [(entry[2].subject, (entry,)) for entry in rules.phrases],
    }
    for kind, table in tables.items():
        told = [(order, condition) for order, rule in enumerate(rules.rules) for condition in rule.when]
        wanted = [(order, id(condition)) for order, condition in told if condition.kind == kind]
        found = [(order, id(condition)) for _, entries in table for order, _, condition in entries]
        assert sorted(found) == sorted(wanted)
        assert wanted
        for subject, entries in table:
            assert all(condition.subject == subject and condition in rule.when for _, rule, condition in entries)
            assert [order for order, _, _ in entries] == sorted(order for order, _, _ in entries)
