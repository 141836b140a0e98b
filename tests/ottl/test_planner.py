"""The planner changes what is looked at, never what comes out."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import re2
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tracecore.ottl.functions import regex
from tracecore.ottl.parser import parse_condition
from tracecore.ottl.planner import schedule
from tracecore.ottl.planner.database import compiled, search
from tracecore.ottl.planner.guards import guard
from tracecore.ottl.planner.plan import Plan, outline
from tracecore.ottl.planner.selection import Selector, line_search, plain
from tracecore.ottl.processor import Processor
from tracecore.ottl.tree import Literal, unparse
from tracecore.signals.logs.blocks import MAX_LINE
from tracecore.signals.logs.reader import read
from tracecore.signals.logs.selector import SelectAll
from tracecore.signals.stream import Clock, Counters, Stream

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])

# Pieces of expressions with a bit of everything: literals, classes, folding, anchors, repetitions, other alphabets.
ATOMS = (
    "loss", "step ", "CUDA error", "K", "s", "é", "━", "kernel", r"\d", r"\s", r"\w", r"\W", "[a-k]", "[^a-k]", ".",
    "x", "(?i:task)", "(?i:ſ)", r"\[rank\d+\]", r"\b", r"\n", "(?s:.)", '"', r"\\", "<", "[é-ü]", r"[\s\S]",
    "(?:ab|cd)",
)  # fmt: skip
patterns = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(?:" + "|".join(parts) + ")"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "{1,}", "+?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
        inner.map(lambda part: "^" + part),
        inner.map(lambda part: part + "$"),
        inner.map(lambda part: "(?i)" + part),
        inner.map(lambda part: "(?m)^" + part),
    ),
    max_leaves=6,
)
WORDS = (
    "loss", "LOSS", "step ", "CUDA error", "K", "k", "ſ", "S", "s", "é", "É", "━", "kernel", "7", "42", " ", "\t", "x",
    "tasK", "TA", "ſk", "[rank3]", "\n", '"', "\\", "<", "ü", "ab", "cd", "-", "",
)  # fmt: skip
texts = st.lists(st.sampled_from(WORDS), max_size=10).map("".join)


def _valid(pattern: str) -> bool:
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(pattern, options)
    except re2.error:
        return False
    return True


def _quoted(text: str) -> str:
    return unparse(Literal(text))


@QUICK
@given(st.lists(patterns, min_size=1, max_size=4), texts)
def test_what_is_searched_for_is_found_wherever_a_pattern_matches(found: list[str], text: str) -> None:
    found = [pattern for pattern in found if _valid(pattern)]
    assume(found)
    wanted, database = compiled(search(found, lines=False), once=True)
    hits: list[int] = []
    database.scan(text.encode(), lambda number, *_: hits.append(number))
    possible = set(wanted.open).union(*(wanted.entries[number].patterns for number in hits))
    folds = "ſ" in text or "\u212a" in text
    for number, pattern in enumerate(found):
        if re2.search(pattern, text) and not folds:
            assert number in possible


def _conditions() -> st.SearchStrategy[str]:
    matches = patterns.filter(_valid).map(lambda pattern: f"IsMatch(body, {_quoted(pattern)})")
    others = st.sampled_from(
        (
            'attributes["a"] == nil', 'attributes["a"] != nil', 'attributes["a"] != "x"', 'attributes["a"] == true',
            'cache["n"] == nil', 'cache["n"] != nil', 'cache["n"] == "ss"', 'cache["n"] != "ss"', 'cache["n"] == 1',
            'cache["n"] == true', 'IsMatch(cache["n"], "s")', 'resource.attributes["r"] == nil', "true", "false",
            "Int(body) == 1", "body == nil", 'log.attributes["b"] != nil',
        )
    )  # fmt: skip
    return st.recursive(
        st.one_of(matches, matches, others),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " and ".join(parts) + ")"),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: "(" + " or ".join(parts) + ")"),
            inner.map(lambda part: f"not {part}" if part.startswith("(") else f"not ({part})"),
        ),
        max_leaves=4,
    )


EDITORS = (
    'set(attributes["a"], "x")', 'set(attributes["b"], body)', 'set(cache["n"], 1)', 'set(body, "step 42 CUDA error")',
    'set(resource.attributes["r"], "x")', 'delete_key(attributes, "a")',
    'merge_maps(cache, ExtractPatterns(body, "(?P<n>s+)"), "upsert")',
    'merge_maps(cache, ExtractPatterns(body, "(?P<m>é?)(x)?(?P<n>\\\\d+|[^7]s)"), "upsert")',
    'merge_maps(log.cache, ExtractPatterns(cache["n"], "(?P<n>s)"), "upsert")',
    'merge_maps(cache, ExtractPatterns(body, "(?P<n>s+)"), "insert")',
    'set(attributes["c"], cache["n"]) ', 'set(attributes["c"], cache["n"]) where cache["n"] != nil',
    'set(log.attributes["i"], Int(cache["n"])) where cache["n"] != nil', 'set(attributes["i"], Int(cache["n"]))',
    'set(attributes["d"], Double(cache["n"])) where cache["m"] != nil', 'set(attributes["d"], Double(cache["n"]))',
    'set(cache["n"], true)', 'set(cache["n"], attributes["a"])', 'set(cache["n"], "42")', 'set(cache["n"], "")',
    'set(attributes["e"], 1.5)', 'set(attributes["e"], 0x00)', 'set(attributes, {"a": "x"})',
    'replace_pattern(body, "loss", "gain")', 'set(attributes["i"], Int(body))',
)  # fmt: skip
ATTRIBUTES: tuple[dict[str, Any] | None, ...] = (
    {}, {}, {"a": "x"}, {"a": b""}, {"a": None}, {"a": True}, {"a": 1}, {"a": ["s"]}, {"a": "ſ", "b": 2.5}, None
)  # fmt: skip


@st.composite
def processors(draw: st.DrawFn) -> dict[str, Any]:
    groups = []
    for _ in range(draw(st.integers(1, 3))):
        statements = [draw(st.sampled_from(EDITORS)) for _ in range(draw(st.integers(1, 3)))]
        statements = [
            f"{text} where {draw(_conditions())}" if " where " not in text and draw(st.booleans()) else text
            for text in statements
        ]
        group: dict[str, Any] = {"context": "log", "statements": statements}
        if draw(st.booleans()):
            group["conditions"] = draw(st.lists(_conditions(), min_size=1, max_size=2))
        if draw(st.integers(0, 4)) == 0:
            group["shared_cache"] = True
        groups.append(group)
    return {"error_mode": "silent", "log_statements": groups}


bodies = st.one_of(texts, texts, texts, st.integers(), st.none(), st.just({"a": "step "}), st.just("lone \udc80 step "))


@QUICK
@given(
    st.lists(processors(), min_size=1, max_size=2),
    st.lists(st.tuples(bodies, st.sampled_from(ATTRIBUTES)), min_size=1, max_size=4),
)
def test_a_plan_does_what_the_processors_do(
    configs: list[dict[str, Any]], found: list[tuple[Any, dict[str, Any] | None]]
) -> None:
    naive = [Processor(config) for config in configs]
    plan = Plan(outline(configs))
    for body, attributes in found:
        mine: Any = {"resource": {"attributes": {}}, "scope": {}, "log": {"body": body}}
        if attributes is not None:
            mine["log"]["attributes"] = copy.deepcopy(attributes)
        theirs = copy.deepcopy(mine)
        plan.run(mine)
        for processor in naive:
            processor.process_signals([theirs])
        assert mine == theirs
        assert [type(value) for value in mine["log"].get("attributes", {}).values()] == [
            type(value) for value in theirs["log"].get("attributes", {}).values()
        ]
    assert plan.failures == sum(processor.failures for processor in naive)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ('IsMatch(body, "a")', {"a"}),
        ('attributes["x"] == nil and IsMatch(body, "a")', {"a"}),
        ('IsMatch(body, "a") or IsMatch(body, "b")', {"a", "b"}),
        ('IsMatch(body, "a") or attributes["x"] == nil', None),
        ('not IsMatch(body, "a")', None),
        ('Int(attributes["x"]) == 1 and IsMatch(body, "a")', None),  # what may fail comes first
        ('IsMatch(body, "a") and Int(attributes["x"]) == 1', {"a"}),
        ('IsMatch(attributes["x"], "a")', None),
    ],
)
def test_guards(condition: str, expected: set[str] | None) -> None:
    assert guard(parse_condition(condition)) == (None if expected is None else frozenset(expected))


GUARDS = ("CUDA error", "loss is (?i:nan)", r"^Killed\s*$", r'say "hi"', r"step \d+ stalled", "a<b")
LINES = st.one_of(
    st.sampled_from(
        [
            b"",
            b"CUDA error",
            b"[rank1]: Killed  ",
            b"\x1b[31mCUDA\x1b[0m error",
            b"CUDA\x00 error",
            b"loss is NAN",
            b"\xff\xfe\x00",
            b'they say "hi"',
            b"step 12 stalled",
            b"a<b",
            b"step 12",
            b"nothing",
            b"x" * 20_000,
            b"x" * 20_000 + b"CUDA error",
            b"  Killed",
        ]
    ),
    st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"").replace(b"\r", b"")),
)


def _matching(records: list[Any]) -> list[tuple[str, int]]:
    """Records in which a guard matches, with where they begin."""
    return [
        (record["log"]["body"], record["source"].offset)
        for record in records
        if any(re2.search(guard, record["log"]["body"]) for guard in GUARDS)
    ]


def _wrapped(lines: list[bytes], form: str) -> bytes:
    time = b"2026-11-15T01:37:04.123456789Z"
    if form == "cri":
        return b"".join(time + b" stdout F " + line + b"\n" for line in lines)
    if form == "docker":
        import json

        texts = [line.decode("utf-8", "replace") + "\n" for line in lines]
        return b"".join(
            json.dumps({"log": text, "stream": "stdout", "time": time.decode()}, ensure_ascii=False)
            .replace("<", "\\u003c").replace('": "', '":"').encode() + b"\n"
            for text in texts
        )  # fmt: skip
    return b"".join(line + b"\n" for line in lines)


@QUICK
@given(
    st.lists(LINES, max_size=12), st.sampled_from(["text", "cri", "docker"]), st.sampled_from([16, 64, 1000, 1 << 20])
)
def test_raw_blocks_miss_no_line(lines: list[bytes], form: str, size: int) -> None:
    data = _wrapped(lines, form)
    stream = Stream(path="f", format=form, layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    wanted, database = compiled(line_search(GUARDS), once=False)
    assert not wanted.open
    picked = list(read(stream, Selector(database, escaped=form == "docker"), Clock(), Counters(), block_size=size))
    every = list(read(stream, SelectAll(), Clock(), Counters(), block_size=size))
    assert _matching(picked) == _matching(every)


def test_lines_of_a_megabyte() -> None:
    data = b"x" * (MAX_LINE - 20) + b" CUDA error\n" + b"y" * (3 * MAX_LINE) + b"CUDA error\nCUDA error\n"
    stream = Stream(path="f", format="text", layer="stdout", open=lambda: io.BytesIO(data), size=len(data))
    _, database = compiled(line_search(GUARDS), once=False)
    for size in (1 << 16, 1 << 20, 1 << 22):
        picked = list(read(stream, Selector(database), Clock(), Counters(), block_size=size))
        every = list(read(stream, SelectAll(), Clock(), Counters(), block_size=size))
        assert _matching(picked) == _matching(every)
        assert len(_matching(picked)) == 3


def test_an_expression_is_asked_of_a_body_once_and_not_at_all_where_the_scan_says_no(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    together = regex.together

    def counting(function: str, patterns: Sequence[str]) -> Callable[[bytes], list[int]]:
        test = together(function, patterns)

        def noted(data: bytes) -> list[int]:
            asked.extend(patterns)
            return test(data)

        return noted

    monkeypatch.setattr(regex, "together", counting)
    statements = [
        'set(attributes["a"], 1) where IsMatch(body, "sto+d")',
        'set(attributes["b"], 1) where IsMatch(body, "sto+d") and not IsMatch(body, "fell +down")',
        'set(attributes["c"], 1) where IsMatch(body, "fell +down")',
    ]
    config = {"log_statements": [{"context": "log", "statements": statements}]}
    plan = Plan(outline([config]))
    signal: Any = {"resource": {"attributes": {}}, "log": {"body": "it stood", "attributes": {}}}
    plan.run(signal)
    assert signal["log"]["attributes"] == {"a": 1, "b": 1}
    assert asked == ["sto+d"]


def test_what_is_known_of_a_body_is_not_taken_for_known_of_another() -> None:
    statements = [
        'set(attributes["a"], 1) where IsMatch(body, "loss")',
        'set(body, "gain")',
        'set(attributes["b"], 1) where IsMatch(body, "loss")',
    ]
    config = {"error_mode": "propagate", "log_statements": [{"context": "log", "statements": statements}]}
    mine: Any = {"resource": {"attributes": {}}, "scope": {}, "log": {"body": "loss", "attributes": {}}}
    theirs = copy.deepcopy(mine)
    Plan(outline([config])).run(mine)
    Processor(config).process_signals([theirs])
    assert mine == theirs
    assert mine["log"]["attributes"] == {"a": 1}


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "MAX_REDUCTIONS", 3)
    monkeypatch.setattr(schedule, "MAX_TESTS", 2)
    words = ["loss", "step", "gain", "nan"]
    statements = [f'set(attributes["{word}"], 1) where IsMatch(body, "{word[0]}+{word[1:]}")' for word in words]
    groups = [{"context": "log", "statements": [statement]} for statement in statements]
    plan = Plan(outline([{"log_statements": groups}]))
    for number in range(64):
        present = {word for place, word in enumerate(words) if number >> place & 1}
        signal: Any = {"resource": {}, "log": {"body": " ".join(sorted(present)), "attributes": {}}}
        plan.run(signal)
        assert set(signal["log"]["attributes"]) == present


@QUICK
@given(st.text(st.characters(max_codepoint=126, exclude_characters="\0\x1b") | st.sampled_from('\\"/\n<')))
def test_a_line_of_json_is_read_as_it_was_written(text: str) -> None:
    meant = text.replace("\n", "\x1e").replace("\r", "\x1e").encode()
    assert plain(json.dumps(text).encode(), True) == b'"' + meant + b'"'


@pytest.mark.parametrize(
    ("edit", "effects"),
    [
        ("", {"step (?P<step>\\d+)"}),
        (' where IsMatch(body, "at step")', {"step (?P<step>\\d+)", "at step"}),
        (None, {"step"}),
    ],
)
def test_a_copy_of_the_body_says_what_the_body_says_unless_it_was_edited(edit: str | None, effects: set[str]) -> None:
    statements = ['set(cache["text"], body)']
    if edit != "":
        statements.append('replace_pattern(cache["text"], "at step:\\\\d+", " ")' + (edit or ""))
    statements += [
        'merge_maps(cache, ExtractPatterns(cache["text"], "step (?P<step>\\\\d+)"), "upsert")',
        'set(attributes["step"], cache["step"]) where cache["step"] != nil',
    ]
    entered = {"context": "log", "conditions": ['IsMatch(body, "step")'], "statements": statements}
    (group,) = outline([{"log_statements": [entered]}]).groups
    assert set(group.effects or ()) == effects


@pytest.mark.parametrize(
    ("statement", "fresh"),
    [
        ('delete_key(attributes, "a")', ()),
        ('delete_matching_keys(log.attributes, "^a")', ()),
        ('keep_keys(attributes, ["b"])', ()),
        ('delete_key(resource.attributes, "a")', (1,)),
        ('set(attributes["a"], 1)', (1,)),
    ],
)
def test_a_group_that_only_takes_attributes_off_selects_no_line(statement: str, fresh: tuple[int, ...]) -> None:
    sets = {"context": "log", "conditions": ['IsMatch(body, "kernel")'], "statements": ['set(attributes["a"], 1)']}
    takes = {"context": "log", "conditions": ['IsMatch(body, "ab")'], "statements": [statement]}
    first, second = outline([{"log_statements": [sets, takes]}]).groups
    assert (first.fresh, second.guard, second.fresh) == ((0,), (1,), fresh)
    assert second.effects == (() if fresh == () else ("ab",))
