"""XML as a tree: reading and writing. Fragments with several roots are read too; entities of a DTD never are.

The reader is strict in the way Go's `encoding/xml` is, and bounded in depth and in nodes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions.bounds import MAX_DEPTH, MAX_NODES
from tracecore.ottl.functions.strings import SPACE
from tracecore.ottl.values import quote

Kind = Literal[
    "document", "declaration", "element", "text", "cdata", "comment", "directive", "instruction", "attribute"
]


@dataclass(slots=True, eq=False)
class Attribute:
    """One attribute: the prefix and name as written, and the value."""

    prefix: str
    name: str
    value: str


@dataclass(slots=True, eq=False)
class Node:
    """A node of the tree.

    Args:
        kind: what it is.
        name: the local name of an element, attribute or instruction; the text of the others.
        prefix: as written before the name.
        attributes: of an element or a declaration.
        value: of an attribute; the data of an instruction.
    """

    kind: Kind
    name: str = ""
    prefix: str = ""
    attributes: list[Attribute] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None
    value: str = ""
    removed: bool = False

    def add(self, child: Node) -> Node:
        """Put a child at the end."""
        child.parent = self
        self.children.append(child)
        return child

    def live(self) -> list[Node]:
        """The children that were not removed."""
        return [child for child in self.children if not child.removed]

    def text(self) -> str:
        """All text inside, comments apart."""
        if self.kind == "attribute":
            return self.value
        pieces: list[str] = []
        stack = [self]
        while stack:
            node = stack.pop()
            if node.kind in ("text", "cdata"):
                pieces.append(node.name)
            elif node.kind != "comment":
                stack.extend(reversed(node.live()))
        return "".join(pieces)


_NAME = r"[^\s<>/=\"'&!?\[\]#$%()*+,;@^`{|}~\\.\-0-9][^\s<>/=\"'&!?\[\]#$%()*+,;@^`{|}~\\]*"
_OPEN = re.compile(rf"<({_NAME})")
_CLOSE = re.compile(rf"</({_NAME})[ \t\r\n]*>")
_ATTRIBUTE = re.compile(rf"[ \t\r\n]*({_NAME})[ \t\r\n]*=[ \t\r\n]*(?:\"([^\"]*)\"|'([^']*)')")
_END_OF_TAG = re.compile(r"[ \t\r\n]*(/?)>")
_INSTRUCTION = re.compile(rf"<\?({_NAME})[ \t\r\n]*")
_ENTITY = re.compile(r"&(?:#([0-9]{1,8})|#x([0-9a-fA-F]{1,7})|([a-zA-Z_][\w.\-]*));|&")
_ENTITIES = {"lt": "<", "gt": ">", "amp": "&", "apos": "'", "quot": '"'}
_ILLEGAL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_PSEUDO_ATTRIBUTE = re.compile(r"([^\s=]+)=(\S*)")


def fail(message: str) -> OttlRuntimeError:
    """An error of an XML text."""
    return OttlRuntimeError(f"parse xml: {message}")


class _Reader:
    def __init__(self, text: str) -> None:
        illegal = _ILLEGAL.search(text)
        if illegal:
            raise fail(f"XML syntax error: illegal character code U+{ord(illegal[0]):04X}")
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.at = 0
        self.document = Node("document")
        self.open: list[Node] = [self.document]
        self.namespaces: list[frozenset[str]] = [frozenset(("xml", "xmlns"))]
        self.nodes = 0
        # Until the first element or declaration, upstream's tree has no place for what it reads.
        self.started = False
        self.declared = False

    def syntax(self, message: str) -> OttlRuntimeError:
        return fail(f"XML syntax error on line {self.text.count(chr(10), 0, self.at) + 1}: {message}")

    def add(self, node: Node) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise fail(f"more than {MAX_NODES} nodes")
        if self.started:
            self.open[-1].add(node)

    def read(self) -> Node:
        text = self.text
        while self.at < len(text):
            if text[self.at] != "<":
                self.character_data()
            elif text.startswith("<!--", self.at):
                body = self.until("<!--", "-->", "unexpected EOF")
                if "--" in body:
                    raise self.syntax('invalid sequence "--" not allowed in comments')
                self.add(Node("comment", body))
            elif text.startswith("<![CDATA[", self.at):
                self.add(Node("cdata", self.until("<![CDATA[", "]]>", "unexpected EOF in CDATA section")))
            elif text.startswith("<!", self.at):
                self.directive()
            elif text.startswith("<?", self.at):
                self.instruction()
            elif text.startswith("</", self.at):
                self.close_tag()
            else:
                self.open_tag()
        if len(self.open) > 1:
            raise self.syntax("unexpected EOF")
        if not any(child.kind == "element" for child in self.document.children):
            raise fail("xmlquery: invalid XML document")
        return self.document

    def until(self, head: str, tail: str, missing: str) -> str:
        end = self.text.find(tail, self.at + len(head))
        if end < 0:
            raise self.syntax(missing)
        body = self.text[self.at + len(head) : end]
        self.at = end + len(tail)
        return body

    def character_data(self) -> None:
        end = self.text.find("<", self.at)
        raw = self.text[self.at : end if end >= 0 else len(self.text)]
        if "]]>" in raw:
            raise self.syntax("unescaped ]]> not in CDATA section")
        self.add(Node("text", self.resolved(raw)))
        self.at += len(raw)

    def resolved(self, raw: str) -> str:
        return _ENTITY.sub(self.entity, raw) if "&" in raw else raw

    def entity(self, found: re.Match[str]) -> str:
        decimal, hexadecimal, name = found.groups()
        if name in _ENTITIES:
            return _ENTITIES[name]
        code = int(decimal) if decimal else int(hexadecimal, 16) if hexadecimal else -1
        if 0 <= code <= 0x10FFFF and not _ILLEGAL.match(chr(code)):
            return chr(code)
        raise self.syntax(f"invalid character entity {found[0]}" + ("" if found[0] != "&" else " (no semicolon)"))

    def directive(self) -> None:
        # To the > that is not inside quotes, inner brackets or a comment.
        text, depth, quote_char, at = self.text, 0, "", self.at + 2
        while at < len(text):
            char = text[at]
            if quote_char:
                quote_char = "" if char == quote_char else quote_char
            elif char in "\"'":
                quote_char = char
            elif text.startswith("<!--", at):
                end = text.find("-->", at)
                at = len(text) if end < 0 else end + 2
            elif char == "<":
                depth += 1
            elif char == ">":
                if depth == 0:
                    self.add(Node("directive", text[self.at + 2 : at]))
                    self.at = at + 1
                    return
                depth -= 1
            at += 1
        raise self.syntax("unexpected EOF")

    def instruction(self) -> None:
        found = _INSTRUCTION.match(self.text, self.at)
        if found is None:
            raise self.syntax("expected target name after <?")
        body = self.until(found[0], "?>", "unexpected EOF")
        if found[1] == "xml":
            node = Node("declaration", "xml")
            pairs = {name: value.strip("\"'") for name, value in _PSEUDO_ATTRIBUTE.findall(body)}
            if pairs.get("version", "1.0") != "1.0":
                raise fail(f"xml: unsupported version {quote(pairs['version'])}; only version 1.0 is supported")
            node.attributes = [Attribute("", name, value) for name, value in pairs.items()]
        else:
            node = Node("instruction", found[1], value=body.strip(SPACE))
        if not self.started:
            self.started = self.declared = True
        self.add(node)

    def close_tag(self) -> None:
        found = _CLOSE.match(self.text, self.at)
        if found is None:
            raise self.syntax("expected element name after </")
        node = self.open[-1]
        if node is self.document:
            raise self.syntax(f"unexpected end element </{found[1]}>")
        name = f"{node.prefix}:{node.name}" if node.prefix else node.name
        if name != found[1]:
            raise self.syntax(f"element <{name}> closed by </{found[1]}>")
        self.open.pop()
        self.namespaces.pop()
        self.at = found.end()

    def open_tag(self) -> None:
        found = _OPEN.match(self.text, self.at)
        if found is None or found[1].count(":") > 1:
            raise self.syntax("expected element name after <")
        if len(self.open) > MAX_DEPTH:
            raise fail(f"exceeded maximum XML nesting depth of {MAX_DEPTH}")
        self.started = True
        prefix, name = _split(found[1])
        node = Node("element", name, prefix)
        self.at = found.end()
        while (end := _END_OF_TAG.match(self.text, self.at)) is None:
            node.attributes.append(self.attribute(found[1]))
        self.at = end.end()
        bound = self.namespaces[-1] | {item.name for item in node.attributes if item.prefix == "xmlns"}
        if prefix and prefix not in bound:
            raise fail(f"xmlquery: invalid XML document, namespace {prefix} is missing")
        self.add(node)
        if not end[1]:
            self.open.append(node)
            self.namespaces.append(bound)

    def attribute(self, element: str) -> Attribute:
        found = _ATTRIBUTE.match(self.text, self.at)
        if found is None:
            if self.at >= len(self.text) or ">" not in self.text[self.at :]:
                raise self.syntax("unexpected EOF")
            raise self.syntax(f"expected attribute name in element, or a value without quotes, in <{element}>")
        raw = found[2] if found[2] is not None else found[3]
        if "<" in raw:
            raise self.syntax("unescaped < inside quoted string")
        self.at = found.end()
        return Attribute(*_split(found[1]), self.resolved(raw))


def _split(name: str) -> tuple[str, str]:
    prefix, colon, local = name.partition(":")
    return (prefix, local) if colon and prefix and local else ("", name)


def parse(text: str) -> Node:
    """The tree of a document or a fragment."""
    reader = _Reader(text)
    document = reader.read()
    # Upstream drops the first node of a text that begins with no declaration but with another instruction.
    if reader.declared and not text.startswith("<?xml"):
        document.children[0].removed = True
    return document


_ESCAPES = str.maketrans({"&": "&amp;", "'": "&#39;", "<": "&lt;", ">": "&gt;", '"': "&#34;"})


def write(node: Node) -> str:
    """The text of what is inside a node."""
    pieces: list[str] = []
    keep = _keeps_space(node, True)
    for child in node.live():
        _write(child, keep, pieces)
    return "".join(pieces)


def _keeps_space(node: Node, before: bool) -> bool:
    for item in node.attributes:
        if (item.prefix, item.name) == ("xml", "space") and item.value in ("preserve", "default"):
            return item.value == "preserve"
    return before


def _write(node: Node, keep: bool, pieces: list[str]) -> None:
    # Depth is bounded by the reader, so recursion is.
    if node.kind == "text":
        pieces.append((node.name if keep else node.name.strip(SPACE)).translate(_ESCAPES))
    elif node.kind == "cdata":
        pieces.append(f"<![CDATA[{node.name}]]>")
    elif node.kind == "comment":
        pieces.append(f"<!--{node.name}-->")
    elif node.kind == "directive":
        pieces.append(f"<!{node.name}>")
    elif node.kind == "instruction":
        pieces.append(f"<?{node.name} {node.value}?>" if node.value else f"<?{node.name}?>")
    elif node.kind == "declaration":
        pieces.append(f"<?{node.name}{_attributes(node)}?>")
    else:
        name = f"{node.prefix}:{node.name}" if node.prefix else node.name
        pieces.append(f"<{name}{_attributes(node)}>")
        keep = _keeps_space(node, keep)
        for child in node.live():
            _write(child, keep, pieces)
        pieces.append(f"</{name}>")


def _attributes(node: Node) -> str:
    return "".join(
        f' {item.prefix}:{item.name}="{item.value.translate(_ESCAPES)}"'
        if item.prefix
        else f' {item.name}="{item.value.translate(_ESCAPES)}"'
        for item in node.attributes
    )
