"""Converters of XML: selecting, inserting, removing, reshaping, and reading it into maps."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from lxml import etree

from tracecore.ottl.context import Context
from tracecore.ottl.errors import OttlCompileError, OttlRuntimeError
from tracecore.ottl.functions.strings import SPACE
from tracecore.ottl.functions.xmltree import (
    Document,
    Element,
    append_text,
    elements,
    name_of,
    parse,
    remove,
    selector,
    texts,
    write_content,
)
from tracecore.ottl.signature import Getter, String, StringGetter, converter, value_converter
from tracecore.ottl.values import quote


def _selector(path: str) -> Callable[[Document], list[Any]]:
    try:
        return selector(path)
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
        result = etree.Element("result")
        document = parse(text)
        for node in select(document):
            if isinstance(node, str):
                append_text(result, node)
            elif isinstance(node.tag, str) and node is not document.content:
                copied = deepcopy(node)
                copied.tail = None
                result.append(copied)
        return write_content(result)

    return run


@converter("InsertXML")
def insert_xml(target: StringGetter, x_path: str, sub_document: StringGetter) -> Getter:
    """XML with other XML put at the end of each element that an XPath selects."""
    select = _selector(x_path)

    def run(ctx: Context) -> str:
        text = target(ctx)
        document = parse(text) if text else Document("", etree.Element("document"))
        added = parse(sub_document(ctx)).content
        wrong: list[str] = []
        for node in select(document):
            if isinstance(node, str) or not isinstance(node.tag, str):
                wrong.append(f"InsertXML XPath selected non-element: {quote(_label(node))}")
                continue
            append_text(node, added.text or "")
            node.extend(deepcopy(added))
        if wrong:
            raise OttlRuntimeError("\n".join(wrong))
        return document.write()

    return run


def _label(node: Any) -> str:
    """Return the name of an attribute, or the text of another node."""
    if isinstance(node, str):
        return node.attrname if node.is_attribute else node  # type: ignore[attr-defined]
    return str(node.text)


@converter("RemoveXML")
def remove_xml(target: StringGetter, x_path: str) -> Getter:
    """XML without what an XPath selects."""
    select = _selector(x_path)

    def run(ctx: Context) -> str:
        text = target(ctx)
        if not text:
            return ""
        document = parse(text)
        # Text first: removing an element moves the text behind it.
        for node in sorted(select(document), key=lambda node: not isinstance(node, str)):
            if isinstance(node, str):
                _remove_string(node)
            elif node is not document.content and node.tag is not etree.PI:
                remove(node)
        return document.write()

    return run


def _remove_string(node: Any) -> None:
    parent = node.getparent()
    if node.is_attribute:
        # By its local name alone, so an attribute with a prefix stays, as in the Collector.
        parent.attrib.pop(etree.QName(node.attrname).localname, None)
    elif node.is_tail:
        parent.tail = None
    else:
        parent.text = None


@converter("ConvertAttributesToElementsXML")
def convert_attributes_to_elements_xml(target: StringGetter, x_path: str = "") -> Getter:
    """XML with the attributes that an XPath selects (all, without one) turned into elements."""
    select = _selector(x_path or "//@*")

    def run(ctx: Context) -> str:
        document = parse(target(ctx))
        for node in select(document):
            if isinstance(node, str) and node.is_attribute:  # type: ignore[attr-defined]
                _remove_string(node)
                made = etree.SubElement(node.getparent(), etree.QName(node.attrname).localname)  # type: ignore[attr-defined]
                made.text = node
        return document.write()

    return run


@converter("ConvertTextToElementsXML")
def convert_text_to_elements_xml(target: StringGetter, x_path: str = "", element_name: str = "") -> Getter:
    """XML with each text that stands beside elements or other text wrapped in an element of its own."""
    select = _selector(x_path or "/")
    name = element_name or "value"

    def run(ctx: Context) -> str:
        document = parse(target(ctx))
        for node in select(document):
            if isinstance(node, etree._Element):
                for parent in list(node.iter(etree.Element)):
                    _wrap_text(parent, name)
        return document.write()

    return run


def _wrap_text(parent: Element, name: str) -> None:
    if len(texts(parent)) + sum(1 for _ in elements(parent)) <= 1:
        return
    for place, child in reversed(list(enumerate(parent, 1))):
        if child.tail:
            made = etree.Element(name)
            made.text, child.tail = child.tail, None
            parent.insert(place, made)
    if parent.text:
        made = etree.Element(name)
        made.text, parent.text = parent.text, None
        parent.insert(0, made)


@value_converter("ParseSimplifiedXML")
def parse_simplified_xml(target: String) -> dict[str, Any]:
    """XML as a map of element names to texts, maps, or lists where a name repeats. Attributes are left out."""
    return _simplified(parse(target).content)


def _simplified(parent: Element) -> dict[str, Any]:
    children = list(elements(parent))
    names = [name_of(child) for child in children]
    made: dict[str, Any] = {}
    for name, child in zip(names, children, strict=True):
        if not len(child) and not child.text:
            continue
        has_elements = next(elements(child), None) is not None
        value: str | dict[str, Any] = _simplified(child) if has_elements else "".join(texts(child)[:1])
        if names.count(name) > 1:
            items = made.setdefault(name, [])
            if value:
                items.append(value)
        elif value:
            made[name] = value
    return made


@value_converter("ParseXML")
def parse_xml(target: String) -> dict[str, Any]:
    """One XML element as a map: `tag`, `content`, `attributes` and `children`."""
    try:
        content = parse(target).content
    except OttlRuntimeError as error:
        raise OttlRuntimeError(f"unmarshal xml: {error.message.removeprefix('parse xml: ')}") from error
    root = next(elements(content))
    if root.tail or root.getnext() is not None:
        raise OttlRuntimeError("trailing bytes after parsing xml")
    return _element(root)


def _element(node: Element) -> dict[str, Any]:
    made: dict[str, Any] = {"tag": name_of(node)}
    content = "".join(text.strip(SPACE) for text in texts(node))
    if content:
        made["content"] = content
    attributes = _namespaces(node) | {etree.QName(key).localname: value for key, value in node.attrib.items()}
    if attributes:
        made["attributes"] = attributes
    children = [_element(child) for child in elements(node)]
    if children:
        made["children"] = children
    return made


def _namespaces(node: Element) -> dict[str, str]:
    """Return the namespaces that an element declares, which count as attributes in the Collector."""
    parent = node.getparent()
    inherited = {} if parent is None else parent.nsmap
    return {prefix or "xmlns": uri for prefix, uri in node.nsmap.items() if inherited.get(prefix) != uri}
