"""The syntax tree: what a statement says, before anything is known about functions, paths and symbols.

Nodes are frozen and compare by content; `offset` is where a node starts in the text and takes no part in comparison,
nor does the text itself.
`walk` visits a node and all below it; `unparse` gives text that parses to the same tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import msgspec

from tracecore.ottl.values import Value


class _Node(msgspec.Struct, frozen=True, eq=False):
    def _content(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name not in ("offset", "source"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and type(self) is type(other) and self._content() == other._content()

    def __hash__(self) -> int:
        return hash((type(self), self._content()))


class Literal(_Node, frozen=True, eq=False):
    """nil, a boolean, a number, a string or bytes."""

    value: Value
    offset: int = 0


class Symbol(_Node, frozen=True, eq=False):
    """An enum symbol such as `SEVERITY_NUMBER_ERROR`; also the name of a converter written in capitals only."""

    name: str
    offset: int = 0


class FunctionName(_Node, frozen=True, eq=False):
    """A converter passed by its name."""

    name: str
    offset: int = 0


class ListLiteral(_Node, frozen=True, eq=False):
    items: tuple[Expression, ...]
    offset: int = 0


class MapLiteral(_Node, frozen=True, eq=False):
    entries: tuple[tuple[str, Expression], ...]
    offset: int = 0


class Segment(_Node, frozen=True, eq=False):
    """One name of a path and the keys that index it."""

    name: str
    keys: tuple[Expression, ...] = ()
    offset: int = 0


class Path(_Node, frozen=True, eq=False):
    """Names joined by dots. Whether the first names a context is for the compiler to know."""

    segments: tuple[Segment, ...]
    offset: int = 0


class Argument(_Node, frozen=True, eq=False):
    """An argument of a call; `name` is empty for a positional one."""

    name: str
    value: Expression | FunctionName
    offset: int = 0


class Call(_Node, frozen=True, eq=False):
    """A call of a converter, with the keys that index its result; or the editor of a statement."""

    name: str
    arguments: tuple[Argument, ...]
    keys: tuple[Expression, ...] = ()
    offset: int = 0


class Unary(_Node, frozen=True, eq=False):
    op: str
    operand: Expression
    offset: int = 0


class Binary(_Node, frozen=True, eq=False):
    """Arithmetic: `+`, `-`, `*` or `/`."""

    op: str
    left: Expression
    right: Expression
    offset: int = 0


class Comparison(_Node, frozen=True, eq=False):
    op: str
    left: Expression
    right: Expression
    offset: int = 0


class Not(_Node, frozen=True, eq=False):
    operand: Condition
    offset: int = 0


class And(_Node, frozen=True, eq=False):
    operands: tuple[Condition, ...]
    offset: int = 0


class Or(_Node, frozen=True, eq=False):
    operands: tuple[Condition, ...]
    offset: int = 0


class Statement(_Node, frozen=True, eq=False):
    """An editor and the condition it runs under."""

    editor: Call
    where: Condition | None
    source: str = ""


Expression: TypeAlias = Literal | Symbol | ListLiteral | MapLiteral | Path | Call | Unary | Binary
# A constant condition is a boolean Literal; a Call is one that gives a boolean.
Condition: TypeAlias = Comparison | Not | And | Or | Call | Literal
Node: TypeAlias = Expression | Condition | Statement | Argument | FunctionName | Segment


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below a node, in the order they are written."""
    match node:
        case Statement(editor, where):
            return (editor,) if where is None else (editor, where)
        case Call(_, arguments, keys):
            return (*arguments, *keys)
        case Argument(_, value):
            return (value,)
        case Path(segments):
            return segments
        case Segment(_, keys):
            return keys
        case ListLiteral(items):
            return items
        case MapLiteral(entries):
            return tuple(value for _, value in entries)
        case Unary(_, operand) | Not(operand):
            return (operand,)
        case Binary(_, left, right) | Comparison(_, left, right):
            return (left, right)
        case And(operands) | Or(operands):
            return operands
    return ()


