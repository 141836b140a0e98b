"""What a person reads on a terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tracecore.diagnose.offline import diagnose
from tracecore.incidents.coverage import PART
from tracecore.incidents.page import page
from tracecore.incidents.text import WIDTH, _pieces, report, where
from tracecore.patterns.contract import Suspects
from tracecore.signals.record import Source


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


@pytest.mark.parametrize(
    ("stamps", "head"),
    [
        (("", ""), "Order (these lines have no times)"),
        (("2026-10-03 04:12:01 ", "2026-10-03 04:12:05 "), "Timeline (2026-10-03, "),
        (("2026-10-03 04:12:01 ", "2026-10-04 04:12:05 "), "Timeline ("),
    ],
)
def test_what_happened_is_listed_in_order(tmp_path: Path, stamps: tuple[str, str], head: str) -> None:
    for rank, (stamp, said) in enumerate(zip(stamps, (WORD, LOST), strict=True)):
        raised = 'Traceback (most recent call last):\n  File "train.py", line 3, in main\n'
        (tmp_path / f"rank{rank}.log").write_text(f"{stamp}step 1 loss 2.0\n{raised}RuntimeError: {said}\n")
    lines = report(diagnose([tmp_path])).splitlines()
    [at] = [number for number, line in enumerate(lines) if line.startswith(head)]
    assert lines[at - 1] == ""
    days = {line.strip() for line in lines[at:]} & {"2026-10-03", "2026-10-04"}
    assert len(days) == (2 if head == "Timeline (" else 0)


@pytest.mark.parametrize("number", [0, 1, 8, 9, 10])
def test_files_that_were_not_read_are_named(tmp_path: Path, number: int) -> None:
    log = tmp_path / "out.log"
    log.write_text("RuntimeError: x\n")
    reasons = ("no text", f"{PART}too long", "duplicate of another")
    skipped = [{"path": f"f{n}.log", "reason": reasons[n % 2]} for n in range(number)]
    diagnosis = diagnose([log])
    skipped.append({"path": "copy.log", "reason": reasons[2]})
    said = report(msgspec.structs.replace(diagnosis, coverage={**diagnosis.coverage, "skipped": skipped}))
    shown = ["Not read: f%d.log: no text", "Read in part: f%d.log: too long"]
    assert [line for line in said.splitlines() if "read: f" in line.lower() or "part: f" in line] == [
        shown[n % 2] % n for n in range(min(number, 8))
    ]
    more = {9: "and 1 more file not read; -o json lists them", 10: "and 2 more files not read; -o json lists them"}
    assert [line for line in said.splitlines() if "-o json lists" in line] == ([more[number]] if number in more else [])


def test_every_limit_that_was_reached_is_said(tmp_path: Path) -> None:
    (tmp_path / "out.log").write_text("RuntimeError: x\n")
    diagnosis = diagnose([tmp_path])
    reached = {"lines_capped": 1, "kinds_refused": 2}
    found = msgspec.structs.replace(diagnosis, coverage={**diagnosis.coverage, "limits_reached": reached})
    assert [line for line in report(found).splitlines() if line.startswith("Limit")] == [
        "Limit reached: 1 line was too long to be read whole.",
        "Limit reached: 2 kinds of progress lines had to be read line by line.",
    ]


def said_in(path: str, rank: int | None = None, line: int = 1, layer: str = "stdout") -> Any:
    return SimpleNamespace(source=Source(path, 0, line), rank=rank, layer=layer)


NODES = tuple(f"n{number}" for number in range(6))
NOBODY = "no rank, node or GPU in particular"


@pytest.mark.parametrize(
    ("suspects", "everybody", "role", "evidence", "words"),
    [
        ({"ranks": (3,)}, (), "cause", [], "rank 3"),
        ({"ranks": (3, 5)}, (), "cause", [], "ranks 3, 5"),
        ({"gpus": ("g1",), "nodes": ("n1", "n2"), "pods": ("p1",)}, (), "cause", [], "GPU g1, nodes n1, n2, pod p1"),
        ({"nodes": NODES[:4]}, (), "cause", [], "nodes n0, n1, n2, n3"),
        ({"nodes": NODES[:5]}, (), "cause", [], "nodes n0, n1, n2, n3 and 1 more"),
        ({"nodes": NODES}, (), "cause", [], "nodes n0, n1, n2, n3 and 2 more"),
        ({}, (0, 1), "cause", [], "all of ranks 0-1"),
        ({}, (0,), "cause", [], NOBODY),
        ({}, (), "cause", [said_in("a.log")], "the process that wrote a.log"),
        ({}, (), "symptom", [said_in("a.log")], NOBODY),
        ({}, (), None, [said_in("a.log")], NOBODY),
        ({}, (), "cause", [said_in("a.log"), said_in("b.log")], NOBODY),
        ({}, (), "cause", [said_in("a.log"), said_in("b.log", rank=0)], "the process that wrote b.log (rank 0)"),
        ({}, (), "cause", [said_in("a.log"), said_in("b.log", line=0)], "the process that wrote a.log"),
        ({}, (), "cause", [said_in("a.log"), said_in("b.log", layer="kernel")], "the process that wrote a.log"),
    ],
)
def test_where_it_happened_is_said_as_exactly_as_it_is_known(
    suspects: dict[str, Any], everybody: tuple[int, ...], role: str | None, evidence: list[Any], words: str
) -> None:
    verdict = SimpleNamespace(role=role, suspects=lambda: Suspects(ranks=everybody))
    root = None if role is None else SimpleNamespace(verdict=verdict)
    incident: Any = SimpleNamespace(suspects=Suspects(**suspects), root=root, evidence=evidence)
    assert where(incident) == words


@pytest.mark.parametrize(
    ("line", "width", "pieces"),
    [
        ("abcdef", 6, ["abcdef"]),
        ("abcdefg", 6, ["abcdef", "g"]),
        # Between words, unless that leaves more than half of a piece empty.
        ("abc defg", 6, ["abc", "defg"]),
        ("ab cdefg", 6, ["ab cde", "fg"]),
        ("abcdef gh", 6, ["abcdef", "gh"]),
        (" ab", 1, ["", "a", "b"]),
    ],
)
def test_a_quoted_line_is_broken_between_words(line: str, width: int, pieces: list[str]) -> None:
    assert list(_pieces(line, width)) == pieces
