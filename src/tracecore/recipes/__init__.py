"""Knowledge about text: OTTL statements in the shape of the Collector's transform processor.

A recipe file is a fragment of an OpenTelemetry Collector configuration and runs there as it is
(`otelcol --config base.yaml --config container.yaml`). `load` gives the processors of one layer of evidence, in
the order in which they run. README.md beside this file describes the format and its cases.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

#: The recipe files of each layer of evidence, in the order in which their processors run. A scheduler's lines
#: are written into worker output as often as into files of their own, so both layers look for them.
FILES: dict[str, tuple[str, ...]] = {
    "stdout": ("container.yaml", "progress.yaml", "scheduler.yaml"),
    "kernel": ("kernel.yaml",),
    "kubernetes": ("kubernetes.yaml",),
    "metrics": ("metrics.yaml",),
    "scheduler": ("scheduler.yaml",),
    "flight_recorder": (),
}

_SIGNALS = {"log_statements": "log", "metric_statements": "metric", "trace_statements": "trace"}
_CONTEXTS = ("resource", "scope", "log", "metric", "datapoint", "span", "spanevent")
_ERROR_MODES = ("ignore", "silent", "propagate")


class RecipeError(Exception):
    """A recipe or case file that cannot be used; the message begins with `file:line`."""


class Line(msgspec.Struct, frozen=True):
    """One OTTL statement or condition, and the line of its file on which it begins."""

    text: str
    line: int


class Group(msgspec.Struct, frozen=True):
    """Statements that share a context, a cache and conditions (any of which lets the statements run)."""

    context: str
    conditions: tuple[Line, ...]
    statements: tuple[Line, ...]


class Processor(msgspec.Struct, frozen=True):
    """One `transform/<topic>` entry of a recipe file.

    Args:
        name: `transform/<topic>`.
        signal: what it transforms: `log`, `metric` or `trace`.
        error_mode: `ignore`, `silent` or `propagate`, as the Collector has them.
        groups: in the order in which they run.
        path: the file it was read from.
        line: where it begins there.
    """

    name: str
    signal: str
    error_mode: str
    groups: tuple[Group, ...]
    path: str
    line: int

    def config(self) -> dict[str, Any]:
        """The processor's configuration as plain data, as it stands in the file."""
        groups: list[dict[str, Any]] = []
        for group in self.groups:
            entry: dict[str, Any] = {"context": group.context}
            if group.conditions:
                entry["conditions"] = [line.text for line in group.conditions]
            entry["statements"] = [line.text for line in group.statements]
            groups.append(entry)
        return {"error_mode": self.error_mode, f"{self.signal}_statements": groups}


def directory() -> Path:
    """Where the recipe files that ship with tracecore are."""
    return Path(__file__).parent


def load(layer: str) -> tuple[Processor, ...]:
    """The processors of one layer of evidence, in the order in which they run.

    Args:
        layer: one of `tracecore.signals.record.LAYERS`.
    """
    if layer not in FILES:
        raise ValueError(f"no such layer: {layer!r}; one of {', '.join(FILES)}")
    return tuple(processor for name in FILES[layer] for processor in load_file(directory() / name))


@cache
def load_file(path: Path) -> tuple[Processor, ...]:
    """The processors of one recipe file, in the file's order. Raises `RecipeError` with file and line."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.nodes import Node

    try:
        with path.open(encoding="utf-8") as stream:
            root: Node | None = YAML(typ="safe").compose(stream)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise RecipeError(f"{path}:{line}: {error.problem}") from error
    return tuple(_processors(root, str(path))) if root is not None else ()


def _processors(root: Any, path: str) -> list[Processor]:
    top = _mapping(root, path)
    found = []
    if unknown := [key for key in top if key != "processors"]:
        raise _error(top[unknown[0]], path, f"unknown key {unknown[0]!r}; a recipe has only `processors`")
    for name, node in _mapping(top.get("processors", root), path).items():
        if not name.startswith("transform/"):
            raise _error(node, path, f"{name!r} is not a `transform/<topic>` processor")
        found.append(_processor(name, node, path))
    return found


def _processor(name: str, node: Any, path: str) -> Processor:
    options = _mapping(node, path)
    error_mode = "propagate"
    signal = ""
    groups: tuple[Group, ...] = ()
    for key, value in options.items():
        if key == "error_mode":
            error_mode = _text(value, path).text
            if error_mode not in _ERROR_MODES:
                raise _error(value, path, f"error_mode is one of {', '.join(_ERROR_MODES)}, not {error_mode!r}")
        elif key in _SIGNALS and not signal:
            signal = _SIGNALS[key]
            groups = tuple(_group(item, path) for item in _sequence(value, path))
        else:
            raise _error(value, path, f"unexpected key {key!r}; expected error_mode and one of {', '.join(_SIGNALS)}")
    if not groups:
        raise _error(node, path, f"{name} has no statements")
    return Processor(name, signal, error_mode, groups, path, node.start_mark.line)


def _group(node: Any, path: str) -> Group:
    options = _mapping(node, path)
    if unknown := [key for key in options if key not in ("context", "conditions", "statements")]:
        raise _error(options[unknown[0]], path, f"unexpected key {unknown[0]!r} in a group of statements")
    if "context" not in options or "statements" not in options:
        raise _error(node, path, "a group needs `context` and `statements`")
    context = _text(options["context"], path).text
    if context not in _CONTEXTS:
        raise _error(options["context"], path, f"context is one of {', '.join(_CONTEXTS)}, not {context!r}")
    conditions = _sequence(options["conditions"], path) if "conditions" in options else []
    return Group(
        context,
        tuple(_text(item, path) for item in conditions),
        tuple(_text(item, path) for item in _sequence(options["statements"], path)),
    )


def _mapping(node: Any, path: str) -> dict[str, Any]:
    if node.id != "mapping":
        raise _error(node, path, "expected a mapping")
    pairs: dict[str, Any] = {}
    for key, value in node.value:
        if key.value in pairs:
            raise _error(key, path, f"{key.value!r} is given twice")
        pairs[key.value] = value
    return pairs


def _sequence(node: Any, path: str) -> list[Any]:
    if node.id != "sequence":
        raise _error(node, path, "expected a list")
    return list(node.value)


def _text(node: Any, path: str) -> Line:
    if node.id != "scalar" or node.tag != "tag:yaml.org,2002:str":
        raise _error(node, path, "expected a string")
    return Line(node.value, node.start_mark.line + 1)


def _error(node: Any, path: str, problem: str) -> RecipeError:
    return RecipeError(f"{path}:{node.start_mark.line + 1}: {problem}")
