"""What a person reads on a terminal."""

from __future__ import annotations

from pathlib import Path

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.page import page
from tracecore.incidents.text import WIDTH, report


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


LOST = "RuntimeError: [/b/gloo/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:21890"
WORD = "the vocabulary has 32000 words and the model 32128"


def test_who_ends_without_a_traceback_is_quoted_with_its_last_lines(tmp_path: Path) -> None:
    steps = "".join(f"2026-10-03 04:12:{step:02d} step {step} loss 2.0\n" for step in range(9))
    for rank in range(3):
        said = WORD if rank == 1 else f"[rank{rank}]: {LOST}"
        (tmp_path / f"rank{rank}.log").write_text(f"{steps}{said}\n")
    (tmp_path / "exit_codes.json").write_text('{"0": 1, "1": 1, "2": 1}')
    diagnosis = diagnose([tmp_path])
    for shown in (report(diagnosis), page(diagnosis)):
        assert WORD in shown
        assert shown.index(WORD) < shown.index("Connection closed by peer")


def test_its_last_lines_are_found_by_their_label(tmp_path: Path) -> None:
    steps = "".join(f"{rank}: step {step} loss 2.0\n" for step in range(9) for rank in range(4))
    ends = "srun: error: c02: task 2: Exited with exit code 66\nsrun: error: c01: tasks 0-1,3: Terminated\n"
    (tmp_path / "slurm-900.out").write_text(f"{steps}2: {WORD}\n3: step 9 loss 2.0\n{ends}")
    said = report(diagnose([tmp_path])).splitlines()
    at = said.index(f"    | {WORD}")
    assert said[at - 1] == "    | step 8 loss 2.0"
