"""Read YAML files strictly: configurations, recipes, rules and policies. Every error has `file:line:column`."""

from __future__ import annotations

import difflib
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import re2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

MAX_NODES = 100_000
MAX_DEPTH = 64
_BOOLS = {"true": True, "false": False}


class FileError(ValueError):
    """A file that cannot be used; the text begins with `file:line:column`."""

    line = column = 1
    problem = ""


def _error(path: str | Path, line: int, column: int, problem: str) -> FileError:
    error = FileError(f"{path}:{line}:{column}: {problem}")
    error.line, error.column, error.problem = line, column, problem
    return error


class YamlNode(msgspec.Struct, array_like=True):
    """A node as it was read.

    Args:
        id: mapping, sequence or scalar.
        tag: of a scalar.
        text: of a scalar.
        items: of a sequence; keys and values in turn of a mapping.
        line: from 0.
        column: from 0.
        quoted: a scalar stood in quotes or in a block, so that it is a text whatever it looks like.
    """

    id: str
    tag: str
    text: str
    items: list[YamlNode]
    line: int
    column: int
    quoted: bool = False


class At:
    """A node of a file: its value, and where it stands."""

    __slots__ = ("_node", "path")

    def __init__(self, node: YamlNode, path: str) -> None:
        self._node = node
        self.path = path

    @property
    def line(self) -> int:
        return self._node.line + 1

    def error(self, problem: str) -> FileError:
        """A complaint about this place."""
        return _error(self.path, self._node.line + 1, self._node.column + 1, problem)

    def mapping(
        self,
        known: Collection[str] | None = None,
        *,
        needs: Collection[str] = (),
        mistakes: list[FileError] | None = None,
    ) -> dict[str, At]:
        """Its entries by name; a name that is not known, given twice or missing is an error.

        Args:
            mistakes: takes errors about single names, so that the others can still be read.
        """
        if self._node.id != "mapping":
            raise self.error("expected a mapping")
        found: dict[str, At] = {}
        wrong: list[FileError] = []
        items = self._node.items
        for key, value in zip(items[::2], items[1::2], strict=True):
            name = key.text
            here = At(key, self.path)
            if name in found:
                wrong.append(here.error(f"{name!r} is given twice"))
            if known is not None and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}"
                wrong.append(here.error(f"no such key {name!r}; {hint}"))
                continue
            found[name] = At(value, self.path)
        wrong += [self.error(f"{name!r} is missing") for name in needs if name not in found]
        if wrong and mistakes is None:
            raise wrong[0]
        if mistakes is not None:
            mistakes += wrong
        return found

    def items(self) -> list[At]:
        if self._node.id != "sequence":
            raise self.error("expected a list")
        return [At(item, self.path) for item in self._node.items]

    def is_mapping(self) -> bool:
        return self._node.id == "mapping"

    def is_list(self) -> bool:
        return self._node.id == "sequence"

    def text(self) -> str:
        """A string that is not empty."""
        value = self.scalar()
        if not isinstance(value, str) or not value:
            raise self.error("expected a text")
        return value

    def scalar(self) -> str | int | float | bool | None:
        """A plain value, typed as YAML does."""
        if self._node.id != "scalar":
            raise self.error("expected a plain value")
        tag, value = self._node.tag, self._node.text
        try:
            if tag == "int":
                return int(value, 0)
            if tag == "float":
                return float(value)
        except ValueError:
            raise self.error(f"{value!r} is no number") from None
        if tag == "null":
            return None
        return _BOOLS[value.lower()] if tag == "bool" and value.lower() in _BOOLS else value

    def one_of(self, allowed: Collection[str]) -> str:
        value = self.text()
        if value not in allowed:
            near = difflib.get_close_matches(value, allowed, n=1)
            raise self.error(
                f"{value!r} is none of {', '.join(allowed)}" + (f"; did you mean {near[0]!r}?" if near else "")
            )
        return value

    def number(self, least: float, most: float) -> float:
        value = self.scalar()
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise self.error(f"expected a number from {least:g} to {most:g}")
        return value

    def flag(self) -> bool:
        value = self.scalar()
        if not isinstance(value, bool):
            raise self.error("expected true or false")
        return value

    def regex(self) -> str:
        """A regular expression that RE2 takes, which makes it linear in the text."""
        value = self.text()
        try:
            check_regex(value)
        except ValueError as error:
            raise self.error(str(error)) from None
        return value

    def duration(self, parse: Callable[[str], float]) -> float:
        value = self.scalar()
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return value
        try:
            return parse(str(value))
        except ValueError as error:
            raise self.error(str(error)) from None


def check_regex(text: str) -> None:
    """Refuse a regular expression that RE2 does not take.

    Raises:
        ValueError: with the reason.
    """
    options = re2.Options()
    # RE2 would write to standard error as well.
    options.log_errors = False
    try:
        re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        reason = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else reason
        raise ValueError(f"not a regular expression: {reason}") from None


def load(path: Path) -> At:
    """Return the root of a file.

    Raises:
        FileError: it is no YAML, or empty.
    """
    return At(read(path, path.read_bytes()), str(path))


def read(path: str | Path, data: bytes) -> YamlNode:
    """Return the root node of a YAML text.

    Args:
        path: named in errors.
        data: the text.

    Raises:
        FileError: it is no YAML, or empty, or too large or too deep.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        root = YAML(typ="safe", pure=True).compose(data.decode())
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise _error(path, line, column, f"not YAML: {error.problem or error.context}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise _error(path, 1, 1, f"not YAML: {error}") from None
    except RecursionError:
        raise _error(path, 1, 1, "nested too deeply") from None
    if root is None:
        raise _error(path, 1, 1, "the file is empty")
    return _node(root, path, count(), 0)


def _node(node: Any, path: str | Path, counted: Iterator[int], depth: int) -> YamlNode:
    mark = node.start_mark
    if depth > MAX_DEPTH:
        raise _error(path, mark.line + 1, mark.column + 1, "nested too deeply, or an alias that contains itself")
    if next(counted) >= MAX_NODES:
        # Aliases of aliases of aliases are few lines, too.
        raise _error(path, mark.line + 1, mark.column + 1, f"more than {MAX_NODES} values, aliases written out")
    items: list[YamlNode] = []
    if node.id == "mapping":
        items = [_node(part, path, counted, depth + 1) for pair in node.value for part in pair]
    elif node.id == "sequence":
        items = [_node(part, path, counted, depth + 1) for part in node.value]
    text = "" if items or node.id != "scalar" else str(node.value)
    quoted = node.id == "scalar" and node.style is not None
    return YamlNode(node.id, str(node.tag).rpartition(":")[2], text, items, mark.line, mark.column, quoted)
