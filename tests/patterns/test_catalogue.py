"""The whole catalogue: every case, every check of its lint, and the lint itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tracecore.cli.main import main, root
from tracecore.diagnose.case_runner import run_case
from tracecore.patterns import PATTERNS, catalogue
from tracecore.patterns.cases import Case, CaseError, cases_of, folder, moment, read_cases
from tracecore.patterns.config import MINUTE, SECOND, ConfigError, format_duration, load, parse_duration
from tracecore.patterns.contract import Pattern
from tracecore.patterns.hbm_ecc.detector import Config, HbmEcc
from tracecore.patterns.lint import lint, unlisted
from tracecore.patterns.runbook import show
from tracecore.patterns.schema import document_of, envelope, falsified, falsifiers_of, problems, schema_of

ALL_CASES = [(kind, case) for kind in PATTERNS for case in cases_of(kind)]


@pytest.mark.parametrize(("kind", "case"), ALL_CASES, ids=[f"{k.name}-{c.name}" for k, c in ALL_CASES])
def test_case(kind: type[Pattern[Any]], case: Case) -> None:
    assert run_case(kind, case).failures == []


@pytest.mark.parametrize("kind", PATTERNS, ids=lambda kind: kind.name)
def test_lint_has_nothing_to_say(kind: type[Pattern[Any]]) -> None:
    assert lint([kind]) == []


def test_ids_and_names_are_unique() -> None:
    assert len({kind.id for kind in PATTERNS}) == len({kind.name for kind in PATTERNS}) == len(PATTERNS)
    assert {finding.check for finding in lint([HbmEcc, HbmEcc], checks=())} == {"unique"}


def test_a_folder_that_is_not_in_the_list_is_named() -> None:
    assert unlisted(PATTERNS) == []
    assert [finding.pattern for finding in unlisted(PATTERNS[1:])] == [PATTERNS[0].name]


@pytest.mark.parametrize("kind", PATTERNS, ids=lambda kind: kind.name)
def test_falsifiers_are_rejected_one_by_one(kind: type[Pattern[Any]]) -> None:
    for falsifier in falsifiers_of(kind):
        document = document_of(kind, falsifier.golden)
        assert problems(schema_of(kind), document) == [], falsifier.name
        assert problems(envelope(), document) == [], falsifier.name
        assert problems(schema_of(kind), falsified(falsifier, document)) != [], falsifier.name


@pytest.mark.parametrize("kind", PATTERNS, ids=lambda kind: kind.name)
def test_the_runbook_shows_thresholds_in_force(kind: type[Pattern[Any]]) -> None:
    assert "{{" not in show(kind())


def test_a_threshold_in_the_runbook_follows_the_setting() -> None:
    assert "Within 7m," in show(HbmEcc(Config(window=7 * MINUTE)))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of a good pattern, to be spoilt."""
    target = tmp_path / "hbm_ecc"
    shutil.copytree(folder(HbmEcc), target, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_the_command_says_what_lint_finds(copy: Path) -> None:
    edit(copy / "runbook.md", "{{window}}", "five minutes")
    result = CliRunner().invoke(root, ["patterns", "lint", "--json", str(copy)], standalone_mode=False)
    assert result.return_value == 1
    assert [finding["check"] for finding in json.loads(result.stdout)] == ["runbook"]


def test_a_case_that_fails_says_what_and_where(copy: Path) -> None:
    edit(copy / "cases/timelines.yaml", "xids: [48, 64], errors: 2}", "xids: [48, 64], errors: 3}")
    result = CliRunner().invoke(root, ["patterns", "test", str(copy)], standalone_mode=False)
    assert result.return_value == 1
    assert "timelines.yaml:" in result.stderr
    assert "errors is 2, expected 3" in result.stderr


def test_a_changed_golden_fails_and_update_writes_it(copy: Path) -> None:
    golden = copy / "cases/golden/rise_then_xid.json"
    before = golden.read_bytes()
    edit(golden, "uncorrectable", "terrible")
    assert main(["patterns", "test", str(copy)]) == 1
    assert main(["patterns", "test", str(copy), "--update"]) == 0
    assert golden.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kind: canonical", "`case` is a name"),
        ("case: a\nkind: odd\nwhy: w\nexpect_none_at: [t]", "is none of"),
        ("case: a\nkind: edge\nwhy: w", "expects something"),
        ("case: a\nkind: edge\nwhy: w\nfacts:\n  - t+1s nosuch: {}\nexpect_none_at: [t]", "no fact type"),
        ("case: a\nkind: edge\nwhy: w\nfacts:\n  - t+1s xid: {cod: 1}\nexpect_none_at: [t]", "no field"),
        ("case: a\nkind: edge\nwhy: w\nfacts:\n  - t+1s xid: {code: x}\nexpect_none_at: [t]", "int"),
        ("case: a\nkind: edge\nwhy: w\nfacts:\n  - soon xid: {code: 1}\nexpect_none_at: [t]", "write `t+30s xid`"),
        ("case: a\nkind: edge\nwhy: w\nexpect_none_at: [later]", "is not a time"),
        ("case: a\nkind: edge\nwhy: w\nexpected: 1\nexpect_none_at: [t]", "means nothing"),
        ("case: [", "case.yaml:1"),
    ],
)
def test_a_case_that_cannot_be_read_points_at_the_line(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "case.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=r"case\.yaml:\d+: ") as caught:
        list(read_cases(path))
    assert complaint in str(caught.value)


def test_replay_runs_cases_that_lie_elsewhere(tmp_path: Path) -> None:
    text = (
        "case: elsewhere\npattern: hbm_ecc\nkind: canonical\nwhy: a case of somebody else's\nfacts:\n"
        "  - t ecc_delta: {gpu: '0000:3b:00.0', delta: 1, error_type: uncorrected, subtype: double_bit, "
        "persistence: volatile}\n"
        "  - t+1s xid: {gpu: '0000:3b:00.0', code: 48}\nexpect_at:\n  t+1s: [{errors: ERRORS}]\n"
    )
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text(text.replace("ERRORS", "1"), encoding="utf-8")
    bad.write_text(text.replace("ERRORS", "2"), encoding="utf-8")
    assert main(["replay", str(good)]) == 0
    assert main(["replay", str(bad)]) == 1
    assert main(["replay", str(tmp_path)]) == 1


def test_list_json_is_a_list_of_objects() -> None:
    rows = json.loads(CliRunner().invoke(root, ["patterns", "list", "--json"]).stdout)
    assert [row["name"] for row in rows] == [kind.name for kind in PATTERNS]
    assert all(set(row) == {"id", "name", "role", "maturity", "needs"} for row in rows)


def test_new_makes_a_folder_whose_cases_run_and_fail(tmp_path: Path) -> None:
    assert main(["patterns", "new", "nvme_wearout", "--into", str(tmp_path)]) == 0
    home = tmp_path / "nvme_wearout"
    result = CliRunner().invoke(root, ["patterns", "test", str(home)], standalone_mode=False)
    assert result.return_value == 1
    assert "expected one verdict, got no verdict" in result.stderr
    assert main(["patterns", "new", "nvme_wearout", "--into", str(tmp_path)]) == 2
    assert main(["patterns", "new", "Bad Name", "--into", str(tmp_path)]) == 2
    assert main(["patterns", "new", "hbm_ecc", "--into", str(tmp_path)]) == 2


def test_bad_usage_is_exit_2() -> None:
    assert main(["patterns", "show", "hbm_eccc"]) == 2
    assert main(["patterns", "show", "hbm_ecc", "--set", "window=1ms"]) == 2


def test_settings_come_by_name_and_errors_name_the_field() -> None:
    assert load(Config, {"window": "10m"}).window == 10 * MINUTE
    assert load(Config, {"window": 90}).window == 90 * SECOND
    for value, complaint in (
        ("500ms", "finer than a second"),
        ("0s", "too short"),
        (0, "too short"),
        (-5, "too short"),
        ("99999d", "too long"),
        ("soon", "no duration"),
        (1.5, "expected a duration"),
        (True, "expected a duration"),
    ):
        with pytest.raises(ConfigError, match="window") as caught:
            load(Config, {"window": value}, "hbm_ecc")
        assert complaint in str(caught.value)
    with pytest.raises(ConfigError, match=r"hbm_ecc\.windw: no such setting; did you mean `window`"):
        catalogue({"hbm_ecc": {"windw": "1m"}})
    with pytest.raises(ConfigError, match="no such pattern"):
        catalogue({"hbm": {}})
    with pytest.raises(ConfigError, match="window"):
        Config(window=5)


def test_a_pattern_can_be_left_out() -> None:
    names = [pattern.name for pattern in catalogue({"hbm_ecc": {"enabled": False}})]
    assert "hbm_ecc" not in names
    assert len(names) == len(catalogue()) - 1


@pytest.mark.parametrize("text", ["1s", "5m", "1h30m", "5m1ns", "1s500ms", "2d"])
def test_durations_read_back(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


def test_moments() -> None:
    assert moment("t", 10) == 10
    assert moment("t-1s", 10 * SECOND) == 9 * SECOND
    assert moment("t+1.5s", 0) == 1_500_000_000
