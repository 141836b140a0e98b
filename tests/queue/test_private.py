"""The queue keeps nothing for others to read, and commands that only read make nothing."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tracecore.cli.main import root

SECRET = "Zk3vQ9x7Lm2Rt5Yw8Bn4"


@pytest.fixture(autouse=True)
def _usual_umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(root, ["queue", *arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize(
    "words",
    [["list"], ["show", "1"], ["dead"], ["logs", "1"], ["metrics"], ["prune", "--older", "1d"], ["cancel", "1"]],
)
def test_a_command_that_only_reads_makes_no_database(words: list[str], tmp_path: Path) -> None:
    place = tmp_path / "state" / "queue.db"
    code, said = run("--db", str(place), *words)
    assert code == 1
    assert "there is no queue at" in said
    assert list(tmp_path.iterdir()) == []


def test_the_database_and_all_beside_it_is_its_owners(tmp_path: Path) -> None:
    place = tmp_path / "state" / "queue.db"
    assert run("--db", str(place), "submit", "--", "true")[0] == 0
    assert run("--db", str(place), "work", "--drain")[0] == 0
    found = [tmp_path / "state", *(tmp_path / "state").rglob("*")]
    assert len(found) > 4
    assert [path for path in found if stat.S_IMODE(path.lstat().st_mode) & 0o077] == []


@pytest.mark.parametrize(
    "variable", [f"WANDB_API_KEY={SECRET}", f"DATABASE=postgres://u:{SECRET}@db/x", f"X=hf_{SECRET}", "MY_PASSWORD=abc"]
)
def test_a_secret_is_refused_with_what_to_do(variable: str, tmp_path: Path) -> None:
    place = tmp_path / "queue.db"
    code, said = run("--db", str(place), "submit", "--env", variable, "--", "true")
    assert code == 2
    assert "set it" in said or "where the worker runs" in said
    assert SECRET not in said
    assert run("--db", str(place), "submit", "--env", "TOKENIZERS_PARALLELISM=false", "--", "true")[0] == 0


def test_a_secret_of_the_command_line_is_not_shown(tmp_path: Path) -> None:
    place = tmp_path / "queue.db"
    run("--db", str(place), "submit", "--", "train", "--api-key", SECRET)
    for more in ([], ["--json"]):
        code, said = run("--db", str(place), "show", "1", *more)
        assert code == 0
        assert SECRET not in said
    assert SECRET not in run("--db", str(place), "list", "--json")[1]


def test_metrics_are_written_for_their_owner_unless_asked(tmp_path: Path) -> None:
    place = tmp_path / "queue.db"
    assert run("--db", str(place), "submit", "--", "true")[0] == 0
    file = tmp_path / "queue.prom"
    for words, mode in (((), 0o600), (("--mode", "0644"), 0o644), ((), 0o600)):
        code, said = run("--db", str(place), "metrics", "--output", str(file), *words)
        assert code == 0, said
        assert stat.S_IMODE(file.stat().st_mode) == mode
        assert "tracecore_queue_tasks" in file.read_text()
    assert run("--db", str(place), "metrics", "--mode", "4777")[0] == 2
