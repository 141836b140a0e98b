"""The ways past RE2's plain search give what the plain search gives."""

from __future__ import annotations

import pytest
import re2
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tracecore.ottl.functions.regex import CompiledRegex, together

QUICK = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])

ATOMS = (
    "a", "b", "K", "é", "━", ".", r"\d", r"\w+", r"\W", r"\b", r"\B", "[^a]", "[^a]{1,40}", "[a-k]*", "(?i:k)", "^",
    "$", "(?s:.)", r"\s", r"\pL", r"\x{e9}", r"(?:\x{2501}|a)", "[é-ü]", "(?P<x>a|b)", "(?P<y>[^b]+)?", "(c)?", "",
)  # fmt: skip
patterns = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=5).map("".join)
texts = st.lists(st.sampled_from(("a", "b", "k", "K", "é", "━", "\u212a", "7", " ", "\n", "\udc80", "c")), max_size=12)


def _compiled(text: str) -> CompiledRegex:
    try:
        return CompiledRegex(text)
    except ValueError:
        assume(False)
        raise


def _plain(text: str) -> str:
    return "".join("\ufffd" if "\udc80" <= char < "\udd00" else char for char in text)


@QUICK
@given(patterns, texts.map("".join))
def test_what_is_captured_and_whether_it_matches(pattern: str, text: str) -> None:
    expression = _compiled(pattern)
    found = re2.search(pattern, _plain(text))
    assert expression.matches(text) == (found is not None)
    assert expression.search(text) == (None if found is None else [found.span(n) for n in range(found.re.groups + 1)])
    captured: dict[str, str] = {}
    for number, name in enumerate(expression.names):
        if name and found is not None:
            captured[name] = text[slice(*found.span(number))] if found.span(number)[0] >= 0 else ""
    assert expression.captures(text) == captured


@QUICK
@given(st.lists(patterns, min_size=1, max_size=4), texts.map("".join).map(_plain))
def test_several_at_once(found: list[str], text: str) -> None:
    expressions = [_compiled(pattern) for pattern in found]
    expected = {place for place, expression in enumerate(expressions) if expression.matches(text)}
    assert set(together("IsMatch", found)(text.encode())) == expected


def test_expressions_that_are_too_large_to_be_asked_for_together_are_asked_for_one_by_one() -> None:
    test = together("IsMatch", ["b", r"\pL{1,200}x", "a"])
    assert set(test(b"aax")) == {1, 2}
    assert set(test(b"b")) == {0}


def test_an_expression_too_large_for_an_automaton_is_still_asked_for() -> None:
    expression = CompiledRegex(r"\pL{1,300}x")
    assert expression.matches("aax")
    assert not expression.matches("aa")


@pytest.mark.parametrize("pattern", ["(", r"\C", "a{2000}"])
def test_what_is_wrong_with_one_of_several_is_said(pattern: str) -> None:
    with pytest.raises(Exception, match="IsMatch"):
        together("IsMatch", ["a", pattern])