def walk(node: Node) -> Iterator[Node]:
    """A node and all below it, parents first."""
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        pending.extend(reversed(children(current)))


_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def _quoted(text: str) -> str:
    out = []
    for char in text:
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif 0xDC80 <= ord(char) <= 0xDCFF:
            out.append(f"\\x{ord(char) - 0xDC00:02x}")
        elif char < " " or char == "\x7f":
            out.append(f"\\x{ord(char):02x}")
        else:
            out.append(char)
    return '"' + "".join(out) + '"'


def _literal(value: Value) -> str:
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if isinstance(value, float):
        text = repr(value)
        if "e" in text and "." not in text:
            text = text.replace("e", ".0e")
        return text
    return str(value)


def _keys(keys: tuple[Expression, ...]) -> str:
    return "".join(f"[{unparse(key)}]" for key in keys)


def _operand(node: Expression, *, tight: bool) -> str:
    """An operand of arithmetic, in parentheses unless it binds tighter than what it stands in."""
    if isinstance(node, Binary) and (tight or node.op in "+-"):
        return f"({unparse(node)})"
    return unparse(node)


def unparse(node: Node) -> str:
    """The text of a node, in one canonical spelling."""
    match node:
        case Statement(editor, where):
            return unparse(editor) + ("" if where is None else f" where {unparse(where)}")
        case Call(name, arguments, keys):
            return f"{name}({', '.join(map(unparse, arguments))}){_keys(keys)}"
        case Argument(name, value):
            return f"{name} = {unparse(value)}" if name else unparse(value)
        case Path(segments):
            return ".".join(map(unparse, segments))
        case Segment(name, keys):
            return name + _keys(keys)
        case Literal(value):
            return _literal(value)
        case Symbol(name) | FunctionName(name):
            return name
        case ListLiteral(items):
            return f"[{', '.join(map(unparse, items))}]"
        case MapLiteral(entries):
            return "{" + ", ".join(f"{_quoted(key)}: {unparse(value)}" for key, value in entries) + "}"
        case Unary(op, operand):
            return op + (f"({unparse(operand)})" if isinstance(operand, (Unary, Binary)) else unparse(operand))
        case Binary(op, left, right):
            tight = op in "*/"
            first = f"({unparse(left)})" if tight and isinstance(left, Binary) and left.op in "+-" else unparse(left)
            return f"{first} {op} {_operand(right, tight=tight)}"
        case Comparison(op, left, right):
            return f"{unparse(left)} {op} {unparse(right)}"
        case Not(operand):
            return f"not {_boolean(operand, And, Or, Not)}"
        case And(operands):
            return " and ".join(_boolean(operand, And, Or) for operand in operands)
        case Or(operands):
            return " or ".join(_boolean(operand, Or) for operand in operands)
    raise TypeError(f"not a node: {node!r}")


def _boolean(node: Condition, *looser: type) -> str:
    return f"({unparse(node)})" if isinstance(node, looser) else unparse(node)


def is_body(path: Path) -> bool:
    """Return whether a path of a log is its body as a whole."""
    *before, last = path.segments
    prefixed = len(before) == 1 and before[0].name == "log" and not before[0].keys
    return last.name == "body" and not last.keys and (prefixed or not before)


def body_pattern(call: Call, name: str = "IsMatch") -> str | None:
    """The pattern of `IsMatch(body, "…")`, or of another function with these arguments."""
    if call.name != name or call.keys or len(call.arguments) != 2 or any(a.name for a in call.arguments):
        return None
    subject, pattern = call.arguments[0].value, call.arguments[1].value
    if not isinstance(subject, Path) or not is_body(subject):
        return None
    return pattern.value if isinstance(pattern, Literal) and isinstance(pattern.value, str) else None


def paths(node: Node) -> Iterator[Path]:
    """The paths of a node, in the order they are written."""
    return (part for part in walk(node) if isinstance(part, Path))
