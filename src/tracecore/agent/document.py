"""A configuration file as a tree whose every node knows its place; several files merged; `${env:NAME}` filled in."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import re2

from tracecore import positioned_yaml
from tracecore.ottl.errors import nearest
from tracecore.signals.naming import printable

#: A configuration is written by hand: beyond this it is something else.
MAX_BYTES: Final = 8 << 20
#: A value from the environment that is shorter is not taken out of messages: it may be any word.
MIN_SECRET: Final = 4

_REFERENCE = re2.compile(r"\$\$|\$\{([^{}]{0,512})\}")
_NAME = re2.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_PLACEHOLDER = re2.compile(
    r"\b(?:REPLACE_[A-Z0-9_]+|CHANGE_?ME(?:_[A-Z0-9_]+)?|YOUR_[A-Z0-9_]+|PLACEHOLDER(?:_[A-Z0-9_]+)?)\b"
    r"|<(?:YOUR|REPLACE|INSERT)[^<>]{0,80}>"
)


#: Characters of a message that are shown.
LONGEST: Final = 600


class ConfigProblem(msgspec.Struct, frozen=True, order=True):
    """Something wrong in a configuration, and where."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        # What is wrong may quote what was written, which may be anything.
        told = printable(" ".join(self.message.split()))
        return f"{self.file}:{self.line}:{self.column}: {told if len(told) <= LONGEST else told[:LONGEST] + '…'}"


