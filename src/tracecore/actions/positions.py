"""YAML files of this layer: read once, checked strictly, every complaint with `file:line:column`."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import re2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

_BOOLS = {"true": True, "false": False}


class FileError(ValueError):
    """A file that cannot be used; the text begins with `file:line:column`."""


class At:
    """A node of a file: its value, and where it stands."""

    __slots__ = ("_node", "path")

    def __init__(self, node: Any, path: str) -> None:
        self._node = node
        self.path = path

    @property
    def line(self) -> int:
        return int(self._node.start_mark.line) + 1

    def error(self, problem: str) -> FileError:
        """A complaint about this place."""
        mark = self._node.start_mark
        return FileError(f"{self.path}:{mark.line + 1}:{mark.column + 1}: {problem}")

    def mapping(self, known: Collection[str] | None = None, *, needs: Collection[str] = ()) -> dict[str, At]:
        """Its entries by name; a name that is not known, given twice or missing is an error."""
        if self._node.id != "mapping":
            raise self.error("expected a mapping")
        found: dict[str, At] = {}
        for key, value in self._node.value:
            name = str(key.value)
            here = At(key, self.path)
            if name in found:
                raise here.error(f"{name!r} is given twice")
            if known is not None and name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"one of {', '.join(known)}"
                raise here.error(f"no such key {name!r}; {hint}")
            found[name] = At(value, self.path)
        if missing := [name for name in needs if name not in found]:
            raise self.error(f"{missing[0]!r} is missing")
        return found

    def items(self) -> list[At]:
        if self._node.id != "sequence":
            raise self.error("expected a list")
        return [At(item, self.path) for item in self._node.value]

    def is_mapping(self) -> bool:
        return bool(self._node.id == "mapping")

    def is_list(self) -> bool:
        return bool(self._node.id == "sequence")

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
        tag, value = str(self._node.tag).rpartition(":")[2], str(self._node.value)
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
            re2.compile(value)
        except re2.error as error:
            raise self.error(f"not a regular expression: {error}") from None
        return value

    def duration(self, parse: Callable[[str], float]) -> float:
        value = self.scalar()
        if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
            return value
        try:
            return parse(str(value))
        except ValueError as error:
            raise self.error(str(error)) from None


def load(path: Path) -> At:
    """The file's root node.

    Raises:
        FileError: it is no YAML, or empty.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        with path.open(encoding="utf-8") as stream:
            root = YAML(typ="safe").compose(stream)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise FileError(f"{place}: {error.problem}") from None
    except (YAMLError, UnicodeDecodeError) as error:
        raise FileError(f"{path}:1:1: {error}") from None
    if root is None:
        raise FileError(f"{path}:1:1: the file is empty")
    return At(root, str(path))
