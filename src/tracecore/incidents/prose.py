"""Runbooks and advice as HTML: the small part of Markdown that they use, everything escaped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import re2

from tracecore.incidents.drawings import text

_ITEM: Final = re2.compile(r"^\s*(?:[-*]|\d+\.)\s+")
_NUMBERED: Final = re2.compile(r"^\s*\d+\.\s+")
_CODE: Final = re2.compile(r"`([^`\n]{1,400})`")
_STRONG: Final = re2.compile(r"\*\*([^*\n]{1,200})\*\*")
_EMPHASIS: Final = re2.compile(r"(^|[\s(])\*([^*\s][^*\n]{0,200})\*")


def prose(value: object) -> str:
    """One paragraph with its `code`, **strong** words and *emphasis*; a star inside of code is a star."""
    parts = _CODE.split(text(value))
    for number, part in enumerate(parts):
        if number % 2:
            parts[number] = f"<code>{part}</code>"
        else:
            parts[number] = _EMPHASIS.sub(r"\1<em>\2</em>", _STRONG.sub(r"<strong>\1</strong>", part))
    return "".join(parts)


def paragraphs(body: str) -> Iterator[str]:
    """Paragraphs, lists, tables and indented code."""
    for block in body.strip().split("\n\n"):
        lines = block.splitlines()
        # A list or a table may follow its introduction without an empty line.
        begin = next((n for n, line in enumerate(lines) if n and _kind(line) != _kind(lines[0])), len(lines))
        if lines and _kind(lines[0]) == "text" and begin < len(lines) and _kind(lines[begin]) != "text":
            yield from _block(lines[:begin])
            lines = lines[begin:]
        yield from _block(lines)


def _kind(line: str) -> str:
    return "table" if line.startswith("|") else "list" if _ITEM.match(line) else "text"


def _block(lines: list[str]) -> Iterator[str]:
    if not lines:
        return
    if all(line.startswith("    ") for line in lines):
        yield f"<pre>{text(chr(10).join(line[4:] for line in lines))}</pre>"
    elif _kind(lines[0]) == "table":
        yield from _table(lines)
    elif _kind(lines[0]) == "list":
        items: list[str] = []
        for line in lines:
            if _ITEM.match(line):
                items.append(_ITEM.sub("", line))
            elif items:
                items[-1] += f" {line.strip()}"
        kind = "ol" if _NUMBERED.match(lines[0]) else "ul"
        yield f"<{kind}>" + "".join(f"<li>{prose(item)}</li>" for item in items) + f"</{kind}>"
    else:
        yield f"<p>{prose(' '.join(lines))}</p>"


def _table(lines: list[str]) -> Iterator[str]:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    head, *rest = rows
    yield '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr>'
    yield "".join(f"<th>{prose(cell)}</th>" for cell in head) + "</tr></thead><tbody>"
    for row in rest:
        if not all(set(cell) <= {"-", ":"} for cell in row):
            yield "<tr>" + "".join(f"<td>{prose(cell)}</td>" for cell in row) + "</tr>"
    yield "</tbody></table></div>"
