"""The YAML that Kubernetes tools print, read fast: block maps and lists, scalars, nothing clever.

A general YAML parser in Python manages 100 kB/s, and a cluster's pods are tens of megabytes. What this does not know
(anchors, aliases, tags, flow collections that are not JSON) it refuses, and the general parser is asked.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
import re2

Node: TypeAlias = "bool | int | float | str | list[Node] | dict[str, Node] | None"

MAX_DEPTH = 64
_INTEGER = re2.compile(r"^-?(?:0|[1-9]\d{0,17})$")
_WORDS: dict[str, Node] = {"": None, "null": None, "~": None, "true": True, "false": False}
_ESCAPES = dict(zip('ntr0e abfv_N\\"/', '\n\t\r\0\x1b \a\b\f\v\xa0\x85\\"/', strict=True))


class Unsupported(ValueError):
    """Not the plain YAML this reads."""


def load_all(text: str) -> list[Node]:
    """Every document of a stream.

    Raises:
        Unsupported: there is something in it that only a general parser can read.
    """
    documents: list[list[str]] = [[]]
    for line in text.splitlines():
        if line == "---" or line.startswith("--- "):
            documents.append([line[4:]] if line[4:].strip() else [])
        elif line == "...":
            documents.append([])
        else:
            documents[-1].append(line)
    found = []
    for lines in documents:
        parser = _YamlParser(lines)
        if parser.skip(0) < len(lines):
            found.append(parser.document())
    return found


class _YamlParser:
    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.at = 0
        self.depth = 0

    def document(self) -> Node:
        self.at = self.skip(0)
        value = self.node(self.indent(self.at))
        if self.skip(self.at) < len(self.lines):
            raise Unsupported(f"line {self.at + 1}")
        return value

    def skip(self, at: int) -> int:
        """The next line that is neither blank nor a comment."""
        while at < len(self.lines):
            text = self.lines[at].lstrip(" ")
            if text and text[0] != "#":
                return at
            at += 1
        return at

    def indent(self, at: int) -> int:
        line = self.lines[at]
        return len(line) - len(line.lstrip(" "))

    def node(self, indent: int) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unsupported("too deep")
        text = self.lines[self.at][indent:]
        value: Node
        if text == "-" or text.startswith("- "):
            value = self.sequence(indent)
        elif _key_end(text) >= 0:
            value = self.mapping(indent)
        else:
            self.at += 1
            value = self.scalar(text, indent - 1)
        self.depth -= 1
        return value

    def sequence(self, indent: int) -> Node:
        items: list[Node] = []
        while True:
            self.at = self.skip(self.at)
            if self.at >= len(self.lines) or self.indent(self.at) != indent:
                return items
            text = self.lines[self.at][indent:]
            if not (text == "-" or text.startswith("- ")):
                return items
            rest = text[1:].lstrip(" ")
            if not rest:
                self.at = self.skip(self.at + 1)
                if self.at < len(self.lines) and self.indent(self.at) > indent:
                    items.append(self.node(self.indent(self.at)))
                else:
                    items.append(None)
                continue
            inner = indent + len(text) - len(rest)
            # The item's first line, as if it stood on a line of its own.
            self.lines[self.at] = " " * inner + rest
            items.append(self.node(inner))

    def mapping(self, indent: int) -> Node:
        entries: dict[str, Node] = {}
        while True:
            self.at = self.skip(self.at)
            if self.at >= len(self.lines) or self.indent(self.at) != indent:
                return entries
            text = self.lines[self.at][indent:]
            if text == "-" or text.startswith("- "):
                return entries
            end = _key_end(text)
            if end < 0:
                raise Unsupported(f"line {self.at + 1}")
            key = _key(text[:end])
            rest = text[end + 1 :].strip()
            self.at += 1
            if rest and rest[0] != "#":
                entries[key] = self.scalar(rest, indent)
                continue
            below = self.skip(self.at)
            if below < len(self.lines):
                depth = self.indent(below)
                listed = self.lines[below][depth:].startswith("-") and depth == indent
                if depth > indent or (listed and self.lines[below][depth : depth + 2] in ("-", "- ")):
                    self.at = below
                    entries[key] = self.node(depth)
                    continue
            entries[key] = None

    def scalar(self, text: str, indent: int) -> Node:
        first = text[0]
        if first in "|>":
            return self.block(text, indent)
        if first in "\"'":
            return self.quoted(text)
        if first in "{[":
            try:
                return msgspec.json.decode(text.encode())  # type: ignore[no-any-return]
            except msgspec.DecodeError as error:
                raise Unsupported("flow collection") from error
        if first in "&*!%@`?":
            raise Unsupported(f"line {self.at}")
        whole = _uncomment(text)
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if not line.strip():
                break
            if self.indent(self.at) <= indent:
                break
            whole += " " + _uncomment(line.strip())
            self.at += 1
        if whole in _WORDS:
            return _WORDS[whole]
        return int(whole) if _INTEGER.match(whole) else whole

    def quoted(self, text: str) -> str:
        quote, parts, rest = text[0], [], text[1:]
        while True:
            end = _closing(rest, quote)
            if end >= 0:
                parts.append(rest[:end])
                break
            if self.at >= len(self.lines):
                raise Unsupported("a quote that does not end")
            parts.append(rest)
            rest = self.lines[self.at].strip()
            self.at += 1
        return _join(parts, quote)

    def block(self, text: str, indent: int) -> str:
        found: list[str] = []
        depth: int | None = None
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.strip():
                here = self.indent(self.at)
                depth = here if depth is None else depth
                if here <= indent or here < depth:
                    break
                found.append(line[depth:])
            else:
                found.append("")
            self.at += 1
        while found and not found[-1]:
            found.pop()
        return ("\n" if text[0] == "|" else " ").join(found)


def _key_end(text: str) -> int:
    """Return where the colon after the key is; -1 where there is no key."""
    if text[:1] in ('"', "'"):
        end = _closing(text[1:], text[0])
        if end < 0 or text[end + 2 : end + 3] != ":":
            return -1
        return end + 2
    if text[:1] in tuple("{[|>&*!%@`?"):
        return -1
    at = text.find(": ")
    return at if at >= 0 else len(text) - 1 if text.endswith(":") else -1


def _key(text: str) -> str:
    if text[:1] in ('"', "'"):
        return _join([text[1:-1]], text[0])
    return text.strip()


def _closing(text: str, quote: str) -> int:
    at = 0
    while (at := text.find(quote, at)) >= 0:
        if quote == "'":
            if text[at + 1 : at + 2] != "'":
                return at
            at += 2
            continue
        slashes = len(text[:at]) - len(text[:at].rstrip("\\"))
        if slashes % 2 == 0:
            return at
        at += 1
    return -1


def _join(parts: list[str], quote: str) -> str:
    if quote == "'":
        return " ".join(parts).replace("''", "'")
    whole = parts[0]
    for part in parts[1:]:
        # A backslash at the end of a line keeps it together with the next; one at its beginning keeps the space.
        whole = whole[:-1] + part if whole.endswith("\\") and not whole.endswith("\\\\") else whole + " " + part
    if "\\" not in whole:
        return whole
    out: list[str] = []
    at = 0
    while at < len(whole):
        char = whole[at]
        if char != "\\" or at + 1 == len(whole):
            out.append(char)
            at += 1
            continue
        code = whole[at + 1]
        width = {"x": 2, "u": 4, "U": 8}.get(code)
        if width:
            try:
                out.append(chr(int(whole[at + 2 : at + 2 + width], 16)))
            except (ValueError, OverflowError) as error:
                raise Unsupported("escape") from error
            at += 2 + width
        else:
            out.append(_ESCAPES.get(code, code))
            at += 2
    return "".join(out)


def _uncomment(text: str) -> str:
    at = text.find(" #")
    return (text if at < 0 else text[:at]).strip()