class Node:
    """A mapping, a list or a plain value, with the place where it begins.

    Args:
        value: `dict[str, Node]`, `list[Node]`, or a plain value.
        keys: for a mapping, the nodes of its keys.
        raw: for a plain value, its text as written.
        quoted: the text stood in quotes or in a block, so that it is a string whatever it looks like.
    """

    __slots__ = ("column", "file", "keys", "line", "quoted", "raw", "unset", "value")

    def __init__(
        self,
        value: Any,
        file: str,
        line: int,
        column: int,
        *,
        keys: dict[str, Node] | None = None,
        raw: str = "",
        quoted: bool = False,
    ) -> None:
        self.value = value
        self.file = file
        self.line = line
        self.column = column
        self.keys = keys or {}
        self.raw = raw
        self.quoted = quoted
        #: Environment variables in it that are not set, which makes them empty.
        self.unset: tuple[str, ...] = ()

    @property
    def is_map(self) -> bool:
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        return isinstance(self.value, list)

    def get(self, *path: str | int) -> Node | None:
        """The node at a path below this one; None where there is none."""
        node: Node | None = self
        for step in path:
            if node is None:
                return None
            if isinstance(step, int):
                node = node.value[step] if node.is_list and step < len(node.value) else None
            else:
                node = node.value.get(step) if node.is_map else None
        return node

    def near(self, *path: str | int) -> Node:
        """The node at a path, or the deepest there is on the way to it."""
        for length in range(len(path), 0, -1):
            if (found := self.get(*path[:length])) is not None:
                return found
        return self

    def key(self, name: str) -> Node:
        """Return where a key of this mapping stands; the mapping itself where it has no such key."""
        return self.keys.get(name, self)

    def plain(self) -> Any:
        """The value as plain data."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value

    def scalars(self) -> Iterator[Node]:
        """Every plain value in it."""
        if isinstance(self.value, dict):
            for node in self.value.values():
                yield from node.scalars()
        elif isinstance(self.value, list):
            for node in self.value:
                yield from node.scalars()
        else:
            yield self


class ConfigReport:
    """Collects what is wrong, so that all of it is said at once."""

    def __init__(self) -> None:
        self.problems: list[ConfigProblem] = []
        self.warnings: list[ConfigProblem] = []
        self._filled: dict[str, str] = {}
        self._placeholders: set[tuple[str, int, int]] = set()

    def filled(self, value: str, name: str) -> None:
        """A value came from the environment: it may be a password, and no message says it."""
        if len(value) >= MIN_SECRET:
            self._filled[value] = f"${{env:{name}}}"

    def _discreet(self, text: str) -> str:
        for value, name in sorted(self._filled.items(), key=lambda item: -len(item[0])):
            text = text.replace(value, name)
        return text

    def error(self, node: Node, message: str, *, hint: str = "", column: int = 0, line: int = 0) -> None:
        """A mistake at this node; `line` and `column` are counted from its beginning."""
        if (node.file, node.line, node.column) in self._placeholders:
            return  # whatever else is wrong with it goes away with the real value
        if node.unset:
            several = len(node.unset) > 1
            names = " and ".join(node.unset)
            hint = f"the environment variable{'s' if several else ''} {names} {'are' if several else 'is'} not set"
        self.problems.append(_problem(node, self._discreet(message), self._discreet(hint), line, column))

    def placeholder(self, node: Node, name: str) -> None:
        """A value that was never filled in."""
        self.error(node, f"{name} is a placeholder: put the real value here")
        self._placeholders.add((node.file, node.line, node.column))

    def warning(self, node: Node, message: str) -> None:
        """Something that works, and is probably not meant."""
        self.warnings.append(_problem(node, self._discreet(message), "", 0, 0))

    def unknown(self, node: Node, what: str, name: str, known: Sequence[str]) -> None:
        """A name that is none of the known ones."""
        hint = nearest(name, known) or (f"there are {', '.join(known)}" if known else "")
        self.error(node, f'{what} "{name}"', hint=hint)


def _problem(node: Node, message: str, hint: str, line: int, column: int) -> ConfigProblem:
    text = message + (f"; {hint}" if hint else "")
    return ConfigProblem(node.file, node.line + line, column + 1 if line else node.column + column, text)


def load(paths: Sequence[Path | str], report: ConfigReport, env: Mapping[str, str] | None = None) -> Node | None:
    """The tree of one or several files; what a later one says goes before an earlier one's.

    Args:
        paths: YAML files.
        report: told what is wrong.
        env: variables for `${env:NAME}`; the process's own when not given.
    """
    merged: Node | None = None
    for path in paths:
        tree = _load_one(Path(path), report, os.environ if env is None else env)
        if tree is not None:
            merged = tree if merged is None else _merge(merged, tree)
    if merged is not None:
        for node in merged.scalars():
            if isinstance(node.value, str) and (match := _PLACEHOLDER.search(node.value)):
                report.placeholder(node, match.group())
    return merged


def _load_one(path: Path, report: ConfigReport, env: Mapping[str, str]) -> Node | None:
    name = str(path)
    top = Node(None, name, 1, 1)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        report.error(top, f"cannot be read: {error.strerror or error}")
        return None
    if len(data) > MAX_BYTES:
        report.error(top, f"larger than {MAX_BYTES >> 20} MiB: no configuration")
        return None
    try:
        root = positioned_yaml.read(path, data)
    except positioned_yaml.FileError as error:
        report.error(Node(None, name, error.line, error.column), error.problem)
        return None
    return _Builder(name, report, env).build(root)


class _Builder:
    def __init__(self, file: str, report: ConfigReport, env: Mapping[str, str]) -> None:
        self._file = file
        self._report = report
        self._env = env

    def build(self, yaml: positioned_yaml.YamlNode) -> Node:
        node = Node(None, self._file, yaml.line + 1, yaml.column + 1)
        if yaml.id == "mapping":
            self._mapping(node, yaml)
        elif yaml.id == "sequence":
            node.value = [self.build(item) for item in yaml.items]
        else:
            self._scalar(node, yaml)
        return node

    def _mapping(self, node: Node, yaml: positioned_yaml.YamlNode) -> None:
        node.value = {}
        for key, value in zip(yaml.items[::2], yaml.items[1::2], strict=True):
            at = self.build(key)
            name = at.raw if key.id == "scalar" else ""
            if key.id != "scalar":
                self._report.error(at, "a key must be a plain name")
            elif name == "<<":
                self._report.error(at, "merge keys (<<) are not supported; write the settings out")
            elif name in node.value:
                self._report.error(at, f'"{name}" is given twice')
            else:
                node.keys[name] = at
                node.value[name] = self.build(value)

    def _scalar(self, node: Node, yaml: positioned_yaml.YamlNode) -> None:
        node.raw = yaml.text
        if not node.raw.isascii() and node.raw.encode(errors="ignore").decode() != node.raw:
            self._report.error(node, "half of a surrogate pair (\\ud800 to \\udfff) is no character")
            node.raw = ""
        node.quoted = yaml.quoted
        tag, text = yaml.tag, node.raw
        if "$" in text:
            text = self._expanded(node, text)
            if text != node.raw and not node.quoted:
                tag = _tag(text)
        node.value = _typed(text, tag)

    def _expanded(self, node: Node, text: str) -> str:
        def fill(match: Any) -> str:
            if match.group(1) is None:
                return "$"
            scheme, separator, rest = str(match.group(1)).partition(":")
            if not separator or rest.startswith("-"):
                scheme, rest = "env", str(match.group(1))
            if scheme != "env":
                self._report.error(node, f'"${{{match.group(1)}}}": only ${{env:NAME}} can be filled in')
                return ""
            name, has_default, default = rest.partition(":-")
            if not _NAME.match(name):
                self._report.error(node, f'"{name}" cannot be the name of an environment variable')
                return ""
            value = self._env.get(name)
            if value is None and not has_default:
                node.unset = tuple(dict.fromkeys((*node.unset, name)))
                self._report.warning(node, f"the environment variable {name} is not set; it is taken as empty")
            if value is not None:
                self._report.filled(value, name)
            return value if value is not None else default

        return str(_REFERENCE.sub(fill, text))


def _tag(text: str) -> str:
    """Return the type that YAML gives to this plain text."""
    try:
        node = positioned_yaml.read("", text.encode(errors="ignore"))
    except positioned_yaml.FileError:
        return "str" if text else "null"
    return node.tag if node.id == "scalar" else "str"


def _typed(text: str, tag: str) -> Any:
    if tag == "null":
        return None
    if tag == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        if tag == "int":
            return int(text.replace("_", ""), 0)
        if tag == "float":
            return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
    except ValueError:
        return text
    return text


def _merge(base: Node, over: Node) -> Node:
    if not (base.is_map and over.is_map):
        return over
    merged = Node({}, over.file, over.line, over.column, keys={**base.keys, **over.keys})
    for name in (*base.value, *(name for name in over.value if name not in base.value)):
        mine, theirs = base.value.get(name), over.value.get(name)
        merged.value[name] = theirs if mine is None else mine if theirs is None else _merge(mine, theirs)
    return merged
