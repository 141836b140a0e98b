"""The rules file: its cases hold, every rule has one, and a mistake in it is named by place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tracecore.actions import rules
from tracecore.actions.classify import classify
from tracecore.patterns import types
from tracecore.positioned_yaml import FileError

CASES_FILE = rules.path().with_name("classes.cases.yaml")


def cases() -> list[dict[str, Any]]:
    with CASES_FILE.open(encoding="utf-8") as file:
        return list(YAML(typ="safe", pure=True).load(file)["cases"])


CASES = cases()


def name_of(case: dict[str, Any]) -> str:
    said = case.get("log") or case.get("verdict") or case.get("reason") or case.get("exit_code", 1)
    return f"{case['rule']}: {str(said)[:60]}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_case(case: dict[str, Any]) -> None:
    info = classify(
        case.get("exit_code", 1),
        case.get("signal"),
        case.get("log", ""),
        case.get("verdict"),
        reason=case.get("reason"),
    )
    assert (info.failure_class, info.evidence.rule) == (case["class"], case["rule"])
    assert info.failed is (case["rule"] != "nothing")
    assert bool(info.suggestion) is info.failed


#: Enough that lines are picked by a scan before they are parsed, as in any real log.
LONG = "".join(f"loading shard {number} of the corpus into the cache\n" for number in range(600))


@pytest.mark.parametrize("case", [case for case in CASES if "log" in case], ids=name_of)
def test_case_at_the_end_of_a_long_log(case: dict[str, Any]) -> None:
    info = classify(case.get("exit_code", 1), case.get("signal"), LONG + case["log"], case.get("verdict"))
    assert (info.failure_class, info.evidence.rule) == (case["class"], case["rule"])
    if info.evidence.line_number is not None:
        assert info.evidence.line_number > 600


def test_every_rule_that_can_decide_has_a_case() -> None:
    decided = {case["rule"] for case in CASES}
    can = {rule.name for rule in rules.standard().rules if rule.role != "chatter"}
    assert can - decided == set()


def test_every_pattern_has_a_class() -> None:
    known = rules.standard().by_pattern
    assert [kind.name for kind in types() if kind.name not in known] == []


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("  - name: preempted\n", "  - nam: preempted\n", "no such key 'nam'; did you mean 'name'?"),
        ("    class: infrastructure\n", "    class: infrastructur\n", "did you mean 'infrastructure'?"),
        ("{fact: CudaOom}", "{fact: CudaOm}", "no fact type 'CudaOm'; did you mean 'CudaOom'?"),
        ("{fact: CudaOom}", "{fact: CudaOom, tried: [1]}", "CudaOom has no field 'tried'"),
        ("{fact: CudaOom}", "{phrase: '(unclosed'}", "not a regular expression"),
        (
            "{fact: CudaOom}",
            "{fact: CudaOom, phrase: a}",
            "exactly one of fact, stamped, phrase, verdict, errno, http and grpc",
        ),
        ("  SIGKILL: killed\n", "  SIGKILL: kiled\n", "'kiled' is none of"),
        ("  - name: time_limit\n", "  - name: preempted\n", "already"),
        ("  OOMKilled: memory_kill\n", "  OOMKilled: memory_kill\n  OOMKilled: killed\n", "given twice"),
    ],
)
def test_a_mistake_is_named_with_file_line_and_column(tmp_path: Path, before: str, after: str, complaint: str) -> None:
    text = rules.path().read_text(encoding="utf-8")
    assert before in text
    changed = text.replace(before, after, 1)
    file = tmp_path / "classes.yaml"
    file.write_text(changed, encoding="utf-8")
    with pytest.raises(FileError) as caught:
        rules.read(file)
    message = str(caught.value)
    assert complaint in message
    path, line, column = message.split(": ", 1)[0].rsplit(":", 2)
    assert path == str(file)
    first = next(
        number for number, (a, b) in enumerate(zip(text.split("\n"), changed.split("\n"), strict=False), 1) if a != b
    )
    assert abs(int(line) - first) <= 1
    assert int(column) >= 1
