"""Files of rules and policies are read with their positions, and bounded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracecore import positioned_yaml
from tracecore.actions import rules


def test_values_and_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('name: x\nlist:\n  - 1\n  - true\n  - "2"\n')
    top = positioned_yaml.load(file).mapping()
    assert top["name"].text() == "x"
    assert [item.scalar() for item in top["list"].items()] == [1, True, "2"]
    assert [item.line for item in top["list"].items()] == [3, 4, 5]
    assert str(top["list"].items()[1].error("no")) == f"{file}:4:5: no"


def test_aliases_of_aliases_are_not_followed_for_ever(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    file = tmp_path / "bomb.yaml"
    file.write_text("\n".join(lines) + "\n")
    with pytest.raises(positioned_yaml.FileError, match="values"):
        positioned_yaml.load(file)


def test_rules_that_were_kept_are_the_rules_of_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = rules.read(rules.path())
    assert list((tmp_path / "tracecore" / "plans").iterdir())
    again = rules.read(rules.path())
    assert [rule.name for rule in again.rules] == [rule.name for rule in first.rules]
    assert [rule.line for rule in again.rules] == [rule.line for rule in first.rules]
