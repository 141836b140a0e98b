"""Converters of XML: selecting, inserting, removing, reshaping, and reading it into maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions import xpath
from tracecore.ottl.functions.strings import SPACE
from tracecore.ottl.functions.xmltree import Node, parse, write
from tracecore.ottl.signature import Getter, StringGetter, converter
from tracecore.ottl.values import quote


def _selector(path: str) -> Callable[[Node], list[Node]]:
    try:
        return xpath.compiled(path)
    except ValueError as error:
        raise OttlCompileError(f"invalid xpath: {error}") from error


@converter("GetXML")
def get_xml(target: StringGetter, x_path: str) -> Getter:
    """The XML of what an XPath selects."""
    select = _selector(x_path)

    def run(ctx: Context) -> str:
        text = target(ctx)
        if not text:
            return ""
        result = Node("document")
        for node in select(parse(text)):
            if node.kind in ("element", "text"):
                result.children.append(node)
            elif node.kind in ("attribute", "cdata"):
                result.children.append(Node("text", node.text()))
        return write(result)

    return run


@converter("InsertXML")
def insert_xml(target: StringGetter, x_path: str, sub_document: StringGetter) -> Getter:
    """XML with other XML put at the end of each element that an XPath selects."""
    select = _selector(x_path)

    def run(ctx: Context) -> str:
        text = target(ctx)
        document = parse(text) if text else Node("document")
        added = parse(sub_document(ctx)).live()
        wrong: list[str] = []
        for node in select(document):
            if node.kind in ("element", "document"):
                node.children += added
            else:
                wrong.append(f"InsertXML XPath selected non-element: {quote(node.name)}")
        if wrong:
            raise OttlRuntimeError("\n".join(wrong))
        return write(document)

    return run


@converter("RemoveXML")
def remove_xml(target: StringGetter, x_path: str) -> Getter:
    """XML without what an XPath selects."""
    select = _selector(x_path)

    def run(ctx: Context) -> str:
        text = target(ctx)
        if not text:
            return ""
        document = parse(text)
        for node in select(document):
            if node.kind in ("element", "comment", "cdata"):
                node.removed = True
            elif node.kind == "text":
                node.name = ""
            elif node.kind == "attribute":
                _remove_attribute(node)
        return write(document)

    return run


def _remove_attribute(node: Node) -> None:
    # By its local name alone, so one with a prefix stays, as upstream.
    assert node.parent is not None
    for item in node.parent.attributes:
        if not item.prefix and item.name == node.name:
            node.parent.attributes.remove(item)
            return


@converter("ConvertAttributesToElementsXML")
def convert_attributes_to_elements_xml(target: StringGetter, x_path: str = "") -> Getter:
    """XML with the attributes that an XPath selects (all, without one) turned into elements."""
    select = _selector(x_path or "//@*")

    def run(ctx: Context) -> str:
        document = parse(target(ctx))
        for node in select(document):
            if node.kind == "attribute" and node.parent is not None:
                node.parent.add(Node("element", node.name)).add(Node("text", node.value))
                _remove_attribute(node)
        return write(document)

    return run


@converter("ConvertTextToElementsXML")
def convert_text_to_elements_xml(target: StringGetter, x_path: str = "", element_name: str = "") -> Getter:
    """XML with each text that stands beside elements or other text wrapped in an element of its own."""
    select = _selector(x_path or "/")
    name = element_name or "value"

    def run(ctx: Context) -> str:
        document = parse(target(ctx))
        for node in select(document):
            _wrap_text(node, name)
        return write(document)

    return run


def _wrap_text(parent: Node, name: str) -> None:
    if parent.kind not in ("element", "document"):
        return
    elements = [child for child in parent.live() if child.kind == "element"]
    for child in elements:
        _wrap_text(child, name)
    texts = [child for child in parent.live() if child.kind == "text"]
    if not texts or len(texts) + len(elements) <= 1:
        return
    for child in texts:
        text = child.name
        child.kind, child.name = "element", name
        child.add(Node("text", text))


@converter("ParseSimplifiedXML")
def parse_simplified_xml(target: StringGetter) -> Getter:
    """XML as a map of element names to texts, maps, or lists where a name repeats. Attributes are left out."""

    def run(ctx: Context) -> dict[str, Any]:
        return _simplified(parse(target(ctx)))

    return run


def _simplified(parent: Node) -> dict[str, Any]:
    children = [child for child in parent.live() if child.kind == "element"]
    counts: dict[str, int] = {}
    for child in children:
        counts[child.name] = counts.get(child.name, 0) + 1
    made: dict[str, Any] = {}
    for child in children:
        if not child.live():
            continue
        value: str | dict[str, Any] = _leaf(child) or _simplified(child)
        if counts[child.name] > 1:
            items = made.setdefault(child.name, [])
            if value:
                items.append(value)
        elif value:
            made[child.name] = value
    return made


def _leaf(node: Node) -> str:
    """The text of an element that has no elements; of several pieces the first."""
    if any(child.kind == "element" for child in node.live()):
        return ""
    return next((child.name for child in node.live() if child.kind in ("text", "cdata")), "")


@converter("ParseXML")
def parse_xml(target: StringGetter) -> Getter:
    """One XML element as a map: `tag`, `content`, `attributes` and `children`."""

    def run(ctx: Context) -> dict[str, Any]:
        text = target(ctx)
        try:
            document = parse(text)
        except OttlRuntimeError as error:
            raise OttlRuntimeError(f"unmarshal xml: {error.message.removeprefix('parse xml: ')}") from error
        root = next(index for index, child in enumerate(document.children) if child.kind == "element")
        if document.children[root + 1 :]:
            raise OttlRuntimeError("trailing bytes after parsing xml")
        return _element(document.children[root])

    return run


def _element(node: Node) -> dict[str, Any]:
    made: dict[str, Any] = {"tag": node.name}
    content = "".join(child.name.strip(SPACE) for child in node.children if child.kind in ("text", "cdata"))
    if content:
        made["content"] = content
    if node.attributes:
        made["attributes"] = {item.name: item.value for item in node.attributes}
    children = [_element(child) for child in node.children if child.kind == "element"]
    if children:
        made["children"] = children
    return made
