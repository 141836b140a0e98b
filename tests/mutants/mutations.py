"""Small changes of a program: one operator, limit, condition or attribute, or one statement or rule left out."""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
ARITHMETIC = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "//"), ast.FloorDiv: ("//", "*")}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "bisect_left": "bisect_right"}
NAMES |= {"bisect_right": "bisect_left"}
ATTRIBUTES = {"first": "last", "last": "first", "end": "time"}
#: A table at module level has at least so many entries, each of which can be left out.
TABLE = 4


class Mutation(NamedTuple):
    """A change of one place: `text` instead of the characters from `begin` to `end`."""

    path: str
    line: int
    begin: int
    end: int
    text: str
    #: Where its statement begins; of a statement over several lines coverage knows only some.
    first: int

    @property
    def lines(self) -> range:
        return range(self.first, self.line + 1)

    def apply(self, source: str) -> str:
        return source[: self.begin] + self.text + source[self.end :]

    def describe(self, source: str) -> str:
        """Return the place and the line before and after."""
        return self.change(source).replace(self.path, f"{self.path}:{self.line}", 1)

    def change(self, source: str) -> str:
        """Return the file and the line before and after."""
        after = self.apply(source).splitlines()[self.line - 1]
        return f"{self.path}\n  - {source.splitlines()[self.line - 1].strip()}\n  + {after.strip()}"


class Places:
    """Finds what can be changed in one file. Annotations, messages and texts are left alone."""

    def __init__(self, path: str, source: str) -> None:
        self.path, self.source = path, source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._lines = source.splitlines(keepends=True)

    def _at(self, line: int, column: int) -> int:
        # Columns of the syntax tree count bytes.
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _begin(self, node: ast.expr) -> int:
        return self._at(node.lineno, node.col_offset)

    def _end(self, node: ast.expr) -> int:
        return self._at(node.end_lineno or node.lineno, node.end_col_offset or 0)

    def mutations(self) -> Iterator[Mutation]:
        """Yield every change of this file."""
        tree = ast.parse(self.source)
        starts = sorted({node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt)})
        changes = [change for node in self._code(tree) for change in self._changes(node)]
        for change in [*changes, *self._left_out(tree)]:
            yield change._replace(first=starts[bisect_right(starts, change.line) - 1])

    def _left_out(self, tree: ast.Module) -> Iterator[Mutation]:
        """Yield the program without one statement, or without one entry of a table."""
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                for node in ast.walk(function):
                    if isinstance(node, ast.stmt) and _can_be_left_out(node):
                        yield self._without(node, "pass")
        for statement in tree.body:
            table = getattr(statement, "value", None)
            if isinstance(table, ast.Tuple | ast.List) and len(table.elts) >= TABLE:
                yield from (self._without(entry, "*()") for entry in table.elts if isinstance(entry, ast.Call))

    def _without(self, node: ast.stmt | ast.expr, text: str) -> Mutation:
        # As many lines as before, so that all other code stays where it is.
        lines = "\n" * ((node.end_lineno or node.lineno) - node.lineno)
        text = f"*({lines})" if text == "*()" else f"{text}{lines}"
        begin = self._at(node.lineno, node.col_offset)
        return self._change(begin, self._at(node.end_lineno or node.lineno, node.end_col_offset or 0), text)

    def _code(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield nodes that decide something at run time."""
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            if name == "keywords" and isinstance(node, ast.ClassDef):
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Raise | ast.Assert):
                    continue
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    continue
                if isinstance(child, ast.keyword) and child.arg == "strict":
                    continue  # like an assertion, it says what is so already
                yield child
                yield from self._code(child)

    def _changes(self, node: ast.AST) -> Iterator[Mutation]:
        if isinstance(node, ast.Compare):
            left = node.left
            for operator, right in zip(node.ops, node.comparators, strict=True):
                yield from self._between(left, right, *COMPARISONS[type(operator)])
                left = right
        elif isinstance(node, ast.BoolOp):
            words = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, *words)
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC and not _is_text(node):
            yield from self._between(node.left, node.right, *ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield self._change(self._begin(node), self._begin(node) + len("not"), "")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield self._change(self._begin(node), self._end(node), str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            # One more of very many is no different program.
            value = node.value * 2 if node.value >= 64 else node.value + 1
            yield self._change(self._begin(node), self._end(node), str(value))
        elif isinstance(node, ast.Name) and node.id in NAMES:
            yield self._change(self._begin(node), self._end(node), NAMES[node.id])
        elif isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            yield self._change(self._end(node) - len(node.attr), self._end(node), ATTRIBUTES[node.attr])
        elif isinstance(node, ast.Continue | ast.Break):
            begin = self._at(node.lineno, node.col_offset)
            word = "break" if isinstance(node, ast.Continue) else "continue"
            yield self._change(begin, begin + len("break" if word == "continue" else "continue"), word)

    def _between(self, left: ast.expr, right: ast.expr, before: str, after: str) -> Iterator[Mutation]:
        begin, end = self._end(left), self._begin(right)
        place = self.source.find(before, begin, end)
        if place >= 0:
            yield self._change(place, place + len(before), after)

    def _change(self, begin: int, end: int, text: str) -> Mutation:
        return Mutation(self.path, line := self.source.count("\n", 0, begin) + 1, begin, end, text, line)


def _is_text(node: ast.BinOp) -> bool:
    """Whether this joins texts or lists, where another operator only raises."""
    return any(
        isinstance(side, ast.Constant | ast.JoinedStr | ast.List | ast.Tuple) for side in (node.left, node.right)
    ) and any(
        isinstance(getattr(side, "value", None), str) or isinstance(side, ast.JoinedStr | ast.List | ast.Tuple)
        for side in (node.left, node.right)
    )


def _can_be_left_out(node: ast.stmt) -> bool:
    """Whether a program without this statement still runs: calls, changes of objects, and early ends."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.If):
        return not node.orelse and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break | ast.Raise)
    return isinstance(node, ast.AugAssign | ast.Delete)
