"""The Collector's own expectations of the language, read in place from the shared data."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracecore.ottl import Processor, parse, parse_condition, parse_value_expression, transform
from tracecore.ottl.compare import COMPARATORS, deep_equal
from tracecore.ottl.compile import compile_condition, compile_statement, compile_value_expression, functions_of
from tracecore.ottl.errors import OttlError, OttlSyntaxError
from tracecore.ottl.inference import qualify
from tracecore.ottl.lexer import lex
from tracecore.ottl.runner import evaluate, open_record, run_programs
from tracecore.ottl.values import Value, copy_value


def _conftest() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ottl_conftest", Path(__file__).with_name("conftest.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_shared = _conftest()
decode = _shared.decode

PARSERS = {"statement": parse, "condition": parse_condition, "value_expression": parse_value_expression}


def rows(section: str, *, only: Any = lambda row: True) -> list[Any]:
    """Rows as parameters; one that says so where there is no shared data."""
    found = [pytest.param(row, id=str(number)) for number, row in enumerate(_shared.peer_cases(section)) if only(row)]
    return found or [pytest.param(None, marks=pytest.mark.skip(reason="no shared test data"))]


@pytest.mark.parametrize("row", rows("syntax", only=lambda row: row["kind"] in PARSERS))
def test_syntax(row: dict[str, Any]) -> None:
    if row["valid"]:
        PARSERS[row["kind"]](row["text"])
        return
    with pytest.raises(OttlSyntaxError) as caught:
        PARSERS[row["kind"]](row["text"])
    assert (row["error_contains"] or "") in str(caught.value)
    assert caught.value.line == 1
    assert 1 <= caught.value.column <= len(row["text"]) + 1


@pytest.mark.parametrize("row", rows("syntax", only=lambda row: row["kind"] == "prepend_context"))
def test_prepend_context(row: dict[str, Any]) -> None:
    given = row["row"]
    kind = next(kind for kind in ("statement", "condition", "expression") if kind in given)
    text = given[kind]
    node = PARSERS["value_expression" if kind == "expression" else kind](text)
    assert qualify(text, node, given["context"], given["pathContextNames"]) == given["expected"]


@pytest.mark.parametrize("row", rows("lexer"))
def test_lexer(row: dict[str, Any]) -> None:
    if row["expect_error"]:
        with pytest.raises(OttlSyntaxError):
            lex(row["input"])
    else:
        assert [[token.kind, token.text] for token in lex(row["input"])] == row["tokens"]


# What the cases' own test context knows, said in this one's paths and numbers.
_MATH_WORDS = {
    "three.one": 'attributes["three"]',
    "one": 'attributes["one"]',
    "two": 'attributes["two"]',
    "One()": "1",
    "Two()": "2",
    "Sum([1, 2, 3, 4])": "10",
    "Sum([1, 2, 3])": "6",
}


@pytest.mark.parametrize("row", rows("math"))
def test_math(row: dict[str, Any]) -> None:
    given = row["row"]
    words = "|".join(re.escape(word) for word in sorted(_MATH_WORDS, key=len, reverse=True))
    text = re.sub(rf"(?<!\w)(?:{words})(?!\w)", lambda match: _MATH_WORDS[match.group()], given["input"])
    record = {"log": {"attributes": {"one": 1, "two": 2, "three": 3.1}}}
    if "expected" not in given:
        with pytest.raises(OttlError):
            evaluate(record, text)
        return
    expected = float("inf") if given["expected"] == "+Inf" else decode(given["expected"])
    result = evaluate(record, text)
    assert type(result) is type(expected)
    assert result == pytest.approx(expected)


def _comparable(row: dict[str, Any]) -> bool:
    # A Go struct has no counterpart; and the lists inside of pcommon.Value were not read out (all are shown empty).
    kinds = (row["a"]["type"], row["b"]["type"])
    return "Struct" not in kinds and "pcommon.Value/slice" not in kinds


@pytest.mark.parametrize("row", rows("comparison", only=_comparable))
def test_comparison(row: dict[str, Any]) -> None:
    a, b = decode(row["a"]["value"]), decode(row["b"]["value"])
    assert {op: compare(a, b) for op, compare in COMPARATORS.items()} == row["want"]


#: Functions that upstream keeps behind a feature gate.
GATED = ("All", "Any", "Filter", "Find", "MapEach", "MapKeys", "Reduce", "When")


def skip_gated(case: dict[str, Any]) -> None:
    """Skip a case that uses a gated function, or a lambda, which only those take."""
    for text in case.get("statements") or [case.get("expression") or case["condition"]]:
        if "=>" in text:
            pytest.skip("functions that take a lambda are behind a feature gate upstream")
        for name in GATED:
            if f"{name}(" in text and name not in functions_of("log"):
                pytest.skip(f"{name} is behind a feature gate upstream")


def run_case(case: dict[str, Any], record: dict[str, Any], statements: list[str], *, qualified: bool) -> None:
    expected = decode(case["expect"])
    ctx = open_record(record, case["context"])
    programs = [compile_statement(statement, case["context"], qualified=qualified) for statement in statements]
    if "expect_error_contains" in case:
        with pytest.raises(OttlError) as caught:
            run_programs(programs, ctx, "propagate")
        assert case["expect_error_contains"] in str(caught.value)
        assert caught.value.line == 1
    else:
        run_programs(programs, ctx, "propagate")
    assert deep_equal(record, expected), f"{record}\n!=\n{expected}"


@pytest.mark.parametrize("case", rows("cases", only=lambda case: case["op"] == "statements"))
@pytest.mark.parametrize("qualified", [False, True], ids=["plain", "qualified"])
def test_statements(case: dict[str, Any], qualified: bool, peer_data: dict[str, Any]) -> None:
    skip_gated(case)
    record = decode(copy_value(peer_data["inputs"][case["input"]]))
    statements = case["statements"]
    if qualified:
        statements = [qualify(text, parse(text), case["context"]) for text in statements]
    run_case(case, record, statements, qualified=qualified)


@pytest.mark.parametrize("case", rows("cases", only=lambda case: case["op"] == "statements"))
def test_transform_leaves_its_input_alone(case: dict[str, Any], peer_data: dict[str, Any]) -> None:
    record = decode(copy_value(peer_data["inputs"][case["input"]]))
    before = copy_value(record)
    skip_gated(case)
    result = transform(record, case["statements"], case["context"], "silent")
    assert deep_equal(record, before)
    assert deep_equal(result, decode(case["expect"]))


@pytest.mark.parametrize("case", rows("cases", only=lambda case: case["op"] in ("value_expression", "condition")))
@pytest.mark.parametrize("qualified", [False, True], ids=["plain", "qualified"])
def test_value_expressions(case: dict[str, Any], qualified: bool, peer_data: dict[str, Any]) -> None:
    skip_gated(case)
    record = decode(copy_value(peer_data["inputs"][case["input"]]))
    text = case.get("expression") or case["condition"]
    is_condition = "condition" in case

    def result() -> Value:
        source = text
        if qualified:
            source = qualify(text, (parse_condition if is_condition else parse_value_expression)(text), case["context"])
        build = compile_condition if is_condition else compile_value_expression
        return build(source, case["context"], qualified=qualified)(open_record(record, case["context"]))

    if "expect_parse_error_contains" in case:
        with pytest.raises(OttlError) as caught:
            result()
        assert case["expect_parse_error_contains"] in str(caught.value)
    else:
        assert deep_equal(result(), decode(case["expect_value"]))


def _group(entry: dict[str, Any]) -> dict[str, Any]:
    """A group as a configuration writes it, from either of the two spellings of the cases."""
    group = {re.sub(r"(?<!^)([A-Z])", r"_\1", key).lower(): value for key, value in entry.items()}
    for key in ("context", "error_mode"):
        named = re.fullmatch(r"<\w+\.(\w+?)(?:Error)?>", group.get(key) or "")
        if named:
            group[key] = named.group(1).lower()
    return group


@pytest.mark.parametrize("case", rows("cases", only=lambda case: case["op"] == "process_logs"))
def test_process_logs(case: dict[str, Any], peer_data: dict[str, Any]) -> None:
    groups = case.get("context_statements") or case.get("contextStatements") or case["statements"]
    modes = _group({"error_mode": case.get("error_mode") or case.get("errorMode") or "ignore"})
    processor = Processor({"log_statements": [_group(group) for group in groups], **modes})
    payload = decode(copy_value(peer_data["inputs"][case["input"]]))
    assert deep_equal(processor.process_logs(payload), decode(case["expect"]))
