"""`tracecore fr` as a user runs it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from click.testing import CliRunner

from tracecore.cli.fr import command

ROOT = Path(__file__).resolve().parents[3]
GLOO = ROOT / "tests" / "data" / "fr_gloo"
INCIDENTS = ROOT / "examples" / "incidents"


def text_of(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments, "--jobs", "1"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


def test_the_answer_comes_first() -> None:
    lines = text_of(str(INCIDENTS / "nccl_hang_one_rank_missing" / "fr")).splitlines()
    assert lines[0].startswith("What     Ranks 0, 1 and 3 hang in all_reduce seq 6 of default_pg: rank 2")
    assert "Look at  rank 2" in lines[:4]
    assert any(line.startswith("  missing   rank 2: last entered all_reduce seq 5") for line in lines)
    assert any("worker.py:14 in steps" in line for line in lines)


def test_lines_fit_a_terminal_and_have_no_colour_on_a_pipe() -> None:
    for folder in (*GLOO.iterdir(), *INCIDENTS.glob("*/fr")):
        if folder.is_dir():
            output = text_of(str(folder))
            assert "\x1b" not in output
            assert all(len(line) <= 80 or "/" in line for line in output.splitlines()), output


def test_healthy_dumps_say_so() -> None:
    output = text_of(str(GLOO / "healthy"))
    assert output.startswith("No hang and no mismatch in these dumps.")


def test_what_could_not_be_read_is_listed(tmp_path: Path) -> None:
    shutil.copytree(GLOO / "hang_one_rank", tmp_path / "fr")
    (tmp_path / "fr" / "fr_dump_1").write_bytes(b"\x80\x02cposix\nsystem\n.")
    (tmp_path / "fr" / "fr_json_dump_1.json").write_text('{"version": "2.10", "entries": [')
    output = " ".join(text_of(str(tmp_path / "fr")).split())
    assert "forbidden, opcode GLOBAL" in output
    assert "truncated" in output
    assert "Not measured: rank 1 left no dump." in output
    assert "Look at rank 2" in output


def test_json_is_one_document() -> None:
    document = json.loads(text_of(str(GLOO / "op_mismatch"), "--format", "json"))
    assert document["schema"] == "tracecore/fr/v1"
    (one,) = document["sets"]
    assert [v["pattern.name"] for v in one["verdicts"]] == ["collective_mismatch", "nccl_hang"]
    assert one["verdicts"][0]["odd_ranks"] == [1]
    assert document["coverage"]["dumps_read"] == 4


def test_nothing_to_read_is_a_failure(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, [str(tmp_path)], standalone_mode=False)
    assert result.return_value == 1
    assert "No Flight Recorder dump" in result.output
    assert CliRunner().invoke(command, [str(tmp_path / "nowhere")]).exit_code == 2


def test_names_of_dumps_are_told_on_one_line(tmp_path: Path) -> None:
    for name in (b"nccl_trace_rank_0\xff", b"nccl_trace_rank_1\nAll is well"):
        with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
            file.write(b"\x80\x02}X\x07\x00\x00\x00entries")
    for output in ("text", "json"):
        told = CliRunner().invoke(command, [str(tmp_path), "--format", output])
        assert told.exception is None or isinstance(told.exception, SystemExit)
        assert "nccl_trace_rank_1" in told.output
        assert not any(line.strip().startswith("All is well") for line in told.output.splitlines())
