"""What a person reads on a terminal."""

from __future__ import annotations

from pathlib import Path

from tracecore.incidents.text import WIDTH, report
from tracecore.pipeline.offline import diagnose


def test_quoted_lines_are_broken_between_words(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    line = "ValueError: the tokenizer produced 4097 tokens where the model was configured for at most 4096 positions"
    log.write_text(f'Traceback (most recent call last):\n  File "train.py", line 3, in main\n    fit()\n{line}\n')
    quoted = [row.removeprefix("    | ") for row in report(diagnose([log])).splitlines() if row.startswith("    | ")]
    at = quoted.index(next(row for row in quoted if row.startswith("ValueError: ")))
    assert " ".join(quoted[at:]) == line
    assert all(len(row) <= WIDTH - 6 for row in quoted)


def test_a_line_without_spaces_is_broken_where_it_must_be(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("RuntimeError: " + "x" * 200 + "\n")
    quoted = [row.removeprefix("    | ") for row in report(diagnose([log])).splitlines() if row.startswith("    | ")]
    assert "".join(quoted).replace(" ", "") == "RuntimeError:" + "x" * 200
    assert all(len(row) <= WIDTH - 6 for row in quoted)


def test_the_class_is_not_said_twice(tmp_path: Path) -> None:
    log = tmp_path / "out.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    said = report(diagnose([log]))
    assert "resource; worth a retry (retry 1 of 1 after 30 s)" in said
