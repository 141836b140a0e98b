"""Files in which tests keep recorded behaviour: a line for each story, `name: what is said`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def read(path: Path) -> dict[str, str]:
    """Return what was recorded by the name of the story; nothing where there is no file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {name: said for line in lines for name, _, said in [line.partition(": ")]}


def write(path: Path, stories: Iterable[tuple[str, str]]) -> None:
    """Record stories by their names."""
    path.write_text("".join(f"{name}: {said}\n" for name, said in stories), encoding="utf-8")
