"""Options of an operator, read with every mistake at its place."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import re2

from tracecore.durations import parse_duration
from tracecore.signals.logs.operators.entry import Field
from tracecore.signals.logs.operators.expression import Expression, ExpressionError
from tracecore.signals.logs.operators.linear import Searcher

Path: TypeAlias = tuple[str | int, ...]
Problem: TypeAlias = tuple[Path, str]
T = TypeVar("T")

_SIZES = {
    "": 1, "b": 1, "k": 1000, "kb": 1000, "kib": 1 << 10, "m": 10**6, "mb": 10**6, "mib": 1 << 20, "g": 10**9,
    "gb": 10**9, "gib": 1 << 30,
}  # fmt: skip
_SIZE = re2.compile(r"^(\d+(?:\.\d+)?)\s*([a-z]*)$")


class Options:
    """The options of one operator.

    Args:
        values: as the configuration has them.
        path: where they stand.
        problems: where mistakes are noted.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, problems: list[Problem]) -> None:
        self._values = values
        self.path = path
        self._problems = problems
        self._asked: set[str] = set()

    def wrong(self, name: str, message: str) -> None:
        """Notes a mistake in an option."""
        self._problems.append(((*self.path, name) if name in self._values else self.path, message))

    def raw(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        found = self._values.get(name)
        return default if found is None else found

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        found = self.raw(name, default)
        if isinstance(found, str):
            return found
        if isinstance(found, int | float) and not isinstance(found, bool):
            return str(found)
        self.wrong(name, "expected a text")
        return default

    def flag(self, name: str, default: bool) -> bool:
        found = self.raw(name, default)
        if isinstance(found, bool):
            return found
        self.wrong(name, "expected true or false")
        return default

    def count(self, name: str, default: int) -> int:
        found = self.raw(name, default)
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return found
        self.wrong(name, "expected a whole number")
        return default

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        found = self.text(name, default)
        if found not in allowed:
            self.wrong(name, f'"{found}" is none of {", ".join(filter(None, allowed))}')
            return default
        return found

    def duration(self, name: str, default: int) -> int:
        found = self.raw(name)
        if found is None:
            return default
        try:
            return parse_duration(str(found))
        except ValueError:
            self.wrong(name, "expected a duration such as 5s")
            return default

    def size(self, name: str, default: int) -> int:
        found = self.raw(name)
        if found is None:
            return default
        if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
            return found
        match = _SIZE.match(found.lower()) if isinstance(found, str) else None
        if match is not None and match.group(2) in _SIZES:
            return int(float(match.group(1)) * _SIZES[match.group(2)])
        self.wrong(name, "expected a size such as 1MiB")
        return default

    def field(self, name: str, default: str = "", root: bool = False) -> Field | None:
        """A place in an entry; None where it is missing or wrong."""
        text = self.text(name, default)
        return self.made(name, lambda: Field(text, root)) if text else None

    def needed_field(self, name: str, default: str = "", root: bool = False) -> Field:
        """A place in an entry. Some place where that is missing or wrong: the operator will not run."""
        if not default and not self.has(name):
            self.wrong(name, f'"{name}" is missing')
        return self.field(name, default, root) or Field(default or "body", root)

    def condition(self, name: str) -> Expression | None:
        """An expression that is true or false; None where it is missing or wrong."""
        text = self.text(name)
        return self.made(name, lambda: Expression(text, boolean=True)) if text else None

    def value(self, name: str, found: Any) -> Any:
        """A value, or the expression that gives it."""
        if isinstance(found, str) and found.startswith("EXPR(") and found.endswith(")"):
            return self.made(name, lambda: Expression(found[5:-1]))
        return found

    def regex(self, name: str) -> Searcher:
        """An expression. Some expression where that is missing or wrong: the operator will not run."""
        text = self.text(name)
        if not text:
            self.wrong(name, f'"{name}" is missing')
        return self.made(name, lambda: Searcher(text)) or Searcher("")

    def inner(self, name: str) -> Options | None:
        """Options within an option."""
        found = self.raw(name)
        if found is None:
            return None
        if not isinstance(found, Mapping):
            self.wrong(name, "expected settings by name")
            return None
        return self.part(found, name)

    def part(self, values: Mapping[str, Any], *path: str | int) -> Options:
        """Options at a place below these."""
        return Options(values, (*self.path, *path), self._problems)

    def finish(self) -> None:
        """Notes options that nobody asked for."""
        for name in self._values:
            if name not in self._asked:
                close = difflib.get_close_matches(str(name), self._asked, 1)
                self._problems.append(
                    (
                        (*self.path, name),
                        f'no such setting "{name}"' + (f'; did you mean "{close[0]}"?' if close else ""),
                    )
                )

    def made(self, name: str, make: Callable[[], T]) -> T | None:
        """Return what a function makes; None, and a mistake noted, where it cannot."""
        try:
            return make()
        except re2.error as error:
            self.wrong(name, f"no regular expression: {error.args[0] if error.args else error}")
        except (ValueError, ExpressionError) as error:
            self.wrong(name, str(error))
        return None
