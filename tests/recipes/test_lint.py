"""The lint finds what it is for, at its line, and finds nothing in what ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.recipes import directory
from tracecore.recipes.lint import documented_attributes, lint, one_line

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path for path in directory().glob("*.yaml") if not path.name.endswith(".cases.yaml"))
DOCUMENTED = documented_attributes((ROOT / "docs" / "attributes.md").read_text(encoding="utf-8"))

GOOD = """\
processors:
  transform/a:
    error_mode: ignore
    log_statements:
      - context: log
        statements:
          - set(attributes["a.kind"], "x") where IsMatch(body, "xx")
      - context: log
        conditions:
          - IsMatch(body, "n=[0-9]+")
        statements:
          - merge_maps(cache, ExtractPatterns(body, "n=(?P<n>[0-9]+)"), "upsert")
          - set(attributes["a.n"], Int(cache["n"]))
"""
CASES = """\
cases:
  - {name: both, body: "xx n=5", expect: {a.kind: x, a.n: 5}}
  - {name: neither, body: "x n=", absent: [a.kind, a.n]}
"""
NAMES = frozenset({"a.kind", "a.n"})


def problems(tmp_path: Path, recipe: str = GOOD, cases: str = CASES, names: frozenset[str] = NAMES) -> list[str]:
    (tmp_path / "a.yaml").write_text(recipe)
    (tmp_path / "a.cases.yaml").write_text(cases)
    return [problem.removeprefix(f"{tmp_path}/") for problem in lint([tmp_path / "a.yaml"], names)]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_what_ships_is_clean(path: Path) -> None:
    assert lint([path], DOCUMENTED) == []


def test_a_complete_recipe_is_clean(tmp_path: Path) -> None:
    assert problems(tmp_path) == []


def test_a_statement_without_a_case_that_runs_it(tmp_path: Path) -> None:
    found = problems(tmp_path, cases=CASES.replace("xx n=5", "n=5").replace("a.kind: x, ", ""))
    assert found == ["a.yaml:7: no case in which this statement runs"]


def test_a_statement_that_runs_and_is_not_expected(tmp_path: Path) -> None:
    found = problems(tmp_path, cases=CASES.replace("a.kind: x, ", ""))
    assert found == ["a.yaml:7: it runs, but no such case expects a.kind"]


def test_a_statement_without_a_near_miss(tmp_path: Path) -> None:
    found = problems(tmp_path, cases=CASES.replace("absent: [a.kind, a.n]", "absent: [a.kind]"))
    assert found == [
        "a.yaml:12: no near miss: a case with a.n in `absent`",
        "a.yaml:13: no near miss: a case with a.n in `absent`",
    ]


def test_everything_absent_names_nothing(tmp_path: Path) -> None:
    found = problems(tmp_path, cases=CASES.replace("absent: [a.kind, a.n]", 'absent: ["*"]'))
    assert [problem.split(":")[1] for problem in found] == ["7", "12", "13"]
    assert problems(tmp_path, cases=CASES.replace("absent: [a.kind, a.n]", "absent: [a.*]")) == []


def test_a_condition_that_holds_in_no_case(tmp_path: Path) -> None:
    recipe = GOOD.replace("          - IsMatch", '          - IsMatch(body, "never")\n          - IsMatch', 1)
    assert problems(tmp_path, recipe) == ["a.yaml:10: no case in which this condition holds"]


def test_a_case_that_fails(tmp_path: Path) -> None:
    found = problems(tmp_path, cases=CASES.replace("a.n: 5", "a.n: 6"))
    assert found == ["a.cases.yaml:2: both: a.n is 5; expected 6"]


def test_an_attribute_that_nobody_documented(tmp_path: Path) -> None:
    found = problems(tmp_path, names=frozenset({"a.kind"}))
    assert found == ["a.yaml:13: a.n is not in docs/attributes.md"]


@pytest.mark.parametrize(
    "where",
    [
        "",
        ' where attributes["k"] == "v"',
        ' where IsMatch(attributes["k"], "xx")',
        ' where not IsMatch(body, "yy")',
        ' where IsMatch(body, "xx") or attributes["k"] == nil',
        ' where IsMatch(body, attributes["k"])',
    ],
)
def test_a_statement_without_a_constant_guard(tmp_path: Path, where: str) -> None:
    found = problems(tmp_path, GOOD.replace(' where IsMatch(body, "xx")', where))
    assert any(problem.startswith("a.yaml:7: no constant IsMatch") for problem in found)


@pytest.mark.parametrize(
    "where",
    [' where attributes["k"] == nil and IsMatch(body, "xx")', ' where IsMatch(body, "xx") or IsMatch(body, "xy")'],
)
def test_guards_under_and_and_or(tmp_path: Path, where: str) -> None:
    assert problems(tmp_path, GOOD.replace(' where IsMatch(body, "xx")', where)) == []


@pytest.mark.parametrize(
    ("pattern", "complaint"), [("xx(?=y)", "a.yaml:7"), ("(xx", "a.yaml:7"), (r"(x)\\1", "a.yaml:7")]
)
def test_an_expression_that_is_not_of_re2(tmp_path: Path, pattern: str, complaint: str) -> None:
    found = problems(tmp_path, GOOD.replace('"xx"', f'"{pattern}"'))
    assert found
    assert found[0].startswith(complaint)


@pytest.mark.parametrize(
    "guard",
    [
        r"retrying",
        r"^retrying",
        r"retrying$",
        r"^[^\\n]*retrying[^\\n]*$",  # no group: a later `|` would go unnoticed
        r"^[^\\n]*(?:retrying)|(?:gloo)[^\\n]*$",
        r"^[^\\n]*(?:retrying\\s+in)[^\\n]*$",
        r"^[^\\n]*(?:retrying[^x]in)[^\\n]*$",
        r"^[^\\n]*(?:retrying(?s:.*)in)[^\\n]*$",
        r"^[^\\n]*(?:retrying[\\s,]in)[^\\n]*$",
    ],
)
@pytest.mark.parametrize("place", ["where", "condition"])
def test_a_negative_guard_that_tests_other_lines(tmp_path: Path, guard: str, place: str) -> None:
    asked = "xx" if place == "where" else "n=[0-9]+"
    recipe = GOOD.replace(f'IsMatch(body, "{asked}")', f'IsMatch(body, "{asked}") and not IsMatch(body, "{guard}")')
    (found,) = problems(tmp_path, recipe)
    assert found.startswith(f"a.yaml:{7 if place == 'where' else 10}: the negative guard can match another line")


def test_a_negative_guard_on_one_line_or_on_what_is_left(tmp_path: Path) -> None:
    guard = r"^[^\\n]*(?i:retrying|not (?:a|the) \\S+[^\\w\\n])[^\\n]*$"
    recipe = GOOD.replace('IsMatch(body, "xx")', f'IsMatch(body, "xx") and not IsMatch(body, "{guard}")')
    assert problems(tmp_path, recipe) == []
    left = GOOD.replace('Int(cache["n"]))', 'Int(cache["n"])) where not IsMatch(cache["n"], "x")')
    assert problems(tmp_path, left) == []


def test_expressions_that_match_one_line_only() -> None:
    assert one_line(r"^[^\n]*(?:a|b)[^\n]*$")
    assert one_line(r"^[^\n]{0,40}(?i:\[W\d[^\]\n]*\))[^\n]*$")
    assert not one_line(r"^[^\n]*(?:a)|b(?:c)[^\n]*$")
    assert not one_line(r"^[^\n]*(?:a\nb)[^\n]*$")


def test_a_recipe_without_cases(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (found,) = lint([tmp_path / "a.yaml"], NAMES)
    assert found.startswith(f"{tmp_path}/a.cases.yaml:1: no such file")


def test_names_in_the_documentation() -> None:
    text = "| `a.b.c` `.d` `e.f` `.g` | int | `not.me` |\n\n`nor.me`\n"
    assert documented_attributes(text) == {"a.b.c", "a.b.d", "e.f", "e.g"}
