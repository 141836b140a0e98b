"""Every command that reads a file says in a line what is wrong with it, whatever the file holds."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tracecore.cli.main import main

DIGITS = "9" * 10_000
DEEP = 1_100
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
#: What people, cut transfers and attackers leave where a document is expected.
DOCUMENTS: dict[str, str | bytes] = {
    "empty.yaml": "",
    "nul.json": b"\0" * 64,
    "binary.yaml": bytes(range(256)) * 8,
    "latin1.json": b'{"a": "\xe9"}',
    "surrogate.json": '{"body": "\\ud800", "pattern": "\\ud800", "\\ud800": 1}',
    "bom.json": b"\xef\xbb\xbf{}",
    "deep_list.json": "[" * DEEP,
    "deep_list_closed.json": "[" * DEEP + "]" * DEEP,
    "deep_map.json": '{"a":' * DEEP + "1" + "}" * DEEP,
    "deep_flow.yaml": "a: " + "[" * DEEP + "]" * DEEP,
    "deep_block.yaml": "{a: " * DEEP + "}" * DEEP,
    "deep_dashes.yaml": "- " * DEEP + "a\n",
    "self_list.yaml": "a: &a [*a]\n",
    "self_map.yaml": "&a\nb: *a\npolicy: *a\nreceivers: *a\n",
    "self_merge.yaml": "a: &a\n  <<: *a\n",
    "laughs.yaml": LAUGHS,
    "huge_int.json": f'{{"0": {DIGITS}, "exit_code": {DIGITS}}}',
    "huge_int.yaml": f"max_restarts: {DIGITS}\nrules: [{{retries: {DIGITS}}}]\n",
    "huge_hex.yaml": f"a: 0x{'f' * 10_000}\n",
    "huge_float.json": '{"time": 1e999999, "a": NaN}',
    "sexagesimal.yaml": f"a: {':'.join(['59'] * 3_000)}\n",
    "python_tag.yaml": '!!python/object/apply:os.system ["true"]\n',
    "odd_keys.yaml": "? [a, b]\n: c\n? {x: 1}\n: d\n1: e\n.nan: f\nnull: g\n",
    "bad_date.yaml": "a: 9999-99-99\nb: 0000-00-00 00:00:00\n",
    "many_documents.yaml": "---\na: 1\n" * 50,
    "cut.yaml": 'a: "never closed\n',
    "tabs.yaml": "a:\n\t- b\n",
    "scalar.yaml": "5\n",
    "alias.yaml": "a: *nobody\n",
}
#: Verdicts, diagnoses and ledgers that are none.
OTHERS = (
    "null", "5", '"text"', "[]", "[5]", "{}", '{"pattern.id": 3}', '{"pattern.name": ["x"]}', '{"pattern": {"id": {}}}',
    '{"pattern.id": "17", "failure": 3}', '{"incidents": 5}', '{"incidents": [5]}', '{"incidents": [null]}',
    '{"incidents": [{"root_cause": 5}]}', '{"incidents": [{"root_cause": {"pattern": 7}}]}',
    '{"incidents": [{"root_cause": {"pattern": "nope"}}], "verdicts": 3}',
    '{"incidents": [{"root_cause": {"pattern": "nope"}}], "verdicts": [3]}', '{"incidents": [{"failure": []}]}',
    '{"schema": "x", "incidents": [{"failure": {"class": 9}}]}', '{"attempts": 5}', '{"attempts": [5]}',
    '{"attempts": [{"number": "x"}]}', '[{"attempt": 1}]',
)  # fmt: skip
DOCUMENTS |= {f"document_{number:02}.json": text for number, text in enumerate(OTHERS)}

Command = Callable[[str, Path], list[str]]
#: Commands that are always tried; all of them by `make integration`.
QUICK = ("diagnose", "fr", "validate", "classify --verdict")
COMMANDS: dict[str, Command] = {
    "diagnose": lambda file, _: ["diagnose", file],
    "fr": lambda file, _: ["fr", "--jobs", "1", file],
    "classify --log": lambda file, _: ["classify", "--exit-code", "1", "--log", file],
    "classify --verdict": lambda file, _: ["classify", "--exit-code", "1", "--verdict", file],
    "classify --policy": lambda file, _: ["classify", "--exit-code", "1", "--policy", file],
    "classify --ledger": lambda file, _: ["classify", "--exit-code", "1", "--ledger", file, "--dry-run"],
    "policy show": lambda file, _: ["policy", "show", file],
    "policy test": lambda file, _: ["policy", "test", file],
    "supervise": lambda file, _: ["supervise", "--dry-run", "--policy", file, "--", "true"],
    "supervise state": lambda file, place: _with_state(file, place),
    "queue submit": lambda file, place: [
        "queue",
        "--db",
        str(place / "q.db"),
        "submit",
        "--policy",
        file,
        "--",
        "true",
    ],
    "queue list": lambda file, _: ["queue", "--db", shutil.copy(file, f"{file}.db"), "list"],
    "validate": lambda file, _: ["validate", "--config", file],
    "run": lambda file, _: ["run", "--config", file, "--drain", "0"],
    "ottl statements": lambda file, place: ["ottl", "run", "-s", file, "-r", str(place / "document_05.json")],
    "ottl records": lambda file, _: ["ottl", "run", 'set(attributes["a"], 1)', "-r", file],
    "replay": lambda file, _: ["replay", file],
    "patterns test": lambda file, _: ["patterns", "test", file],
    "patterns lint": lambda file, _: ["patterns", "lint", file],
}


def _with_state(file: str, place: Path) -> list[str]:
    state = place / "state"
    state.mkdir(exist_ok=True)
    shutil.copy(file, state / "state.json")
    return ["supervise", "--dry-run", "--state-dir", str(state), "--", "true"]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in COMMANDS]
)
def test_malformed_documents(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for file, content in DOCUMENTS.items():
        (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    wrong = []
    for file in DOCUMENTS:
        try:
            status = main(COMMANDS[name](str(tmp_path / file), tmp_path))
        except Exception as error:
            wrong.append(f"{file}: {type(error).__name__}: {str(error)[:100]}")
            continue
        said = capsys.readouterr()
        if status not in (0, 1, 2):
            wrong.append(f"{file}: status {status}")
        if "Traceback" in said.err or len(said.err) > 3_000:
            wrong.append(f"{file}: {said.err[:200]}")
    assert wrong == []


@pytest.mark.parametrize("folder", ["d", "deeper"], ids=["deep", "longer than a path may be"])
@pytest.mark.parametrize("name", ["diagnose", "fr", "replay", "patterns test", "validate", "policy show"])
def test_folders_of_1100_levels(
    name: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.chdir(root)
    for _ in range(1_100):
        os.mkdir(folder)
        os.chdir(folder)
    Path("rank0.log").write_text('Traceback (most recent call last):\n  File "t.py", line 1, in f\nValueError: deep\n')
    monkeypatch.chdir(tmp_path)
    try:
        status = main(COMMANDS[name](str(root), tmp_path))
        said = capsys.readouterr()
        if name == "diagnose":
            # What is there is read, unless its path is too long; then that is said.
            assert ("ValueError: deep" in said.out) == (folder == "d")
            assert status == (0 if folder == "d" else 1)
        else:
            assert status in (1, 2)
        assert "Traceback" not in said.err
    finally:
        subprocess.run(["rm", "-rf", root], check=True)
