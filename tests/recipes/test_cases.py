"""Every case beside every recipe, and the rules by which cases are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore.recipes import RecipeError, directory
from tracecore.recipes.cases import Recipe, RecipeCase, cases_of, complaints, load_cases

RECIPES = sorted(path for path in directory().glob("*.yaml") if not path.name.endswith(".cases.yaml"))
_COMPILED: dict[Path, Recipe] = {}

MINIMAL = """\
processors:
  transform/a:
    error_mode: ignore
    log_statements:
      - context: log
        statements:
          - set(attributes["a.n"], Int(attributes["raw"])) where IsMatch(body, "a")
          - set(attributes["a.half"], Double(attributes["raw"]) / 2.0) where IsMatch(body, "half")
"""


def recipe(path: Path) -> Recipe:
    if path not in _COMPILED:
        _COMPILED[path] = Recipe(path)
    return _COMPILED[path]


@pytest.mark.parametrize(
    ("path", "case"),
    [
        pytest.param(path, case, id=f"{path.stem}: {case.name}")
        for path in RECIPES
        for case in load_cases(cases_of(path))
    ],
)
def test_case(path: Path, case: RecipeCase) -> None:
    assert complaints(case, recipe(path).run(case)) == []


@pytest.fixture
def minimal(tmp_path: Path) -> Recipe:
    path = tmp_path / "minimal.yaml"
    path.write_text(MINIMAL)
    return Recipe(path)


def case(**fields: object) -> RecipeCase:
    return RecipeCase(**{"name": "n", "path": "p", "line": 1, "attributes": {"raw": "5"}, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "expect", "absent", "complaint"),
    [
        ("a", {"a.n": 5}, (), ""),
        ("a", {"a.n": 5.0}, (), "a.n is 5; expected 5.0"),
        ("a", {"a.n": True}, (), "a.n is 5; expected True"),
        ("b", {"a.n": 5}, (), "a.n is not stamped"),
        ("half", {"a.half": 2.5}, (), ""),
        ("a", {}, ("a.n",), "must be absent"),
        ("a", {}, ("a.*",), "must be absent"),
        ("a", {}, ("*",), "must be absent"),
        ("b", {}, ("*",), ""),
    ],
)
def test_what_a_case_says_is_what_is_asked(
    minimal: Recipe, body: str, expect: dict[str, object], absent: tuple[str, ...], complaint: str
) -> None:
    asked = case(body=body, expect=expect, absent=absent)
    found = complaints(asked, minimal.run(asked))
    assert bool(found) == bool(complaint)
    assert complaint in "".join(found)


def test_a_statement_that_fails_or_sets_nothing_is_reported(minimal: Recipe) -> None:
    failing = case(body="a", attributes={"raw": "five"}, expect={"raw": "five"})
    assert any("minimal.yaml:7" in found for found in complaints(failing, minimal.run(failing)))


def test_running_a_case_does_not_change_it(minimal: Recipe) -> None:
    asked = case(body="a", expect={"a.n": 5})
    assert minimal.run(asked) == minimal.run(asked)
    assert asked.attributes == {"raw": "5"}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("cases: 5", ":1: expected a list"),
        ("cases:\n  - name: a\n    body: x\n", ":2: 'a' checks nothing"),
        ("cases:\n  - body: x\n    absent: [a]\n", ":2: a case needs a name"),
        ("cases:\n  - {name: a, absent: [b]}\n  - {name: a, absent: [b]}\n", ":3: another case has the name 'a'"),
        ("cases:\n  - {name: a, absent: [b], expects: {}}\n", ":2: unknown key 'expects'"),
        ("cases: [", "cases.yaml:"),
    ],
)
def test_a_wrong_case_file_is_refused_at_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "x.cases.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_cases(path)
    assert str(caught.value).startswith(str(path))
    assert complaint in str(caught.value)


def test_a_statement_that_does_not_compile_is_refused_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text(MINIMAL.replace("Int(", "Itn("))
    with pytest.raises(RecipeError, match=r"wrong\.yaml:7: .*Itn"):
        Recipe(path)


def test_metrics_have_cases_too(tmp_path: Path) -> None:
    path = tmp_path / "metrics.yaml"
    path.write_text(
        "processors:\n  transform/m:\n    error_mode: ignore\n    metric_statements:\n      - context: datapoint\n"
        '        statements:\n          - set(attributes["seen"], metric.name) where metric.name == "up"\n'
    )
    asked = case(metric={"name": "up"}, datapoint={"attributes": {"k": "v"}, "value_int": 1}, expect={"seen": "up"})
    assert complaints(asked, Recipe(path).run(asked)) == []
    asked = case(metric={"name": "down"}, datapoint={"attributes": {}}, absent=("seen",))
    assert complaints(asked, Recipe(path).run(asked)) == []
