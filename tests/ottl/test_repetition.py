"""Texts of one shape get what each would have got alone."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracecore import recipes
from tracecore.ottl.planner import plan as planning
from tracecore.ottl.planner import repetition
from tracecore.ottl.planner.plan import Plan, outline
from tracecore.ottl.planner.repetition import blind
from tracecore.ottl.processor import Processor
from tracecore.recipes.cases import cases_of, load_cases

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def _from_the_first_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "WORTH", 0)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"step \d+", True),
        (r"(?i)loss[ =:]+[-+]?\d{1,3}(?:\.\d*)?\b", True),
        (r"[^\s,]+|\w{2,}$", True),
        (r"[[:xdigit:]]+[a-f0-9]", True),
        ("error 503", False),
        ("[1-9]", False),
        ("a{,2}", False),
        (r"\x31", False),
        (r"[^0]", False),
        (r"\pN", False),  # cannot be read
    ],
)
def test_an_expression_is_blind_that_takes_any_digit_for_any_other(pattern: str, expected: bool) -> None:
    assert blind(pattern) is expected


def _signal(body: str, attributes: dict[str, Any] | None = None, resource: dict[str, Any] | None = None) -> Any:
    return {
        "resource": {"attributes": dict(resource or {})},
        "scope": {},
        "log": {"body": body, "attributes": dict(attributes or {})},
    }


def _same(plan: Plan, naive: list[Processor], mine: Any) -> bool:
    """Whether plan and processors do the same to a record; the order of its attributes too."""
    theirs = copy.deepcopy(mine)
    plan.run(mine)
    for processor in naive:
        processor.process_signals([theirs])
    order = [list(signal["log"]["attributes"]) for signal in (mine, theirs)]
    return bool(mine == theirs) and order[0] == order[1]


def _other_digits(dice: random.Random, text: str) -> str:
    return "".join(dice.choice("0123456789") if char in "0123456789" else char for char in text)


@pytest.mark.parametrize(
    "layer", [pytest.param("stdout", marks=pytest.mark.heavy), "kernel", "kubernetes", "scheduler"]
)
def test_recipes_stamp_texts_of_one_shape_as_any_other(layer: str) -> None:
    dice = random.Random(3)
    configs = [processor.config() for processor in recipes.load(layer) if processor.signal == "log"]
    naive = [Processor(config) for config in configs]
    plan = Plan(outline(configs))
    for name in recipes.FILES[layer]:
        for case in load_cases(cases_of(recipes.directory() / name)):
            if not isinstance(case.body, str):
                continue
            for body in (case.body, case.body, *(_other_digits(dice, case.body) for _ in range(2))):
                signal = _signal(body, dict(case.attributes), dict(case.resource))
                assert _same(plan, naive, signal), body


def _groups(*statements: str, conditions: tuple[str, ...] = ()) -> dict[str, Any]:
    group = {"context": "log", "statements": list(statements), "conditions": list(conditions)}
    return {"error_mode": "silent", "log_statements": [group]}


def _run(config: dict[str, Any], *bodies: str, **attributes: Any) -> list[dict[str, Any]]:
    """What becomes of records, which is what the processor makes of them."""
    plan, naive = Plan(outline([config])), [Processor(config)]
    found = []
    for body in bodies:
        signal = _signal(body, attributes)
        assert _same(plan, naive, signal)
        found.append({k: v for k, v in signal["log"]["attributes"].items() if k not in attributes})
    assert plan.failures == naive[0].failures
    return found


STEP = 'merge_maps(cache, ExtractPatterns(body, "step (?P<step>\\\\d+)"), "upsert") where IsMatch(body, "step ")'
NUMBER = 'set(attributes["step"], Int(cache["step"])) where cache["step"] != nil'


def test_captures_are_cut_out_of_the_same_places() -> None:
    assert _run(_groups(STEP, NUMBER), "step 17", "step 42", "step 423") == [{"step": 17}, {"step": 42}, {"step": 423}]


def test_a_value_that_fails_for_one_of_them_fails_for_it_alone() -> None:
    large, larger = "step 1999999999999999999", "step 9999999999999999999"
    config = _groups(STEP, NUMBER, 'set(attributes["seen"], true) where attributes["step"] == nil')
    assert _run(config, large, larger, large) == [{"step": int(large[5:])}, {"seen": True}, {"step": int(large[5:])}]


def test_a_condition_that_can_tell_digits_apart_is_asked_again() -> None:
    config = _groups(STEP, 'set(attributes["even"], true) where IsMatch(cache["step"], "[02468]$")')
    assert _run(config, "step 16", "step 17", "step 18") == [{"even": True}, {}, {"even": True}]
    config = _groups(STEP, 'set(attributes["first"], true) where cache["step"] == "10"')
    assert _run(config, "step 11", "step 10", "step 12") == [{}, {"first": True}, {}]


def test_numbers_have_no_shape_of_their_own() -> None:
    short = 'set(attributes["short"], true) where IsMatch(cache["number"], "^\\\\d$")'
    config = _groups(STEP, 'set(cache["number"], Int(cache["step"])) where cache["step"] != nil', short)
    assert _run(config, "step 10", "step 07") == [{}, {"short": True}]


def test_it_matters_which_attributes_a_record_has() -> None:
    config = _groups(STEP, 'set(attributes["rank"], Int(cache["step"])) where attributes["rank"] == nil')
    plan, naive = Plan(outline([config])), [Processor(config)]
    for body, rank in (("step 1", 5), ("step 2", None), ("step 3", b""), ("step 4", "x"), ("step 5", 0)):
        signal = _signal(body) if rank is None else _signal(body, {"rank": rank})
        assert _same(plan, naive, signal)


def test_a_group_is_entered_by_the_text_that_enters_it() -> None:
    config = _groups(STEP, NUMBER, conditions=('IsMatch(body, "1$")', 'IsMatch(body, "x")'))
    assert _run(config, "step 21", "step 22", "step 31") == [{"step": 21}, {}, {"step": 31}]


def test_shapes_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repetition, "MAX_SHAPES", 4)
    bodies = [f"step {10**power} {'x' * power}" for power in range(12)] * 2
    found = _run(_groups(STEP, NUMBER), *bodies)
    assert [attributes["step"] for attributes in found] == [10**power for power in range(12)] * 2


def test_nothing_is_searched_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(outline([_groups(STEP, NUMBER)]))
    plan.run(_signal("step 17"))

    def fail(*_: Any) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(repetition.regex.CompiledRegex, "search", fail)
    signal = _signal("step 18")
    plan.run(signal)
    assert signal["log"]["attributes"] == {"step": 18}


CONDITIONS = (
    'IsMatch(body, "step")', 'IsMatch(body, "\\\\d\\\\d")', 'IsMatch(body, "7")', 'IsMatch(body, "[1-4]x")',
    'IsMatch(cache["n"], "\\\\d")', 'IsMatch(cache["n"], "^[0-6]")', 'IsMatch(cache["t"], "x\\\\d")',
    'cache["n"] == nil', 'cache["n"] != nil', 'cache["n"] == "17"', 'cache["m"] == ""', 'cache["m"] != "x"',
    'cache["flag"] == true', 'attributes["a"] == nil', 'attributes["a"] != nil', 'attributes["a"] == "17"',
    'attributes["in"] == nil', 'resource.attributes["r"] != nil', 'Int(cache["n"]) == 17', 'attributes["d"] > 3.0',
    'Len(body) > 5', 'IsMatch(attributes["in"], "\\\\d")',
)  # fmt: skip
EDITORS = (
    'merge_maps(cache, ExtractPatterns(body, "(?P<n>\\\\d+)(?P<m>x)?"), "upsert")',
    'merge_maps(cache, ExtractPatterns(body, "(?P<n>[5-9]+)"), "upsert")',
    'merge_maps(cache, ExtractPatterns(cache["t"], "x(?P<m>\\\\d*)"), "upsert")',
    'merge_maps(cache, ExtractPatterns(cache["n"], "(?P<m>.)$"), "upsert")',
    'merge_maps(attributes, ExtractPatterns(body, "(?P<in>\\\\d)"), "upsert")',
    'set(cache["t"], body)', 'set(cache["flag"], true)', 'set(cache["n"], Int(cache["n"]))',
    'set(attributes["a"], cache["n"])', 'set(attributes["a"], Int(cache["n"]))', 'set(attributes["a"], "17")',
    'set(attributes["d"], Double(cache["n"]) / 2.0)', 'set(attributes["e"], 100 / Int(cache["n"]))',
    'set(attributes["c"], Concat([cache["n"], "-", cache["m"]], ""))', 'set(attributes["b"], attributes["in"])',
    'set(attributes["l"], Len(cache["n"]))', 'replace_pattern(cache["t"], "\\\\d", "x")',
    'replace_pattern(cache["t"], "[3-5]", "")', 'delete_key(attributes, "a")', 'delete_key(cache, "n")',
    'set(severity_text, "x")', 'set(cache["k"], {"1": "x"})',
    'set(attributes["u"], cache["k"][cache["n"]])', 'keep_keys(attributes, ["a", "in"])',
)  # fmt: skip


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    groups = []
    atoms = st.sampled_from(CONDITIONS)
    conditions = st.one_of(
        atoms,
        atoms.map(lambda one: f"not ({one})"),
        st.tuples(atoms, st.sampled_from([" and ", " or "]), atoms).map("".join),
    )
    for _ in range(draw(st.integers(1, 2))):
        statements = [
            draw(st.sampled_from(EDITORS)) + (f" where {draw(conditions)}" if draw(st.booleans()) else "")
            for _ in range(draw(st.integers(1, 6)))
        ]
        entered = draw(st.lists(conditions, max_size=2))
        groups.append({"context": "log", "statements": statements, "conditions": entered})
    return {"error_mode": "silent", "log_statements": groups}


shapes = st.lists(st.sampled_from(["step ", "0", "00", "x", "é", " ", "-", "\n"]), max_size=6).map("".join)


@QUICK
@given(configurations(), st.lists(shapes, min_size=1, max_size=2), st.randoms(use_true_random=False))
def test_any_statements_do_the_same_to_texts_of_one_shape(
    config: dict[str, Any], found: list[str], dice: random.Random
) -> None:
    plan, naive = Plan(outline([config])), [Processor(config)]
    for shape in found:
        for _ in range(6):
            given = {} if dice.random() < 0.7 else {"in": dice.choice([None, b"", "x", "17", 3])}
            signal = _signal(_other_digits(dice, shape), given, {} if dice.random() < 0.8 else {"r": 1})
            assert _same(plan, naive, signal)
    assert plan.failures == naive[0].failures
