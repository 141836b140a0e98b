"""What is the same in every command: suggestions, forms of output, quiet, widths, completion."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tracecore.cli.main import root

ROOT = Path(__file__).resolve().parents[2]
HANG = str(ROOT / "examples/incidents/nccl_hang_one_rank_missing")


def commands(
    group: click.Command = root, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(group, click.Group):
        yield path, group
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["diagnos"], "diagnose"),
        (["dianose", "x"], "diagnose"),
        (["superwise"], "supervise"),
        (["queue", "lst"], "list"),
        (["queue", "submitt"], "submit"),
        (["patterns", "lits"], "list"),
        (["policy", "shw"], "show"),
        (["ottl", "rnu"], "run"),
    ],
)
def test_a_misspelt_command_gets_a_suggestion(words: list[str], meant: str) -> None:
    result = CliRunner().invoke(root, words)
    assert result.exit_code == 2
    assert "No such command" in result.output
    assert f"Did you mean {meant}" in result.output


def test_a_word_like_no_command_gets_none() -> None:
    assert "Did you mean" not in CliRunner().invoke(root, ["zzzzzz"]).output


def test_the_form_of_output_is_asked_for_in_one_way() -> None:
    seen = 0
    for path, command in commands():
        options = {flag: parameter for parameter in command.params for flag in parameter.opts}
        named = " ".join(path)
        assert ("-o" in options) == ("--format" in options), named
        if "-o" in options:
            seen += 1
            assert options["-o"] is options["--format"], named
            kind = options["-o"].type
            assert isinstance(kind, click.Choice)
            assert list(kind.choices)[:2] == ["text", "json"], named
        if "--json" in options:
            assert "-o" in options, named
        if "--quiet" in options:
            assert options["-q"] is options["--quiet"], named
    assert seen >= 14


@pytest.mark.parametrize(
    "words",
    [
        ["diagnose", HANG],
        ["fr", HANG],
        ["classify", "--exit-code", "1"],
        ["patterns", "list"],
        ["policy", "list"],
        ["policy", "show", "default"],
        ["components"],
        ["collect", "--dry-run"],
    ],
)
def test_json_is_json(words: list[str]) -> None:
    for flag in (["-o", "json"], ["--format", "json"]):
        json.loads(CliRunner().invoke(root, [*words, *flag]).stdout)


def test_quiet_is_the_answer_alone(tmp_path: Path) -> None:
    result = CliRunner().invoke(root, ["diagnose", HANG, "-q", "--report", str(tmp_path / "x.html")])
    assert result.stdout.startswith("What   ")
    assert "Evidence" not in result.stdout
    assert "Read " not in result.stdout
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) < 14


@pytest.mark.parametrize("columns", [40, 60, 120])
def test_lines_are_as_wide_as_columns_says(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.chdir(ROOT)
    for words in (["diagnose", "examples/incidents/checkpoint_full"], ["fr", HANG]):
        lines = CliRunner().invoke(root, words).stdout.splitlines()
        wide = [line for line in lines if len(line) > columns and "/" not in line and " " in line.strip()]
        assert wide == []
        assert max(map(len, lines)) > columns * 3 // 4


@pytest.mark.parametrize("value", ["0", "-5", "wide", "", "99999999999999999999"])
def test_columns_that_make_no_sense_do_no_harm(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", value)
    assert CliRunner().invoke(root, ["diagnose", HANG]).exit_code == 0


@pytest.mark.parametrize(("term", "coloured"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_no_escapes(term: str, coloured: bool) -> None:
    master, slave = pty.openpty()
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")} | {"TERM": term}
    done = subprocess.Popen(
        [sys.executable, "-m", "tracecore", "diagnose", HANG], stdout=slave, stderr=slave, env=env, close_fds=True
    )
    os.close(slave)
    shown = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    done.wait()
    os.close(master)
    assert b"What" in shown
    assert (b"\x1b" in shown) is coloured


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_ones(shell: str) -> None:
    script = CliRunner().invoke(root, ["completion", shell]).stdout
    assert "_TRACECORE_COMPLETE" in script
    if (program := shutil.which(shell)) is not None:
        assert subprocess.run([program, "-n"], input=script.encode(), check=False).returncode == 0


def test_completion_knows_commands_options_and_choices() -> None:
    def complete(line: str) -> str:
        words = line.split(" ")
        env = {**os.environ, "_TRACECORE_COMPLETE": "bash_complete", "COMP_WORDS": line}
        env["COMP_CWORD"] = str(len(words) - 1)
        command = [sys.executable, "-c", "from tracecore.cli.main import main; main()"]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout

    assert "plain,diagnose" in complete("tracecore dia")
    assert "plain,supervise" in complete("tracecore su")
    assert "plain,json" in complete("tracecore diagnose -o j")
    assert "plain,list" in complete("tracecore queue li")


@pytest.mark.parametrize("count", [1, 2])
def test_plurals(count: int, tmp_path: Path) -> None:
    for number in range(count):
        (tmp_path / f"rank{number}.log").write_text("step 1 loss 2\n")
    shown = CliRunner().invoke(root, ["diagnose", str(tmp_path)]).stdout
    assert ("Read 1 file, " if count == 1 else "Read 2 files, ") in shown
