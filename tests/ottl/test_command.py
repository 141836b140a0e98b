"""`tracecore ottl run`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tracecore.cli.ottl import command

RECORD = {"log": {"body": "hello", "attributes": {}}}
SET = 'set(attributes["greeting"], body)'


def run(*arguments: str, given: Any = RECORD) -> Result:
    text = given if isinstance(given, str) else json.dumps(given)
    return CliRunner().invoke(command, ["run", *arguments], input=text, standalone_mode=False)


def test_a_record_from_standard_input() -> None:
    result = run(SET)
    assert result.return_value == 0
    assert json.loads(result.stdout) == {"log": {"body": "hello", "attributes": {"greeting": "hello"}}}


def test_a_record_on_each_line() -> None:
    result = run(SET, given='{"log": {"body": 1}}\n\n{"log": {"body": 2}}\n')
    assert [json.loads(line)["log"]["attributes"] for line in result.stdout.splitlines()] == [
        {"greeting": 1},
        {"greeting": 2},
    ]


def test_an_otlp_document() -> None:
    record = {"body": {"stringValue": "hello"}}
    document = {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": [record]}]}]}
    result = run(SET, given=document)
    assert result.return_value == 0
    changed = json.loads(result.stdout)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert changed["attributes"] == [{"key": "greeting", "value": {"stringValue": "hello"}}]
    assert run("--context", "span", "set(name, 1)", given=document).return_value == 1


def test_statements_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "statements.ottl"
    path.write_text(f'# what to do\n{SET}\n\nset(severity_text, "INFO")\n')
    record = tmp_path / "record.json"
    record.write_text(json.dumps(RECORD))
    result = run("-s", str(path), "-r", str(record), given="")
    assert json.loads(result.stdout)["log"] == {
        "body": "hello",
        "attributes": {"greeting": "hello"},
        "severity_text": "INFO",
    }


@pytest.mark.parametrize("nested", [False, True])
def test_a_processor_configuration(tmp_path: Path, nested: bool) -> None:
    config: dict[str, Any] = {"log_statements": [{"context": "log", "statements": [SET]}]}
    path = tmp_path / "config.yaml"
    more = {"log_statements": ['set(log.attributes["again"], log.attributes["greeting"])']}
    processors = {"transform/one": config, "batch": {}, "transform/two": more}
    path.write_text(json.dumps({"processors": processors} if nested else config))
    result = run("-s", str(path))
    assert result.return_value == 0
    expected = {"greeting": "hello", "again": "hello"} if nested else {"greeting": "hello"}
    assert json.loads(result.stdout)["log"]["attributes"] == expected
    assert run("-s", str(path), given={"span": {}}).return_value == 1


def test_a_wrong_statement_is_shown_with_a_caret() -> None:
    result = run('set(atributes["a"], body)')
    assert result.return_value == 2
    assert result.stdout == ""
    assert result.stderr.splitlines()[1:] == ['    set(atributes["a"], body)', "        ^"]
    assert 'did you mean "attributes"?' in result.stderr


def test_a_failing_statement() -> None:
    result = run("set(severity_number, body)")
    assert result.return_value == 1
    assert "record 1: 1:1: expects int64 but got string" in result.stderr
    assert run("--error-mode", "ignore", "set(severity_number, body)").return_value == 0


@pytest.mark.parametrize("arguments", [(), ("--context", "logs", SET), ("--error-mode", "loud", SET)])
def test_bad_usage(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.return_value == 2 or getattr(result.exception, "exit_code", None) == 2


def test_input_that_is_no_record() -> None:
    for text in ("nonsense", "[1]", '"text"'):
        result = run(SET, given=text)
        assert getattr(result.exception, "exit_code", None) == 1


def test_a_yaml_file_without_statements(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("receivers: {}\n")
    result = run("-s", str(path))
    assert result.return_value == 2
    assert "no log_statements" in result.stderr
