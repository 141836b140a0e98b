"""Links in Markdown lead somewhere: to a file of this repository, and to a heading that is in it."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
_LEFT_OUT = {".venv", ".git", ".mypy_cache", ".ruff_cache", ".pytest_cache", "node_modules"}
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not _LEFT_OUT.intersection(path.relative_to(ROOT).parts) and "shared" not in path.relative_to(ROOT).parts[:1]
)
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_REFERENCE = re.compile(r"^\[[^\]]+\]:\s*(\S+)", re.MULTILINE)


def prose(path: Path) -> str:
    """The page without its code."""
    text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "", text)


@cache
def anchors(path: Path) -> frozenset[str]:
    """The headings of a page, as the names that links use."""
    text = re.sub(r"^(```|~~~).*?^\1", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#{1,6} +(.*?) *#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(found)


def broken(path: Path, text: str) -> list[str]:
    wrong = []
    for target in (*_LINK.findall(text), *_REFERENCE.findall(text)):
        if re.match(r"[a-z][a-z+.-]*:", target):
            continue  # another place than this repository
        where, _, anchor = unquote(target).partition("#")
        page = (path.parent / where).resolve() if where else path
        if not page.exists() or not page.is_relative_to(ROOT):
            wrong.append(f"{target}: no such file")
        elif anchor and page.suffix == ".md" and anchor not in anchors(page):
            wrong.append(f"{target}: no such heading")
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path, prose(path)) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = ROOT / "docs" / "agent.md"
    text = (
        "[a](nowhere.md) [b](operations.md#systemd) [c](operations.md#no-such-thing) [d](https://example.com/x.md)\n"
        "[the `e`](#start-stop-reload) [f](../../etc/passwd)\n[g]: gone.md\n"
    )
    assert broken(page, text) == [
        "nowhere.md: no such file",
        "operations.md#no-such-thing: no such heading",
        "../../etc/passwd: no such file",
        "gone.md: no such file",
    ]


def test_alerts_lead_to_their_runbook() -> None:
    text = (ROOT / "deploy" / "alerts" / "tracecore.rules.yaml").read_text()
    found = re.findall(r"runbook_url: \S+/docs/operations\.md#(\S+)", text)
    assert found
    assert set(found) <= anchors(ROOT / "docs" / "operations.md")
