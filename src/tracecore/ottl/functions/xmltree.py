"""Read XML with lxml, select nodes by XPath, and write the tree as the Collector does.

A document becomes the content of one wrapping element, so that fragments with several roots have a tree, too.
Entities other than the five built-in ones and the declarations of a DTD are refused; nothing is ever loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from lxml import etree

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions import regex
from tracecore.ottl.functions.bounds import MAX_NODES
from tracecore.ottl.functions.strings import SPACE

Element: TypeAlias = etree._Element

_WRAPPER = "document"
_DECLARATION = re.compile(r"\s*(<\?xml\s[^>]*\?>\s*)?")
#: Directives such as <!DOCTYPE a> have no meaning here. Those inside CDATA and comments are text.
_DIRECTIVE = re.compile(r"(<!\[CDATA\[.*?(?:\]\]>|\Z)|<!--.*?(?:-->|\Z))|<![A-Za-z][^\[<>]*>", re.DOTALL)
_QUOTED = re.compile(r"(?P<verbatim><!\[CDATA\[.*?\]\]>|<!--.*?-->|<\?.*?\?>)|(?P<tag><[^>]*>)|[^<]+", re.DOTALL)


@dataclass(slots=True)
class Document:
    """The XML declaration as written, and an element that wraps everything after it."""

    declaration: str
    content: Element

    def write(self) -> str:
        """Return the document as text."""
        return self.declaration + write_content(self.content)


def parse(text: str) -> Document:
    """Return the tree of a document or a fragment."""
    declaration = _DECLARATION.match(text)
    assert declaration is not None
    body = _DIRECTIVE.sub(lambda found: found[1] or "", text[declaration.end() :])
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, huge_tree=False, load_dtd=False, strip_cdata=False
    )
    try:
        content = etree.fromstring(f"<{_WRAPPER}>{body}</{_WRAPPER}>", parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise OttlRuntimeError(f"parse xml: {error}") from error
    if next(elements(content), None) is None:
        raise OttlRuntimeError("parse xml: invalid XML document: it has no element")
    for count, element in enumerate(content.iter(etree.Element)):
        if count > MAX_NODES:
            raise OttlRuntimeError(f"parse xml: more than {MAX_NODES} elements")
        if element.prefix is None and element.tag.startswith("{"):
            # A path without prefixes selects the elements of a default namespace, as in the Collector.
            element.tag = name_of(element)
    return Document(declaration[1] or "", content)


def elements(parent: Element) -> Iterator[Element]:
    """Return the child elements, without comments and instructions."""
    return parent.iterchildren(etree.Element)


def name_of(node: Element) -> str:
    """Return the local name of an element."""
    return etree.QName(node).localname


def texts(parent: Element) -> list[str]:
    """Return the pieces of text directly inside an element."""
    pieces = [parent.text, *(child.tail for child in parent)]
    return [piece for piece in pieces if piece]


def append_text(parent: Element, text: str) -> None:
    """Put text at the end of an element."""
    if not text:
        return  # assigning the text would turn CDATA into plain text
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text


def remove(node: Element) -> None:
    """Remove a node and keep the text behind it."""
    parent, before = node.getparent(), node.getprevious()
    assert parent is not None
    if node.tail and before is not None:
        before.tail = (before.tail or "") + node.tail
    elif node.tail:
        parent.text = (parent.text or "") + node.tail
    parent.remove(node)


# XPath.

_TOKEN = re.compile(r"(\s*)(\"[^\"]*\"|'[^']*'|[\w.\-]+|//|::|\S)")
_OPERATORS = frozenset(("|", "+", "-", "=", "!", "<", ">", "(", "[", ","))
_WORD_OPERATORS = frozenset(("*", "and", "or", "div", "mod"))


def _inside_wrapper(path: str) -> str:
    """Let the absolute paths of an XPath begin at the wrapper instead of the document."""
    tokens = _TOKEN.findall(path)
    following = [token for _, token in tokens[1:]] + [""]
    pieces: list[str] = []
    operand_ended = False
    for (space, token), after in zip(tokens, following, strict=True):
        pieces.append(space)
        if token in ("/", "//") and not operand_ended:
            has_step = token == "//" or after[:1].isalpha() or after[:1] in ("_", "@", "*", ".")
            token = f"/{_WRAPPER}{token if has_step else ''}"
            operand_ended = not has_step
        elif token in _WORD_OPERATORS:
            # A name, unless an operand stands before it.
            operand_ended = not operand_ended
        else:
            operand_ended = token not in _OPERATORS and token not in ("/", "//", "@", "::")
        pieces.append(token)
    return "".join(pieces)


def _string(value: Any) -> str:
    if isinstance(value, list):
        value = value[0] if value else ""
    return "".join(map(str, value.itertext(etree.Element))) if isinstance(value, etree._Element) else str(value)


# The Collector's XPath has these functions of later versions.
_LATER_FUNCTIONS: dict[tuple[None, str], Callable[..., Any]] = {
    (None, "ends-with"): lambda _, text, part: _string(text).endswith(_string(part)),
    (None, "matches"): lambda _, text, pattern: regex.compile_for("matches", _string(pattern)).matches(_string(text)),
    (None, "replace"): lambda _, text, old, new: _string(text).replace(_string(old), _string(new)),
    (None, "lower-case"): lambda _, text: _string(text).lower(),
    (None, "upper-case"): lambda _, text: _string(text).upper(),
    (None, "string-join"): lambda _, nodes, between: _string(between).join(map(_string, nodes)),
    (None, "reverse"): lambda _, nodes: nodes[::-1],
}


@lru_cache(maxsize=256)
def selector(path: str) -> Callable[[Document], list[Any]]:
    """Compile an XPath to a function that returns the selected nodes of a document.

    A node is an element, a comment, or a string of lxml that knows the element of its text or attribute.

    Raises:
        ValueError: the text is no XPath.
    """
    inside = _inside_wrapper(path)
    try:
        etree.XPath(inside, extensions=_LATER_FUNCTIONS)
    except etree.XPathSyntaxError as error:
        raise ValueError(str(error)) from error

    def select(document: Document) -> list[Any]:
        bound: dict[str, str] = {}
        if ":" in path:
            for element in document.content.iter(etree.Element):
                bound.update((prefix, uri) for prefix, uri in element.nsmap.items() if prefix)
        try:
            found = document.content.xpath(inside, namespaces=bound, extensions=_LATER_FUNCTIONS)
        except etree.XPathEvalError as error:
            if "namespace prefix" in str(error):
                return []  # the document does not have it
            raise OttlRuntimeError(f"xpath: {error}") from error
        return [node for node in found if not _between_nodes(node)] if isinstance(found, list) else []

    return select


def _between_nodes(node: Any) -> bool:
    """Return whether a selected node is only the white space behind another node."""
    return isinstance(node, str) and node.is_tail and not node.strip(SPACE)  # type: ignore[attr-defined]


def write_content(parent: Element) -> str:
    """Return the text of everything inside an element, with Go's escapes and both tags of empty elements."""
    for element in parent.iter(etree.Element):
        if not len(element) and element.text is None:
            element.text = ""
    text = etree.tostring(parent, encoding="unicode", with_tail=False)
    return _QUOTED.sub(_escape_quotes, text[text.index(">") + 1 : text.rindex("<")])


def _escape_quotes(found: re.Match[str]) -> str:
    if found["verbatim"]:
        return found[0]
    text = found[0].replace("'", "&#39;")
    # The serializer delimits attributes by " and writes a " in their values as &quot;.
    return text.replace("&quot;", "&#34;") if found["tag"] else text.replace('"', "&#34;")
