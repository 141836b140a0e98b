"""The configuration file of `tracecore detect`: mistakes are told with their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.kafka_brokers import free_port
from click.testing import CliRunner

from tracecore.agent.configuration import ConfigurationError
from tracecore.cli.detect import command
from tracecore.stream.config import read


def written(folder: Path, text: str) -> Path:
    path = folder / "detect.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    text = "brokers: [k:9092]\nsettle: 5s\npatterns: {straggler: {enabled: false}}\ndatabase: x.db\n"
    options, warnings = read(written(tmp_path, text))
    assert (options.settle, options.topic, options.place) == (5 * 10**9, "tracecore-facts", "x.db")
    assert warnings == ()


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("brokers: [k]\n", "detect.yaml:1:11: write it like kafka-0.example.com:9092"),
        ("topics: a\n", 'no such setting "topics"'),
        ("session_timeout: 1s\n", "at least 6s"),
        ("metrics: nowhere\n", "write it like 127.0.0.1:8888"),
        ("database: mysql://x/y\n", "use SQLite or PostgreSQL"),
        ("patterns: {no_such: {}}\n", "there is no pattern"),
        ("clock: sun\n", "no such value"),
        ("copies: 0\n", "too little"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, mistake: str) -> None:
    with pytest.raises(ConfigurationError) as found:
        read(written(tmp_path, text))
    assert mistake in "\n".join(map(str, found.value.problems))


def test_a_bad_file_ends_the_command_with_2(tmp_path: Path) -> None:
    done = CliRunner().invoke(command, ["--config", str(tmp_path / "none.yaml")], standalone_mode=False)
    assert done.return_value == 2
    assert "cannot be read" in done.output


def test_a_broker_that_is_away_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracecore.agent.kafka.client.FIRST_ANSWER", 0.5)
    path = written(tmp_path, f"brokers: ['127.0.0.1:{free_port()}']\ndatabase: {tmp_path}/s.db\nmetrics: ''\n")
    done = CliRunner().invoke(command, ["--config", str(path)])
    assert done.exit_code == 1
    assert "Error: no broker answers" in done.output


def test_help_has_an_example() -> None:
    assert "Example: tracecore detect --config detect.yaml" in CliRunner().invoke(command, ["--help"]).output
