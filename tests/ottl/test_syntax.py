"""Text, tokens, trees, and text again."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracecore.ottl import tree
from tracecore.ottl.errors import OttlError, OttlSyntaxError
from tracecore.ottl.lexer import lex
from tracecore.ottl.parser import parse, parse_condition, parse_value_expression
from tracecore.ottl.tree import (
    And,
    Argument,
    Binary,
    Call,
    Comparison,
    FunctionName,
    ListLiteral,
    Literal,
    MapLiteral,
    Not,
    Or,
    Path,
    Segment,
    Statement,
    Symbol,
    Unary,
    unparse,
)

KEYWORDS = ("nil", "not", "or", "and", "true", "false", "where")
names = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True).filter(lambda name: name not in KEYWORDS)
symbols = st.from_regex(r"[A-Z][A-Z0-9_]{0,6}", fullmatch=True)
converters = st.from_regex(r"[A-Z][a-z]{1,5}([A-Z][a-z]{1,4})?", fullmatch=True).filter(
    lambda name: name[1:] not in KEYWORDS and not any(word in name[1:] for word in KEYWORDS)
)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
numbers = st.integers(0, 2**63 - 1).map(Literal) | st.floats(0, 1e300, allow_subnormal=False).map(Literal)
scalars = st.one_of(
    st.none().map(Literal),
    st.booleans().map(Literal),
    texts.map(Literal),
    st.binary(min_size=1, max_size=6).map(Literal),
    symbols.map(Symbol),
)


def _paths(keys: st.SearchStrategy[tree.Expression]) -> st.SearchStrategy[Path]:
    segments = st.builds(Segment, names, st.lists(keys, max_size=2).map(tuple))
    return st.lists(segments, min_size=1, max_size=2).map(tuple).map(Path)


def _grow(inner: st.SearchStrategy[tree.Expression]) -> st.SearchStrategy[tree.Expression]:
    plain = _paths(texts.map(Literal))
    # A key that starts with digits can only be that one number.
    keys = st.one_of(
        texts.map(Literal),
        st.integers(0, 9).map(Literal),
        plain,
        st.builds(Binary, st.sampled_from("+-"), plain, st.integers(0, 9).map(Literal)),
    )
    argument = st.builds(Argument, st.just("") | names, inner | converters.map(FunctionName))
    calls = st.builds(
        Call, converters, st.lists(argument, max_size=2).map(tuple), st.lists(keys, max_size=1).map(tuple)
    )
    operand = st.one_of(numbers, _paths(keys), calls)
    binary = st.builds(Binary, st.sampled_from("+-*/"), operand, operand)
    return st.one_of(
        st.lists(inner, max_size=2).map(tuple).map(ListLiteral),
        st.lists(st.tuples(texts, inner), max_size=2).map(tuple).map(MapLiteral),
        operand,
        st.builds(Unary, st.sampled_from("+-"), operand | binary),
        binary,
        st.builds(Binary, st.sampled_from("+-*/"), binary, binary),
    )


expressions = st.recursive(scalars | numbers, _grow, max_leaves=4)
comparisons = st.builds(Comparison, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), expressions, expressions)
conditions = st.recursive(
    comparisons | st.booleans().map(Literal) | st.builds(Call, converters, st.just(())),
    lambda inner: st.one_of(
        inner.map(Not),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(And),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(Or),
    ),
    max_leaves=5,
)
statements = st.builds(
    Statement,
    st.builds(Call, names, st.lists(st.builds(Argument, st.just(""), expressions), max_size=3).map(tuple)),
    st.none() | conditions,
)


@given(statements)
def test_a_tree_survives_its_own_text(statement: Statement) -> None:
    assert parse(unparse(statement)) == statement


@given(conditions)
def test_a_condition_survives_its_own_text(condition: tree.Condition) -> None:
    assert parse_condition(unparse(condition)) == condition


@given(expressions)
def test_a_value_survives_its_own_text(expression: tree.Expression) -> None:
    assert parse_value_expression(unparse(expression)) == expression


def refusal(parser: Callable[[str], object], text: str) -> OttlError | None:
    """The error of a parser; anything but an OttlError is a failure of the test."""
    try:
        parser(text)
    except OttlError as error:
        return error
    return None


WORDS = "set where and or not nil true 1 1.5 0x0 attributes FOO Split _"
PIECES = [*"()[]{},.:=<+-*", "=>", "==", *WORDS.split()]
statement_like = st.lists(
    st.sampled_from([*PIECES, '"a"', " ", "\n", '"', "\\"]),
    max_size=30,
).map(" ".join)


@given(st.text(max_size=60) | statement_like)
def test_any_text_parses_or_is_refused_with_its_place(text: str) -> None:
    for parser in (parse, parse_condition, parse_value_expression):
        error = refusal(parser, text)
        if error is not None:
            assert error.line >= 1
            assert error.column >= 1
            assert "^" in error.render()


@given(st.text(st.sampled_from('ab01._-+=<>!()[]{},: \t\n"\\xA'), max_size=40))
def test_tokens_cover_the_text(text: str) -> None:
    try:
        tokens = lex(text)
    except OttlSyntaxError:
        return
    assert all(text[token.offset : token.end] == token.text for token in tokens)
    ends = [token.end for token in tokens]
    between = [text[a:b] for a, b in zip([0, *ends], [*(token.offset for token in tokens), len(text)], strict=True)]
    assert not "".join(between).strip(" \t\n\f\r")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a\\"b"', 'a"b'),
        ('"tab\\tnew\\n"', "tab\tnew\n"),
        ('"\\x41\\u00e9\\U0001F600\\101"', "AéUA".replace("U", "😀")),
        ('"\\\\d+"', "\\d+"),
        ('"ünï"', "ünï"),
        ('"\\xff"', "\udcff"),
        ("3.", 3.0),
        (".5", 0.5),
        ("1e3", None),
        ("1.5e3", 1500.0),
        ("0x00ff", b"\x00\xff"),
        ("9223372036854775807", 2**63 - 1),
    ],
)
def test_literals(text: str, value: object) -> None:
    if value is None:
        with pytest.raises(OttlSyntaxError):
            parse_value_expression(text)
        return
    node = parse_value_expression(text)
    assert isinstance(node, Literal)
    assert node.value == value
    assert type(node.value) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        '"\\q"',
        '"\\x4"',
        '"\\ud800"',
        '"\\400"',
        "\"a'\\'\"",
        '"two\nlines"',
        "0x123",
        "0xzz",
        "9223372036854775808",
        "1.0e999",
        "--1",
        "[1,]",
        "[,1]",
        "[1 2]",
        '{"a" 1}',
        "{a: 1}",
        '"a" + "b"',
        "FOO + 1",
        "a.b.",
        "a..b",
        "A.b",
        "attributes[]",
        "attributes[nil]",
        "attributes[1 + 1]",
        "attributes[true]",
        "1 2",
        "",
        "(1",
        "_",
        "(a, b) => a",
        "Find(a, (b) => b > 1)",
    ],
)
def test_refused_values(text: str) -> None:
    with pytest.raises(OttlSyntaxError):
        parse_value_expression(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("1+2*3", "1 + 2 * 3"),
        ("(1+2)*3", "(1 + 2) * 3"),
        ("1-(2-3)", "1 - (2 - 3)"),
        ("1 - 2 - 3", "1 - 2 - 3"),
        ("-a+ +b", "-a + +b"),
        ("-(1+a)", "-(1 + a)"),
        ('Split(a,",")[0]', 'Split(a, ",")[0]'),
        ("a[b[0]][b + 1].c", "a[b[0]][b + 1].c"),
        ('{"a": 1 "b": [2]}', '{"a": 1, "b": [2]}'),
    ],
)
def test_canonical_text_of_values(text: str, canonical: str) -> None:
    assert unparse(parse_value_expression(text)) == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("true or false and not true", "true or false and not true"),
        ("(true or false) and true", "(true or false) and true"),
        ("not (a == 1)", "not a == 1"),
        ("not (a == 1 or b == 2)", "not (a == 1 or b == 2)"),
        ("(a + 1) * 2 > 3", "(a + 1) * 2 > 3"),
        ("((a)) == (b)", "a == b"),
        ("(((a == 1)))", "a == 1"),
        ('IsMatch(a, "x") and true == b', 'IsMatch(a, "x") and true == b'),
        ("a==1 and b==2 or c==3", "a == 1 and b == 2 or c == 3"),
    ],
)
def test_canonical_text_of_conditions(text: str, canonical: str) -> None:
    assert unparse(parse_condition(text)) == canonical


def test_precedence_of_and_over_or_and_of_not_over_both() -> None:
    a, b, c = (Comparison("==", Path((Segment(name),)), Literal(1)) for name in "abc")
    assert parse_condition("a == 1 or b == 1 and not c == 1") == Or((a, And((b, Not(c)))))


def test_where_is_a_word_only_in_its_place() -> None:
    assert parse("where(a)").where is None
    assert parse('set(where, "x") where where == 1').where == Comparison("==", Path((Segment("where"),)), Literal(1))


def test_error_points_at_the_character_of_the_line() -> None:
    with pytest.raises(OttlSyntaxError) as caught:
        parse('set(attributes["a"],\n    body) where body ==')
    assert (caught.value.line, caught.value.column) == (2, 24)
    assert caught.value.render().splitlines()[1:] == ["        body) where body ==", " " * 27 + "^"]


@pytest.mark.parametrize("text", ["(" * 5000, "[" * 5000, "A(" * 5000, "a[" * 5000, '{"a":' * 5000, "not " * 9000])
def test_deep_nesting_is_refused(text: str) -> None:
    for parser in (parse_condition, parse_value_expression):
        with pytest.raises(OttlSyntaxError):
            parser(text)


def test_long_sums_are_refused_and_shorter_ones_are_not() -> None:
    with pytest.raises(OttlSyntaxError, match="operators"):
        parse_value_expression("1" + " + 1" * 500)
    assert unparse(parse_value_expression("1" + " + 1" * 200)).count("+") == 200


def test_walk_finds_constant_guards() -> None:
    statement = parse('set(attributes["a"], "b") where IsMatch(body, "x+") and severity_number > 8')
    guards = [
        node.arguments[1].value.value
        for node in tree.walk(statement)
        if isinstance(node, Call) and node.name == "IsMatch" and isinstance(node.arguments[1].value, Literal)
    ]
    assert guards == ["x+"]


def test_paths_of_a_node() -> None:
    node = parse_value_expression("Map(xs, x[y.z] + 1)")
    assert [unparse(path) for path in tree.paths(node)] == ["xs", "x[y.z]", "y.z"]


def test_floats_keep_their_value() -> None:
    node = parse_value_expression("0.1")
    assert isinstance(node, Literal)
    assert math.isclose(node.value, 0.1, rel_tol=0)
