"""XPath 1.0 over `xmltree`, compiled once to closures. Steps of one evaluation are bounded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, TypeAlias

from tracecore.ottl.errors import OttlRuntimeError
from tracecore.ottl.functions import regex
from tracecore.ottl.functions.bounds import MAX_NODES
from tracecore.ottl.functions.xmltree import Node

Result: TypeAlias = "list[Node] | str | float | bool"
Expression: TypeAlias = "Callable[[_At], Any]"

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<string>\"[^\"]*\"|'[^']*')|(?P<op>//|::|\.\.|!=|<=|>=|[()\[\]@,/|+=<>*.$-])"
    r"|(?P<name>[^\W\d][\w.\-]*(?::(?!:)(?:\*|[^\W\d][\w.\-]*))?))"
)
_AXES = frozenset(
    (
        "child",
        "descendant",
        "descendant-or-self",
        "parent",
        "ancestor",
        "ancestor-or-self",
        "following",
        "preceding",
        "following-sibling",
        "preceding-sibling",
        "attribute",
        "self",
    )
)
_FORWARD = frozenset(("child", "descendant", "descendant-or-self", "attribute", "following", "following-sibling"))
_NODE_TYPES = frozenset(("text", "node", "comment", "processing-instruction"))


class _Run:
    """One evaluation over one document: the steps it has left, and the order of the nodes."""

    __slots__ = ("left", "order", "root")

    def __init__(self, root: Node) -> None:
        self.root = root
        self.left = 10 * MAX_NODES
        self.order: dict[int, int] = {}

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OttlRuntimeError(f"the XPath takes more than {10 * MAX_NODES} steps")

    def place(self, node: Node) -> int:
        """Where a node, or the element of an attribute, comes in the document."""
        if not self.order:
            self.order = {id(held): index for index, held in enumerate(_below(self.root, True))}
        return self.order.get(id(node.parent if node.kind == "attribute" else node), -1)


class _At:
    """Where an expression is evaluated: a node, and its position among how many."""

    __slots__ = ("node", "position", "run", "size")

    def __init__(self, node: Node, position: int, size: int, run: _Run) -> None:
        self.node, self.position, self.size, self.run = node, position, size, run


@lru_cache(maxsize=256)
def compiled(text: str) -> Callable[[Node], list[Node]]:
    """What gives the nodes that an XPath selects in a document, in its order. ValueError where it is no XPath."""
    expression = _Parser(text).whole()

    def select(document: Node) -> list[Node]:
        found = expression(_At(document, 1, 1, _Run(document)))
        return found if isinstance(found, list) else []

    return select


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text} has an invalid token")
            self.tokens.append((found.lastgroup or "", found[found.lastgroup or 0]))
            at = found.end()
        self.at = 0
        self.depth = 0

    def whole(self) -> Expression:
        if not self.tokens:
            raise ValueError("expr expression is nil")
        expression = self.either()
        if self.at < len(self.tokens):
            raise ValueError(f"{self.text} has an invalid token")
        return expression

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][1] if self.at + ahead < len(self.tokens) else ""

    def kind(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead][0] if self.at + ahead < len(self.tokens) else ""

    def take(self) -> str:
        if self.at >= len(self.tokens):
            raise ValueError(f"{self.text} ends too early")
        self.at += 1
        return self.tokens[self.at - 1][1]

    def accept(self, token: str) -> bool:
        if self.kind() != "string" and self.peek() == token:
            self.at += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise ValueError(f"{self.text} has an invalid token: expected {token}")

    def binary(self, inner: Callable[[], Expression], operators: dict[str, Callable[[Any, Any], Any]]) -> Expression:
        left = inner()
        while self.kind() in ("op", "name") and self.peek() in operators:
            operate, right = operators[self.take()], inner()
            left = _joined(operate, left, right)
        return left

    def either(self) -> Expression:
        self.depth += 1
        if self.depth > 100:
            raise ValueError("the XPath nests too deep")
        left = self.both()
        while self.kind() == "name" and self.accept("or"):
            left = _logical(left, self.both(), stop=True)
        self.depth -= 1
        return left

    def both(self) -> Expression:
        left = self.equality()
        while self.kind() == "name" and self.accept("and"):
            left = _logical(left, self.equality(), stop=False)
        return left

    def equality(self) -> Expression:
        return self.binary(
            self.relation, {"=": lambda a, b: _compare(a, b, _EQUAL), "!=": lambda a, b: _compare(a, b, _UNEQUAL)}
        )

    def relation(self) -> Expression:
        return self.binary(self.sum, {name: _ordering(order) for name, order in _ORDERS.items()})

    def sum(self) -> Expression:
        return self.binary(
            self.product, {"+": lambda a, b: _number(a) + _number(b), "-": lambda a, b: _number(a) - _number(b)}
        )

    def product(self) -> Expression:
        return self.binary(
            self.negation, {"*": lambda a, b: _number(a) * _number(b), "div": _divide, "mod": _remainder}
        )

    def negation(self) -> Expression:
        if self.accept("-"):
            inner = self.negation()
            return lambda at: -_number(inner(at))
        return self.union()

    def union(self) -> Expression:
        left = self.path()
        while self.accept("|"):
            left = _joined(lambda a, b: _unique([*_nodes(a), *_nodes(b)]), left, self.path())
        return left

    def path(self) -> Expression:
        kind, token = self.kind(), self.peek()
        is_call = kind == "name" and self.peek(1) == "(" and token not in _NODE_TYPES
        if kind in ("number", "string") or token == "(" or is_call:
            start = self.filtered(self.primary())
            if self.peek() in ("/", "//") and self.kind() == "op":
                return self.steps(start)
            return start
        if self.accept("/"):
            if not self.step_follows():
                return lambda at: [at.run.root]
            return self.steps(lambda at: [at.run.root], step=self.step())
        if self.accept("//"):
            return self.steps(_descendants(lambda at: [at.run.root]), step=self.step())
        return self.steps(lambda at: [at.node], step=self.step())

    def step_follows(self) -> bool:
        return self.kind() == "name" or (self.kind() == "op" and self.peek() in ("@", "*", ".", ".."))

    def steps(self, start: Expression, step: _Step | None = None) -> Expression:
        current = start if step is None else step.after(start)
        while True:
            if self.accept("//"):
                current = self.step().after(_descendants(current))
            elif self.accept("/"):
                current = self.step().after(current)
            else:
                return current

    def step(self) -> _Step:
        if self.accept("."):
            return _Step("self", lambda node: True, self.predicates())
        if self.accept(".."):
            return _Step("parent", lambda node: True, self.predicates())
        axis = "child"
        if self.accept("@"):
            axis = "attribute"
        elif self.kind() == "name" and self.peek(1) == "::":
            axis = self.take()
            self.expect("::")
            if axis not in _AXES:
                raise ValueError(f"unknown axis {axis}")
        return _Step(axis, self.test(axis), self.predicates())

    def test(self, axis: str) -> Callable[[Node], bool]:
        wanted = "attribute" if axis == "attribute" else "element"
        if self.accept("*"):
            return lambda node: node.kind == wanted
        if self.kind() != "name":
            raise ValueError(f"{self.text} has an invalid token: expected a name or a node test")
        name = self.take()
        if name in _NODE_TYPES and self.accept("("):
            target = self.take()[1:-1] if self.kind() == "string" else ""
            self.expect(")")
            return _type_test(name, target)
        prefix, colon, local = name.partition(":")
        if not colon:
            return lambda node: node.kind == wanted and node.name == name and not node.prefix
        return lambda node: node.kind == wanted and node.prefix == prefix and local in ("*", node.name)

    def predicates(self) -> list[Expression]:
        found: list[Expression] = []
        while self.accept("["):
            found.append(self.either())
            self.expect("]")
        return found

    def filtered(self, primary: Expression) -> Expression:
        predicates = self.predicates()
        if not predicates:
            return primary

        def run(at: _At) -> list[Node]:
            nodes = _nodes(primary(at))
            for predicate in predicates:
                nodes = _filter(at, nodes, predicate)
            return nodes

        return run

    def primary(self) -> Expression:
        if self.kind() == "number":
            number = float(self.take())
            return lambda at: number
        if self.kind() == "string":
            text = self.take()[1:-1]
            return lambda at: text
        if self.accept("("):
            inner = self.either()
            self.expect(")")
            return inner
        name = self.take()
        self.expect("(")
        arguments: list[Expression] = []
        if not self.accept(")"):
            arguments.append(self.either())
            while self.accept(","):
                arguments.append(self.either())
            self.expect(")")
        return _call(name, arguments)


class _Step:
    def __init__(self, axis: str, test: Callable[[Node], bool], predicates: list[Expression]) -> None:
        self.axis, self.test, self.predicates = axis, test, predicates

    def after(self, start: Expression) -> Expression:
        def run(at: _At) -> list[Node]:
            found: list[Node] = []
            origins = _nodes(start(at))
            for origin in origins:
                nodes: list[Node] = []
                for node in _walk(origin, self.axis):
                    at.run.spend()
                    if self.test(node):
                        nodes.append(node)
                for predicate in self.predicates:
                    nodes = _filter(at, nodes, predicate)
                found += nodes
            if len(origins) > 1 and self.axis in _FORWARD:
                found.sort(key=at.run.place)
            return _unique(found)

        return run


def _filter(at: _At, nodes: list[Node], predicate: Expression) -> list[Node]:
    kept: list[Node] = []
    for position, node in enumerate(nodes, 1):
        at.run.spend()
        value = predicate(_At(node, position, len(nodes), at.run))
        if value == position if isinstance(value, float) and not isinstance(value, bool) else _boolean(value):
            kept.append(node)
    return kept


def _descendants(start: Expression) -> Expression:
    return _Step("descendant-or-self", lambda node: True, []).after(start)


def _children(node: Node) -> list[Node]:
    if node.kind not in ("document", "element"):
        return []
    # White space between nodes is passed over, except as the first child, as upstream's navigator does.
    return [
        child
        for index, child in enumerate(node.live())
        if child.kind != "declaration" and (index == 0 or child.kind != "text" or child.name.strip())
    ]


def _walk(node: Node, axis: str) -> Iterable[Node]:
    if axis == "child":
        return _children(node)
    if axis == "attribute":
        if node.kind != "element":
            return []
        return [Node("attribute", item.name, item.prefix, value=item.value, parent=node) for item in node.attributes]
    if axis == "self":
        return [node]
    if axis == "parent":
        return [] if node.parent is None else [node.parent]
    if axis in ("descendant", "descendant-or-self"):
        return _below(node, axis == "descendant-or-self")
    if axis in ("ancestor", "ancestor-or-self"):
        return _above(node, axis == "ancestor-or-self")
    if axis.endswith("-sibling"):
        return _beside(node, axis.startswith("following"))
    return _outside(node, axis == "following")


def _below(node: Node, itself: bool) -> Iterator[Node]:
    stack = [node] if itself else list(reversed(_children(node)))
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(_children(current)))


def _above(node: Node, itself: bool) -> Iterator[Node]:
    current = node if itself else node.parent
    while current is not None:
        yield current
        current = current.parent


def _beside(node: Node, after: bool) -> list[Node]:
    if node.parent is None or node.kind == "attribute":
        return []
    siblings = _children(node.parent)
    place = next((index for index, sibling in enumerate(siblings) if sibling is node), -1)
    if place < 0:
        return []
    return siblings[place + 1 :] if after else siblings[:place][::-1]


def _outside(node: Node, after: bool) -> Iterator[Node]:
    for origin in _above(node, True):
        for sibling in _beside(origin, after):
            inside = list(_below(sibling, True))
            yield from inside if after else reversed(inside)


def _unique(nodes: list[Node]) -> list[Node]:
    seen: set[tuple[int, str, str]] = set()
    kept: list[Node] = []
    for node in nodes:
        # Attribute nodes are made for each walk; what they stand for tells them apart.
        mark = (id(node.parent), node.prefix, node.name) if node.kind == "attribute" else (id(node), "", "")
        if mark not in seen:
            seen.add(mark)
            kept.append(node)
    return kept


def _type_test(name: str, target: str) -> Callable[[Node], bool]:
    if name == "text":
        return lambda node: node.kind in ("text", "cdata", "directive")
    if name == "comment":
        return lambda node: node.kind == "comment"
    if name == "processing-instruction":
        return lambda node: node.kind == "instruction" and target in ("", node.name)
    return lambda node: True


# Values.


def _nodes(value: Any) -> list[Node]:
    if isinstance(value, list):
        return value
    raise OttlRuntimeError("the XPath uses a value where nodes are wanted")


def _text_of(node: Node) -> str:
    if node.kind in ("text", "comment"):
        return node.name
    return node.text() if node.kind in ("element", "attribute", "document") else ""


def _string(value: Any) -> str:
    if isinstance(value, list):
        return _text_of(value[0]) if value else ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        return "NaN" if value != value else str(int(value)) if value == int(value) else repr(value)
    return str(value)


_NUMERIC = re.compile(r"\s*-?(?:\d+(?:\.\d*)?|\.\d+)\s*")


def _number(value: Any) -> float:
    if isinstance(value, (bool, float)):
        return float(value)
    text = _string(value)
    return float(text) if len(text) < 400 and _NUMERIC.fullmatch(text) else math.nan


def _boolean(value: Any) -> bool:
    if isinstance(value, float) and not isinstance(value, bool):
        return value == value and value != 0
    return bool(value)


def _divide(a: Any, b: Any) -> float:
    left, right = _number(a), _number(b)
    if right == 0:
        return math.nan if left == 0 or left != left else math.copysign(math.inf, left) * math.copysign(1, right)
    return left / right


def _remainder(a: Any, b: Any) -> float:
    left, right = _number(a), _number(b)
    return math.nan if right == 0 or math.isinf(left) else math.fmod(left, right)


_EQUAL: Callable[[Any, Any], bool] = lambda a, b: a == b  # noqa: E731
_UNEQUAL: Callable[[Any, Any], bool] = lambda a, b: a != b  # noqa: E731
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _compare(a: Any, b: Any, same: Callable[[Any, Any], bool]) -> bool:
    if isinstance(a, bool) or isinstance(b, bool):
        return same(_boolean(a), _boolean(b))
    left = [_text_of(node) for node in a] if isinstance(a, list) else [a]
    right = [_text_of(node) for node in b] if isinstance(b, list) else [b]
    numeric = isinstance(a, float) or isinstance(b, float)
    return any(
        same(_number(one), _number(other)) if numeric else same(_string(one), _string(other))
        for one in left
        for other in right
    )


def _ordering(order: Callable[[float, float], bool]) -> Callable[[Any, Any], bool]:
    def compare(a: Any, b: Any) -> bool:
        left = [_text_of(node) for node in a] if isinstance(a, list) else [a]
        right = [_text_of(node) for node in b] if isinstance(b, list) else [b]
        return any(order(_number(one), _number(other)) for one in left for other in right)

    return compare


def _joined(operate: Callable[[Any, Any], Any], left: Expression, right: Expression) -> Expression:
    return lambda at: operate(left(at), right(at))


def _logical(left: Expression, right: Expression, *, stop: bool) -> Expression:
    return lambda at: stop if _boolean(left(at)) is stop else _boolean(right(at))


# Functions.


def _substring(text: str, start: float, length: float = math.inf) -> str:
    first = _round(start)
    last = first + _round(length)
    return "".join(char for place, char in enumerate(text, 1) if first <= place < last)


def _round(number: float) -> float:
    return number if not math.isfinite(number) else float(math.floor(number + 0.5))


def _translate(text: str, old: str, new: str) -> str:
    table: dict[int, str | None] = {}
    for index, char in enumerate(old):
        table.setdefault(ord(char), new[index] if index < len(new) else None)
    return text.translate(table)


_S, _N, _B, _L = _string, _number, _boolean, _nodes
_ANY: Callable[[Any], Any] = lambda value: value  # noqa: E731

# Each function: how its arguments are converted, how many must be there, what it does.
_FUNCTIONS: dict[str, tuple[tuple[Callable[[Any], Any], ...], int, Callable[..., Any]]] = {
    "count": ((_L,), 1, lambda nodes: float(len(nodes))),
    "sum": ((_L,), 1, lambda nodes: float(sum(_number(_text_of(node)) for node in nodes))),
    "reverse": ((_L,), 1, lambda nodes: nodes[::-1]),
    "boolean": ((_B,), 1, _ANY),
    "not": ((_B,), 1, lambda value: not value),
    "true": ((), 0, lambda: True),
    "false": ((), 0, lambda: False),
    "floor": ((_N,), 1, lambda value: value if not math.isfinite(value) else float(math.floor(value))),
    "ceiling": ((_N,), 1, lambda value: value if not math.isfinite(value) else float(math.ceil(value))),
    "round": ((_N,), 1, _round),
    "starts-with": ((_S, _S), 2, str.startswith),
    "ends-with": ((_S, _S), 2, str.endswith),
    "contains": ((_S, _S), 2, lambda text, part: part in text),
    "substring": ((_S, _N, _N), 2, _substring),
    "substring-before": ((_S, _S), 2, lambda text, part: text.partition(part)[0] if part and part in text else ""),
    "substring-after": ((_S, _S), 2, lambda text, part: text.partition(part)[2] if part else text),
    "translate": ((_S, _S, _S), 3, _translate),
    "replace": ((_S, _S, _S), 3, lambda text, old, new: text.replace(old, new)),
    "matches": ((_S, _S), 2, lambda text, pattern: regex.compile_for("matches", pattern).matches(text)),
    "lower-case": ((_S,), 1, str.lower),
    "upper-case": ((_S,), 1, str.upper),
    "string-join": ((_L, _S), 2, lambda nodes, between: between.join(map(_text_of, nodes))),
}
# These take the node at hand where they are given no argument.
_OF_NODE: dict[str, Callable[[Any], Any]] = {
    "string": _string,
    "number": _number,
    "string-length": lambda value: float(len(_string(value))),
    "normalize-space": lambda value: " ".join(_string(value).split()),
    "name": lambda nodes: (f"{nodes[0].prefix}:{nodes[0].name}" if nodes[0].prefix else nodes[0].name) if nodes else "",
    "local-name": lambda nodes: nodes[0].name if nodes else "",
    "namespace-uri": lambda nodes: "",
}


def _call(name: str, arguments: list[Expression]) -> Expression:
    if name == "position" and not arguments:
        return lambda at: float(at.position)
    if name == "last" and not arguments:
        return lambda at: float(at.size)
    if name == "concat":
        if len(arguments) < 2:
            raise ValueError("concat() must have at least two arguments")
        return lambda at: "".join(_string(argument(at)) for argument in arguments)
    if name in _OF_NODE and len(arguments) <= 1:
        of = _OF_NODE[name]
        return (lambda at: of(arguments[0](at))) if arguments else (lambda at: of([at.node]))
    if name not in _FUNCTIONS:
        raise ValueError(f"not yet support this function {name}()")
    converts, least, function = _FUNCTIONS[name]
    if not least <= len(arguments) <= len(converts):
        raise ValueError(f"{name}() has the wrong number of arguments")

    def run(at: _At) -> Any:
        return function(*(convert(argument(at)) for convert, argument in zip(converts, arguments, strict=False)))

    return run
