"""Docstrings begin with a verb or a noun, so that the first word says what the thing is or does."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
REFUSED = {"What", "Who", "Whose", "Whom", "Which", "Of", "How"}


def test_no_docstring_begins_with_a_question_word() -> None:
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split(maxsplit=1)
                if words and words[0] in REFUSED:
                    found.append(f"{path.relative_to(SOURCE)}: {' '.join(words)[:80]}")
    assert not found, "say what the thing is or does:\n" + "\n".join(found)
